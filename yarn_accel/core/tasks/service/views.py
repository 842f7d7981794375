"""What of a task service people look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.dags.slowdown_series import LiveSlowdowns
from yarn_accel.core.tasks.durations import DurationBelief
from yarn_accel.core.tasks.history import AppHistory
from yarn_accel.core.tasks.learning import Belief
from yarn_accel.core.tasks.outcome import slowdown_at_end
from yarn_accel.core.tasks.records import EndedApp, ServedApp, TaskState, TaskWorker
from yarn_accel.core.tasks.service.attempts import Attempts
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import AppId, TaskId

#: Tasks in one answer of `app_outcome`.
MAX_OUTCOME_TASKS = 5000
_MB = 1e6


def snapshot(attempts: Attempts) -> dict[str, Any]:
    """Applications, workers and counts as JSON values.

    ``figures`` has for each name of an application the forms that were measured: what is believed of a task,
    and of those that ran since this master started, what was predicted beside what happened. An application's
    ``delay`` is the mean of its tasks so far, ``predicted_delay`` what was predicted of them.
    """
    table, figures = attempts.table, attempts.figures
    names = {app.definition.spec.name for app in table.apps.values()} | figures.measured_here
    used, there = _use_by_app(table), _there(attempts)
    return {
        "policy": attempts.settings.policy,
        "apps": {
            app.id: _app(app, app.id in table.settling, used.get(app.id, _Use()), there)
            | _live_dag(attempts, app)
            for app in table.apps.values()
        },
        "ended": {ended.app: _ended(ended) for ended in table.ended.values()},
        "workers": {
            worker.id: _worker(worker, table.now_s - table.seen.get(worker.id, table.now_s))
            for worker in table.workers.values()
        },
        "figures": belief_documents(figures.beliefs(names)),
        "durations": duration_documents(figures.durations.beliefs(names | figures.durations.measured_here)),
        "servers": {"gpus": dict(table.servers.n_gpus), "of_node": dict(table.servers.server_of)},
    }


def explain_app(attempts: Attempts, name: AppId) -> str:
    """Some lines: how far an application is, and what is believed of its tasks beside what happened."""
    table, figures = attempts.table, attempts.figures
    ended = table.ended.get(name)
    app = table.apps.get(name)
    if app is None and ended is not None:
        error = f": {ended.error}" if ended.error else ""
        return f"{name} has ended{' (cancelled)' if ended.is_cancelled else ''}{error}"
    if app is None:
        return f"{name} is not here: there is no such application or task"
    spec = app.definition.spec
    counts = ", ".join(f"{n} {each.value}" for each, n in app.counts.items() if n)
    lines = [f"{name} (forms: {', '.join(form.value for form in spec.demands)}): {counts}"]
    if app.definition.dag is not None:
        durations = [_believed_duration(each) for each in figures.durations.beliefs((spec.name,))]
        return "\n".join([*lines, _explained_dag(attempts, app), *durations])
    beliefs = figures.beliefs((spec.name,))
    lines += [_believed(belief) for belief in beliefs]
    if not beliefs:
        known = "its figures are declared" if spec.declared is not None else "nothing is known of its figures"
        lines.append(f"no task of {spec.name} was measured yet; {known}")
    return "\n".join(lines)


def app_outcome(
    attempts: Attempts, slowdowns: LiveSlowdowns, name: AppId, first: int
) -> dict[str, Any] | None:
    """What became of an application's tasks so far, as JSON values.

    Times are Unix times in seconds; ``ended_at`` is None while it runs. ``rows`` are `EndedTask`s from number
    `first` on, ``n_rows`` is how many there are; less than are done where they are kept no more.
    """
    table = attempts.table
    app, ended = table.apps.get(name), table.ended.get(name)
    if app is not None:
        spec, history, error = app.definition.spec, app.history, app.error
        counts = {each.value: n for each, n in app.counts.items()}
        demands = [[form.value, need.cores, need.gpus] for form, need in spec.demands.items()]
        about: dict[str, Any] = {"name": spec.name, "begun_at": app.begun_at, "ended_at": None}
        about |= _live_dag(attempts, app)
        how = "running"
    elif ended is not None:
        history, error, counts = ended.history, ended.error, dict(ended.counts)
        demands = [list(each) for each in ended.demands]
        about = {"name": ended.name, "begun_at": ended.begun_at, "ended_at": ended.ended_at}
        about |= _ended_dag(ended)
        how = _how(ended)
    else:
        return None
    if "dag" in about:
        noted = slowdowns.of(name)
        about["slowdowns"] = [(attempts.unix_time(when_s), value) for when_s, value in noted]
    rows = [list(each) for each in history.tasks[first : first + MAX_OUTCOME_TASKS]]
    shown = {
        "policy": attempts.settings.policy,
        "demands": demands,
        "tasks": counts,
        "state": how,
        "error": error,
    }
    return {**about, **shown, "n_rows": len(history.tasks), "rows": rows}


def _how(ended: EndedApp) -> str:
    return "cancelled" if ended.is_cancelled else "failed" if ended.error else "done"


def _explained_dag(attempts: Attempts, app: ServedApp) -> str:
    terms, facts = app.definition.dag, attempts.policy.facts(app.id)
    assert terms is not None
    words = [f"class {terms.priority_class.word}"]
    if app.is_paused:
        words.append("paused")
    if facts is None:
        words.append("not planned yet: there was no worker")
    else:
        words += [f"alone {facts.own_makespan_s:.3g} s", f"SD {facts.slowdown:.3f}", f"{facts.n_moved} moved"]
        if facts.predicted_end_s is not None:
            words.append(
                f"its end is predicted in {max(0.0, facts.predicted_end_s - attempts.table.now_s):.3g} s"
            )
    if app.n_interrupted:
        words.append(f"{app.n_interrupted} attempts ended for others after {app.lost_s:.3g} s together")
    return "; ".join(words)


def _believed_duration(belief: DurationBelief) -> str:
    kind, factor = belief.kind, belief.factor
    takes = f"{factor:.3g} times what is declared" if kind.is_declared else f"{factor:.3g} s"
    text = f"tasks{f' of kind {kind.kind}' if kind.kind else ''} take {takes}; {belief.n_measured} measured"
    if belief.predicted_s is None or belief.happened_s is None or belief.mean_error is None:
        return text
    return (
        f"{text}; predicted {belief.predicted_s:.3g} s, happened {belief.happened_s:.3g} s, "
        f"mean error {belief.mean_error:.0%}"
    )


def explain_task(attempts: Attempts, task: TaskId) -> str:
    """One sentence: where a task is, and why there."""
    record = attempts.table.tasks.get(task)
    if record is None:
        return f"{task} is not here: it was never submitted, or its application has ended"
    assignment = record.assignment
    tries = f", {record.n_attempts} attempts so far" if record.n_attempts > 1 else ""
    last = f"; last error: {record.error}" if record.error else ""
    if assignment is not None:
        leaving = f", to leave ({assignment.drop.value})" if assignment.drop is not None else ""
        where = f"{record.state.value} on {assignment.worker.id} ({assignment.form.value}){leaving}"
        return f"{task} is {where}: {assignment.reason}{tries}{last}"
    if record.state is TaskState.WAITING:
        return f"{task} waits for {record.n_missing} of its predecessors"
    if record.state is TaskState.READY:
        paused = "; its DAG is paused" if record.app.is_paused else ""
        plan = attempts.policy.explain(task)
        return f"{task} waits for a place{paused}{f'; {plan}' if plan else ''}{tries}{last}"
    if record.state is TaskState.DONE:
        ended = next(each for each in record.app.history.tasks if each.name == record.definition.own_name)
        took_s = ended.ended_at - ended.started_at
        return f"{task} is done: on {ended.node} in {took_s:.3g} s; {ended.reason}{tries}"
    return f"{task} is {record.state.value}{tries}{last}"


def belief_documents(beliefs: Iterable[Belief]) -> dict[str, list[dict[str, Any]]]:
    """Beliefs by name, as JSON values."""
    found: dict[str, list[dict[str, Any]]] = {}
    for belief in beliefs:
        found.setdefault(belief.name, []).append(_belief(belief))
    return found


def duration_documents(beliefs: Iterable[DurationBelief]) -> list[dict[str, Any]]:
    """What is believed of how long tasks of DAGs take, as JSON values."""
    return [
        {
            **each.kind._asdict(),
            "factor": each.factor,
            "n_measured": each.n_measured,
            "predicted_s": each.predicted_s,
            "happened_s": each.happened_s,
            "mean_error": each.mean_error,
        }
        for each in beliefs
    ]


def _live_dag(attempts: Attempts, app: ServedApp) -> dict[str, Any]:
    """What is shown of an application that is a DAG; times are Unix times."""
    terms, facts = app.definition.dag, attempts.policy.facts(app.id)
    if terms is None:
        return {}
    end_s = None if facts is None else facts.predicted_end_s
    shown = {
        "class": terms.priority_class.word,
        "may_interrupt": terms.may_interrupt,
        "is_paused": app.is_paused,
        "sd": None if facts is None else facts.slowdown,
        "own_makespan_s": None if facts is None else facts.own_makespan_s,
        "predicted_end_at": None if end_s is None else attempts.unix_time(end_s),
        "n_moved": 0 if facts is None else facts.n_moved,
        "n_interrupted": app.n_interrupted,
        "lost_s": app.lost_s,
    }
    return {"dag": shown}


def _ended_dag(ended: EndedApp) -> dict[str, Any]:
    dag = ended.dag
    if dag is None:
        return {}
    last_at = max((each.ended_at for each in ended.history.tasks), default=ended.ended_at)
    sd = None if dag.own_makespan_s is None else slowdown_at_end(dag.own_makespan_s, last_at - ended.begun_at)
    shown = {
        "class": dag.priority_class,
        "sd": sd if _how(ended) == "done" else None,
        "own_makespan_s": dag.own_makespan_s,
        "n_moved": dag.n_moved,
        "n_interrupted": dag.n_interrupted,
        "lost_s": dag.lost_s,
        "core_s_before": dag.core_s_before,
        "core_s_after": dag.core_s_after,
    }
    return {"dag": shown}


def _belief(belief: Belief) -> dict[str, Any]:
    return {
        "form": belief.form.value,
        "accelerator": belief.accelerator,
        "split_bytes": belief.split_bytes,
        "read_s": belief.read_s,
        "compute_s": belief.compute_s,
        "n_measured": belief.n_measured,
        "predicted_s": belief.predicted_s,
        "happened_s": belief.happened_s,
        "mean_error": belief.mean_error,
    }


def _believed(belief: Belief) -> str:
    kind = f" ({belief.accelerator})" if belief.accelerator else ""
    text = (
        f"{belief.name} {belief.form.value}{kind}: believed of a task alone: reads "
        f"{belief.split_bytes / _MB:.3g} MB in {belief.read_s:.3g} s, computes "
        f"{belief.compute_s:.3g} s; {belief.n_measured} measured"
    )
    if belief.predicted_s is None or belief.happened_s is None or belief.mean_error is None:
        return text
    return (
        f"{text}; predicted {belief.predicted_s:.3g} s, happened {belief.happened_s:.3g} s, "
        f"mean error {belief.mean_error:.0%}"
    )


def _app(app: ServedApp, is_ending: bool, used: _Use, there: _Use) -> dict[str, Any]:
    state = (
        "ending" if app.is_over else "committing" if is_ending else "paused" if app.is_paused else "running"
    )
    return {
        "name": app.definition.spec.name,
        "priority": app.definition.spec.priority,
        "state": state,
        "tasks": {each.value: n for each, n in app.counts.items()},
        "error": app.error,
        "begun_at": app.begun_at,
        "cores": used.cores,
        "gpus": used.gpus,
        "share": used.dominant_share(there),
        **_delays(app.history),
    }


def _ended(ended: EndedApp) -> dict[str, Any]:
    return {
        "tasks": dict(ended.counts),
        "state": _how(ended),
        "error": ended.error,
        "begun_at": ended.begun_at,
        "ended_at": ended.ended_at,
        **_delays(ended.history),
        **_ended_dag(ended),
    }


def _delays(history: AppHistory) -> dict[str, Any]:
    return {"delay": history.delay, "predicted_delay": history.predicted_delay}


def _worker(worker: TaskWorker, silent_s: float) -> dict[str, Any]:
    spec, used = worker.spec, worker.used()
    return {
        "node": spec.node,
        "is_expected": not worker.has_reported,
        "is_leaving": worker.is_leaving,
        "silent_s": max(0.0, silent_s),
        "cores": used.cores,
        "gpus": used.gpus,
        "n_cores": spec.cores,
        "n_gpus": spec.gpus,
        "bytes_per_s": worker.bytes_per_s,
        "running": [each.task.id for each in worker.starts.values()],
        "queued": [each.task.id for each in worker.queue],
        "server_gpus": spec.server_gpus,
        "problem": worker.problem,
    }


@dataclass(slots=True)
class _Use:
    """Cores and GPUs, of an application or of all workers."""

    cores: int = 0
    gpus: int = 0

    def add(self, cores: int, gpus: int) -> None:
        self.cores += cores
        self.gpus += gpus

    def dominant_share(self, there: _Use) -> float:
        """The larger one of its shares of cores and of GPUs (as in DRF)."""
        return max(self.cores / max(there.cores, 1), self.gpus / max(there.gpus, 1))


def _use_by_app(table: TaskTable) -> dict[AppId, _Use]:
    used: dict[AppId, _Use] = {}
    for worker in table.workers.values():
        for each in worker.held():
            if each.started_s is not None:
                used.setdefault(each.task.app.id, _Use()).add(each.demand.cores, each.demand.gpus)
    return used


def _there(attempts: Attempts) -> _Use:
    there = _Use(gpus=sum(attempts.table.servers.n_gpus.values()))
    for worker in attempts.table.workers.values():
        there.add(worker.spec.cores, worker.spec.gpus)
    return there
