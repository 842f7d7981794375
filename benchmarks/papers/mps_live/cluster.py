"""A real cluster with the task service: two nodes hold HDFS, four have a worker of one core each.

Emulated DAGs are submitted to it when they are to arrive, as definitions that the service takes.
"""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.papers.live import FOLDER, Done, Say, Submission, run_applications, start_tasks
from benchmarks.papers.mps_live import steps
from benchmarks.papers.mps_live.runs import (
    DagRun,
    OverheadKey,
    OverheadRun,
    RunKey,
    TaskSpan,
    costs_of,
    gaps_s,
    read_notes,
    run_of_answers,
    stamped_spans,
    tasks_per_s,
)
from benchmarks.papers.mps_live.setting import (
    BANDWIDTH_BYTES_PER_S,
    N_MACHINES,
    POLICY,
    WORKER_MIB,
    Costs,
    EmulatedDag,
    EmulatedTask,
    OverheadPlan,
    chain_dag,
    cost_dags,
    declared,
    single_dag,
    step_words,
    together_dag,
)
from tests.fixtures.yarn_site import Site, SiteOptions, site_up
from yarn_accel.core.dags.model import DagTerms
from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition
from yarn_accel.core.tasks.service.submission import app_document
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, TaskId
from yarn_accel.storage import Store

_NAME = "mps-live"
_N_STORAGE = 2
#: What is measured are times that tasks and the service note, so nothing is gained by asking more often.
_POLL_S = 0.25
_LIMIT_S = 300.0
#: Of tasks by which costs are measured: next to nothing, and so much that it takes some time.
_SMALL_BYTES, _LARGE_BYTES = 1000, 5_000_000
#: What is declared of tasks before anything is measured.
_GUESSED = Costs(0.2, 50e6)
#: The zip from which functions are imported, as workers call it.
ARCHIVE = "steps.zip"
_TASK_BYTES = 128 << 20
_MODULE = Path(steps.__file__)
_ARCHIVE_URI = f"{FOLDER}/{ARCHIVE}"


@contextmanager
def cluster_up(folder: Path, say: Say) -> Iterator[LiveCluster]:
    """A cluster with the task service for as long as the block lasts.

    Args:
        folder: for settings and the notes of tasks; all nodes see it, as they are of this machine.
    """
    options = SiteOptions(
        _NAME,
        workers=_N_STORAGE + N_MACHINES,
        storage_nodes=_N_STORAGE,
        accelerators=0,
        sections={
            "worker": {"enabled": True, "memory_mib": WORKER_MIB, "vcores": 1},
            "tasks": {
                "policy": POLICY,
                "min_workers": N_MACHINES,
                "max_workers": N_MACHINES,
                "figures_uri": f"{FOLDER}/figures.json",
                "bandwidth_bytes_per_s": BANDWIDTH_BYTES_PER_S,
            },
        },
    )
    with site_up(options, folder, say) as site:
        start_tasks(site, N_MACHINES, POLICY, say)
        yield LiveCluster(site, folder)


class _Noted(NamedTuple):
    """What became of DAGs.

    Attributes:
        spans: noted by the tasks themselves, in seconds of this machine's monotonic clock.
    """

    spans: list[TaskSpan]
    done: Done


