"""The state of a dispatcher: where every call is, which server may be asked, and what is to be done next.

Each method of `DispatchState` that takes a time reports an event to it, and returns the commands that follow,
in order. The state knows no clock, socket or thread. Always true (`validate`): every call waits, is at
exactly one server, or is being computed on this node; calls are sent only to open servers that are not
draining; no call outlives more than `max_attempts` servers.

All calls go to the first server that has not just failed, and wait while that one is busy; with the figures
of the agent (`RoutingHints`) each goes where it should be finished first, see `request_routing`. A call that
was at a server when that was lost goes to another, with the same key. A call that has outlived too many
servers may be the reason; it is computed on this node, or fails. When no server can be reached for
`patience_s`, all waiting calls are; after that servers are only tried every `GIVEN_UP_S`, without patience.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Outcome, Reply
from yarn_accel.client.request_routing import (
    LONGEST_PAUSE_S,
    DispatchedCall,
    PerRequestPolicy,
    RateHistory,
    RoutingHints,
    ServerChoice,
    ServerState,
)
from yarn_accel.errors import AccelError, RejectedError, StorageError, UnavailableError

#: Counters of calls that did not go straight to one server and back.
DISPATCH_COUNTERS = ("lost_servers", "resubmitted", "moved")
#: How many servers a call may outlive.
MAX_ATTEMPTS = 4
STORAGE_PAUSE_S = 0.5
#: After patience is over nothing is asked of servers for so long.
GIVEN_UP_S = 30.0
#: Calls that wait at servers are looked at so often.
MOVE_EVERY_S = 0.25
#: Without a server, those of now are asked for so often.
_FIND_EVERY_S = 1.0
#: Outcomes after which a call may be sent once more.
_MAY_COME_AGAIN = (UnavailableError, StorageError)
#: A connection may take so long while another server can be asked, or on the first try after a failure.
_SHORT_CONNECT_S = 1.0


class ServersFound(NamedTuple):
    """The servers of now.

    Attributes:
        endpoints: best first; empty: none is known now.
        hints: for choosing a server per request; None: all requests go to the best server.
        reason: why there is none.
        may_come: waiting for one makes sense.
        until_s: who asks again before that time of `time.monotonic` hears the same, unless it is urgent.
    """

    endpoints: Tuple[Endpoint, ...]
    hints: Optional[RoutingHints] = None
    reason: str = ""
    may_come: bool = False
    until_s: float = -math.inf


# Commands


class ConnectServer(NamedTuple):
    """Open a connection within `timeout_s`; answered by `connected` or `unreachable`."""

    server: Endpoint
    timeout_s: float


class CloseServer(NamedTuple):
    """Close a connection."""

    server: Endpoint


class DoubtServer(NamedTuple):
    """Others say that this server does not work: tolerate little silence."""

    server: Endpoint


class FindServers(NamedTuple):
    """Ask for the servers of now at once; answered by `found`."""


class SendCall(NamedTuple):
    """Send a call over an open connection."""

    server: Endpoint
    call: Call


class RecallCall(NamedTuple):
    """Ask a server to cancel a call; its answer says whether it did."""

    server: Endpoint
    call: Call


class ComputeLocally(NamedTuple):
    """Compute a call on this node; answered by `computed`."""

    call: Call


class DeliverOutcome(NamedTuple):
    """The one outcome of a call."""

    call: Call
    outcome: Outcome


class FailMap(NamedTuple):
    """Nothing can be computed and waiting would not help: raise this error."""

    error: AccelError


class TellWait(NamedTuple):
    """Say what is being waited for, in a sentence."""

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


class DispatchState:
    """Decides for one dispatcher.

    Args:
        jitter: gives numbers from 1 to 1.25, which spread the ends of pauses among clients.
        patience_s: how long to look for a server, to bear with a busy one, and to wait for storage.
        max_attempts: how many servers a call may outlive.
        connect_timeout_s: limit for opening a connection.
        has_fallback: calls without a server are computed on this node; otherwise they fail.

    Attributes:
        counts: `DISPATCH_COUNTERS`.
        wake_at_s: when to call `tick` if nothing else happens before.
    """

    def __init__(
        self,
        jitter: Callable[[], float],
        *,
        patience_s: float,
        max_attempts: int,
        connect_timeout_s: float,
        has_fallback: bool,
    ) -> None:
        self.counts = dict.fromkeys(DISPATCH_COUNTERS, 0)
        self.wake_at_s = math.inf
        self._jitter = jitter
        self._patience_s, self._max_attempts = patience_s, max_attempts
        self._connect_timeout_s, self._has_fallback = connect_timeout_s, has_fallback
        self._now_s = 0.0
        self._commands: List[Command] = []
        self._calls: List[DispatchedCall] = []
        self._servers: Dict[Endpoint, ServerState] = {}
        self._listed: List[ServerState] = []
        self._open: List[ServerState] = []
        self._reason, self._may_come = "", False
        self._per_request: Optional[PerRequestPolicy] = None
        self._history = RateHistory()
        self._bound: Optional[ServerState] = None
        self._connecting: Optional[ServerState] = None
        self._computing: Optional[DispatchedCall] = None
        self._moves_looked_s = -math.inf
        self._find_s = -math.inf
        self._searching_since_s: Optional[float] = None
        self._round_s = 0.0
        self._given_up_until_s = -math.inf
        self._has_given_up = False
        self._text = ""
        self._steady: Optional[ServerState] = None

    @property
    def n_open(self) -> int:
        """Calls without outcome so far."""
        return len(self._calls)

    def waits_for(self) -> str:
        """The cause that calls without outcome wait for, as the end of a sentence."""
        for server in self._open:
            if server.calls:
                call = server.calls[0].call
                text = "server {}: {} call(s) have no answer, the oldest is {} {}"
                return text.format(server.endpoint.name, len(server.calls), call.operation, call.key)
        if self._connecting is not None:
            return "server {} to take a connection".format(self._connecting.endpoint.name)
        return self._text or "a server"

    def validate(self) -> None:
        """Check what is always true; raises AssertionError."""
        sent = [call for server in self._servers.values() for call in server.calls]
        assert len({id(call) for call in sent}) == len(sent), "a call is at two servers"
        for call in self._calls:
            assert (call in sent) == (call.server is not None), "a call is lost"
            assert call.n_attempts <= self._max_attempts, "a call was tried too often"
            assert call is not self._computing or call.server is None, "a call is computed twice"
        assert all(call in self._calls for call in sent), "a call with an outcome is at a server"
        for server in self._servers.values():
            assert server.is_open or not server.calls, "calls are at a server without connection"
            assert server.is_open == (server in self._open), "an open server is not known as such"
        assert all(self._servers.get(server.endpoint) is server for server in [*self._listed, *self._open])

    # Events

    def submitted(self, call: Call, now_s: float) -> List[Command]:
        """The caller wants an outcome for this call."""
        self._now_s = now_s
        if self._steady is not None:
            return self._send_on(call, self._steady)
        self._calls.append(DispatchedCall(call))
        return self._decide()

    def found(self, servers: ServersFound, now_s: float) -> List[Command]:
        """These are the servers of now."""
        self._now_s = now_s
        self._reason, self._may_come = servers.reason, servers.may_come
        if servers.endpoints or not self._listed:
            before = [server.endpoint for server in self._listed]
            self._listed = [self._servers.setdefault(each, ServerState(each)) for each in servers.endpoints]
            if before != list(servers.endpoints):
                # One of them may be new: they are tried at once.
                self._given_up_until_s = -math.inf
                self._round_s = now_s
                self._forget_servers()
        hints = servers.hints
        if hints is None:
            self._per_request = None
        elif self._per_request is None:
            self._per_request = PerRequestPolicy(hints, self._history)
        else:
            self._per_request = self._per_request.update(hints)
        refusing = {view.server for view in hints.views if not view.accepts} if hints is not None else ()
        for server in self._open:
            is_good = server.endpoint in servers.endpoints and server.endpoint.name not in refusing
            if server.calls and not is_good and not server.is_doubted:
                server.is_doubted = True
                self._commands.append(DoubtServer(server.endpoint))
        return self._decide()

    def connected(self, endpoint: Endpoint, now_s: float) -> List[Command]:
        """A connection was opened as ordered."""
        self._now_s = now_s
        self._connecting = None
        server = self._servers[endpoint]
        server.connected()
        self._open.append(server)
        return self._decide()

    def unreachable(self, endpoint: Endpoint, error: AccelError, now_s: float) -> List[Command]:
        """No connection could be opened."""
        self._now_s = now_s
        self._connecting = None
        server = self._servers[endpoint]
        server.error = error
        server.failed(now_s, self._jitter())
        refusals = [each.error for each in self._listed if not isinstance(each.error, UnavailableError)]
        if refusals and None not in refusals and len(refusals) == len(self._listed):
            self._abandon()
            self._commands.append(FailMap(error))
        return self._decide()

    def draining(self, endpoint: Endpoint, now_s: float) -> List[Command]:
        """The server finishes what it has and takes nothing new."""
        self._now_s = now_s
        self._servers[endpoint].is_draining = True
        return self._decide()

    def lost(self, endpoint: Endpoint, error: AccelError, now_s: float) -> List[Command]:
        """The connection is gone, or the server hangs; what was sent there has no answer."""
        self._now_s = now_s
        server = self._servers[endpoint]
        server.error = error
        self._close(server)
        self.counts["lost_servers"] += 1
        self._searching_since_s = None
        self._tell("looking for another server: {}".format(error.message))
        for call in server.calls:
            self._take_back(call)
            if call.is_cancelled:
                self._deliver(call, _cancelled())
                continue
            call.n_attempts += 1
            call.target = ""
            self.counts["resubmitted"] += call.n_attempts < self._max_attempts
        server.calls = []
        self._find_now()
        return self._decide()

    def answered(self, endpoint: Endpoint, call: Call, outcome: Outcome, now_s: float) -> List[Command]:
        """A server answered a call, if only with "not now"."""
        self._now_s = now_s
        if self._steady is not None and not isinstance(outcome, _MAY_COME_AGAIN):
            return self._take_answer(call, outcome, self._steady)
        server = self._servers[endpoint]
        sent = _taken(server, call)
        was_recalled = sent.is_recalled
        self._take_back(sent)
        if sent.is_cancelled:
            self._deliver(sent, outcome)
        elif isinstance(outcome, UnavailableError):
            self._busy(server, sent, outcome)
        elif was_recalled and isinstance(outcome, RejectedError) and outcome.code == "cancelled":
            sent.n_moves += 1
            self.counts["moved"] += 1
        elif isinstance(outcome, StorageError) and outcome.transient and self._may_wait_for_storage(sent):
            self._storage_failed(server, outcome)
        else:
            server.record_success()
            self._searching_since_s, self._has_given_up = None, False
            if isinstance(outcome, Reply) and self._per_request is not None:
                self._history.record(server.endpoint.name, call, outcome, now_s - sent.sent_s)
            self._deliver(sent, outcome)
        return self._decide()

    def computed(self, outcome: Outcome, now_s: float) -> List[Command]:
        """The call was computed on this node as ordered."""
        self._now_s = now_s
        call, self._computing = self._computing, None
        if call is not None:
            self._deliver(call, outcome)
        return self._decide()

    def cancelled(self, call: Call, now_s: float) -> List[Command]:
        """The caller does not want the outcome of this call any more.

        It is recalled from its server, whose answer ends it; one that waits ends at once.
        """
        self._now_s = now_s
        sent = next((each for each in self._calls if each.call is call), None)
        if sent is not None and sent is not self._computing and not sent.is_cancelled:
            sent.is_cancelled = True
            if sent.server is None:
                self._deliver(sent, _cancelled())
            elif not sent.is_recalled:
                sent.is_recalled = True
                self._commands.append(RecallCall(sent.server.endpoint, call))
        return self._decide()

    def abandoned(self, now_s: float) -> List[Command]:
        """Nobody wants the outcomes any more."""
        self._now_s = now_s
        self._abandon()
        return self._decide()

    def tick(self, now_s: float) -> List[Command]:
        """Time has passed."""
        self._now_s = now_s
        return self._decide()

    def _decide(self) -> List[Command]:
        """Look at everything after an event; the commands that follow from it."""
        self.wake_at_s = math.inf
        waiting = [call for call in self._calls if call.server is None and call is not self._computing]
        if waiting:
            self._search(waiting)
            self._place(waiting)
        elif not self._calls:
            self._searching_since_s = None
        if self._per_request is not None:
            self._move_one(self._per_request)
        self._close_idle()
        self._steady = self._find_steady()
        commands, self._commands = self._commands, []
        return commands

    def _abandon(self) -> None:
        for server in [each for each in self._open if each.calls]:
            server.calls = []
            self._close(server, has_failed=False)
        self._calls.clear()
        self._computing = self._connecting = None

    def _forget_servers(self) -> None:
        """Keep those that are listed, open, or whose failure is not long ago."""
        kept = [*self._listed, *self._open, *([self._connecting] if self._connecting is not None else ())]
        kept += [server for server in self._servers.values() if self._now_s < server.failed_until_s]
        self._servers = {server.endpoint: server for server in kept}

    # The short way: every call is at the bound server, which takes the next one, too

    def _find_steady(self) -> Optional[ServerState]:
        """The server that all calls go to and come from until something else happens; None: it depends.

        `_send_on` and `_take_answer` then do the same as `_decide` would, but do not look around.
        """
        server = self._bound
        if server is None or self._open != [server] or self._listed[:1] != [server]:
            return None
        is_free = server.is_ready(self._now_s) and self._now_s >= server.busy_until_s
        is_quiet = self._connecting is None and self._now_s >= self._given_up_until_s and not self._text
        has_all = len(server.calls) == len(self._calls) and not any(call.is_recalled for call in server.calls)
        is_simple = self._per_request is None and self._searching_since_s is None and not self._has_given_up
        return server if is_free and is_quiet and has_all and is_simple and server.is_well else None

    def _send_on(self, call: Call, server: ServerState) -> List[Command]:
        sent = DispatchedCall(call)
        sent.server = server
        sent.sent_s = self._now_s
        self._calls.append(sent)
        server.calls.append(sent)
        return [SendCall(server.endpoint, call)]

    def _take_answer(self, call: Call, outcome: Outcome, server: ServerState) -> List[Command]:
        self._calls.remove(_taken(server, call))
        return [DeliverOutcome(call, outcome)]

    # What answers mean

    def _busy(self, server: ServerState, call: DispatchedCall, error: UnavailableError) -> None:
        """The server wants to be asked later; one that wants that for longer than the patience has failed."""
        if server.busy_since_s is None:
            server.busy_since_s = self._now_s
        pause_s = min(error.retry_after_s or STORAGE_PAUSE_S, LONGEST_PAUSE_S)
        server.busy_until_s = self._now_s + pause_s * self._jitter()
        server.busy_text = "waiting for server {}: {}".format(server.endpoint.name, error.message)
        if self._now_s - server.busy_since_s > self._patience_s:
            server.busy_since_s = None
            server.error = error
            server.record_failure(self._now_s)
            call.n_attempts += 1
            self._tell("looking for another server: {}".format(error.message))

    def _may_wait_for_storage(self, call: DispatchedCall) -> bool:
        """A NameNode names a dead DataNode, often the nearest, until it knows: so time counts, not tries."""
        if call.storage_failed_s is None:
            call.storage_failed_s = self._now_s
        return self._now_s - call.storage_failed_s < self._patience_s

    def _storage_failed(self, server: ServerState, error: StorageError) -> None:
        """Turn to another server: HDFS gives each the DataNode of its own node first."""
        others = [each for each in self._listed if each is not server and each.is_ready(self._now_s)]
        text = "waiting for storage: {}".format(error.message)
        if others:
            server.record_failure(self._now_s)
        elif server.is_ready(self._now_s):
            server.busy_until_s = self._now_s + STORAGE_PAUSE_S * self._jitter()
            server.busy_text = text
        self._tell(text)

    def _take_back(self, call: DispatchedCall) -> None:
        call.server = None
        call.is_recalled = False

    def _deliver(self, call: DispatchedCall, outcome: Outcome) -> None:
        self._calls.remove(call)
        self._commands.append(DeliverOutcome(call.call, outcome))

    # Placing what waits

    def _place(self, waiting: List[DispatchedCall]) -> None:
        """Send what waits as far as servers may be asked."""
        for call in waiting:
            if call is self._computing or call not in self._calls:
                continue
            if call.n_attempts >= self._max_attempts:
                self._without_server(call)
                continue
            if self._connecting is not None or self._now_s < self._given_up_until_s or not self._listed:
                continue
            choice = self._choose(call)
            if choice.server is None:
                self.wake_at_s = min(self.wake_at_s, choice.until_s)
                self._tell(choice.reason)
            elif choice.server.is_open:
                self._send(call, choice.server)
            else:
                call.target = choice.server.endpoint.name
                self._connect(choice.server)

    def _choose(self, call: DispatchedCall) -> ServerChoice:
        """The policy of now; that of one server for all calls also where no other may be asked."""
        choice = None
        if self._per_request is not None:
            choice = self._per_request.choose(call, self._listed, self._now_s)
        return choice or self._first_server()

    def _first_server(self) -> ServerChoice:
        """The first server that has not just failed, else whoever is open or may be tried again."""
        servers, now_s = self._listed, self._now_s
        rest = [server for server in servers if not server.is_draining]
        ready = [server for server in servers if server.is_ready(now_s)]
        again = sorted(rest, key=lambda each: not each.is_open)
        for server in ready or [each for each in again if each.is_open or now_s >= each.retry_s]:
            if now_s < server.busy_until_s:
                return ServerChoice(None, server.busy_until_s, server.busy_text)
            return ServerChoice(server)
        until_s = min((server.retry_s for server in rest), default=math.inf)
        errors = [server.error for server in servers if server.error is not None]
        return ServerChoice(None, until_s, "waiting for a server: {}".format(errors[-1] if errors else ""))

    def _connect(self, server: ServerState) -> None:
        self._connecting = server
        self._commands.append(ConnectServer(server.endpoint, self._connect_limit_s(server)))

    def _connect_limit_s(self, server: ServerState) -> float:
        """Nothing else happens meanwhile: short while there are others, and longer with each failure."""
        longest_s = self._connect_timeout_s
        others = [each for each in self._listed if each is not server and not each.is_draining]
        if any(each.is_open or each.is_ready(self._now_s) for each in others):
            return min(longest_s, _SHORT_CONNECT_S)
        return min(longest_s, server.n_failures * _SHORT_CONNECT_S or longest_s)

    def _send(self, call: DispatchedCall, server: ServerState) -> None:
        call.server = server
        call.sent_s = self._now_s
        call.target = self._text = ""
        if self._per_request is not None:
            self._per_request.note_sent(call, self._listed, self._now_s)
        elif server is not self._bound:
            before, self._bound = self._bound, server
            if before is not None and before.is_open and before.is_ready(self._now_s):
                names = server.endpoint.name, before.endpoint.name
                self._tell("bound to server {} now, before to {}".format(*names))
        server.calls.append(call)
        self._commands.append(SendCall(server.endpoint, call.call))

    def _without_server(self, call: DispatchedCall) -> None:
        """Compute the call on this node, one at a time, or let it fail."""
        if not self._has_fallback:
            self._deliver(call, self._error_of(call))
        elif self._computing is None:
            self._computing = call
            self._tell("computing on this node's CPU: {}".format(self._error_of(call)))
            self._commands.append(ComputeLocally(call.call))

    def _error_of(self, call: DispatchedCall) -> UnavailableError:
        """Why a call has no server."""
        if not self._listed:
            cure = "start a pipeline server, or name one in the binding file"
            why = ": {}".format(self._reason) if self._reason else ""
            return UnavailableError("no pipeline server is known for this node" + why, cure=cure)
        names = ", ".join(server.endpoint.name for server in self._listed)
        errors = [server.error for server in self._listed if server.error is not None]
        why = (
            "the call was with {} servers that were lost" if call.n_attempts else "no pipeline server answers"
        )
        last = errors[-1] if errors else None
        return UnavailableError("{} (tried {}); last: {}".format(why.format(call.n_attempts), names, last))

    # Looking for servers

    def _search(self, waiting: List[DispatchedCall]) -> None:
        """While calls wait and no server is open: ask for servers, and give up when the patience is over."""
        if any(not server.is_draining and server in self._listed for server in self._open):
            return
        if self._now_s >= self._given_up_until_s:
            if self._searching_since_s is None:
                self._searching_since_s = self._round_s = self._now_s
            if self._is_worth_waiting():
                return
            self._has_given_up = True
            self._searching_since_s = None
            self._given_up_until_s = self._now_s + GIVEN_UP_S
        for call in waiting:
            self._without_server(call)

    def _is_worth_waiting(self) -> bool:
        assert self._searching_since_s is not None
        untried = [each for each in self._listed if each.failed_s < self._round_s and not each.is_draining]
        if self._connecting is not None or untried:
            return True
        until_s = self._searching_since_s + self._patience_s
        if self._has_given_up or self._now_s >= until_s or not (self._listed or self._may_come):
            return False
        if not self._listed:
            self._tell("waiting for a server: {}".format(self._reason or "none is known for this node"))
        if self._now_s >= self._find_s:
            self._find_now()
        self.wake_at_s = min(self.wake_at_s, until_s, self._find_s)
        return True

    def _find_now(self) -> None:
        self._find_s = self._now_s + _FIND_EVERY_S
        self._commands.append(FindServers())

    # Moving and closing

    def _move_one(self, policy: PerRequestPolicy) -> None:
        """Recall one call from where it waits, if it should be finished earlier elsewhere.

        Only the last call at a server is looked at, as it waits longest; alone it may be computed already. It
        is sent elsewhere when its cancellation is confirmed, so no two servers owe the same answer.
        """
        if self._now_s < self._moves_looked_s + MOVE_EVERY_S or self._connecting is not None:
            return
        self._moves_looked_s = self._now_s
        busy = [server for server in self._open if server.calls]
        if any(call.is_recalled for server in busy for call in server.calls):
            return
        for server in busy:
            call = server.calls[-1]
            better = policy.better_place(call, self._listed, self._now_s) if len(server.calls) > 1 else None
            if better is None:
                continue
            if not better.is_open:
                self._connect(better)
            else:
                call.is_recalled = True
                call.target = better.endpoint.name
                self._commands.append(RecallCall(server.endpoint, call.call))
            return

    def _close_idle(self) -> None:
        """Close connections without calls: of servers that drain, are not listed, or that are not bound."""
        for server in [each for each in self._open if not each.calls]:
            is_wanted = (self._per_request is not None or server is self._bound) and server in self._listed
            if server.is_draining or not is_wanted:
                self._close(server, has_failed=server.is_draining)

    def _close(self, server: ServerState, has_failed: bool = True) -> None:
        server.is_open = server.is_draining = False
        self._open.remove(server)
        self._commands.append(CloseServer(server.endpoint))
        if has_failed:
            server.failed(self._now_s, self._jitter())

    def _tell(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self._commands.append(TellWait(text))


def _cancelled() -> RejectedError:
    return RejectedError("cancelled", "the call was cancelled")


def _taken(server: ServerState, call: Call) -> DispatchedCall:
    """Remove a call from those that were sent to a server."""
    for at, sent in enumerate(server.calls):
        if sent.call is call:
            return server.calls.pop(at)
    raise LookupError(call.key)
