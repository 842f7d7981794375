"""The outcomes of live applications and DAGs: the master's answers in the form that a simulation has.

`ask_outcomes` asks; from its answers `live_report` makes a report on tasks, and `live_dag_outcome` the
outcome of DAGs. Seconds begin with the first submission.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from yarn_accel.core.tasks.history import EndedTask
from yarn_accel.core.tasks.outcome import (
    AppOutcome,
    NodeUse,
    RunOutcome,
    TaskOutcome,
    dag_task_outcome,
    outcome_of,
)
from yarn_accel.core.tasks.use_over_time import NodePlace
from yarn_accel.core.tasks.values import AppId, Form, TaskId
from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.control import Control
from yarn_accel.report.charts import lanes
from yarn_accel.report.runs import RunReport
from yarn_accel.storage import Store

_Answers = Mapping[str, Mapping[str, Any]]


async def ask_outcomes(control: Control, apps: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The master's answers about applications, with all of their tasks that are done.

    Args:
        apps: their names; none: all that it knows.

    Raises:
        ConfigError: there is no application.
        RejectedError: one of them is not known.
    """
    if not apps:
        status = await control.ask("tasks-status")
        apps = [*status["ended"], *status["apps"]]
    if not apps:
        raise ConfigError("there is no application to report on", cure="yarn-accel tasks submit APP.yaml")
    return {app: await _ask(control, app) for app in dict.fromkeys(apps)}


async def _ask(control: Control, app: str) -> dict[str, Any]:
    rows: list[Any] = []
    while True:
        # It goes on meanwhile; the last answer is the newest.
        answer = await control.ask("tasks-outcome", {"app": app, "first": len(rows)})
        rows += answer["rows"]
        if not answer["rows"] or len(rows) >= answer["n_rows"]:
            return {**answer, "rows": rows}


def live_outcome(answers: _Answers) -> RunOutcome:
    """The outcome of applications, from `ask_outcomes`' answers."""
    policy = str(next(iter(answers.values()))["policy"])
    zero = min(answer["begun_at"] for answer in answers.values())

    def since_start(at: float | None) -> float:
        return math.nan if at is None else round(at - zero, 3)

    def tasks() -> Iterator[TaskOutcome]:
        for app, answer in answers.items():
            for row in answer["rows"]:
                task = EndedTask(*row)
                yield _task(AppId(app), task, since_start(task.started_at), since_start(task.ended_at))

    found = tuple(tasks())
    last_s: dict[str, float] = {}
    for task in found:
        last_s[task.app] = max(last_s.get(task.app, 0.0), task.end_s)
    ended_s = {
        # As in a simulation: to commit its output is no part of it.
        AppId(app): since_start(answer["ended_at"])
        if answer["state"] != "done"
        else last_s.get(app, since_start(answer["ended_at"]))
        for app, answer in answers.items()
    }
    started_s = {AppId(app): since_start(answer["begun_at"]) for app, answer in answers.items()}
    return outcome_of(policy, started_s, found, ended_s=ended_s)


def live_report(answers: _Answers, use: Mapping[str, Any], figures: Mapping[str, Any]) -> RunReport:
    """All that a report shows.

    Args:
        answers: as `ask_outcomes` gives them.
        use: what workers did over time, as `UseSamples.document` has it.
        figures: of the service's status.
    """
    zero = min(answer["begun_at"] for answer in answers.values())
    outcome = replace(live_outcome(answers), use=_node_use(answers, use, zero))
    places: dict[str, NodePlace] = {}
    for each in use["workers"].values():
        cores, gpus, _ = places.get(each["node"], (0, 0, 0.0))
        whole = NodePlace(cores + each["n_cores"], gpus + each["n_gpus"], each["bandwidth_bytes_per_s"])
        places[each["node"]] = whole
    names = {answer["name"] for answer in answers.values()}
    shown = {name: forms for name, forms in figures.items() if name in names}
    return RunReport(outcome, places, shown, tuple(what_is_missing(answers)))


def nodes_of(answers: _Answers) -> list[str]:
    """The nodes on which tasks ran, by name."""
    return sorted({row[1] for answer in answers.values() for row in answer["rows"] if row[1]})


