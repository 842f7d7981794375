"""The commands of the application: plain values.  Each is idempotent, and may be repeated.

`RequestContainer` repeated with the same `request_id` is the same request: YARN's requests are absolute
numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from yarn_accel.core.application.events import ContainerRef


@dataclass(frozen=True, slots=True)
class Register:
    """Register with the RM, answer with `Registered`."""


@dataclass(frozen=True, slots=True)
class RequestContainer:
    """Request one container on exactly this host, under the role's priority and this allocation request id.

    Attributes:
        resource: amounts by resource type.
    """

    role: str
    node: str
    rack: str
    resource: Mapping[str, int]
    priority: int
    request_id: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Take the request back (number of containers 0 under the same priority and id)."""

    role: str
    node: str
    rack: str
    priority: int
    request_id: int


@dataclass(frozen=True, slots=True)
class LaunchContainer:
    """Start the role's program in the container: results in `ContainerStarted` or `ContainerStartFailed`."""

    container: ContainerRef
    role: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Tell the NM to stop the container; the RM reports `ContainerCompleted`."""

    container: ContainerRef


@dataclass(frozen=True, slots=True)
class ReleaseContainer:
    """Give the container back to the RM, which has it stopped if it runs."""

    container: ContainerRef


@dataclass(frozen=True, slots=True)
class QueryContainer:
    """Query the NM for the container's state; its answer is `ContainerStarted` or `ContainerCompleted`."""

    container: ContainerRef


@dataclass(frozen=True, slots=True)
class PublishBindings:
    """Publish the bindings and endpoints that changed.

    Attributes:
        version: grows with every publication, over all attempts.
        bound: changed nodes with their servers' nodes; None: not bound any more.
        endpoints: changed servers' nodes with what `StatusReported` gave; None: does not serve any more.
        is_full: nothing else is bound or serves: the first publication of an attempt.
    """

    version: int
    bound: tuple[tuple[str, str | None], ...]
    endpoints: tuple[tuple[str, Hashable], ...]
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class SetSlots:
    """Set the node's `acct/slot` and nothing else, answer with `SlotsSet`; None: the configured value."""

    node: str
    n_slots: int | None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send `TimerFired` at this time or soon after, at once if it is past; replaces the last time."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Unregister:
    """Finish the application with this final status, answer with `Unregistered`."""

    status: str


Command = (
    Register
    | RequestContainer
    | CancelRequest
    | LaunchContainer
    | StopContainer
    | ReleaseContainer
    | QueryContainer
    | PublishBindings
    | SetSlots
    | SetTimer
    | Unregister
)
