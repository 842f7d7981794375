"""What one cycle adds to the history, as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from torque_sched.learning.best import Said
from torque_sched.learning.figures import Amounts, Figure
from torque_sched.policies.predict.estimate import Estimate
from torque_sched.policies.predict.fingerprint import Fingerprint

JobKey = tuple[str, float]
"""Job id and creation time: a server set up anew counts its jobs from 1 again."""


@dataclass(frozen=True, slots=True)
class PastSaid:
    """What was said of one figure before the job ran."""

    best: str
    by_name: Mapping[str, Estimate]

    @property
    def estimate(self) -> Estimate | None:
        """The answer that counted."""
        return self.by_name.get(self.best)


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One job that ran, in the form it is kept."""

    key: JobKey
    kind: Fingerprint
    queue: str
    nodes: Mapping[str, int]
    """Slots on each."""
    n_procs: int
    n_gpus: int
    queued_s: float | None
    start_s: float | None
    end_s: float | None
    exit_status: int | None
    used: Amounts
    source: str
    """``qstat`` or ``accounting``."""
    said: str = ""
    """JSON of `said_text`; empty: its start was not seen."""
    group: str = ""
    """For its group's usage, which is counted when the job is; not kept with the job."""


@dataclass(frozen=True, slots=True)
class Use:
    """What the samples of one node say of a job so far: sums for means, maxima for memory."""

    n: int = 0
    last_s: float = 0.0
    cpu_cores: float = 0.0
    mem_bytes: float = 0.0
    gpus: float = 0.0
    gpu_mem_bytes: float = 0.0
    knows_cpu: bool = False
    knows_gpu: bool = False


@dataclass(frozen=True, slots=True)
class BalanceRow:
    """The cluster at one moment: utilisation of nodes that are up (0 to 1), GPUs, waiting."""

    at_s: float
    n_nodes: int
    n_running: int
    n_queued: int
    cpu_mean: float
    cpu_stdev: float
    cpu_range: float
    mem_mean: float
    mem_stdev: float
    gpus: int
    gpus_reserved: int
    """Held by jobs."""
    gpus_unused: int
    """Held by a job, and less than 1 % busy."""
    gpu_jobs_waiting: int
    wait_mean_s: float


@dataclass(frozen=True, slots=True)
class Expectation:
    """When a job was expected to start.

    Attributes:
        told_s: when that was first expected.
        start_s: when it did start; None: it waits.
    """

    key: JobKey
    told_s: float
    expected_s: float
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class PauseRow:
    """Something that failed and is left alone; an empty job or node: it is not about one."""

    kind: str
    """``job``, ``node``, ``pair`` or ``black-hole``."""
    job: str
    node: str
    failures: int
    until_s: float
    why: str


BALANCE_COLUMNS = tuple(field.name for field in fields(BalanceRow))


@dataclass(frozen=True, slots=True)
class CycleFacts:
    """All that one cycle adds; written in one transaction."""

    ended: tuple[EndedJob, ...] = ()
    uses: Mapping[tuple[JobKey, str], Use] | None = None
    pending: Mapping[JobKey, str] | None = None
    balance: BalanceRow | None = None
    position: tuple[str, int] | None = None
    """File and offset up to which accounting was read."""
    now_s: float = 0.0
    expected: tuple[Expectation, ...] = ()
    expected_gone: tuple[JobKey, ...] = ()
    """Jobs that went without having started."""


def said_text(said: Mapping[Figure, Said]) -> str:
    """Predictions as JSON: figure -> best, and each predictor's value, upper, n, evidence and error."""
    return json.dumps(
        {
            figure.value: {
                "best": each.best,
                "by": {
                    name: [e.value, e.upper, e.n_similar, e.evidence, e.error]
                    for name, e in each.by_name.items()
                },
            }
            for figure, each in said.items()
        },
        separators=(",", ":"),
    )


def read_said(text: str) -> dict[Figure, PastSaid]:
    """The inverse of `said_text`; a damaged text is nothing said."""
    said: dict[Figure, PastSaid] = {}
    try:
        for name, each in json.loads(text or "{}").items():
            by_name = {
                predictor: Estimate(float(value), upper, int(n), str(evidence), error)
                for predictor, (value, upper, n, evidence, error) in each["by"].items()
            }
            said[Figure(name)] = PastSaid(str(each["best"]), by_name)
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return said
