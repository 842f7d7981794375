"""Who waits for which answer, so that a request that comes twice is computed once.

A request is known by tenant and idempotency key.  While it is under way, the same request from another
connection (a speculative attempt, a client that lost its connection) joins those who wait.  When it has been
answered, a small answer is remembered for a while, unless the request names files.  The same key for another
request is an error.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from yarn_accel.wire import Failed, RemoteInput, Request, Result

__all__ = ["Answer", "Entry", "Ledger", "Verdict", "Waiter", "addressed"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request comes to: a message (its id is filled in per waiter) and the payload's buffers."""

    message: Result | Failed
    payload: tuple[memoryview, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return sum(part.nbytes for part in self.payload)


@dataclass(frozen=True, slots=True)
class Waiter:
    """One connection that waits for an answer under its own request number."""

    session: Any
    request_id: int


@dataclass(slots=True)
class Entry:
    """One request under way."""

    tenant: str
    key: str
    content: tuple[Any, ...]
    waiters: list[Waiter] = field(default_factory=list)
    #: What is being done for it, since when (monotonic seconds): shown as progress.
    stage: str = "receive"
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an admission: `entry` to compute, or `answer` to repeat, or joined, or in conflict."""

    entry: Entry | None = None
    answer: Answer | None = None
    is_conflict: bool = False


class Ledger:
    """The requests under way and the small answers of late; safe to use from several threads.

    Args:
        cache_bytes: bound of the remembered answers.
        cache_age_s: how long one is remembered.
        clock: monotonic seconds.
    """

    #: An answer with more payload than this is not remembered; asking again computes again.
    SMALL_BYTES = 64 * 1024
    #: What an answer costs beside its payload: the message, the request it belongs to.
    OVERHEAD_BYTES = 1024

    def __init__(
        self, cache_bytes: int, cache_age_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache_bytes = cache_bytes
        self._cache_age_s = cache_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], Entry] = {}
        self._answered: collections.OrderedDict[tuple[str, str], tuple[float, tuple[Any, ...], Answer]]
        self._answered = collections.OrderedDict()
        self._cached_bytes = 0
        self._n_waiting: collections.Counter[Any] = collections.Counter()

    @property
    def n_running(self) -> int:
        """Requests under way."""
        return len(self._running)

    @property
    def cached_bytes(self) -> int:
        """Memory of the remembered answers."""
        return self._cached_bytes

    def admit(self, tenant: str, request: Request, waiter: Waiter) -> Verdict:
        """Enter a request, or find out that it is known."""
        content = (request.operation, dict(request.params), request.inputs, request.output_uri)
        name = (tenant, request.key)
        with self._lock:
            self._forget_old()
            running = self._running.get(name)
            if running is not None:
                if running.content != content:
                    return Verdict(is_conflict=True)
                running.waiters.append(waiter)
                self._n_waiting[waiter.session] += 1
                return Verdict()
            known = self._answered.get(name)
            if known is not None:
                if known[1] != content:
                    return Verdict(is_conflict=True)
                return Verdict(answer=known[2])
            entry = Entry(tenant, request.key, content, [waiter], since_s=self._clock())
            self._running[name] = entry
            self._n_waiting[waiter.session] += 1
            return Verdict(entry=entry)

    def settle(self, entry: Entry, answer: Answer) -> list[Waiter]:
        """End a request; returns those who get the answer."""
        with self._lock:
            if self._running.get((entry.tenant, entry.key)) is entry:
                del self._running[entry.tenant, entry.key]
            waiters, entry.waiters = entry.waiters, []
            for waiter in waiters:
                self._wait_over(waiter)
            if waiters and _is_final(answer) and not _names_files(entry):
                self._remember((entry.tenant, entry.key), entry.content, answer)
            return waiters

    def drop_if_abandoned(self, entry: Entry) -> bool:
        """End a request that nobody waits for any more; whether that was so."""
        with self._lock:
            if entry.waiters:
                return False
            if self._running.get((entry.tenant, entry.key)) is entry:
                del self._running[entry.tenant, entry.key]
            return True

    def withdraw(self, session: object, request_id: int | None = None) -> int:
        """Let a connection wait no longer for one of its requests, or for all; returns how many that were."""
        n_withdrawn = 0
        with self._lock:
            for entry in self._running.values():
                kept = [
                    waiter
                    for waiter in entry.waiters
                    if waiter.session is not session or request_id not in (None, waiter.request_id)
                ]
                for waiter in entry.waiters:
                    if waiter not in kept:
                        self._wait_over(waiter)
                        n_withdrawn += 1
                entry.waiters = kept
        return n_withdrawn

    def n_waiting(self, session: object) -> int:
        """For how many requests a connection waits."""
        return self._n_waiting.get(session, 0)

    def waiters(self) -> list[tuple[Entry, Waiter]]:
        """Everyone who waits now."""
        with self._lock:
            return [(entry, waiter) for entry in self._running.values() for waiter in entry.waiters]

    def _wait_over(self, waiter: Waiter) -> None:
        self._n_waiting[waiter.session] -= 1
        if not self._n_waiting[waiter.session]:
            del self._n_waiting[waiter.session]

    def _remember(self, name: tuple[str, str], content: tuple[Any, ...], answer: Answer) -> None:
        cost = self.OVERHEAD_BYTES + answer.nbytes
        if answer.nbytes > self.SMALL_BYTES or cost > self._cache_bytes:
            return
        copy = Answer(answer.message, tuple(memoryview(bytes(part)) for part in answer.payload))
        self._answered[name] = (self._clock(), content, copy)
        self._cached_bytes += cost
        while self._cached_bytes > self._cache_bytes:
            self._drop_oldest()

    def _forget_old(self) -> None:
        while self._answered:
            since_s, _, _ = next(iter(self._answered.values()))
            if self._clock() - since_s <= self._cache_age_s:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, _, answer) = self._answered.popitem(last=False)
        self._cached_bytes -= self.OVERHEAD_BYTES + answer.nbytes


def _is_final(answer: Answer) -> bool:
    """Whether computing again would give the same: not for what may be better next time."""
    message = answer.message
    return isinstance(message, Result) or (message.kind == "rejected" and message.code != "deadline-exceeded")


def _names_files(entry: Entry) -> bool:
    """Whether the request reads or writes files: those may change, so its answer is not repeated."""
    _, _, inputs, output_uri = entry.content
    return bool(output_uri) or any(isinstance(item, RemoteInput) for item in inputs)


def addressed(answer: Answer, waiter: Waiter) -> Result | Failed:
    """The message of an answer as this waiter must get it."""
    return dataclasses.replace(answer.message, id=waiter.request_id)
