"""Servers and calls as a dispatcher knows them, and the choice of a server for each call.

A server that failed is passed over for a while, and the more often it fails the longer (`ServerState`). Where
the agent of the node gives figures, each call goes to the server that should finish it first.
`RequestChooser` decides; the simulator uses the same object. It gets the figures of the node's agent
(`RoutingHints`), completed with what this process knows: what it has sent since, how fast its answers came
(`RateHistory`), and which servers are lost, draining or busy. The agent adds the figures to its answer while
the policy is `container`::

    {"v": 1, "binding": {...}, "policy": {"name": "container", "min_gain_s": 0.01, "max_moves": 1},
     "loads": {"w1": {"seq": 7, "queue_s": 1.5, "rates": {"lu": 3.1}, "weight": 1.0, "accepts": true}}}

A client without hints sends its requests to the home server of its node. Values, no I/O.
"""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass, field, replace
from typing import Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from yarn_accel.client.binding import Binding, Endpoint, Reason, explain
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.core.server_choice import ChooserSettings, RequestChooser, RoutableRequest, ServerView
from yarn_accel.errors import AccelError

#: Seconds for which a server that failed is passed over; they double with every failure of a new try.
FIRST_BACKOFF_S = 10.0
LONGEST_BACKOFF_S = 120.0
#: Where there is no other, it is tried again after these pauses, and a busy one after as long as it asks for.
_FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
#: Figures older than this (seconds) are not used.
STALE_S = 10.0
_POLICY = "container"
_MAX_RATES = 32
_MAX_SEQ = 2**53
#: So often a call may leave servers that take nothing more, whatever the settings of the policy say.
_MOST_MOVES = 4
#: How much the newest answer counts against those before.
_SHARE_OF_NEW = 0.3
#: Shorter exchanges do not measure a link.
_MIN_LINK_BYTES = 256 * 1024
#: A link is as fast as the fastest of so many exchanges; the others waited for something else.
_N_EXCHANGES = 8
_LEAST_S = 1e-6


@dataclass(eq=False)
class DispatchedCall:
    """A call without outcome so far.

    Attributes:
        server: where it was sent; None: it waits, or is computed on this node.
        n_attempts: how many servers were lost with it.
        n_moves: how often it was moved while it waited at a server.
        target: name of the server it is to go to next; empty: any.
        is_recalled: its cancellation was asked for.
        is_cancelled: the caller asked for that; it goes nowhere else.
        storage_failed_s: when its storage failed first; None: it did not.
        sent_s: when it was sent.
        expected_s: what it should take at its server.
        seq: the report of the server's load by which that server was chosen.
    """

    call: Call
    server: Optional[ServerState] = None
    n_attempts: int = 0
    n_moves: int = 0
    target: str = ""
    is_recalled: bool = False
    is_cancelled: bool = False
    storage_failed_s: Optional[float] = None
    sent_s: float = 0.0
    expected_s: float = 0.0
    seq: int = -1


