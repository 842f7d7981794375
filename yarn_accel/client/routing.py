"""Each request to the server that should finish it first: the policy `container`, as a mapper carries it out.

Who decides is `RequestChooser`, the object that also decides in the simulator.  It gets what the agent told
(`routing_hints`), made better by what this process knows itself: what it has sent since, how fast its answers
came, and who is lost, draining or has just said "not now".

A request that waits is moved when another server should finish it earlier by more than the hysteresis.  Only
the last one at a server is looked at, as it waits longest; it is cancelled there, and sent elsewhere only
when that server has confirmed: so no two servers ever owe an answer to the same call.
"""

from __future__ import annotations

import random
import select
import time
from dataclasses import dataclass, replace
from typing import Callable, Dict, Generator, Iterator, List, Optional, Sequence, Tuple

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.call_source import Outcome
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.client import Client
from yarn_accel.client.pending_requests import (
    LONGEST_PAUSE_S,
    STORAGE_PAUSE_S,
    PendingRequest,
    PendingRequests,
)
from yarn_accel.client.rate_history import RateHistory, sent_bytes
from yarn_accel.client.routing_hints import RoutingHints
from yarn_accel.core.server_choice import Request, RequestChooser, ServerView
from yarn_accel.errors import AccelError, RejectedError, StorageError, UnavailableError

__all__ = ["Router", "Rules"]

#: A server that was lost, or could not be reached, is no choice for so long.
BACKOFF_S = 5.0
#: Requests that wait are looked at so often, and so often who waits looks whether servers are still there.
_LOOK_S = 0.25
_CANCELLED = "cancelled"


@dataclass(frozen=True)
class Rules:
    """What a router asks of its owner.

    Attributes:
        connect: a connected client; raises as `Client.connect`.
        look: the servers of now; the argument says whether one has just failed.
        routing_hints: what is told now; None: requests are not routed.
        give_up: the outcome of a call that has outlived too many servers.
        on_wait: told in a sentence what is being waited for.
        max_attempts: how many servers a call may outlive.
        patience_s: how long to wait for storage that may recover before a call fails.
    """

    connect: Callable[[Endpoint], Client]
    look: Callable[[bool], Sequence[Endpoint]]
    routing_hints: Callable[[], Optional[RoutingHints]]
    give_up: Callable[[PendingRequest, AccelError], Tuple[Call, Outcome]]
    on_wait: Callable[[str], None]
    max_attempts: int
    patience_s: float


@dataclass
class _Sent:
    """A request under way.

    Attributes:
        seq: the report its server was chosen by.
        expected_s: what it should take there.
        is_called_back: its cancellation was asked for.
    """

    job: PendingRequest
    server: str
    seq: int
    expected_s: float
    at_s: float
    is_called_back: bool = False


