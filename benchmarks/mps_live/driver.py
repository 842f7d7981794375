"""Submits emulated DAGs to a task service when they are to arrive, and takes what became of them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
import zipfile
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.mps_live import steps
from benchmarks.mps_live.definitions import ARCHIVE, dag_definition
from benchmarks.mps_live.overhead import (
    OverheadKey,
    OverheadRun,
    costs_of,
    gaps_s,
    read_notes,
    stamped_spans,
    tasks_per_s,
)
from benchmarks.mps_live.runs import DagRun, RunKey, TaskSpan, run_of_answers
from benchmarks.mps_live.setting import (
    N_MACHINES,
    Costs,
    EmulatedDag,
    OverheadPlan,
    chain_dag,
    cost_dags,
    single_dag,
    together_dag,
)
from yarn_accel.core.tasks.service.submission import app_document
from yarn_accel.errors import JobError
from yarn_accel.storage import Store

_POLL_S = 0.05
_LIMIT_S = 300.0
#: Of tasks by which costs are measured: next to nothing, and so much that it takes some time.
_SMALL_BYTES, _LARGE_BYTES = 1000, 5_000_000
#: What is declared of tasks before anything is measured.
_GUESSED = Costs(0.2, 50e6)

Answers = dict[str, dict[str, Any]]


class Asker(Protocol):
    """A connection to the master, as `yarn_accel.hadoop.control.Control` is."""

    async def ask(self, verb: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to one request."""


#: Runs what it is given with a connection to the master.
Connect = Callable[[Callable[[Asker], Awaitable[Answers]]], Answers]


class _Run(NamedTuple):
    """What became of DAGs.

    Attributes:
        noted: by the tasks themselves, in seconds of this machine's monotonic clock.
        submitted_s: DAG -> when its submission began, by the same clock.
        answers: of the service, by DAG.
    """

    noted: list[TaskSpan]
    submitted_s: dict[str, float]
    answers: Answers


class DagDriver:
    """Runs DAGs in a task service whose workers wait.

    Args:
        connect: reaches its master.
        store: of the files of tasks.
        root: a folder there.
        folder: a folder of this machine that workers see, for the notes of tasks.
    """

    def __init__(self, connect: Connect, store: Store, root: str, folder: Path) -> None:
        self._connect = connect
        self._store = store
        self._root = root
        self._folder = folder
        self._archive_uri = f"{root}/{ARCHIVE}"
        self._n_runs = 0
        store.write_atomic(self._archive_uri, [_archive()])

    def measure_costs(self) -> Costs:
        """What tasks cost while all machines are busy with others of their kind."""
        self._run(cost_dags(_SMALL_BYTES, 1), _GUESSED)
        small, large = (self._run(cost_dags(each), _GUESSED).noted for each in (_SMALL_BYTES, _LARGE_BYTES))
        return costs_of(small, large, 2.0 * (_LARGE_BYTES - _SMALL_BYTES))

    def run(self, key: RunKey, dags: Sequence[EmulatedDag], costs: Costs) -> DagRun:
        """Run DAGs, each submitted when it is to arrive.

        Raises:
            JobError: one failed.
            ValueError: a task is missing, or ran twice.
        """
        load_average = os.getloadavg()[0]
        return run_of_answers(key, dags, self._run(dags, costs).answers, load_average)

    def measure(self, key: OverheadKey, plan: OverheadPlan) -> OverheadRun:
        """Measure what a task costs beside its work.

        Raises:
            JobError: a DAG failed.
        """
        load_average = os.getloadavg()[0]
        costs = replace(_GUESSED, task_s=0.01)
        together = together_dag(plan)
        # Modules are imported, files fetched, connections open.
        self._run([replace(together, name="first", tasks=together.tasks[: 4 * N_MACHINES])], costs)
        first_s, stamped_first_s = [], []
        for _ in range(plan.n_first):
            done = self._run([single_dag(plan)], costs)
            first_s.append(done.noted[0].start_s - done.submitted_s["single"])
            [span] = stamped_spans(done.answers)
            stamped_first_s.append(span.start_s - done.answers["single"]["begun_at"])
        chain = self._run([chain_dag(plan)], costs)
        all_together = self._run([together], costs)
        return OverheadRun(
            key,
            first_s,
            gaps_s(chain.noted),
            tasks_per_s(all_together.noted),
            plan.n_together,
            load_average,
            stamped_first_s=stamped_first_s,
            stamped_gaps_s=gaps_s(stamped_spans(chain.answers)),
            stamped_rate_per_s=tasks_per_s(stamped_spans(all_together.answers)),
        )

    def _run(self, dags: Sequence[EmulatedDag], costs: Costs) -> _Run:
        self._n_runs += 1
        notes = self._folder / f"live-{self._n_runs}.notes"
        folder = f"{self._root}/run-{self._n_runs}"
        apps = {dag.name: f"{dag.name}-{self._n_runs}" for dag in dags}
        documents = {
            dag.name: json.dumps(
                app_document(dag_definition(dag, apps[dag.name], costs, notes, folder, self._archive_uri))
            ).encode()
            for dag in dags
        }
        submitted_s: dict[str, float] = {}

        async def work(control: Asker) -> Answers:
            submit_to = (await control.ask("tasks-status"))["submit_to"]
            begun_s = time.monotonic()
            for dag in sorted(dags, key=lambda each: each.arrival_s):
                await asyncio.sleep(max(0.0, begun_s + dag.arrival_s - time.monotonic()))
                submitted_s[dag.name] = time.monotonic()
                uri = f"{submit_to}/{apps[dag.name]}.json"
                self._store.write_atomic(uri, [documents[dag.name]])
                await control.ask("tasks-submit", {"uri": uri})
            await _wait(control, apps.values())
            return {name: await _outcome(control, app) for name, app in apps.items()}

        answers = self._connect(work)
        if any(dag.file_bytes for dag in dags):
            self._store.delete(folder)
        return _Run(read_notes(notes.read_text(encoding="utf-8")), submitted_s, answers)


async def _wait(control: Asker, apps: Collection[str]) -> None:
    """Wait for the end of all.

    Raises:
        JobError: one failed, or they take too long.
    """
    until_s = time.monotonic() + _LIMIT_S
    while (answer := await control.ask("tasks-status"))["apps"].keys() & set(apps):
        if time.monotonic() > until_s:
            raise JobError(f"{', '.join(apps)}: not done after {_LIMIT_S:.0f} s: {answer['apps']}")
        await asyncio.sleep(_POLL_S)
    for app in apps:
        ended = answer["ended"].get(app, {"state": "forgotten", "error": ""})
        if ended["state"] != "done":
            raise JobError(f"{app}: {ended['state']}: {ended['error']}")


async def _outcome(control: Asker, app: str) -> dict[str, Any]:
    rows: list[Any] = []
    while True:
        answer = await control.ask("tasks-outcome", {"app": app, "first": len(rows)})
        rows += answer["rows"]
        if not answer["rows"] or len(rows) >= answer["n_rows"]:
            return {**answer, "rows": rows}


def _archive() -> bytes:
    """The zip with the module of the functions."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.write(steps.__file__, Path(steps.__file__).name)
    return packed.getvalue()
