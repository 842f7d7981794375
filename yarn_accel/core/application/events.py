"""The events of the application: plain values; `now_s` is the caller's monotonic clock in seconds.

Every event may come twice, late, or not at all: the application repeats commands that are not confirmed in
time.  Only `Stalled` must come before any other event that follows a stall.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container as the RM describes it.

    Attributes:
        id: as YARN writes it; the shell keeps its token under it.
        node: host of its node.
        priority: names the role.
        request_id: `allocation_request_id`: of the `RequestContainer` that it fulfils; -1: unknown.
    """

    id: str
    node: str
    priority: int
    request_id: int = -1


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the RM and its agent describe it.

    Attributes:
        host: its name everywhere in this program; one NM on each.
        is_usable: RUNNING or DECOMMISSIONING; all other states mean that its containers are gone.
        is_leaving: DECOMMISSIONING: running containers may finish, no new ones are started.
        is_accelerator: it has a healthy accelerator.
        capability: amounts by resource type, such as ``{"memory-mb": 4096, "yarn.io/gpu": 2}``.
        slots: the `acct/slot` it has now; None: not known.
        bound: the server's node that is published as the one it is bound to (`rm.yarn.io/accel-bind`);
            None: none is, or it is not known. A later attempt restores these bindings; afterwards the value
            is ignored, and another one is no change of the node.
    """

    host: str
    port: int
    rack: str
    is_usable: bool = True
    is_accelerator: bool = False
    is_leaving: bool = False
    capability: Mapping[str, int] = field(default_factory=dict)
    slots: int | None = None
    bound: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ServerGauges:
    """The load that a server reports.

    Attributes:
        capacity: requests it can feed at a time; values outside 1..100000 are brought inside.
        n_open: requests it has taken and not yet answered.
        weight: its speed against other servers'; values above 0 are brought within 0.001..10**9, others to 1.
        n_taken: requests it has ever taken; another number than before shows that it was used.
    """

    capacity: int = 1
    n_open: int = 0
    weight: float = 1.0
    n_taken: int = 0


@dataclass(frozen=True, slots=True)
class Registered:
    """The RM accepted us.

    Attributes:
        previous: our running containers as far as the RM knows them by now.
        attempt: number of the application attempt, from 1; makes versions and request ids grow over attempts.
    """

    previous: tuple[ContainerRef, ...]
    attempt: int
    now_s: float


@dataclass(frozen=True, slots=True)
class ContainersRecovered:
    """The RM reports more containers of earlier attempts, as NMs reconnect to it."""

    containers: tuple[ContainerRef, ...]
    now_s: float


@dataclass(frozen=True, slots=True)
class Resynced:
    """The RM was restarted and lost our requests; the application must register again."""

    now_s: float


@dataclass(frozen=True, slots=True)
class NodesChosen:
    """The nodes that are to have a container of a role whose selector is CHOSEN, instead of those before.

    Until an attempt's first one, containers of earlier attempts stay and none is added.
    """

    role: str
    nodes: frozenset[str]
    now_s: float


@dataclass(frozen=True, slots=True)
class NodesReported:
    """States of nodes; `is_complete`: of all, so a known node that is not listed is gone."""

    nodes: tuple[NodeView, ...]
    now_s: float
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class ContainersAllocated:
    """The RM allocated containers."""

    containers: tuple[ContainerRef, ...]
    now_s: float


@dataclass(frozen=True, slots=True)
class ContainerCompleted:
    """A container ended: the RM reports it, or its NM when it was queried."""

    container: str
    exit_status: int
    diagnostics: str
    now_s: float


@dataclass(frozen=True, slots=True)
class PreemptionAnnounced:
    """The RM is about to preempt these containers; each heartbeat says so until it does, or gives up.

    No command follows: a container that is preempted completes, and is requested again.
    """

    containers: tuple[str, ...]
    now_s: float


@dataclass(frozen=True, slots=True)
class ContainerStarted:
    """The NM runs the container: the result of `LaunchContainer` and `QueryContainer`."""

    container: str
    now_s: float


@dataclass(frozen=True, slots=True)
class ContainerStartFailed:
    """The NM refused the `LaunchContainer`, or could not be reached."""

    container: str
    why: str
    now_s: float


@dataclass(frozen=True, slots=True)
class StatusReported:
    """The status of a role's container, reported by itself or by the agent of its node.

    Attributes:
        role: its name; one that is not in the table (an agent run by systemd) only shows that the node
            is alive.
        container: its id; empty: the one that is there, which may be wrong for a moment after a replacement.
        endpoint: where it listens; opaque, only compared and passed on to the nodes bound to it.
        is_healthy: it takes requests.
        detail: why not, for people.
        is_gone: its process is dead, which its NM notices too, and tells the RM with its next heartbeat.
        is_hung: its process is alive, but neither answers nor runs: only another container helps.
    """

    node: str
    role: str
    now_s: float
    container: str = ""
    endpoint: Hashable = None
    is_healthy: bool = True
    detail: str = ""
    gauges: ServerGauges = ServerGauges()
    is_gone: bool = False
    is_hung: bool = False


@dataclass(frozen=True, slots=True)
class SlotsSet:
    """A `SetSlots` was executed; `n_slots` as in the command."""

    node: str
    n_slots: int | None
    now_s: float


@dataclass(frozen=True, slots=True)
class SlotsRefused:
    """The application lacks the right to set slots; this attempt does not try again."""

    why: str
    now_s: float


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """An admin wants no server on the node until `UndrainRequested`; the agent stays."""

    node: str
    now_s: float


@dataclass(frozen=True, slots=True)
class UndrainRequested:
    """The node may have its server again."""

    node: str
    now_s: float


@dataclass(frozen=True, slots=True)
class ServersWanted:
    """Somebody asked for servers `age_s` seconds ago: those that were released for want of work return."""

    age_s: float
    now_s: float


@dataclass(frozen=True, slots=True)
class RebindRequested:
    """An admin wants all bindings made anew."""

    now_s: float


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Drain all servers, then end the application."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Unregistered:
    """The RM has accepted the end; no command follows."""

    now_s: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of `SetTimer` has come; harmless at any other time."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Stalled:
    """The caller did not run for the last `for_s` seconds: stopped, swapped out, its machine suspended.

    It could receive nothing, so this time does not count as silence or as delay of others.
    """

    for_s: float
    now_s: float


Event = (
    Registered
    | ContainersRecovered
    | Resynced
    | NodesReported
    | NodesChosen
    | ContainersAllocated
    | ContainerCompleted
    | PreemptionAnnounced
    | ContainerStarted
    | ContainerStartFailed
    | StatusReported
    | SlotsSet
    | SlotsRefused
    | DrainRequested
    | UndrainRequested
    | ServersWanted
    | RebindRequested
    | StopRequested
    | Unregistered
    | TimerFired
    | Stalled
)