class Router:
    """Connections to several servers, and the choice between them; one thread's.

    Args:
        counts: ``resubmitted``, ``moved`` and ``lost_servers`` are counted there.
    """

    def __init__(self, rules: Rules, counts: Dict[str, int]) -> None:
        self._rules = rules
        self._counts = counts
        self._chooser = RequestChooser()
        self._routing_hints: Optional[RoutingHints] = None
        self._endpoints: Dict[str, Endpoint] = {}
        self._clients: Dict[str, Client] = {}
        self._sent: Dict[int, _Sent] = {}
        self._closed_until_s: Dict[str, float] = {}
        self._quiet_until_s = 0.0
        self._looked_s = 0.0
        self._rate_history = RateHistory()

    def close(self) -> None:
        """Close all connections; what is under way is forgotten."""
        self._sent.clear()
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def is_of_use(self) -> bool:
        """Whether requests are to be routed now, and there is a server that may be tried."""
        self._look()
        return any(view.accepts for view in self._views())

    def answers(self, pending: PendingRequests, window: int) -> Generator[Tuple[Call, Outcome], None, None]:
        """Work until nothing is left, or nobody can be asked now; then nothing is under way."""
        try:
            while True:
                self._look()
                yield from self._send(pending, window)
                if self._sent:
                    yield from self._hear(pending)
                    self._move_one()
                elif not pending.has_more() or not self._has_hope():
                    return
        finally:
            if self._sent:
                self.close()

    # What is known

    def _look(self, is_urgent: bool = False) -> None:
        endpoints = {endpoint.name: endpoint for endpoint in self._rules.look(is_urgent)}
        for name in [name for name, known in self._endpoints.items() if endpoints.get(name) != known]:
            # Another server under the same name, or none: what is under way there is finished.
            self._closed_until_s.pop(name, None)
        self._endpoints = endpoints
        before, self._routing_hints = self._routing_hints, self._rules.routing_hints()
        if self._routing_hints is not None and (
            before is None or before.settings != self._routing_hints.settings
        ):
            self._chooser = RequestChooser(self._routing_hints.settings)
        for name in [name for name, client in self._clients.items() if self._is_done_with(name, client)]:
            self._clients.pop(name).close()

    def _is_done_with(self, name: str, client: Client) -> bool:
        is_current = client.endpoint == self._endpoints.get(name) and not client.is_draining
        return not is_current and not any(sent.server == name for sent in self._sent.values())

    def _views(self) -> List[ServerView]:
        """The servers as they should be by now."""
        if self._routing_hints is None:
            return []
        now_s = time.monotonic()
        views = []
        for view in self._routing_hints.views:
            if view.server not in self._endpoints:
                continue
            owed_s = sum(
                sent.expected_s
                for sent in self._sent.values()
                if sent.server == view.server and sent.seq != view.seq
            )
            client = self._clients.get(view.server)
            is_closed = client is not None and (
                client.is_draining or client.endpoint != self._endpoints[view.server]
            )
            accepts = view.accepts and not is_closed and now_s >= self._closed_until_s.get(view.server, 0.0)
            view = replace(view, queue_s=max(view.queue_s, owed_s), accepts=accepts)
            views.append(self._rate_history.with_own_rates(view))
        return views

    def _has_hope(self) -> bool:
        """Wait for the end of a pause, if one is on; whether there was something to wait for."""
        now_s = time.monotonic()
        ends = [self._quiet_until_s] if self._quiet_until_s > now_s else []
        if self._routing_hints is not None and not ends:
            names = [view.server for view in self._routing_hints.views if view.server in self._clients]
            ends = [self._closed_until_s[name] for name in names if name in self._closed_until_s]
        ends = [end_s for end_s in ends if end_s > now_s]
        if ends:
            self._rules.on_wait("waiting: the servers are busy")
            time.sleep(min(ends) - now_s)
            return True
        return self._routing_hints is not None and any(view.accepts for view in self._views())

    # Sending

    def _send(self, pending: PendingRequests, window: int) -> Iterator[Tuple[Call, Outcome]]:
        while len(self._sent) < window and time.monotonic() >= self._quiet_until_s and pending.has_more():
            job = pending.take()
            request = self._request(job)
            views = self._views()
            server = self._target(job, views)
            if not server:
                home = None if self._routing_hints is None else self._routing_hints.home
                server = self._chooser.choose(home or None, request, views).server or ""
            if not server:
                pending.put_first(job)
                return
            client = self._reach(server)
            if client is None:
                pending.put_first(job)
                continue
            view = next(view for view in views if view.server == server)
            expected_s = self._rate_history.expected_s(view, request)
            self._sent[id(job.call)] = _Sent(job, server, view.seq, expected_s, time.monotonic())
            try:
                client.submit(job.call, is_blocking=False)
            except UnavailableError as error:
                yield from self._lose(server, error, pending)

    def _target(self, job: PendingRequest, views: Sequence[ServerView]) -> str:
        target, job.target = job.target, ""
        return target if any(view.server == target and view.accepts for view in views) else ""

    def _request(self, job: PendingRequest, server: str = "") -> Request:
        call = job.call
        n_bytes = sent_bytes(call) + self._rate_history.reply_bytes(call)
        return Request(call.operation, 1.0, n_bytes, server, job.n_moves)

    def _reach(self, server: str) -> Optional[Client]:
        client = self._clients.get(server)
        if client is not None:
            return client
        try:
            client = self._rules.connect(self._endpoints[server])
        except AccelError as error:
            self._closed_until_s[server] = time.monotonic() + BACKOFF_S
            self._rules.on_wait("server {} cannot be reached: {}".format(server, error.message))
            return None
        self._clients[server] = client
        return client

    # Hearing

    def _hear(self, pending: PendingRequests) -> Iterator[Tuple[Call, Outcome]]:
        """Every answer that is here; waits for something when there is none."""
        n_heard = 0
        for server in {sent.server for sent in self._sent.values()}:
            client = self._clients[server]
            try:
                while True:
                    found = client.arrived()
                    if found is None:
                        break
                    n_heard += 1
                    yield from self._settle(*found, pending)
            except UnavailableError as error:
                n_heard += 1
                yield from self._lose(server, error, pending)
        if not n_heard and self._sent:
            self._wait()

    def _wait(self) -> None:
        poll = select.poll()
        for server in {sent.server for sent in self._sent.values()}:
            client = self._clients[server]
            poll.register(client.fileno(), select.POLLIN | (select.POLLOUT if client.has_outgoing else 0))
        poll.poll(_LOOK_S * 1000)

    def _settle(
        self, call: Call, outcome: Outcome, pending: PendingRequests
    ) -> Iterator[Tuple[Call, Outcome]]:
        sent = self._sent.pop(id(call))
        job = sent.job
        if isinstance(outcome, UnavailableError):
            self._closed_until_s[sent.server] = _in_about(outcome.retry_after_s or STORAGE_PAUSE_S)
            pending.give_back(job)
            return
        if sent.is_called_back and isinstance(outcome, RejectedError) and outcome.code == _CANCELLED:
            job.n_moves += 1
            self._counts["moved"] += 1
            pending.put_first(job)
            return
        may_recover = isinstance(outcome, StorageError) and outcome.transient
        if may_recover and job.may_wait_for_storage(self._rules.patience_s):
            # Another server writes to another DataNode first.
            is_only = len(self._endpoints) < 2
            self._closed_until_s[sent.server] = _in_about(STORAGE_PAUSE_S if is_only else BACKOFF_S)
            pending.give_back(job)
            self._rules.on_wait("waiting for storage: {}".format(outcome))
            return
        if isinstance(outcome, Reply):
            self._rate_history.record(sent.server, call, outcome, time.monotonic() - sent.at_s)
        yield call, outcome

    def _lose(
        self, server: str, error: AccelError, pending: PendingRequests
    ) -> Iterator[Tuple[Call, Outcome]]:
        """Turn away from a server; what it had is sent again, with the same keys."""
        client = self._clients.pop(server)
        client.close()
        if client.endpoint == self._endpoints.get(server):
            self._closed_until_s[server] = time.monotonic() + BACKOFF_S
        lost = [sent for sent in self._sent.values() if sent.server == server]
        self._counts["lost_servers"] += 1
        self._rules.on_wait("server {} is lost: {}".format(server, error.message))
        for sent in lost:
            del self._sent[id(sent.job.call)]
            sent.job.n_attempts += 1
            sent.job.target = ""
            if sent.job.n_attempts < self._rules.max_attempts:
                self._counts["resubmitted"] += 1
                pending.give_back(sent.job)
        self._look(is_urgent=True)
        for sent in lost:
            if sent.job.n_attempts >= self._rules.max_attempts:
                yield self._rules.give_up(sent.job, error)

    # Moving what waits

    def _move_one(self) -> None:
        """Call one request back from where it waits, if it should be finished earlier elsewhere."""
        now_s = time.monotonic()
        if self._routing_hints is None or now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        last: Dict[str, _Sent] = {}
        n_there: Dict[str, int] = {}
        for sent in self._sent.values():
            if sent.is_called_back:
                return
            last[sent.server] = sent
            n_there[sent.server] = n_there.get(sent.server, 0) + 1
        for server, sent in last.items():
            # Alone it may be computed already: nothing to be gained.
            if n_there[server] > 1 and self._is_better_elsewhere(sent, n_there[server]):
                sent.is_called_back = True
                self._clients[server].cancel(sent.job.call)
                return

    def _is_better_elsewhere(self, sent: _Sent, n_there: int) -> bool:
        """Ask the chooser; ahead of the last of n are n - 1 shares of what is queued there."""
        views = self._views()
        for at, view in enumerate(views):
            if view.server == sent.server:
                views[at] = replace(view, queue_s=view.queue_s * (n_there - 1) / n_there)
        if sent.server not in {view.server for view in views if view.accepts}:
            # A server that takes nothing new still finishes what it has.
            return False
        chosen = self._chooser.choose(None, self._request(sent.job, sent.server), views).server
        if chosen is None or chosen == sent.server or self._reach(chosen) is None:
            return False
        sent.job.target = chosen
        return True


def _in_about(seconds: float) -> float:
    """When a pause ends; spread, so that the clients do not all come back at once."""
    return time.monotonic() + min(seconds, LONGEST_PAUSE_S) * random.uniform(1.0, 1.25)
