"""Claims: the facts that a node's agent tells its `LateBinder`, the commands it gets, the mapper's messages.

A *claim* is one mapper's question and, once it is granted, its lease of a place: a core, or a core and GPUs.
Mappers and agents write JSON documents to each other, which are checked and bounded.

A mapper connects to its agent's second socket and gets a line of JSON first::

    {"v": 1, "node": "w1", "lease_s": 3.0, "renew_s": 1.0, "max_wait_s": 30.0}

It asks, and from then on gives a sign of life every `renew_s`, each in a line; the agent answers each with
``{"ok": true}``::

    {"v": 1, "job": "job_1_0001", "name": "knn", "attempt": "attempt_1_0001_m_000000_0",
     "forms": ["cpu", "gpu"], "gpus": 1, "credential": {"identifier": "...", "token": "..."}}
    {"reading": true}

The agent's decision is one of the first two lines, in between; a mapper that connects again shows the
``proof`` of the first as ``resume``. The mapper's last line is the third::

    {"granted": "gpu", "gpus": [0], "reason": "...", "proof": "..."}
    {"refused": "too-many-claims", "message": "..."}
    {"end": "done", "read_bytes": 1e9, "read_s": 12.5}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NewType

from yarn_accel.core.late_binding_reports import ClusterCount
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import RemoteProtocolError

ClaimId = NewType("ClaimId", str)
_MAX_GPUS = 16
_MAX_NAME = 128
_MAX_NUMBER = 1e18
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_FORMS = {form.value: form for form in Form}


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
class ClusterCountsReceived:
    """The master's answer to a heartbeat."""

    counts: Mapping[str, ClusterCount]
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


def parse_claim(document: Mapping[str, Any]) -> ClaimRequest:
    """A mapper's question.

    Raises:
        RemoteProtocolError: names the key.
    """
    if document.get("v") != 1:
        raise RemoteProtocolError("claim: version 1 is expected")
    ids = [document.get(key) for key in ("job", "attempt")]
    for key, value in zip(("job", "attempt"), ids, strict=True):
        if not isinstance(value, str) or not _ID.match(value):
            raise RemoteProtocolError(f"claim: {key} is not an id of letters, digits and . _ -")
    forms, gpus, name = document.get("forms"), document.get("gpus", 1), document.get("name")
    if not isinstance(forms, list) or not forms or not all(each in _FORMS for each in map(str, forms)):
        raise RemoteProtocolError("claim: forms is not a list of cpu and gpu")
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= _MAX_GPUS:
        raise RemoteProtocolError(f"claim: gpus is not a number from 1 to {_MAX_GPUS}")
    if not isinstance(name, str):
        raise RemoteProtocolError("claim: name is not a text")
    given = tuple(form for form in Form if form.value in forms)
    return ClaimRequest(str(ids[0]), _plain(name) or str(ids[0]), str(ids[1]), given, gpus)


def parse_end(document: Mapping[str, Any]) -> tuple[bool, float, float]:
    """Whether a mapper ended well, the bytes that it read, and in how many seconds; nonsense counts as 0."""
    return document.get("end") == "done", _number(document.get("read_bytes")), _number(document.get("read_s"))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_NUMBER:
        return 0.0
    return float(value)


def _plain(text: str) -> str:
    """In one line, of printable characters, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))[:_MAX_NAME]
