"""What the application orders: plain values.  A command may be repeated; doing it twice must do no harm.

`Ask` repeated with the same `request_id` is the same request: YARN's requests are absolute numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from yarn_accel.core.application.events import Container

__all__ = [
    "Ask",
    "Check",
    "Command",
    "Launch",
    "Publish",
    "Register",
    "Release",
    "SetSlots",
    "StopContainer",
    "Unask",
    "Unregister",
    "WakeAt",
]


@dataclass(frozen=True, slots=True)
class Register:
    """Register with the RM, answer with `Registered`."""


@dataclass(frozen=True, slots=True)
class Ask:
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
class Unask:
    """Take the request back (number of containers 0 under the same priority and id)."""

    role: str
    node: str
    rack: str
    priority: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the role's program in the container, answer with `Started` or `StartFailed`."""

    container: Container
    role: str


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Tell the NM to stop the container; the RM will tell that it is `Completed`."""

    container: Container


@dataclass(frozen=True, slots=True)
class Release:
    """Give the container back to the RM, which has it stopped if it runs."""

    container: Container


@dataclass(frozen=True, slots=True)
class Check:
    """Ask the NM for the container's state: answer `Started` or `Completed`; nothing if it is silent."""

    container: Container


@dataclass(frozen=True, slots=True)
class Publish:
    """Bindings and endpoints changed.

    Attributes:
        version: grows with every publication, over all attempts.
        bound: changed nodes with their servers' nodes; None: not bound any more.
        endpoints: changed servers' nodes with what `Heard` gave; None: does not serve any more.
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
class WakeAt:
    """Send a `Tick` at this time or soon after, at once if it is past; replaces the time named before."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Unregister:
    """Finish the application with this final status, answer with `Unregistered`."""

    status: str


Command = (
    Register
    | Ask
    | Unask
    | Launch
    | StopContainer
    | Release
    | Check
    | Publish
    | SetSlots
    | WakeAt
    | Unregister
)