def _node_use(answers: _Answers, use: Mapping[str, Any], zero: float) -> dict[str, tuple[NodeUse, ...]]:
    """The use of nodes: cores and GPUs exactly as tasks held them, I/O as it was sampled."""
    changes: dict[str, list[_Change]] = defaultdict(list)
    for answer in answers.values():
        demands = {form: (cores, gpus) for form, cores, gpus in answer["demands"]}
        for task in (EndedTask(*row) for row in answer["rows"]):
            cores, gpus = demands[task.form]
            computes_at = task.ended_at - (task.compute_s or 0.0)
            changes[task.node] += [
                _Change(task.started_at - zero, cores, gpus, 0),
                _Change(computes_at - zero, 0, 0, gpus),
                _Change(task.ended_at - zero, -cores, -gpus, -gpus),
            ]
    for worker in use["workers"].values():
        if worker["node"] in changes:
            changes[worker["node"]] += _io_changes(worker, use["step_s"], zero)
    return {node: tuple(_added_up(each)) for node, each in sorted(changes.items())}


class _Change(NamedTuple):
    """Something changed on a node; I/O: None: as before, NaN: not known."""

    at_s: float
    cores: int
    gpus: int
    computing: int
    io_bytes_per_s: float | None = None


def _io_changes(worker: Mapping[str, Any], step_s: float, zero: float) -> Iterator[_Change]:
    for i, value in enumerate(worker["bytes_per_s"]):
        at_s = worker["from_at"] + i * step_s - zero
        yield _Change(at_s, 0, 0, 0, math.nan if value is None else value)
    yield _Change(worker["from_at"] + len(worker["bytes_per_s"]) * step_s - zero, 0, 0, 0, math.nan)


def _added_up(changes: list[_Change]) -> Iterator[NodeUse]:
    """From second 0 on; what was before it is in the first entry."""
    cores = gpus = computing = 0
    io = math.nan
    last_s = 0.0
    for change in sorted(changes, key=lambda each: each.at_s):
        at_s = max(0.0, change.at_s)
        if at_s > last_s:
            yield NodeUse(last_s, io, cores, gpus, computing)
            last_s = at_s
        cores, gpus, computing = cores + change.cores, gpus + change.gpus, computing + change.computing
        io = io if change.io_bytes_per_s is None else change.io_bytes_per_s
    yield NodeUse(last_s, io, cores, gpus, computing)


def what_is_missing(answers: _Answers) -> Iterator[str]:
    """Lines for the reader of an outcome on what is not known."""
    for app, answer in answers.items():
        n_done, n_rows = answer["tasks"].get("done", 0), answer["n_rows"]
        n_unknown = sum(EndedTask(*row).delay is None for row in answer["rows"])
        if answer["state"] == "running":
            yield f"{app} runs: {n_done} of its {sum(answer['tasks'].values())} tasks are done so far"
        elif answer["state"] != "done":
            yield f"{app} {answer['state']}: {answer['error'] or 'its owner ended it'}"
        if n_rows < n_done:
            yield f"{app}: its {n_done} tasks are not kept any more, as others ended since"
        if n_unknown:
            why = "nobody knew how long it takes alone, or it was not measured"
            yield f"{app}: tasks whose delay is not known: {n_unknown} of {n_rows}, for {why}"


def _task(app: AppId, task: EndedTask, start_s: float, end_s: float) -> TaskOutcome:
    overhead_s = math.nan if task.overhead_s is None else task.overhead_s
    return TaskOutcome(
        app,
        TaskId(f"{app}/{task.name}"),
        task.node,
        Form(task.form),
        start_s,
        end_s,
        overhead_s + (math.nan if task.alone_s is None else task.alone_s),
        task.reason,
        overhead_s + (math.nan if task.predicted_s is None else task.predicted_s),
    )


# DAGs.


def live_dag_outcome(answers: _Answers) -> RunOutcome:
    """The outcome of DAGs that are done; seconds begin with the first submission.

    Args:
        answers: as `ask_outcomes` gives them; others than DAGs that are done are left out.

    Raises:
        ConfigError: none of them is a DAG that is done.
    """
    done = {
        name: each
        for name, each in answers.items()
        if each["state"] == "done" and each.get("dag") and each["rows"] and each["dag"]["own_makespan_s"]
    }
    if not done:
        raise ConfigError("none of these is a DAG that is done", cure="see `yarn-accel dag status`")
    zero = min(each["begun_at"] for each in done.values())
    tasks = tuple(_dag_tasks(done, zero))
    dags = {
        name: AppOutcome(
            each["begun_at"] - zero,
            max(task.end_s for task in tasks if task.app == name),
            own_makespan_s=each["dag"]["own_makespan_s"],
        )
        for name, each in done.items()
    }
    busy_s = sum(task.end_s - task.start_s for task in tasks)
    there_s = max(busy_s, _core_s(done) or _core_s_of_tasks(tasks, dags.values()))
    return RunOutcome(
        str(next(iter(done.values()))["policy"]),
        dags,
        tasks,
        utilisation=busy_s / there_s if there_s else 0.0,
        moved=sum(each["dag"]["n_moved"] for each in done.values()),
        interrupted=sum(each["dag"]["n_interrupted"] for each in done.values()),
        slowdowns={name: list(_slowdowns(each, zero, dags[name])) for name, each in done.items()},
    )


