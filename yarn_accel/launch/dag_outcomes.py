"""What became of live DAGs, in the form that a simulation has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from yarn_accel.core.dags.outcome import DagOutcome, DagRunOutcome, DagTaskOutcome
from yarn_accel.core.tasks.service.history import EndedTask
from yarn_accel.errors import ConfigError


def live_dag_outcome(answers: Mapping[str, Mapping[str, Any]]) -> DagRunOutcome:
    """The outcome of DAGs that are done; seconds begin with the first submission.

    Args:
        answers: what the master knows of each, as `launch.task_outcomes.ask_outcomes` gives them; others than
            DAGs that are done are left out.

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
    tasks = tuple(_on_machines(_tasks(done, zero)))
    dags = {
        name: DagOutcome(
            each["begun_at"] - zero,
            max(task.end_s for task in tasks if task.dag == name),
            each["dag"]["own_makespan_s"],
        )
        for name, each in done.items()
    }
    busy_s = sum(task.end_s - task.start_s for task in tasks)
    there_s = max(busy_s, _core_s(done) or _core_s_of_tasks(tasks, dags.values()))
    return DagRunOutcome(
        str(next(iter(done.values()))["policy"]),
        dags,
        tasks,
        busy_s / there_s if there_s else 0.0,
        sum(each["dag"]["n_moved"] for each in done.values()),
        sum(each["dag"]["n_interrupted"] for each in done.values()),
        {name: list(_slowdowns(each, zero, dags[name])) for name, each in done.items()},
    )


def _core_s(done: Mapping[str, Mapping[str, Any]]) -> float:
    """For how long all cores were there, from the first submission to the last end; 0: nobody knows."""
    before = [each["dag"].get("core_s_before") for each in done.values()]
    after = [each["dag"].get("core_s_after") for each in done.values()]
    return 0.0 if None in before or None in after else float(max(after) - min(before))


def _core_s_of_tasks(tasks: Iterable[DagTaskOutcome], dags: Iterable[DagOutcome]) -> float:
    """As if the cores that ran tasks had been all."""
    return len({task.machine for task in tasks}) * max(each.end_s for each in dags)


def _slowdowns(answer: Mapping[str, Any], zero: float, dag: DagOutcome) -> Iterator[tuple[float, float]]:
    """As the master noted them about once a second; the last one is exact."""
    for at, value in answer.get("slowdowns", ()):
        if dag.arrival_s <= at - zero < dag.end_s:
            yield round(at - zero, 3), value
    yield dag.end_s, dag.slowdown


def _tasks(answers: Mapping[str, Mapping[str, Any]], zero: float) -> Iterator[DagTaskOutcome]:
    for name, answer in answers.items():
        for row in answer["rows"]:
            task = EndedTask(*row)
            start_s, end_s = max(0.0, task.started_at - zero), max(0.0, task.ended_at - zero)
            yield DagTaskOutcome(name, task.name, task.node, start_s, end_s, task.reason)


def _on_machines(tasks: Iterable[DagTaskOutcome]) -> Iterator[DagTaskOutcome]:
    """The same by start, on NODE#0, NODE#1, ...: a core runs one task at a time."""
    free_s: dict[str, list[float]] = {}
    for task in sorted(tasks, key=lambda each: (each.start_s, each.end_s, each.dag, each.task)):
        cores = free_s.setdefault(task.machine, [])
        core = next((n for n, end_s in enumerate(cores) if end_s <= task.start_s), len(cores))
        cores[core : core + 1] = [task.end_s]
        machine = f"{task.machine}#{core}"
        yield DagTaskOutcome(task.dag, task.task, machine, task.start_s, task.end_s, task.reason)
