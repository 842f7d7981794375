"""What a node's agent and its `LateBinder` hand each other: facts come in, commands go out.

A *claim* is one mapper's question and, once it is granted, its lease of a place: a core, or a core and GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NewType

from yarn_accel.core.tasks.values import AppId, Form

ClaimId = NewType("ClaimId", str)


@dataclass(frozen=True, slots=True)
class LateBindingSettings:
    """How a node decides.

    Attributes:
        node: its name.
        cores: tasks that run at once, in either form.
        gpus: indices of the GPUs that tasks may have.
        bandwidth_bytes_per_s: B, what the node's disk or its link to the storage gives its readers.
        accelerator: kind of the GPUs.
        policy: name in `policies.POLICIES`; `policy_settings` are those it takes.
        max_wait_s: a mapper that can do without a GPU waits no longer; another one is refused then.
        lease_s: so long after its last sign of life a mapper keeps its place.
        counts_max_age_s: older counts of the cluster are not used.
        keep_apps_s: an application without claims is forgotten after so long.
        max_claims: open ones in all; `max_claims_per_user` of one user; `max_jobs_per_user` jobs of one user
            with open claims.
    """

    node: str
    cores: int
    gpus: tuple[int, ...]
    bandwidth_bytes_per_s: float
    accelerator: str = ""
    policy: str = "hdas+"
    policy_settings: Mapping[str, Any] = field(default_factory=dict)
    max_wait_s: float = 30.0
    lease_s: float = 3.0
    counts_max_age_s: float = 10.0
    keep_apps_s: float = 600.0
    max_claims: int = 256
    max_claims_per_user: int = 64
    max_jobs_per_user: int = 16


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a mapper asks.

    Attributes:
        job: its id.
        name: of the job, by which figures are kept.
        attempt: id of the task attempt.
        forms: those it can compute in.
        gpus: how many it takes in the form gpu.
    """

    job: str
    name: str
    attempt: str
    forms: tuple[Form, ...]
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class ResumedClaim:
    """A place that the mapper holds already, by the proof of this agent or of the one before."""

    form: Form
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClaimOpened:
    """A mapper asks. `user` is whom its credential, or else the kernel, names; never what it says itself."""

    claim: ClaimId
    user: str
    request: ClaimRequest
    now_s: float
    resumed: ResumedClaim | None = None


@dataclass(frozen=True, slots=True)
class ClaimRenewed:
    """A sign of life; `is_reading` says what the mapper does now."""

    claim: ClaimId
    is_reading: bool
    now_s: float


@dataclass(frozen=True, slots=True)
class ClaimEnded:
    """The mapper says that it is done with its place.

    Attributes:
        is_done: well, so that its figures are learned.
        read_bytes, read_s: what it says that it read, and in what time; no longer than it had the place.
    """

    claim: ClaimId
    is_done: bool
    read_bytes: float
    read_s: float
    now_s: float


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """Its connection is closed: the mapper is gone, or does not want the place any more."""

    claim: ClaimId
    now_s: float


@dataclass(frozen=True, slots=True)
class IoMeasured:
    """The node's I/O by everybody, as of `sampled_s`."""

    io_bytes_per_s: float
    sampled_s: float
    now_s: float


@dataclass(frozen=True, slots=True)
class ClusterCount:
    """What other nodes dispatched of an application, and how long ago it started anywhere."""

    n_alloc: int
    n_gpu: int
    age_s: float


@dataclass(frozen=True, slots=True)
class ClusterCountsReceived:
    """The master's answer to a heartbeat."""

    counts: Mapping[AppId, ClusterCount]
    now_s: float


@dataclass(frozen=True, slots=True)
class ClusterFiguresReceived:
    """Also the master's answer: what is believed by other nodes' measurements of these names changed."""

    names: frozenset[str]
    now_s: float


@dataclass(frozen=True, slots=True)
class PlacesChanged:
    """The GPUs that tasks may have from now on; who holds another one keeps it."""

    gpus: tuple[int, ...]
    accelerator: str
    now_s: float


@dataclass(frozen=True, slots=True)
class ClaimTimerTicked:
    """Comes twice a second while there are claims."""

    now_s: float


ClaimEvent = (
    ClaimOpened
    | ClaimRenewed
    | ClaimEnded
    | ClaimLost
    | IoMeasured
    | ClusterCountsReceived
    | ClusterFiguresReceived
    | PlacesChanged
    | ClaimTimerTicked
)


@dataclass(frozen=True, slots=True)
class GrantClaim:
    """The mapper gets a place; `reason` is one line for its owner."""

    claim: ClaimId
    form: Form
    gpus: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RefuseClaim:
    """The mapper gets none, and is forgotten."""

    claim: ClaimId
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ExpireClaim:
    """The mapper's lease is over: close its connection."""

    claim: ClaimId
    reason: str


ClaimCommand = GrantClaim | RefuseClaim | ExpireClaim
