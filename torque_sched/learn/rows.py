"""Values that a cycle adds to the history; `fingerprint_of`: by what a job is recognised later."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from torque_sched.learn.ensemble import RecordedPrediction
from torque_sched.learn.figures import Amounts, Figure
from torque_sched.learn.predictors import Estimate, Fingerprint
from torque_sched.model.cluster import Job
from torque_sched.model.request import Chunk

JobKey = tuple[str, float]
"""Job id and creation time: a server set up anew counts its jobs from 1 again."""


@dataclass(frozen=True, slots=True)
class PastPrediction:
    """The prediction of one figure before the job ran."""

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
    account: str = ""
    """For its account's usage; not kept with the job either."""

    @classmethod
    def of(cls, job: Job, used: Amounts, source: str, predicted: str) -> EndedJob:
        """The row of a job that ended.

        Args:
            job: as it ended.
            used: by it.
            source: of what is known of its end.
            predicted: JSON of what was predicted of it when it started.
        """
        nodes, request = {str(node): n for node, n in job.slots_by_node().items()}, job.request
        return cls(
            (job.id, job.ctime_s or 0.0), fingerprint_of(job), job.queue, nodes, request.n_procs,
            request.n_gpus, job.queued_s or None, job.start_s, job.comp_s, job.exit_status, used, source,
            predicted, job.group, job.account,
        )  # fmt: skip


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
        first_s: when that was first expected.
        start_s: when it did start; None: it waits.
    """

    key: JobKey
    first_s: float
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


def said_text(said: Mapping[Figure, RecordedPrediction]) -> str:
    """Predictions as JSON: figure -> who answers, each predictor's value, upper, n, evidence and error."""
    return json.dumps(
        {
            figure.value: {
                "best": each.predictor,
                "by": {
                    name: [e.value, e.upper, e.n_similar, e.evidence, e.error]
                    for name, e in each.by_name.items()
                },
            }
            for figure, each in said.items()
        },
        separators=(",", ":"),
    )


def read_said(text: str) -> dict[Figure, PastPrediction]:
    """The inverse of `said_text`; a damaged text is nothing said."""
    said: dict[Figure, PastPrediction] = {}
    try:
        for name, each in json.loads(text or "{}").items():
            by_name = {
                predictor: Estimate(float(value), upper, int(n), str(evidence), error)
                for predictor, (value, upper, n, evidence, error) in each["by"].items()
            }
            said[Figure(name)] = PastPrediction(str(each["best"]), by_name)
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return said


# A number set apart is a run's own; one that is attached may well be the program's (namd2, h264), unless the
# word before it names no program or it has a leading zero or many digits.
_RUN_NUMBER = re.compile(r"(?:[._\-+#=:@]+[0-9]+)+$")

_ATTACHED = re.compile(r"(?:(?<=[A-Za-z])0[0-9]+|(?<=[A-Za-z])[0-9]{4,})$")

_GENERIC = re.compile(
    r"((?:^|[._\-])(?:job|run|test|task|case|part|step|sample|sim|batch|chunk|seed|exp|trial))[0-9]+$", re.I
)

_SUFFIX = re.compile(r"\.(?:sh|pbs|job|qsub|bash|csh|py|pl|R)$")

_NAMELESS = frozenset({"", "STDIN"})


def fingerprint_of(job: Job) -> Fingerprint:
    """The kind of job this is; ``STDIN`` names no script and matches nobody else's."""
    limit = job.walltime_s
    return Fingerprint(job.user, script_of(job), shape_of(job), f"{limit:.0f}" if limit is not None else "")


def script_of(job: Job) -> str:
    """The job's name without the number of this run: ``relax-017`` and ``relax_18.sh`` are ``relax``.

    A name that is nothing but a number stays as it is.
    """
    if job.name in _NAMELESS:
        return ""
    name = job.name
    if job.array_index is not None:
        name = name.removesuffix(f"-{job.array_index}")
    bare = _SUFFIX.sub("", name)
    kind = _RUN_NUMBER.sub("", bare)
    kind = _GENERIC.sub(r"\1", _ATTACHED.sub("", kind))
    return kind or bare or name


def shape_of(job: Job) -> str:
    """What it asks for: ``2x4+1``: two nodes with four processors and a GPU each; ``p16``: procs anywhere."""
    request = job.request
    parts = [_piece(piece) for piece in request.pieces]
    if request.procs and not parts:
        parts.append(f"p{request.procs}")
    if request.gpus_anywhere:
        parts.append(f"g{request.gpus_anywhere}")
    return ",".join(parts)


def _piece(piece: Chunk) -> str:
    return f"{piece.count}x{piece.slots}" + (f"+{piece.gpus}" if piece.gpus else "")
