"""What happens to a dispatcher (events), and what its state orders (commands): values."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple, Union

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.call_source import Outcome
from yarn_accel.client.calls import Call
from yarn_accel.client.routing_hints import RoutingHints
from yarn_accel.errors import AccelError


class CallSubmitted(NamedTuple):
    """The caller wants an outcome for this call."""

    call: Call


class ServersFound(NamedTuple):
    """The servers of now.

    Attributes:
        endpoints: best first; empty: none is known now.
        hints: for choosing a server per request; None: all requests go to the best server.
        reason: why there is none.
        may_come: waiting for one makes sense.
    """

    endpoints: Tuple[Endpoint, ...]
    hints: Optional[RoutingHints] = None
    reason: str = ""
    may_come: bool = False


class ServerConnected(NamedTuple):
    """A connection was opened as ordered."""

    server: Endpoint


class ServerUnreachable(NamedTuple):
    """No connection could be opened."""

    server: Endpoint
    error: AccelError


class ServerDraining(NamedTuple):
    """The server finishes what it has and takes nothing new."""

    server: Endpoint


class ServerLost(NamedTuple):
    """The connection is gone, or the server hangs; what was sent there has no answer."""

    server: Endpoint
    error: AccelError


class CallFinished(NamedTuple):
    """A server answered a call, if only with "not now"."""

    server: Endpoint
    call: Call
    outcome: Outcome


class CallComputed(NamedTuple):
    """The call was computed on this node as ordered."""

    call: Call
    outcome: Outcome


class CallCancelled(NamedTuple):
    """The caller does not want the outcome of this call any more."""

    call: Call


class MapAbandoned(NamedTuple):
    """Nobody wants the outcomes any more."""


class ClockTick(NamedTuple):
    """Time has passed."""


DispatchEvent = Union[
    CallSubmitted,
    ServersFound,
    ServerConnected,
    ServerUnreachable,
    ServerDraining,
    ServerLost,
    CallFinished,
    CallCancelled,
    CallComputed,
    MapAbandoned,
    ClockTick,
]


class ConnectServer(NamedTuple):
    """Open a connection within `timeout_s`; answered by `ServerConnected` or `ServerUnreachable`."""

    server: Endpoint
    timeout_s: float


class CloseServer(NamedTuple):
    """Close a connection."""

    server: Endpoint


class DoubtServer(NamedTuple):
    """Others say that this server does not work: tolerate little silence."""

    server: Endpoint


class FindServers(NamedTuple):
    """Ask for the servers of now at once; answered by `ServersFound`."""


class SendCall(NamedTuple):
    """Send a call over an open connection."""

    server: Endpoint
    call: Call


class RecallCall(NamedTuple):
    """Ask a server to cancel a call; its answer says whether it did."""

    server: Endpoint
    call: Call


class ComputeLocally(NamedTuple):
    """Compute a call on this node; answered by `CallComputed`."""

    call: Call


class DeliverOutcome(NamedTuple):
    """The one outcome of a call."""

    call: Call
    outcome: Outcome


class FailMap(NamedTuple):
    """Nothing can be computed and waiting would not help: raise this error."""

    error: AccelError


class TellWait(NamedTuple):
    """What is being waited for, in a sentence."""

    text: str


Command = Union[
    ConnectServer,
    CloseServer,
    DoubtServer,
    FindServers,
    SendCall,
    RecallCall,
    ComputeLocally,
    DeliverOutcome,
    FailMap,
    TellWait,
]