class ServerState:
    """A server.

    Attributes:
        calls: what was sent there and has no answer, oldest first.
        is_open: there is a connection.
        is_draining: that takes nothing new.
        is_doubted: others say that it does not work.
        error: why there is no connection.
        retry_s: it is not connected to before this.
        failed_s: when the connection ended, or could not be opened.
        n_failures: how often that has happened in a row.
        failed_until_s: others are preferred until then.
        busy_until_s: nothing is sent there before this.
        busy_text: why, in a sentence: what the server answered, or what its storage did.
        busy_since_s: since when all its answers were "not now"; None: the last one was another.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.calls: List[DispatchedCall] = []
        self.is_open = self.is_draining = self.is_doubted = False
        self.error: Optional[AccelError] = None
        self.retry_s = self.failed_until_s = self.busy_until_s = 0.0
        self.busy_since_s: Optional[float] = None
        self.busy_text = ""
        self.failed_s = -1.0
        self.n_failures = 0
        self._backoff_s = 0.0
        self._pause_s = 0.0

    def is_ready(self, now_s: float) -> bool:
        """Whether it takes requests and has not just failed; it may still be busy, or not connected."""
        return not self.is_draining and now_s >= self.failed_until_s

    def record_failure(self, now_s: float) -> None:
        """Prefer others for a while; a failure during that while changes nothing."""
        if now_s < self.failed_until_s:
            return
        if now_s > self.failed_until_s + LONGEST_BACKOFF_S:
            self._backoff_s = 0.0
        self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S) or FIRST_BACKOFF_S
        self.failed_until_s = now_s + self._backoff_s

    @property
    def is_well(self) -> bool:
        """Whether nothing is held against it, so that one more success changes nothing."""
        return not (self._backoff_s or self._pause_s or self.failed_until_s) and self.busy_since_s is None

    def record_success(self) -> None:
        """It answers."""
        self._backoff_s = self._pause_s = self.failed_until_s = 0.0
        self.busy_since_s = None

    def connected(self) -> None:
        """A connection was opened."""
        self.is_open, self.is_draining, self.is_doubted = True, False, False
        self.error = None
        self.n_failures = 0
        self.busy_until_s = 0.0
        self.busy_since_s = None

    def failed(self, now_s: float, jitter: float) -> None:
        """The connection ended, or none could be opened."""
        self.failed_s = now_s
        self.n_failures += 1
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) or _FIRST_PAUSE_S
        self.retry_s = now_s + self._pause_s * jitter
        self.record_failure(now_s)


class ServerChoice(NamedTuple):
    """Where a call goes.

    Attributes:
        server: None: it waits.
        until_s: until when it waits.
        reason: what it waits for.
    """

    server: Optional[ServerState]
    until_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class RoutingHints:
    """The figures of an agent for `RequestChooser`.

    Attributes:
        home: the server of this node, or that it is bound to; empty: none.
        views: the servers this node may use, as their agents reported them.
        settings: of the policy.
    """

    home: str = ""
    views: Tuple[ServerView, ...] = ()
    settings: ChooserSettings = field(default_factory=ChooserSettings)


class PerRequestPolicy:
    """Each call goes where it should be finished first.

    Attributes:
        history: what the answers of this client tell of the servers.
    """

    def __init__(self, hints: RoutingHints, history: RateHistory) -> None:
        self.hints = hints
        self.history = history
        self._chooser = RequestChooser(hints.settings)

    def update(self, hints: RoutingHints) -> PerRequestPolicy:
        """The policy with newer figures."""
        if hints.settings != self.hints.settings:
            return PerRequestPolicy(hints, self.history)
        self.hints = hints
        return self

    def choose(
        self, call: DispatchedCall, servers: Sequence[ServerState], now_s: float
    ) -> Optional[ServerChoice]:
        """Choose among the servers; None: none of those that should be asked can be."""
        named = {server.endpoint.name: server for server in servers}
        views = self._views(servers, now_s)
        open_to = {view.server for view in views if view.accepts}
        target, call.target = call.target, ""
        if target in open_to:
            return ServerChoice(named[target])
        chosen = self._chooser.choose(self.hints.home or None, self._request(call), views).server
        if chosen is not None:
            return ServerChoice(named[chosen])
        wanted = [named[view.server] for view in self.hints.views if view.accepts and view.server in named]
        busy = [server for server in wanted if server.is_ready(now_s)]
        if not busy:
            return None
        first = min(busy, key=lambda server: server.busy_until_s)
        return ServerChoice(
            None, first.busy_until_s, first.busy_text or "waiting: no server takes the request"
        )

    def note_sent(self, call: DispatchedCall, servers: Sequence[ServerState], now_s: float) -> None:
        """Take note that a call goes to its server."""
        assert call.server is not None
        name = call.server.endpoint.name
        for view in self._views(servers, now_s):
            if view.server == name:
                call.seq = view.seq
                call.expected_s = self.history.expected_s(view, self._request(call))

    def better_place(
        self, call: DispatchedCall, servers: Sequence[ServerState], now_s: float
    ) -> Optional[ServerState]:
        """Where the last of the calls at a server should rather go; None: it stays.

        A server that is only busy, or drains, finishes what it has; one that the agent does not name any
        more, or not as one that takes requests, is left.
        """
        assert call.server is not None
        here, n_calls = call.server.endpoint.name, len(call.server.calls)
        refuses = call.server not in servers or any(
            view.server == here and not view.accepts for view in self.hints.views
        )
        is_closed = not call.server.is_ready(now_s) or now_s < call.server.busy_until_s
        if (is_closed and not refuses) or call.n_moves >= _MOST_MOVES:
            return None
        views = [
            # Ahead of the last of n calls are n - 1 shares of what is queued there.
            replace(view, queue_s=view.queue_s * (n_calls - 1) / n_calls) if view.server == here else view
            for view in self._views(servers, now_s)
        ]
        chosen = self._chooser.choose(None, self._request(call, here), views).server
        if chosen is None or chosen == here:
            return None
        return next(server for server in servers if server.endpoint.name == chosen)

    def _request(self, call: DispatchedCall, server: str = "") -> RoutableRequest:
        n_bytes = sent_bytes(call.call) + self.history.reply_bytes(call.call)
        return RoutableRequest(call.call.operation, 1.0, n_bytes, server, call.n_moves)

    def _views(self, servers: Sequence[ServerState], now_s: float) -> List[ServerView]:
        """The servers as they should be by now."""
        named = {server.endpoint.name: server for server in servers}
        views = []
        for view in self.hints.views:
            server = named.get(view.server)
            if server is not None:
                owed_s = sum(call.expected_s for call in server.calls if call.seq != view.seq)
                accepts = view.accepts and server.is_ready(now_s) and now_s >= server.busy_until_s
                view = replace(view, queue_s=max(view.queue_s, owed_s), accepts=accepts)
                views.append(self.history.with_own_rates(view))
        return views


class RateHistory:
    """The measurements of one client: seconds per request, speed of the link, length of answers.

    It completes the figures of the agent, which are a second or two old.
    """

    def __init__(self) -> None:
        self._request_s: Dict[Tuple[str, str], float] = {}
        self._reply_bytes: Dict[str, float] = {}
        self._links: Dict[str, Deque[float]] = {}

    def record(self, server: str, call: Call, reply: Reply, elapsed_s: float) -> None:
        """Add the measurements of one answer.

        Args:
            elapsed_s: from the beginning of sending until the answer was here.
        """
        compute_s = reply.seconds.get("compute", 0.0)
        if compute_s > 0:
            place = server, call.operation
            self._request_s[place] = _smoothed(self._request_s.get(place), compute_s)
        returned = sum(tensor.spec.nbytes for tensor in reply.tensors.values())
        before = self._reply_bytes.get(call.operation)
        self._reply_bytes[call.operation] = _smoothed(before, float(returned))
        sent = sent_bytes(call)
        if sent + returned >= _MIN_LINK_BYTES:
            # Receiving the inputs is part of the server's `read`; so is reading references.
            is_reading = any(type(item) is not Tensor for item in call.inputs)
            stages = ("read", "queue", "compute", "write") if is_reading else ("queue", "compute", "write")
            moving_s = max(elapsed_s - sum(reply.seconds.get(stage, 0.0) for stage in stages), _LEAST_S)
            exchanges = self._links.setdefault(server, collections.deque(maxlen=_N_EXCHANGES))
            exchanges.append((sent + returned) / moving_s)

    def reply_bytes(self, call: Call) -> int:
        """Expected length of the answer, as far as it travels."""
        return 0 if call.output_uri else int(self._reply_bytes.get(call.operation, 0.0))

    def with_own_rates(self, view: ServerView) -> ServerView:
        """A view completed with this client's own measurements."""
        own = {
            operation: 1.0 / seconds
            for (server, operation), seconds in self._request_s.items()
            if server == view.server
        }
        exchanges = self._links.get(view.server)
        link = max(exchanges) if exchanges else view.link_bytes_per_s
        return replace(view, rates={**own, **view.rates}, link_bytes_per_s=link)

    def expected_s(self, view: ServerView, request: RoutableRequest) -> float:
        """Expected seconds of computing a request at an idle server."""
        alone = replace(view, queue_s=0.0, accepts=True)
        chosen = RequestChooser().choose(None, replace(request, server="", n_bytes=0), (alone,))
        return chosen.predicted_s


