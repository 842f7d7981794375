"""Which server a call goes to: the best one of its node, or the one that should finish it first.

`RequestChooser` decides where the call should finish first; the simulator uses the same object. It gets the
figures of the agent (`routing_hints`), completed with what this process knows: what it has sent since, how
fast its answers came, and which servers are lost, draining or busy.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import List, NamedTuple, Optional, Sequence

from yarn_accel.client.calls import Reply
from yarn_accel.client.rate_history import RateHistory, sent_bytes
from yarn_accel.client.routing_hints import RoutingHints
from yarn_accel.client.server_state import DispatchedCall, ServerState
from yarn_accel.core.server_choice import RequestChooser, RoutableRequest, ServerView

#: So often a call may leave servers that take nothing more, whatever the settings of the policy say.
_MOST_MOVES = 4


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


class BoundPolicy:
    """All calls go to the first server that has not just failed, and wait while that one is busy."""

    def choose(self, servers: Sequence[ServerState], now_s: float) -> ServerChoice:
        """Choose among the servers, which come best first; there is at least one."""
        for server in servers:
            if server.is_ready(now_s):
                return _unless_busy(server, now_s)
        rest = [server for server in servers if not server.is_draining]
        for server in sorted(rest, key=lambda each: not each.is_open):
            if server.is_open or now_s >= server.retry_s:
                return _unless_busy(server, now_s)
        until_s = min((server.retry_s for server in rest), default=math.inf)
        errors = [server.error for server in servers if server.error is not None]
        return ServerChoice(None, until_s, "waiting for a server: {}".format(errors[-1] if errors else ""))


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

    def note_reply(self, server: ServerState, call: DispatchedCall, reply: Reply, now_s: float) -> None:
        """Learn from an answer."""
        self.history.record(server.endpoint.name, call.call, reply, now_s - call.sent_s)

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


def _unless_busy(server: ServerState, now_s: float) -> ServerChoice:
    if now_s < server.busy_until_s:
        return ServerChoice(None, server.busy_until_s, server.busy_text)
    return ServerChoice(server)