def _core_s(done: _Answers) -> float:
    """For how long all cores were there, from the first submission to the last end; 0: nobody knows."""
    before = [each["dag"].get("core_s_before") for each in done.values()]
    after = [each["dag"].get("core_s_after") for each in done.values()]
    return 0.0 if None in before or None in after else float(max(after) - min(before))


def _core_s_of_tasks(tasks: Iterable[TaskOutcome], dags: Iterable[AppOutcome]) -> float:
    """As if the cores that ran tasks had been all."""
    return len({task.node for task in tasks}) * max(each.end_s for each in dags)


def _slowdowns(answer: Mapping[str, Any], zero: float, dag: AppOutcome) -> Iterator[tuple[float, float]]:
    """As the master noted them about once a second; the last one is exact."""
    for at, value in answer.get("slowdowns", ()):
        if dag.start_s <= at - zero < dag.end_s:
            yield round(at - zero, 3), value
    yield dag.end_s, dag.slowdown


def _dag_tasks(answers: _Answers, zero: float) -> Iterator[TaskOutcome]:
    """By start, on NODE#0, NODE#1, ...: a core runs one task at a time."""
    of_node: dict[str, list[tuple[float, float, str, EndedTask]]] = defaultdict(list)
    for name, answer in answers.items():
        for task in (EndedTask(*row) for row in answer["rows"]):
            span = max(0.0, task.started_at - zero), max(0.0, task.ended_at - zero)
            of_node[task.node].append((*span, name, task))
    found = []
    for node, tasks in of_node.items():
        tasks.sort(key=lambda each: (*each[:3], each[3].name))
        cores, _ = lanes([each[:2] for each in tasks])
        for core, (start_s, end_s, name, task) in zip(cores, tasks, strict=True):
            found.append(dag_task_outcome(name, task.name, f"{node}#{core}", start_s, end_s, task.reason))
    yield from sorted(found, key=lambda each: (each.start_s, each.end_s, each.app, each.task))


# Accounting.


def accounted(store: Store, folder_uri: str, *, is_whole: bool = False) -> Iterator[dict[str, Any]]:
    """The use of jobs, by all masters' files; lines that are none are left out.

    Args:
        is_whole: each line as it was written; else their sums by user, application and job.

    Raises:
        StorageError: the storage did not answer.
    """
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for uri in store.list(folder_uri) if store.exists(folder_uri) else ():
        for line in store.read_bytes(uri).splitlines() if uri.endswith(".jsonl") else ():
            use = _use_of(line)
            if use is None:
                continue
            if is_whole:
                yield use
                continue
            key = tuple(str(use[name]) for name in _OWNERS)
            known = sums.setdefault(key, {**use, **dict.fromkeys(_AMOUNTS, 0)})
            for name in _AMOUNTS:
                known[name] += use[name]
            known["first_at"] = min(known["first_at"], use["first_at"])
            known["last_at"] = max(known["last_at"], use["last_at"])
    yield from sums.values()


_OWNERS = ("user", "application", "job")
_AMOUNTS = ("core_s", "gpu_s", "read_bytes", "written_bytes", "attempts", "failed")


def _use_of(line: bytes) -> dict[str, Any] | None:
    """A line of a file of accounting; None: it is none."""
    try:
        use = json.loads(line)
    except ValueError:
        return None
    numbers = (*_AMOUNTS, "first_at", "last_at")
    if isinstance(use, dict):
        use.setdefault("written_bytes", 0)  # lines of earlier versions have none
    is_one = (
        isinstance(use, dict)
        and all(isinstance(use.get(name), str) for name in _OWNERS)
        and all(isinstance(use.get(name), int | float) for name in numbers)
    )
    return use if is_one else None
