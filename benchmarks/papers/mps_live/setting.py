"""What is run: the machines, the DAGs of both worlds, and what a task costs beside its own time. Pure.

Tasks wait as long as they would compute. The mixes are random DAGs as those of `mps_paper`, whose times of
10 s on average are divided by `SLOWNESS`; no task is shorter than `LEAST_S`, none longer than 5 s. Each task
leaves a file of `FILE_BYTES` in HDFS, which its children read.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from yarn_accel.core.dags.model import Dag, DagEdge, DagTask, PriorityClass
from yarn_accel.dags.generator import DagShape, random_dag

N_MACHINES = 4
WORKER_MIB = 768
#: A time of the paper's experiments, divided by this, is ours.
SLOWNESS = 4.0
LEAST_S = 2.0
_MOST_S = 5.0
_MEAN_S = 10.0
FILE_BYTES = 1_000_000
#: Files go through HDFS, whichever machine made them: so all of a task's files count in its own time.
BANDWIDTH_BYTES_PER_S = 1e12
POLICY = "mps"
#: What tasks are in the measurements of overhead.
FUNCTIONS, FILES = "functions", "files"
_ARRIVAL_S = 2.0
_N_HIGH, _N_BASIC = 2, 4
_LEAST_TASKS, _MOST_TASKS = 5, 9

#: The preemptive DAG of the second world. The tasks of all others take a tenth of its makespan at most, also
#: where half a second comes to each: 2.5 s of 30 s and more.
URGENT = "urgent"
_URGENT_S = {
    "prepare": 6.0,
    "left": 7.0,
    "middle": 6.0,
    "right": 5.0,
    "join": 5.0,
    "refine-a": 6.0,
    "refine-b": 7.0,
    "finish": 5.0,
}
_URGENT_AFTER = {
    "left": ("prepare",),
    "middle": ("prepare",),
    "right": ("prepare",),
    "join": ("left", "middle", "right"),
    "refine-a": ("join",),
    "refine-b": ("join",),
    "finish": ("refine-a", "refine-b"),
}
_URGENT_ARRIVAL_S, _LATER_S = 4.0, 0.6
_N_FILLING, _ABREAST = 24, 4


@dataclass(frozen=True)
class EmulatedTask:
    """One task: how long it waits, and whose files it reads first."""

    task: str
    wait_s: float
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmulatedDag:
    """One DAG, when it is submitted and in which class; its tasks come after those they need."""

    name: str
    tasks: tuple[EmulatedTask, ...]
    arrival_s: float = 0.0
    priority_class: PriorityClass = PriorityClass.BASIC
    file_bytes: int = FILE_BYTES

    def n_bytes(self, task: EmulatedTask) -> int:
        """What a task reads and writes."""
        return self.file_bytes * (1 + len(task.after))


@dataclass(frozen=True)
class Costs:
    """What is measured of tasks that the machines have all to themselves, and given to the simulator.

    Attributes:
        task_s: of a machine between two tasks, beside the wait: the end is reported, the next one ordered and
            started, its output committed.
        bytes_per_s: of all that a task reads from HDFS and writes there.
    """

    task_s: float
    bytes_per_s: float

    def duration_s(self, dag: EmulatedDag, task: EmulatedTask) -> float:
        """How long a machine is busy with a task."""
        return task.wait_s + self.task_s + dag.n_bytes(task) / self.bytes_per_s


def declared(dag: EmulatedDag, costs: Costs) -> Dag:
    """A DAG as simulator and service plan with it."""
    tasks = tuple(DagTask(each.task, round(costs.duration_s(dag, each), 3)) for each in dag.tasks)
    edges = tuple(DagEdge(parent, each.task) for each in dag.tasks for parent in each.after)
    return Dag(dag.name, tasks, edges)


def mix_dags(number: int, share: float = 1.0) -> list[EmulatedDag]:
    """Six random DAGs, two of them high, which arrive one after the other; equal numbers give equal DAGs.

    Args:
        share: of the tasks.
    """
    rng = Random(f"mix {number}")
    classes = [PriorityClass.HIGH] * _N_HIGH + [PriorityClass.BASIC] * _N_BASIC
    rng.shuffle(classes)
    found = []
    for at, priority_class in enumerate(classes):
        word = priority_class.word
        name = f"{word}-{1 + sum(each is priority_class for each in classes[:at])}"
        found.append(EmulatedDag(name, _random_tasks(name, rng, share), at * _ARRIVAL_S, priority_class))
    return found


def _random_tasks(name: str, rng: Random, share: float) -> tuple[EmulatedTask, ...]:
    shape = DagShape(
        max(2, round(share * rng.randint(_LEAST_TASKS, _MOST_TASKS))),
        fat=rng.uniform(0.5, 0.8),
        density=rng.uniform(0.2, 0.8),
        regularity=rng.uniform(0.2, 0.8),
    )
    dag = random_dag(name, shape, rng, _MEAN_S, BANDWIDTH_BYTES_PER_S)
    names = [each.task.replace(f"{name}.", "t") for each in dag.tasks]
    return tuple(
        EmulatedTask(
            names[at],
            round(min(max((dag.tasks[at].runtime_s or 0.0) / SLOWNESS, LEAST_S), _MOST_S), 2),
            tuple(names[parent] for parent, _ in dag.parents[at]),
        )
        for at in dag.topological
    )


def preemption_dags(number: int, share: float = 1.0) -> list[EmulatedDag]:
    """Two basic DAGs that fill all machines, and a preemptive one; later in each further repeat.

    Args:
        share: of the basic tasks.
    """
    n = round(share * _N_FILLING)
    filling = tuple(
        EmulatedTask(f"t{at}", LEAST_S, (f"t{at - _ABREAST}",) if at >= _ABREAST else ()) for at in range(n)
    )
    urgent = tuple(
        EmulatedTask(task, wait_s, _URGENT_AFTER.get(task, ())) for task, wait_s in _URGENT_S.items()
    )
    return [
        EmulatedDag("filling-1", filling),
        EmulatedDag("filling-2", filling, 0.5),
        EmulatedDag(URGENT, urgent, _URGENT_ARRIVAL_S + _LATER_S * number, PriorityClass.PREEMPTIVE),
    ]


def cost_dags(file_bytes: int, n_each: int = 5) -> list[EmulatedDag]:
    """A chain for each machine, by which costs are measured."""
    tasks = tuple(EmulatedTask(f"t{at}", LEAST_S, (f"t{at - 1}",) if at else ()) for at in range(n_each))
    return [EmulatedDag(f"chain-{n}", tasks, file_bytes=file_bytes) for n in range(N_MACHINES)]


@dataclass(frozen=True)
class OverheadPlan:
    """How often what is run to see what a task costs; without files tasks are functions in warm workers."""

    n_first: int
    n_chain: int
    n_together: int
    file_bytes: int


def overhead_plan(kind: str, *, is_quick: bool) -> OverheadPlan:
    """Of `FUNCTIONS` or `FILES`."""
    if kind == FUNCTIONS:
        return OverheadPlan(5, 40, 400, 0) if is_quick else OverheadPlan(20, 201, 2000, 0)
    return OverheadPlan(2, 6, 16, FILE_BYTES) if is_quick else OverheadPlan(5, 21, 80, FILE_BYTES)


def single_dag(plan: OverheadPlan) -> EmulatedDag:
    """One task."""
    return EmulatedDag("single", (EmulatedTask("t0", 0.0),), file_bytes=plan.file_bytes)


def chain_dag(plan: OverheadPlan) -> EmulatedDag:
    """Each task after the one before."""
    tasks = tuple(EmulatedTask(f"t{at}", 0.0, (f"t{at - 1}",) if at else ()) for at in range(plan.n_chain))
    return EmulatedDag("chain", tasks, file_bytes=plan.file_bytes)


def together_dag(plan: OverheadPlan) -> EmulatedDag:
    """Tasks that need nothing of one another."""
    tasks = tuple(EmulatedTask(f"t{at}", 0.0) for at in range(plan.n_together))
    return EmulatedDag("together", tasks, file_bytes=plan.file_bytes)


def step_words(dag: EmulatedDag, task: EmulatedTask, notes: str) -> list[str]:
    """The arguments of `steps` for a task.

    Args:
        notes: the file in which it notes its times.
    """
    return [notes, dag.name, task.task, f"{task.wait_s:g}", str(dag.file_bytes), *task.after]