def sent_bytes(call: Call) -> int:
    """Bytes of the inputs that travel with a call; what the server reads itself does not count."""
    return sum(item.spec.nbytes for item in call.inputs if type(item) is Tensor)


def _smoothed(before: Optional[float], seen: float) -> float:
    return seen if before is None else before + _SHARE_OF_NEW * (seen - before)


def parse_routing_hints(document: Any, binding: Binding, node: str, age_s: float) -> Optional[RoutingHints]:
    """The hints in an agent's answer; None under another policy, or when the figures are too old.

    Args:
        document: the answer; every value is checked, and an unusable one is left out.
        binding: the servers of the same answer.
        node: this task's node.
        age_s: age of the master's figures.
    """
    policy = document.get("policy")
    loads = document.get("loads")
    if not isinstance(policy, dict) or policy.get("name") != _POLICY or age_s > STALE_S:
        return None
    if not isinstance(loads, dict):
        return None
    known = explain(binding, node)
    is_home = known and known[0][1] in (Reason.OWN_NODE, Reason.BOUND)
    views = tuple(_view(server.name, loads[server.name]) for server, _ in known if server.name in loads)
    usual = ChooserSettings()
    settings = ChooserSettings(
        _at_least_0(policy.get("min_gain_s"), usual.min_gain_s),
        _at_least_0(policy.get("min_gain_share"), usual.min_gain_share),
        int(_at_least_0(policy.get("max_moves"), usual.max_moves)),
    )
    return RoutingHints(known[0][0].name if is_home else "", views, settings) if views else None


def _view(server: str, load: Any) -> ServerView:
    values: Mapping[str, Any] = load if isinstance(load, dict) else {}
    rates: Dict[str, float] = {}
    reported = values.get("rates")
    for name, rate in (reported if isinstance(reported, dict) else {}).items():
        if _at_least_0(rate, 0.0) > 0 and len(rates) < _MAX_RATES:
            rates[str(name)] = float(rate)
    return ServerView(
        server,
        int(min(_at_least_0(values.get("seq"), 0), _MAX_SEQ)),
        _at_least_0(values.get("queue_s"), 0.0),
        math.inf,
        rates,
        _at_least_0(values.get("weight"), 1.0) or 1.0,
        values.get("accepts", True) is True,
    )


def _at_least_0(value: Any, otherwise: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return otherwise
    return float(value) if 0 <= value < math.inf else otherwise
