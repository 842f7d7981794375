"""What a demo run leaves behind, as values: the table, the JSON and the report are made from this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jobs.factorize.rows import Done
from jobs.factorize.verify import Check
from jobs.images.job import ImagesOutcome
from jobs.images.purity import Purity
from jobs.outcome import Outcome


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
