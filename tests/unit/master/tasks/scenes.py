"""State documents with a task service that never was, from the real `TaskService`."""

from typing import Any

from tests.unit.core.tasks.service.policies import first_come
from tests.unit.core.tasks.service.world import LARGE, World, app
from tests.unit.master.scenes import four_nodes


def task_state(world: World) -> dict[str, Any]:
    """What `LiveTaskService.document` makes of a service."""
    return {
        **world.service.snapshot(),
        "use": world.service.use(120, 24),
        "workers_wanted": 2,
        "nodes": ["w1"],
        "submit_to": "hdfs:///submitted",
        "problems": [],
        "used": {"user": "ann", "core_s": 30.5, "gpu_s": 2.0, "read_bytes": 4096},
        "attempts": [["cpu", "done", 7, 30.5], ["gpu", "failed", 1, 2.0]],
    }


def busy_world() -> World:
    """One application has ended, another one runs."""
    world = World(first_come)
    world.add_worker(LARGE, "n1")
    world.submit(app("early", 4))
    world.calm()
    world.submit(app("late", 300))
    world.run(24)
    return world


def state_with(tasks: dict[str, Any] | None) -> dict[str, Any]:
    """A state document with this for a task service."""
    return {**four_nodes().state(), "tasks": tasks}
