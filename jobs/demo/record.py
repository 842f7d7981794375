"""The record of a demo run, from which table, JSON and report are made, and the checks of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jobs.factorize.manifest import Done
from jobs.factorize.matrices import LIMIT, Check
from jobs.images.job import ImagesOutcome
from jobs.images.make_input import Purity
from jobs.runners.step import Outcome, TaskRecord


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster as it stood.

    Attributes:
        nodes: name of each worker -> its rack.
        node_hosts: what Hadoop calls each worker, in the same order.
        accelerated: hosts of the nodes with a pipeline server.
        rss_bytes: resident memory of all daemons together when idle after the start.
        peak_bytes: the largest sum of their resident memory seen by the kernel.
    """

    mode: str
    nodes: Mapping[str, str]
    node_hosts: tuple[str, ...]
    accelerated: tuple[str, ...]
    n_daemons: int
    hadoop_version: str
    n_jars: int
    jar_bytes: int
    rss_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One pipeline server's own counters at the end.

    Attributes:
        failed: answered with a failure that is not the request's own, such as a missing file.
        operations: requests done, by operation.
    """

    name: str
    requests: int
    done: int
    rejected: int
    failed: int
    bytes_in: int
    bytes_out: int
    operations: Mapping[str, int]
    stage_seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DemoRecord:
    """Everything the demo found out.

    Attributes:
        phases: seconds each phase took, in order.
        hdfs_bytes: bytes of input put into HDFS (before replication).
        spoilt: keys of the records that were made bad on purpose.
        verified: independent checks of the factors.
    """

    started_at: str
    machine: str
    cluster: ClusterFacts
    phases: Mapping[str, float]
    hdfs_bytes: int
    spoilt: tuple[str, ...]
    factorize: Outcome[Done]
    verified: tuple[Check, ...]
    images: ImagesOutcome
    purity: Purity
    servers: tuple[ServerFacts, ...]

    @property
    def total_s(self) -> float:
        """Seconds of all phases together."""
        return sum(self.phases.values())

    @property
    def worst_residual(self) -> float:
        """The largest residual any mapper reported."""
        return max((row.proven_residual for row in self.factorize.results), default=0.0)


def as_json(record: DemoRecord, checks: list[dict[str, Any]]) -> dict[str, Any]:
    """The record and its checks, fit for JSON; keys of images are left out (they are in index.tsv)."""
    images = record.images
    return {
        "name": "demo",
        "started_at": record.started_at,
        "machine": record.machine,
        "ok": all(check["ok"] for check in checks),
        "checks": checks,
        "phases_s": {name: round(seconds, 2) for name, seconds in record.phases.items()},
        "total_s": round(record.total_s, 2),
        "hdfs_bytes": record.hdfs_bytes,
        "cluster": asdict(record.cluster),
        "servers": [asdict(server) for server in record.servers],
        "factorize": {
            "counters": dict(record.factorize.counters),
            "wall_s": round(record.factorize.wall_s, 2),
            "job_ids": record.factorize.job_ids,
            "results": [asdict(row) for row in record.factorize.results],
            "rejects": [asdict(reject) for reject in record.factorize.rejects],
            "verified": [{"key": check.key, "ratios": dict(check.ratios)} for check in record.verified],
            "tasks": [asdict(task) for task in record.factorize.tasks],
        },
        "images": {
            "counters": dict(images.outcome.counters),
            "wall_s": round(images.outcome.wall_s, 2),
            "job_ids": images.outcome.job_ids,
            "n_in": images.outcome.n_in,
            "rejects": [asdict(reject) for reject in images.outcome.rejects],
            "summary": dict(images.clustering.summary),
            "purity": asdict(record.purity),
            "tasks": [asdict(task) for task in images.outcome.tasks],
        },
    }


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
        below_limit([row.proven_residual for row in record.factorize.results]),
        seen,
    )


def _verified(record: DemoRecord) -> DemoCheck:
    worst = max((check.residual for check in record.verified), default=0.0)
    seen = f"{len(record.verified)} matrices, worst ratio {worst:.3g}"
    return DemoCheck(
        "factors read back pass an independent check here",
        below_limit([check.residual for check in record.verified]),
        seen,
    )


def below_limit(residuals: list[float]) -> bool:
    """Whether there are residuals, and all are below `LIMIT`."""
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
