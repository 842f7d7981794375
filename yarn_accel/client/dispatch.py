"""Calls to whichever server answers: the next one when a server is lost, the own CPU when none is left.

A call that was in flight when its server was lost is sent again, with the same key, to the next server; so
every call gets exactly one outcome, whatever happens to the servers.  A call that has seen `max_attempts`
servers go is suspected to be the reason: it goes to the fallback, or fails.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import replace
from typing import (
    Any,
    Callable,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.call_source import CallSource, Outcome
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.client import Client
from yarn_accel.client.liveness import LOST_AFTER_S
from yarn_accel.client.pending_requests import (
    LONGEST_PAUSE_S,
    STORAGE_PAUSE_S,
    Pause,
    PendingRequest,
    PendingRequests,
)
from yarn_accel.client.reporter import DISPATCH_COUNTERS
from yarn_accel.client.routing import Router, Rules
from yarn_accel.client.routing_hints import RoutingHints
from yarn_accel.client.server_backoff import ServerBackoff
from yarn_accel.errors import (
    AccelError,
    AuthenticationError,
    LocalProtocolError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from yarn_accel.wire import Credential

__all__ = ["FALLBACK_DEVICE", "Dispatcher"]

FALLBACK_DEVICE = "cpu:fallback"
_FIRST_PAUSE_S = 0.05
#: Having given up on all servers, this long nothing is asked of them.
_GIVEN_UP_S = 30.0


class Dispatcher:
    """Sends calls to the first of several servers that answers; use it as a context manager.

    Args:
        endpoints: the servers, best first (`binding.choose`), to begin with.
        credential: proves the tenant to each of them.
        fallback: an object with ``call(Call) -> Reply`` that computes here; None: such calls fail.
        on_wait: told in a sentence what is being waited for.
        patience_s: how long to look for a server before turning to the fallback, and for storage that may
            recover before a call fails.
        timeout_s: longest silence of a server before it counts as lost.
        max_attempts: how many servers a call may outlive.
        node: the node this process runs on; see `Client`.
        follow: the servers of now, best first, and whether that is urgent because one has just failed; asked
            before each request.  When another becomes the best, what is in flight is finished and the next
            requests go there.  None: those of the beginning stay.
        routing_hints: figures of the servers, when every request goes where it should finish first
            (`routing`); None now, or at all: all go to the best of ``follow``.
        lost_after_s: see `Client`.
        client_options: more keyword arguments for `Client`.

    Attributes:
        counts: ``lost_servers``; ``resubmitted``, how often a request was sent again, with its key, because
            its server was lost; ``moved``, how often one went elsewhere while it waited.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        credential: Credential,
        fallback: Optional[Any] = None,
        on_wait: Optional[Callable[[str], None]] = None,
        *,
        patience_s: float = 30.0,
        timeout_s: float = 60.0,
        max_attempts: int = 4,
        node: Optional[str] = None,
        follow: Optional[Callable[[bool], Sequence[Endpoint]]] = None,
        routing_hints: Optional[Callable[[], Optional[RoutingHints]]] = None,
        lost_after_s: float = LOST_AFTER_S,
        client_options: Optional[Dict[str, Any]] = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._credential = credential
        self._fallback = fallback
        self._on_wait = on_wait or _say_nothing
        self._patience_s = patience_s
        self._max_attempts = max_attempts
        self._follow = follow
        self._client_options = dict(
            client_options or {}, timeout_s=timeout_s, node=node, lost_after_s=lost_after_s
        )
        self.counts = dict.fromkeys(DISPATCH_COUNTERS, 0)
        self._router = None if routing_hints is None else self._make_router(routing_hints)
        self._backoff = ServerBackoff()
        self._client: Optional[Client] = None
        self._first = 0
        self._given_up_until_s = 0.0
        self._has_given_up = False
        self._last_error: Optional[AccelError] = None

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to servers."""
        if self._router is not None:
            self._router.close()
        self._close_client()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def call(self, call: Call) -> Reply:
        """One call, start to end; raises its error."""
        for _, outcome in self.map((call,), window=1):
            if isinstance(outcome, AccelError):
                raise outcome
            return outcome
        raise LocalProtocolError("a call without outcome")

    def map(
        self,
        calls: Iterable[Call],
        window: int = 4,
        *,
        ordered: bool = False,
        pack: Union[int, str] = 1,
    ) -> Iterator[Tuple[Call, Outcome]]:
        """Every call with its one outcome; the arguments are those of `Client.map`.

        Raises:
            AuthenticationError: every server refuses this credential; waiting would not help.
            RemoteProtocolError: every server speaks another version.
        """
        source = CallSource(calls, window, ordered, pack)
        with contextlib.closing(self._answers(PendingRequests(source), window)) as answers:
            for call, outcome in answers:
                yield from source.settle(call, outcome)

    def _answers(self, queue: PendingRequests, window: int) -> Generator[Tuple[Call, Outcome], None, None]:
        while queue.has_more():
            if self._router is not None and self._router.is_of_use():
                self._close_client()
                yield from self._router.answers(queue, window)
                continue
            client = self._reach()
            if client is None:
                yield self._without_server(queue.take())
            else:
                yield from self._converse(client, queue, window)

    def _converse(
        self, client: Client, queue: PendingRequests, window: int
    ) -> Iterator[Tuple[Call, Outcome]]:
        """Work with one server until there is nothing left or it is lost."""
        flying: List[PendingRequest] = []
        pause = Pause(self._patience_s)
        try:
            while True:
                self._fill(client, queue, window, flying, pause)
                if not flying:
                    if self._has_moved(client):
                        self._move(client)
                        return
                    if client.is_draining:
                        self._leave("{} is shutting down".format(client.endpoint.name))
                        return
                    if not queue.has_more():
                        return
                    self._on_wait("waiting for server {}: it is busy".format(client.endpoint.name))
                    pause.sleep()
                    continue
                call, outcome = client.next_outcome()
                job = next(job for job in flying if job.call is call)
                flying.remove(job)
                if not self._comes_again(job, outcome, queue, pause):
                    yield call, outcome
        except UnavailableError as error:
            # One that only asked for patience, too often, is not lost.
            self.counts["lost_servers"] += not error.retry_after_s
            self._leave(error.message, error)
            yield from self._relaunch(flying, queue, error)
        finally:
            if flying:
                self._close_client()

    def _fill(
        self, client: Client, queue: PendingRequests, window: int, flying: List[PendingRequest], pause: Pause
    ) -> None:
        while len(flying) < window and not client.is_draining and not pause.is_on() and queue.has_more():
            self._look()
            if self._has_moved(client):
                return
            job = queue.take()
            flying.append(job)
            client.submit(job.call)

    def _comes_again(
        self, job: PendingRequest, outcome: Outcome, queue: PendingRequests, pause: Pause
    ) -> bool:
        """Give a call back that was answered with "not now"; whether it was."""
        if isinstance(outcome, UnavailableError):
            queue.give_back(job)
            pause.begin(outcome.retry_after_s or STORAGE_PAUSE_S, outcome)
            return True
        pause.over()
        if not isinstance(outcome, StorageError) or not outcome.transient:
            if self._client is not None:
                self._backoff.record_success(self._client.endpoint)
            return False
        if not job.may_wait_for_storage(self._patience_s):
            return False
        queue.give_back(job)
        if not self._asks_another():
            pause.begin(STORAGE_PAUSE_S, outcome)
        self._on_wait("waiting for storage: {}".format(outcome.message))
        return True

    def _asks_another(self) -> bool:
        """Turn to another server after what is in flight, if there is one that was not just in trouble, too.

        HDFS gives a server the DataNode of its own node first; while that one's death is not known yet, only
        servers of other nodes can write.
        """
        mine = self._endpoints[self._first]
        if self._client is not None and self._client.endpoint != mine:
            return True  # decided before, by an earlier answer
        self._backoff.record_failure(mine)
        self._first = self._order(self._first)[0]
        return self._endpoints[self._first] != mine

    def _relaunch(
        self, flying: List[PendingRequest], queue: PendingRequests, error: AccelError
    ) -> Iterator[Tuple[Call, Outcome]]:
        lost, flying[:] = list(flying), []
        for job in lost:
            job.n_attempts += 1
            if job.n_attempts < self._max_attempts:
                self.counts["resubmitted"] += 1
                queue.give_back(job)
        for job in lost:
            if job.n_attempts >= self._max_attempts:
                yield self._give_up(job, error)

    def _give_up(self, job: PendingRequest, error: AccelError) -> Tuple[Call, Outcome]:
        """The outcome of a call that may be the reason why its servers were lost."""
        self._last_error = error
        return self._without_server(job)

    def _make_router(self, routing_hints: Callable[[], Optional[RoutingHints]]) -> Router:
        rules = Rules(
            self._connect, self._now, routing_hints, self._give_up, self._on_wait, self._max_attempts,
            self._patience_s,
        )  # fmt: skip
        return Router(rules, self.counts)

    def _now(self, is_urgent: bool) -> Sequence[Endpoint]:
        """The servers of now."""
        self._look(is_urgent)
        return self._endpoints

    def _connect(self, endpoint: Endpoint) -> Client:
        client = Client(endpoint, self._credential, **self._client_options)
        client.connect()
        return client

    def _look(self, is_urgent: bool = False) -> None:
        """Take over what the servers are now; when nobody is known any more, those of before are kept.

        The best of them is the one to ask, again too when it has been passed over for long enough.
        """
        endpoints = list(self._follow(is_urgent)) if self._follow is not None else []
        is_new = bool(endpoints) and endpoints != self._endpoints
        if is_new:
            self._endpoints = endpoints
            self._given_up_until_s = 0.0
        places = enumerate(self._endpoints)
        best = next((place for place, each in places if not self._backoff.is_on(each)), None)
        if best is not None:
            self._first = best
        elif is_new:
            self._first = 0

    def _order(self, first: int) -> List[int]:
        """The places of all servers from `first` on; those that were just in trouble come last."""
        n = len(self._endpoints)
        places = [(first + step) % n for step in range(n)]
        return sorted(places, key=lambda place: self._backoff.is_on(self._endpoints[place]))

    def _has_moved(self, client: Client) -> bool:
        if self._router is not None and self._router.is_of_use():
            return True
        return client.endpoint != self._endpoints[self._first]

    def _move(self, client: Client) -> None:
        """Leave a server that answers, for the one this node is bound to now."""
        self._close_client()
        if self._router is not None and self._router.is_of_use():
            self._on_wait("from now on each request goes where it should be finished first")
            return
        better = self._endpoints[self._first].name
        self._on_wait("bound to server {} now, before to {}".format(better, client.endpoint.name))

    def _leave(self, why: str, error: Optional[AccelError] = None) -> None:
        """Turn away from the current server; the next one is tried first from now on."""
        first = self._endpoints[self._first]
        left = self._client.endpoint if self._client is not None else first
        self._close_client()
        self._last_error = error or UnavailableError(why)
        self._backoff.record_failure(left)
        if left == first:
            self._first = (self._first + 1) % len(self._endpoints)
        self._look(is_urgent=True)
        self._on_wait("looking for another server: {}".format(why))

    def _reach(self) -> Optional[Client]:
        """A connected client; None when no server is to be had.

        Having given up once, it looks again every now and then, but no longer waits.
        """
        if self._client is not None:
            return self._client
        self._look()
        started_s = time.monotonic()
        if not self._endpoints or started_s < self._given_up_until_s:
            return None
        pause_s = _FIRST_PAUSE_S
        while True:
            self._client = self._try_all()
            if self._client is not None:
                self._has_given_up = False
                return self._client
            left_s = started_s + self._patience_s - time.monotonic()
            if left_s <= 0 or self._has_given_up:
                self._has_given_up = True
                self._given_up_until_s = time.monotonic() + _GIVEN_UP_S
                return None
            self._on_wait("waiting for a server: {}".format(self._last_error))
            self._look()
            time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _try_all(self) -> Optional[Client]:
        refusals = []
        for index in self._order(self._first):
            try:
                client = self._connect(self._endpoints[index])
            except (AuthenticationError, RemoteProtocolError, UnavailableError) as error:
                self._backoff.record_failure(self._endpoints[index])
                self._last_error = error
                if not isinstance(error, UnavailableError):
                    refusals.append(error)
            else:
                self._first = index
                return client
        if len(refusals) == len(self._endpoints):
            raise refusals[0]
        return None

    def _without_server(self, job: PendingRequest) -> Tuple[Call, Outcome]:
        if self._fallback is None:
            return job.call, self._nobody()
        try:
            reply = self._fallback.call(job.call)
        except AccelError as error:
            return job.call, error
        return job.call, replace(reply, device=FALLBACK_DEVICE)

    def _nobody(self) -> UnavailableError:
        if not self._endpoints:
            return UnavailableError(
                "no pipeline server is known for this node", cure="name one in the binding file"
            )
        names = ", ".join(endpoint.name for endpoint in self._endpoints)
        error = UnavailableError(
            "no pipeline server answers (tried {}); last: {}".format(names, self._last_error)
        )
        return error


def _say_nothing(text: str) -> None:
    """The default of `on_wait`."""
