"""The checks of a demo run, each with the figure it judged. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobs.demo.record import DemoRecord
from jobs.factorize.verify import LIMIT
from jobs.outcome import Outcome
from jobs.runners.step import TaskRecord

MIN_HDFS_BYTES = 300_000_000
MIN_MATRICES = 48


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """One check: what must hold, whether it does, and what was seen."""

    what: str
    ok: bool
    seen: str


def run_checks(record: DemoRecord, is_full: bool = True) -> tuple[DemoCheck, ...]:
    """Run every check; `is_full` also asks for the full demo's amount of input."""
    checks = [check(record) for check in _CHECKS]
    return tuple(checks + ([check(record) for check in _FULL] if is_full else []))


def _no_fallback(record: DemoRecord) -> DemoCheck:
    counts = {
        "factorize": record.factorize.counters.get("cpu_fallback", 0),
        "images": record.images.outcome.counters.get("cpu_fallback", 0),
    }
    seen = ", ".join(f"{name}: {count}" for name, count in counts.items())
    return DemoCheck("no record was computed on a mapper's own CPU", not any(counts.values()), seen)


def _servers_worked(record: DemoRecord) -> DemoCheck:
    seen = ", ".join(f"{server.name}: {server.done} done" for server in record.servers) or "no server"
    ok = bool(record.servers) and all(server.done > 0 for server in record.servers)
    ok = ok and len(record.servers) == len(record.cluster.accelerated)
    return DemoCheck("every pipeline server's own counter is above 0", ok, seen)


def _residuals(record: DemoRecord) -> DemoCheck:
    worst = record.worst_residual
    seen = f"worst of {len(record.factorize.results)}: {worst:.3g}"
    return DemoCheck(
        f"every residual is below {LIMIT:g}",
        _below_limit([row.proven_residual for row in record.factorize.results]),
        seen,
    )


def _verified(record: DemoRecord) -> DemoCheck:
    worst = max((check.residual for check in record.verified), default=0.0)
    seen = f"{len(record.verified)} matrices, worst ratio {worst:.3g}"
    return DemoCheck(
        "factors read back pass an independent check here",
        _below_limit([check.residual for check in record.verified]),
        seen,
    )


def _below_limit(residuals: list[float]) -> bool:
    return bool(residuals) and all(residual < LIMIT for residual in residuals)


def _accounted(record: DemoRecord) -> DemoCheck:
    outcomes: dict[str, Outcome[Any]] = {"factorize": record.factorize, "images": record.images.outcome}
    ok = all(found.n_in == len(found.results) + len(found.rejects) for found in outcomes.values())
    seen = "; ".join(
        f"{name}: {found.n_in} = {len(found.results)} + {len(found.rejects)}"
        for name, found in outcomes.items()
    )
    return DemoCheck("records in = done + rejected", ok, seen)


def _rejects(record: DemoRecord) -> DemoCheck:
    rejected = {reject.key for reject in (*record.factorize.rejects, *record.images.outcome.rejects)}
    wrong = rejected.symmetric_difference(record.spoilt)
    seen = f"{len(rejected)} rejected" + (f", wrong: {', '.join(sorted(wrong)[:3])}" if wrong else "")
    return DemoCheck("exactly the records spoilt on purpose were rejected", not wrong, seen)


def _nodes(record: DemoRecord) -> DemoCheck:
    used = {task.node for task in _maps(record.factorize.tasks)}
    missing = sorted(set(record.cluster.node_hosts) - used)
    seen = f"{len(used)} of {len(record.cluster.node_hosts)}" + (
        f", none on {', '.join(missing)}" if missing else ""
    )
    return DemoCheck("factorize mappers ran on every node (job history)", not missing, seen)


def _purity(record: DemoRecord) -> DemoCheck:
    found = record.purity
    seen = f"{found.share:.3f}, one cluster alone would reach {found.largest_photograph:.3f}"
    return DemoCheck(
        "image clusters agree with the photographs", found.share > 2 * found.largest_photograph, seen
    )


def _bytes(record: DemoRecord) -> DemoCheck:
    seen = f"{record.hdfs_bytes / 1e6:.0f} MB"
    return DemoCheck(
        f"at least {MIN_HDFS_BYTES / 1e6:.0f} MB in HDFS", record.hdfs_bytes >= MIN_HDFS_BYTES, seen
    )


def _matrices(record: DemoRecord) -> DemoCheck:
    rows = record.factorize.results
    dtypes = {row.dtype for row in rows}
    seen = f"{len(rows)} ({', '.join(sorted(dtypes))})"
    ok = len(rows) >= MIN_MATRICES and len(dtypes) == 2
    return DemoCheck(f"at least {MIN_MATRICES} matrices of both dtypes", ok, seen)


def _maps(tasks: tuple[TaskRecord, ...]) -> list[TaskRecord]:
    return [task for task in tasks if task.kind == "map" and task.state == "SUCCEEDED"]


_CHECKS: tuple[Callable[[DemoRecord], DemoCheck], ...] = (
    _no_fallback,
    _servers_worked,
    _residuals,
    _verified,
    _accounted,
    _rejects,
    _nodes,
    _purity,
)
_FULL: tuple[Callable[[DemoRecord], DemoCheck], ...] = (_bytes, _matrices)
