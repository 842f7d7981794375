"""The results of an experiment as a document, as rows of a table and as start times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torque_sched.simulate.metrics import ClassBounds, ClassFigures, ScheduleFigures
from torque_sched.simulate.schedule import Schedule, Took
from torque_sched.simulate.workload import Rejected, Workload


@dataclass(frozen=True, slots=True)
class Result:
    """One policy's schedule, its figures, and what `--check` found wrong (None: not checked)."""

    schedule: Schedule
    figures: ScheduleFigures
    problems: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """One workload under one or more policies; the first is the one that was asked for.

    Attributes:
        trace: the log's name.
        workload: its jobs.
        results: by policy.
        settings: as asked for, fit for JSON.
        machine: on which it was simulated, and by which version.
        limits: where classes of jobs part.
    """

    trace: str
    workload: Workload
    results: Sequence[Result]
    settings: Mapping[str, object] = field(default_factory=dict)
    machine: Mapping[str, object] = field(default_factory=dict)
    limits: ClassBounds = field(default_factory=ClassBounds)


_ROWS: tuple[tuple[str, Callable[[ScheduleFigures], str]], ...] = (
    ("mean wait, s", lambda f: f"{f.mean_wait_s:,.2f}"),
    ("median wait, s", lambda f: f"{f.median_wait_s:,.1f}"),
    ("95 % waited at most, s", lambda f: f"{f.p95_wait_s:,.0f}"),
    ("longest wait, s", lambda f: f"{f.max_wait_s:,.0f}"),
    ("mean bounded slowdown", lambda f: f"{f.bounded_slowdown:,.2f}"),
    ("AWRT, s", lambda f: f"{f.awrt_s:,.1f}"),
    ("AWWT, s", lambda f: f"{f.awwt_s:,.1f}"),
    ("makespan, s", lambda f: f"{f.makespan_s:,.0f}"),
    ("utilisation", lambda f: f"{f.utilisation:.1%}"),
    ("jobs with a reservation", lambda f: f"{f.n_reserved:,}"),
    ("error of guaranteed start, mean, s", lambda f: f"{f.start_error_s:,.1f}" if f.n_reserved else "-"),
    ("sooner than guaranteed, mean, s", lambda f: f"{f.start_gain_s:,.1f}" if f.n_reserved else "-"),
    ("reservations broken", lambda f: f"{f.reservations_broken:,}"),
    ("started after first guaranteed", lambda f: f"{f.late_starts:,}"),
)


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """A heading, then one row a figure with one column a policy."""
    table = [("", *(each.schedule.name for each in results))]
    for name, text in _ROWS:
        table.append((name, *(text(each.figures) for each in results)))
    table.append(("events", *(f"{each.schedule.n_events:,}" for each in results)))
    table.append(("schedule hash", *(each.schedule.digest for each in results)))
    tooks = [each.schedule.took for each in results]
    if any(tooks):
        table.append(("never started", *(f"{len(each.schedule.never):,}" for each in results)))
        table.append(("cycles", *(f"{took.n_cycles:,}" if took else "-" for took in tooks)))
        table.append(
            ("decisions, ms a cycle", *(_ms(took, took.decide_s) if took else "-" for took in tooks))
        )
        table.append(
            ("snapshots, ms a cycle", *(_ms(took, took.snapshot_s) if took else "-" for took in tooks))
        )
    table.append(("simulated in, s", *(f"{each.schedule.wall_s:.2f}" for each in results)))
    if any(each.problems is not None for each in results):
        table.append(("invariants", *(_verdict(each) for each in results)))
    return table


def _ms(took: Took, seconds: float) -> str:
    return f"{1000 * seconds / max(took.n_cycles, 1):,.2f}"


def _verdict(result: Result) -> str:
    if result.problems is None:
        return "-"
    return f"{len(result.problems)} BROKEN" if result.problems else "hold"


def class_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Mean wait and bounded slowdown by class of job; one column a policy."""
    table = [("mean wait, s / bounded slowdown", "jobs", *(each.schedule.name for each in results))]
    for name, first in results[0].figures.by_class.items() if results else ():
        cells = (_class_text(each.figures.by_class[name]) for each in results)
        table.append((name, f"{first.n_jobs:,}", *cells))
    return table


def _class_text(figures: ClassFigures) -> str:
    return f"{figures.mean_wait_s:,.0f} / {figures.bounded_slowdown:,.2f}" if figures.n_jobs else "-"


def summary(workload: Workload) -> str:
    """One line on what became of the log's lines."""
    rejected = sum(workload.rejected.values())
    reasons = "; ".join(f"{reason.value}: {workload.rejected[reason]:,}" for reason in _reasons(workload))
    return (
        f"{workload.n_lines:,} jobs in = {len(workload.jobs):,} simulated + {rejected:,} rejected"
        + (f" ({reasons})" if reasons else "")
        + (f" + {workload.n_ignored:,} ignored (parts of a job)" if workload.n_ignored else "")
        + f"; {workload.n_overran:,} overran their limit, {workload.n_without_limit:,} had none; "
        + f"{workload.procs:,} processors"
    )


def _reasons(workload: Workload) -> list[Rejected]:
    return [reason for reason in Rejected if workload.rejected.get(reason)]


def document(experiment: Experiment) -> dict[str, Any]:
    """All of it, fit for JSON: the first policy's figures at the top, every policy's under ``policies``."""
    workload = experiment.workload
    policies = {each.schedule.name: _figures(each) for each in experiment.results}
    first = next(iter(policies.items()), ("", {}))
    return {
        "trace": experiment.trace,
        "machine": experiment.machine,
        "procs": workload.procs,
        "settings": dict(experiment.settings),
        "jobs": {
            "in": workload.n_lines,
            "simulated": len(workload.jobs),
            "rejected": {reason.name.lower(): workload.rejected[reason] for reason in _reasons(workload)},
            "ignored": workload.n_ignored,
            "overran": workload.n_overran,
            "without_limit": workload.n_without_limit,
        },
        "policy": first[0],
        **first[1],
        "policies": policies,
    }


def _figures(result: Result) -> dict[str, Any]:
    schedule = result.schedule
    return {
        **result.figures.document(),
        "n_events": schedule.n_events,
        "n_passes": schedule.n_passes,
        "schedule_hash": schedule.digest,
        "wall_s": round(schedule.wall_s, 3),
        **_took(schedule),
        "problems": None if result.problems is None else list(result.problems),
    }


def _took(schedule: Schedule) -> dict[str, Any]:
    took = schedule.took
    if took is None:
        return {}
    return {
        "n_cycles": took.n_cycles,
        "decide_s": round(took.decide_s, 3),
        "snapshot_s": round(took.snapshot_s, 3),
        "never_started": {str(number): words for number, words in schedule.never},
    }


def starts_text(schedule: Schedule) -> str:
    """Start times as CSV, by job number: ``job,start_s``."""
    lines = (f"{number},{start}\n" for number, start in sorted(schedule.rows()))
    return "job,start_s\n" + "".join(lines)
