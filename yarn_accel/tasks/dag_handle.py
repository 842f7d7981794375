"""A DAG that was submitted: how far it is, its end, what its functions returned."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.errors import ConfigError, JobError, UnavailableError
from yarn_accel.tasks.service_link import ServiceLink
from yarn_accel.tasks.submission import Ask

#: Beside the files of a task: what its function returned.
RESULT_FILE = "_result.json"
_MAX_RESULT_BYTES = 1 << 20
_POLL_S = 0.5

#: Called with counts of tasks by state, such as ``{"done": 3, "running": 2, "waiting": 5}``.
Progress = Callable[[Mapping[str, int]], None]


class DagHandle:
    """A DAG in a task service.

    Attributes:
        dag_id: its name there; commands take it, too.
        output: the folder of its files; empty: it has none.
    """

    def __init__(self, link: ServiceLink, definition: AppDefinition) -> None:
        self.dag_id = str(definition.spec.app)
        self.output = definition.output
        self._link = link
        self._tasks = {each.own_name: each for each in definition.tasks}

    def status(self) -> dict[str, Any]:
        """What the service says of it: `state` (running, done, failed...), counts in `tasks`, `error`.

        Raises:
            UnavailableError: the master does not answer, or knows nothing of it any more.
        """
        return self._link.run(self._status)

    def wait(self, progress: Progress | None = None, timeout_s: float | None = None) -> None:
        """Wait for its end.

        Raises:
            JobError: it failed, was cancelled, or has not ended in time; says why.
            UnavailableError: the master is gone for longer than YARN needs to start another one.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s

        async def work(ask: Ask) -> dict[str, Any]:
            while True:
                row = await self._status(ask)
                if progress is not None:
                    progress(row["tasks"])
                if "ended_at" in row:
                    return row
                if until_s is not None and time.monotonic() >= until_s:
                    raise JobError(f"{self.dag_id}: has not ended after {timeout_s:g} s")
                await asyncio.sleep(_POLL_S)

        row = self._link.run(work, is_waiting=True)
        if row["state"] != "done":
            raise JobError(f"{self.dag_id}: {row['state']}: {row['error']}")

    def result(self, task: str) -> Any:
        """What the function of a task returned, which has ended.

        Raises:
            ConfigError: there is no such task, or it is a command.
            JobError: it has not ended yet.
        """
        definition = self._tasks.get(task)
        if definition is None:
            raise ConfigError(f"{self.dag_id}: has no task {task!r}")
        if definition.program is None or not definition.program.function:
            raise ConfigError(
                f"{self.dag_id}/{task}: is a command, which returns nothing", cure="see `output`"
            )
        if not definition.outputs:
            answer = self._link.run(lambda ask: ask("tasks-result", {"task": f"{self.dag_id}/{task}"}))
            return json.loads(answer["result"])
        store, folder = self._link.store(), f"{self.output.rstrip('/')}/{task}"
        if store.exists(f"{folder}/{RESULT_FILE}"):
            return json.loads(store.read_bytes(f"{folder}/{RESULT_FILE}", _MAX_RESULT_BYTES))
        if store.exists(folder):
            return None
        raise JobError(f"{self.dag_id}/{task}: has not ended", cure="wait for the DAG's end")

    def explain(self, task: str = "") -> str:
        """Where the DAG or a task of it is, and why there."""
        name = f"{self.dag_id}/{task}" if task else self.dag_id
        answer = self._link.run(lambda ask: ask("tasks-explain", {"task": name}))
        return str(answer.get("text", ""))

    def pause(self) -> None:
        """Start nothing of it from now on; what runs goes on."""
        self._link.run(lambda ask: ask("tasks-pause", {"app": self.dag_id, "is_paused": True}))

    def resume(self) -> None:
        """Let it go on."""
        self._link.run(lambda ask: ask("tasks-pause", {"app": self.dag_id, "is_paused": False}))

    def cancel(self) -> None:
        """End it early; what is done stays."""
        self._link.run(lambda ask: ask("tasks-cancel", {"app": self.dag_id}))

    async def _status(self, ask: Ask) -> dict[str, Any]:
        answer = await ask("tasks-status", {})
        row: dict[str, Any] | None = answer["apps"].get(self.dag_id) or answer["ended"].get(self.dag_id)
        if row is None:
            raise UnavailableError(f"{self.dag_id}: the task service knows nothing of it any more")
        return row
