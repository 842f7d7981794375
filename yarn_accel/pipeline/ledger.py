"""Who waits for which answer, so that a request that comes twice is computed once.

::

    admit ──> arriving ──confirm──> running ──settle──> remembered for a while
                 (payload)  │
                            ├── the same is running: joined, it waits for that answer
                            ├── the same was answered: the answer is repeated
                            └── the key belongs to something else: conflict

A request is known by tenant and idempotency key, and is the same when its header and the digest of its inputs
are.  The digest is known when the payload has arrived, or the referenced files were looked at, so that is
when everything is decided; before, each request stands for itself.

Answers are remembered within a bound of bytes and of age: small ones as a copy, large ones where they lie, if
computing them took longer than copying would, or if nobody could be told.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from yarn_accel.pipeline.lease import Lease
from yarn_accel.wire import Failed, Request, Result

__all__ = ["Answer", "Entry", "Ledger", "Verdict", "Waiter", "addressed"]

_Name = tuple[str, str]


class Answer(NamedTuple):
    """What a request comes to: a message (its id is filled in per waiter) and the payload's buffers.

    Attributes:
        lease: holds the memory the payload lies in; None: it lies in memory of its own.
        output_stamp: what the written output looked like afterwards, where there was one to write.
    """

    message: Result | Failed
    payload: tuple[memoryview, ...] = ()
    lease: Lease | None = None
    output_stamp: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return sum([part.nbytes for part in self.payload])


class Waiter(NamedTuple):
    """One connection that waits for an answer under its own request number."""

    session: Any
    request_id: int


@dataclass(slots=True, eq=False)
class Entry:
    """One request under way; `stage` and `since_s` (monotonic seconds) are shown as progress."""

    name: tuple[str, str]
    content: tuple[Any, ...]
    waiters: list[Waiter]
    since_s: float
    stage: str = "receive"
    digest: bytes = b""

    @property
    def tenant(self) -> str:
        """Whose request it is."""
        return self.name[0]

    @property
    def key(self) -> str:
        """What its tenant calls it."""
        return self.name[1]


class Verdict(NamedTuple):
    """What to do with a request: go on with `entry`, repeat `answer`, refuse it, or nothing at all.

    Nothing means that it joined the same request, or that nobody waits for it any more.  A repeated answer
    with a lease was taken for the one who asked: give it back when it has left.
    """

    entry: Entry | None = None
    answer: Answer | None = None
    is_conflict: bool = False


@dataclass(slots=True)
class _Remembered:
    """An answer, or only that there was one (None): then the key still cannot mean anything else."""

    since_s: float
    content: tuple[Any, ...]
    digest: bytes
    answer: Answer | None
    cost_bytes: int


class Ledger:
    """The requests under way and the answers of late; safe to use from several threads.

    Args:
        cache_bytes: bound of the copied answers.
        cache_age_s: how long any answer is remembered.
        clock: monotonic seconds.
        kept_bytes: bound of the memory of large answers that are kept where they lie.
    """

    #: A larger answer is not copied.
    SMALL_BYTES: Final = 64 * 1024
    #: What an answer costs beside its payload: the message, the request it belongs to.
    OVERHEAD_BYTES = 1024
    #: A large answer is worth keeping when computing took longer than this rate would need to copy it.
    COPY_BYTES_PER_S = 1e9
    _MAX_CRASHED = 4096

    def __init__(
        self,
        cache_bytes: int,
        cache_age_s: float,
        clock: Callable[[], float] = time.monotonic,
        kept_bytes: int = 0,
    ) -> None:
        self._cache_bytes = cache_bytes
        self._cache_age_s = cache_age_s
        self._kept_bound_bytes = kept_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._arriving: set[Entry] = set()
        self._running: dict[_Name, Entry] = {}
        self._answered: collections.OrderedDict[_Name, _Remembered] = collections.OrderedDict()
        self._kept: collections.OrderedDict[_Name, Lease] = collections.OrderedDict()
        self._cached_bytes = 0
        self._kept_bytes = 0
        self._all_young_until_s = 0.0
        self._waits: dict[Any, dict[int, Entry]] = {}
        self._crashed: collections.OrderedDict[_Name, int] = collections.OrderedDict()

    @property
    def n_running(self) -> int:
        """Requests under way, also those whose payload is still arriving."""
        return len(self._running) + len(self._arriving)

    @property
    def cached_bytes(self) -> int:
        """Memory of the copied answers."""
        return self._cached_bytes

    @property
    def kept_bytes(self) -> int:
        """Memory of the answers that are kept where they lie."""
        return self._kept_bytes

    # The life of a request

    def admit(self, tenant: str, request: Request, waiter: Waiter) -> Verdict:
        """Enter a request whose header has arrived.

        The verdict is a new entry, or a conflict: the header alone says so, or the connection waits under the
        same number already.
        """
        content = (request.operation, request.params, request.inputs, request.output_uri)
        name = (tenant, request.key)
        session, number = waiter
        entry = Entry(name, content, [waiter], self._clock())
        if entry.since_s > self._all_young_until_s:
            self.forget_old()
        with self._lock:
            known = self._running.get(name) or self._answered.get(name)
            waits = self._waits.get(session, {})
            if number in waits or (known is not None and known.content != content):
                return Verdict(is_conflict=True)
            if not waits:
                self._waits[session] = waits
            waits[number] = entry
            self._arriving.add(entry)
        return Verdict(entry)

    def knows(self, entry: Entry) -> bool:
        """Whether the answer may be remembered, so that looking at its written output is worth while."""
        return entry.name in self._answered

    def confirm(self, entry: Entry, digest: bytes, output_stamp: object = None) -> Verdict:
        """Decide about a request whose inputs are there.

        Args:
            entry: from `admit`.
            digest: of the inputs' bytes, with length and time of each file that is referenced.
            output_stamp: what lies where its output goes; a written answer is repeated only when that is
                what was written.
        """
        with self._lock:
            self._arriving.discard(entry)
            if not entry.waiters:
                return Verdict()
            name = entry.name
            running = self._running.get(name)
            if running is not None:
                return self._join(entry, running, digest)
            known = self._answered.get(name)
            if known is not None:
                if known.content != entry.content or known.digest != digest:
                    self._release_waiters(entry)
                    return Verdict(is_conflict=True)
                answer = known.answer
                if answer is not None and answer.output_stamp == output_stamp:
                    self._release_waiters(entry)
                    if answer.lease is not None:
                        answer.lease.take()
                    return Verdict(answer=answer)
            entry.digest = digest
            self._running[name] = entry
            return Verdict(entry)

    def settle(self, entry: Entry, answer: Answer, compute_s: float = 0.0) -> list[Waiter]:
        """End a request; returns those who get the answer.

        Args:
            entry: from `admit`, confirmed or not.
            answer: its lease, if it has one, is taken once more when the answer is kept.
            compute_s: what it cost.
        """
        given_up: list[Lease] = []
        with self._lock:
            is_confirmed = self._running.get(entry.name) is entry
            if is_confirmed:
                del self._running[entry.name]
            else:
                self._arriving.discard(entry)
            waiters = self._release_waiters(entry)
            if is_confirmed and _is_final(answer):
                if self._crashed:
                    self._crashed.pop(entry.name, None)
                n_bytes = answer.nbytes
                is_dear = compute_s * self.COPY_BYTES_PER_S > n_bytes or not waiters
                self._remember(entry, answer, n_bytes, is_dear, given_up)
        if given_up:
            _give_back(given_up)
        return waiters

    def keep(self, entry: Entry, answer: Answer) -> None:
        """Remember an answer that could not be delivered, however cheap it was; the lease is taken if so."""
        given_up: list[Lease] = []
        with self._lock:
            known = self._answered.get(entry.name)
            is_known = entry.name in self._running or (known is not None and known.answer is not None)
            if not is_known and _is_final(answer):
                self._remember(entry, answer, answer.nbytes, True, given_up)
        _give_back(given_up)

    def withdraw_entry(self, entry: Entry) -> list[Waiter]:
        """End a request without an answer; returns those who waited for it."""
        with self._lock:
            self._end(entry)
            return self._release_waiters(entry)

    def drop_if_abandoned(self, entry: Entry) -> bool:
        """End a request that nobody waits for any more; whether that was so."""
        with self._lock:
            if entry.waiters:
                return False
            self._end(entry)
            return True

    def crashed(self, entry: Entry) -> int:
        """Count a worker that a request has cost; returns how many, also under the same key before."""
        with self._lock:
            n_crashed = self._crashed.pop(entry.name, 0) + 1
            self._crashed[entry.name] = n_crashed
            if len(self._crashed) > self._MAX_CRASHED:
                self._crashed.popitem(last=False)
            return n_crashed

    # Those who wait

    def withdraw(self, session: object, request_id: int | None = None) -> int:
        """Let a connection wait no longer for one of its requests, or for all; returns how many that were."""
        with self._lock:
            waits = self._waits.get(session, {})
            numbers = list(waits) if request_id is None else [request_id] if request_id in waits else []
            for number in numbers:
                waits[number].waiters.remove(Waiter(session, number))
                del waits[number]
            if not waits:
                self._waits.pop(session, None)
            return len(numbers)

    def n_waiting(self, session: object) -> int:
        """For how many requests a connection waits."""
        return len(self._waits.get(session, ()))

    def waiters(self) -> list[tuple[Entry, Waiter]]:
        """Everyone who waits now."""
        with self._lock:
            entries = [*self._arriving, *self._running.values()]
            return [(entry, waiter) for entry in entries for waiter in entry.waiters]

    # Memory

    def evict(self, n_bytes: int) -> int:
        """Let go of kept answers, oldest first, until so much memory may return; returns how much may.

        What is being sent just now returns when it has left.  Not to be called with a lock that giving back
        needs.
        """
        given_up: list[Lease] = []
        with self._lock:
            while self._kept and sum(lease.n_bytes for lease in given_up) < n_bytes:
                self._forget(next(iter(self._kept)), given_up)
        _give_back(given_up)
        return sum(lease.n_bytes for lease in given_up)

    def forget_old(self) -> None:
        """Let go of answers that are too old; also done by `admit` when there may be some."""
        given_up: list[Lease] = []
        with self._lock:
            self._forget_old(given_up)
        _give_back(given_up)

    # With the lock

    def _join(self, entry: Entry, running: Entry, digest: bytes) -> Verdict:
        is_same = running.content == entry.content and running.digest == digest
        for waiter in self._release_waiters(entry):
            if is_same:
                running.waiters.append(waiter)
                self._waits.setdefault(waiter.session, {})[waiter.request_id] = running
        return Verdict(is_conflict=not is_same)

    def _end(self, entry: Entry) -> None:
        self._arriving.discard(entry)
        if self._running.get(entry.name) is entry:
            del self._running[entry.name]

    def _release_waiters(self, entry: Entry) -> list[Waiter]:
        waiters, entry.waiters = entry.waiters, []
        for session, number in waiters:
            waits = self._waits[session]
            del waits[number]
            if not waits:
                del self._waits[session]
        return waiters

    def _remember(
        self, entry: Entry, answer: Answer, n_bytes: int, is_dear: bool, given_up: list[Lease]
    ) -> None:
        """Copy a small answer, keep a large one, or note at least that there was one."""
        name, content = entry.name, entry.content
        if name in self._answered:
            self._forget(name, given_up)
        info = getattr(answer.message, "info", None)
        cost = self.OVERHEAD_BYTES + 256 * len(content[2])
        if content[1] or info:
            cost += _extent(content[1]) + _extent(info)
        lease = answer.lease
        stored: Answer | None = None
        if content[3] and answer.output_stamp is None:
            pass
        elif n_bytes <= self.SMALL_BYTES:
            copies = tuple([memoryview(bytes(part)) for part in answer.payload])
            stored = Answer(answer.message, copies, None, answer.output_stamp)
            cost += n_bytes
        elif lease is not None and is_dear and lease.n_bytes <= self._kept_bound_bytes:
            lease.take()
            stored = answer
            self._kept[name] = lease
            self._kept_bytes += lease.n_bytes
        self._answered[name] = _Remembered(self._clock(), content, entry.digest, stored, cost)
        self._cached_bytes += cost
        while self._cached_bytes > self._cache_bytes:
            self._forget(next(iter(self._answered)), given_up)
        while self._kept_bytes > self._kept_bound_bytes:
            self._forget(next(iter(self._kept)), given_up)

    def _forget_old(self, given_up: list[Lease]) -> None:
        now_s = self._clock()
        self._all_young_until_s = now_s + self._cache_age_s
        while self._answered:
            name, oldest = next(iter(self._answered.items()))
            if now_s - oldest.since_s <= self._cache_age_s:
                self._all_young_until_s = oldest.since_s + self._cache_age_s
                return
            self._forget(name, given_up)

    def _forget(self, name: _Name, given_up: list[Lease]) -> None:
        self._cached_bytes -= self._answered.pop(name).cost_bytes
        lease = self._kept.pop(name, None)
        if lease is not None:
            self._kept_bytes -= lease.n_bytes
            given_up.append(lease)


def _give_back(leases: list[Lease]) -> None:
    """Without the lock: the memory may belong to somebody who asks the ledger for more."""
    for lease in leases:
        lease.give_back()


def _is_final(answer: Answer) -> bool:
    """Whether computing again would give the same: not for what may be better next time."""
    message = answer.message
    return isinstance(message, Result) or (message.kind == "rejected" and message.code != "deadline-exceeded")


def _extent(values: Any) -> int:
    """About how much memory a request's parameters or a result's numbers take."""
    return len(repr(values)) if values else 0


def addressed(answer: Answer, waiter: Waiter) -> Result | Failed:
    """The message of an answer as this waiter must get it."""
    return dataclasses.replace(answer.message, id=waiter.request_id)