class LiveCluster:
    """A cluster whose workers wait for DAGs.

    Args:
        site: with the task service.
        folder: a folder of this machine that workers see, for the notes of tasks.

    Attributes:
        conf_dir: of its Hadoop.
    """

    def __init__(self, site: Site, folder: Path) -> None:
        self.conf_dir = site.cluster.conf_dir
        self._site = site
        self._store = Store(self.conf_dir)
        self._folder = folder
        self._n_runs = 0
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.write(steps.__file__, Path(steps.__file__).name)
        self._store.write_atomic(_ARCHIVE_URI, [packed.getvalue()])

    def measure_costs(self) -> Costs:
        """What tasks cost while all machines are busy with others of their kind."""
        self._run(cost_dags(_SMALL_BYTES, 1), _GUESSED)
        small, large = (self._run(cost_dags(each), _GUESSED).spans for each in (_SMALL_BYTES, _LARGE_BYTES))
        return costs_of(small, large, 2.0 * (_LARGE_BYTES - _SMALL_BYTES))

    def run(self, key: RunKey, dags: Sequence[EmulatedDag], costs: Costs) -> DagRun:
        """Run DAGs, each submitted when it is to arrive.

        Raises:
            JobError: one failed.
            ValueError: a task is missing, or ran twice.
        """
        load_average = os.getloadavg()[0]
        return run_of_answers(key, dags, self._run(dags, costs).done.answers, load_average)

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
            spans, done = self._run([single_dag(plan)], costs)
            first_s.append(spans[0].start_s - done.submitted_s["single"])
            [span] = stamped_spans(done.answers)
            stamped_first_s.append(span.start_s - done.answers["single"]["begun_at"])
        chain = self._run([chain_dag(plan)], costs)
        all_together = self._run([together], costs)
        return OverheadRun(
            key,
            first_s,
            gaps_s(chain.spans),
            tasks_per_s(all_together.spans),
            plan.n_together,
            load_average,
            stamped_first_s=stamped_first_s,
            stamped_gaps_s=gaps_s(stamped_spans(chain.done.answers)),
            stamped_rate_per_s=tasks_per_s(stamped_spans(all_together.done.answers)),
        )

    def _run(self, dags: Sequence[EmulatedDag], costs: Costs) -> _Noted:
        self._n_runs += 1
        notes = self._folder / f"live-{self._n_runs}.notes"
        folder = f"{FOLDER}/run-{self._n_runs}"
        submissions = {}
        for dag in dags:
            name = f"{dag.name}-{self._n_runs}"
            definition = dag_definition(dag, name, costs, notes, folder, _ARCHIVE_URI)
            submissions[dag.name] = Submission(name, app_document(definition), dag.arrival_s)
        done = run_applications(self._site, self._store, submissions, _LIMIT_S, _POLL_S)
        if any(dag.file_bytes for dag in dags):
            self._store.delete(folder)
        return _Noted(read_notes(notes.read_text(encoding="utf-8")), done)


def dag_definition(
    dag: EmulatedDag, app: str, costs: Costs, notes: Path, folder: str, archive_uri: str
) -> AppDefinition:
    """A DAG whose tasks are commands where they leave files, and functions in warm workers where not.

    Args:
        app: its name in the service; what its tasks take is learned under it, so each run needs its own.
        notes: the file to which tasks add their times.
        folder: of the outputs, in HDFS.
        archive_uri: the zip with the module `steps`.
    """
    times_s = {each.task: each.runtime_s for each in declared(dag, costs).tasks}
    output = f"{folder}/{dag.name}" if dag.file_bytes else ""
    tasks = tuple(
        TaskDefinition(
            TaskId(f"{app}/{task.task}"),
            tuple(TaskId(f"{app}/{parent}") for parent in task.after),
            program=_program(dag, task, notes),
            inputs=tuple(_file(output, parent) for parent in task.after) if output else (),
            outputs=(steps.file_name(task.task),) if output else (),
            kind=f"wait-{task.wait_s:g}-reads-{len(task.after)}",
            runtime_s=times_s[task.task],
        )
        for task in dag.tasks
    )
    demands = {Form.CPU: FormDemand(1, 0, _TASK_BYTES)}
    return AppDefinition(
        AppSpec(AppId(app), app, 0, len(tasks), demands),
        {Form.CPU: FormProgram()},
        tasks,
        output,
        files=() if dag.file_bytes else ((ARCHIVE, archive_uri),),
        dag=DagTerms(dag.priority_class),
    )


def _file(output: str, parent: str) -> tuple[str, str]:
    name = steps.file_name(parent)
    return name, f"{output}/{parent}/{name}"


def _program(dag: EmulatedDag, task: EmulatedTask, notes: Path) -> FormProgram:
    if dag.file_bytes:
        # Neither the site's packages nor the user's: what a short program imports is half of its start.
        command = (sys.executable, "-I", "-S", str(_MODULE), *step_words(dag, task, str(notes)))
        return FormProgram(command)
    arguments = {"notes": str(notes), "dag": dag.name, "task": task.task, "wait_s": task.wait_s}
    return FormProgram(function=f"{_MODULE.stem}:step", arguments=json.dumps(arguments), archives=(ARCHIVE,))
