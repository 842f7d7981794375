"""What all backfilling policies have in common: the jobs, the table and the order of an instant.

Theory of operation. The table holds what runs (until its expected end), advance reservations, and the spots
promised to waiting jobs. `apply` takes the events of one instant: terminations give back what is left of
their spots; then the machine changes; then who has not ended as expected is given longer; then submissions
join the line; then the policy's one pass over the line starts jobs and makes promises. A change that takes
room away from promises (`_rebuild`) keeps every promise that still fits, in the order of the line, and makes
new ones for the others; these are broken, with a reason.

With the same events the object and a fresh one restored from its `state()` answer alike.
"""

from __future__ import annotations

import abc
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

from torque_sched.policies.backfilling.entry import Entry, by_arrival, by_rank
from torque_sched.policies.backfilling.estimate import Estimates, UserEstimates
from torque_sched.policies.backfilling.events import (
    BatchJob,
    Began,
    BreakReason,
    Broken,
    Cancelled,
    Ended,
    Event,
    Held,
    JobKey,
    Outcome,
    Overran,
    Promise,
    Released,
    ReservationDropped,
    ReservationMade,
    Reshaped,
    Started,
    Submitted,
)
from torque_sched.policies.backfilling.order import FirstCome, Order
from torque_sched.policies.backfilling.settings import Bounds
from torque_sched.policies.backfilling.state import KeptReservation, RunningJob, State, WaitingJob
from torque_sched.policies.backfilling.table import Spot, Table

N = TypeVar("N")
S = TypeVar("S", bound=Spot)


class Backfilling(abc.ABC, Generic[N, S]):
    """A policy: events of one instant in, starts and changed promises out.

    Args:
        table: where jobs are planned; nobody else changes it.
        order: who is considered first.
        estimates: how long jobs will run.
        bounds: limits on the work of one pass.
    """

    def __init__(
        self,
        table: Table[N, S],
        order: Order | None = None,
        estimates: Estimates | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.table = table
        self.order: Order = order or FirstCome()
        self.estimates: Estimates = estimates or UserEstimates()
        self.bounds = bounds or Bounds()
        self.now_s = -math.inf
        self.n_broken = 0
        self._line: list[Entry[N, S]] = []
        self._left: list[Entry[N, S]] = []
        self._waiting: dict[JobKey, Entry[N, S]] = {}
        self._running: dict[JobKey, Entry[N, S]] = {}
        self._ends: list[tuple[float, int, JobKey]] = []
        self._reservations: dict[str, S] = {}
        self._seq = 0
        self._freed = False
        self._wake_s = math.inf
        self._may_start: Callable[[JobKey], bool] | None = None
        self._starts: list[Started[S]] = []
        self._changed: dict[JobKey, Entry[N, S]] = {}
        self._broken: dict[JobKey, BreakReason] = {}
        self._refused: list[str] = []
        self._refused_jobs: list[Entry[N, S]] = []

    # What is to be seen from outside.

    @property
    def waiting(self) -> tuple[JobKey, ...]:
        """Waiting jobs in their order."""
        return tuple(entry.job.key for entry in self._line)

    @property
    def running(self) -> tuple[JobKey, ...]:
        """Running jobs in the order of their starts."""
        return tuple(self._running)

    @property
    def promises(self) -> tuple[Promise, ...]:
        """The promises of all waiting jobs that have one, in their order."""
        return tuple(entry.promise() for entry in self._line if entry.spot is not None)

    def spot_of(self, key: JobKey) -> S | None:
        """Where a job runs or will run by its promise."""
        entry = self._running.get(key) or self._waiting.get(key)
        return None if entry is None else entry.spot

    # One instant.

    def apply(
        self,
        events: Iterable[Event[N]],
        now_s: float,
        may_start: Callable[[JobKey], bool] | None = None,
    ) -> Outcome[S]:
        """Take all events of one instant and make one pass.

        Args:
            events: in any order; of one kind, they are taken in theirs.
            now_s: the instant; never before the last one.
            may_start: asked just before a start; False: it must not start now, for a reason of the caller's
                (a limit). It is asked again in the next pass.

        Raises:
            ValueError: an event that cannot be (a job unknown or known twice, time going back); the object is
                of no use afterwards.
        """
        self._open(now_s)
        self._may_start = may_start
        submissions, changes = [], []
        for event in events:
            if type(event) is Ended:
                self._end(event.key)
            elif type(event) is Submitted:
                submissions.append(event.job)
            else:
                changes.append(event)
        for event in changes:
            self._change(event)
        if self._ends and self._ends[0][0] <= now_s:
            self._extend_overrun()
        new = [self._submit(job) for job in submissions]
        self._pass(new)
        self._freed = False
        if self._refused_jobs:
            for entry in self._refused_jobs:
                entry.is_refused = False
            self._refused_jobs = []
        return self._answer()

    def _open(self, now_s: float) -> None:
        """Time passed."""
        if now_s < self.now_s:
            raise ValueError(f"time went back from {self.now_s:g} to {now_s:g}")
        self.now_s = now_s
        self.table.advance(now_s)
        if self._reservations:
            self._forget_reservations()
        if not self.order.is_static:
            self._sort()

    @abc.abstractmethod
    def _pass(self, new: list[Entry[N, S]]) -> None:
        """Start what may start now and promise what is to be promised; `new` are in the line already."""

    def _answer(self) -> Outcome[S]:
        outcome: Outcome[S] = Outcome(wake_s=self._next_wake())
        if self._starts:
            outcome.starts = tuple(self._starts)
            self._starts = []
        if self._broken:
            outcome.broken = tuple(self._broken_now())
            self.n_broken += len(outcome.broken)
            self._broken = {}
        if self._changed:
            outcome.promises = tuple(self._promised_now())
            self._changed = {}
        if self._refused:
            outcome.refused = tuple(self._refused)
            self._refused = []
        return outcome

    def _broken_now(self) -> Iterator[Broken]:
        """Promises that are worse at the end of the instant than before it."""
        left = [entry for key in self._broken if (entry := self._waiting.get(key)) is not None]
        for entry in sorted(left, key=by_arrival):
            key = entry.job.key
            old_s, new_s = entry.told_s, math.inf if entry.spot is None else entry.spot.start_s
            if new_s > max(old_s, self.now_s):
                # A later promise is the first of a new history.
                entry.told_s = math.inf
                yield Broken(key, self._broken[key], old_s, new_s)

    def _promised_now(self) -> Iterator[Promise]:
        """What waiting jobs are to be told."""
        for entry in sorted(self._changed.values(), key=by_arrival):
            spot = entry.spot
            if spot is None or spot.start_s == entry.told_s or entry.job.key not in self._waiting:
                continue
            if entry.told_s == math.inf:
                entry.first_s = spot.start_s
            entry.told_s = spot.start_s
            entry.made_s = self.now_s
            yield entry.promise()

    def _next_wake(self) -> float:
        """When something is to be done even if nothing happens."""
        wake_s = self._wake_s
        ends, running = self._ends, self._running
        while ends:
            end_s, _, key = ends[0]
            entry = running.get(key)
            if entry is not None and entry.spot is not None and entry.spot.end_s == end_s:
                if end_s <= self.now_s:
                    end_s = math.nextafter(self.now_s, math.inf)
                if end_s < wake_s:
                    wake_s = end_s
                break
            heappop(ends)
        if self._reservations:
            wake_s = min(wake_s, *[spot.end_s for spot in self._reservations.values()])
        return wake_s

    # What happened.

    def _end(self, key: JobKey) -> S:
        """A running job is gone; returns the spot it gave back."""
        entry = self._running.pop(key, None)
        if entry is None or entry.spot is None:
            raise ValueError(f"job {key} ended, but it does not run")
        self.table.give_back(entry.spot)
        ran_s = self.now_s - entry.spot.start_s
        self.order.ended(entry.job, entry.length_s, ran_s, self.now_s)
        self.estimates.ended(entry.job, ran_s)
        self._freed = True
        return entry.spot

    def _submit(self, job: BatchJob[N]) -> Entry[N, S]:
        if job.key in self._waiting or job.key in self._running:
            raise ValueError(f"job {job.key} is submitted a second time")
        length_s = self.estimates.estimate_s(job)
        rank = (self.order.rank(job, length_s, self.now_s), job.submit_s, self._seq)
        self._seq += 1
        entry: Entry[N, S] = Entry(job, length_s, rank, self.table.kinds(job.need))
        self._waiting[job.key] = entry
        line = self._line
        if not line or line[-1].rank < rank:
            line.append(entry)
        else:
            insort(line, entry, key=by_rank)
        return entry

    def _change(self, event: Event[N]) -> None:
        """Anything but a termination or a submission."""
        self._freed = True
        match event:
            case Cancelled():
                self._leave(self._entry(event.key))
            case Held():
                entry = self._entry(event.key)
                entry.is_held = True
                self._demote(entry, BreakReason.LIMIT)
            case Released():
                self._entry(event.key).is_held = False
            case Overran():
                self._put_off(event.key, event.end_s)
            case Reshaped():
                self._rebuild(BreakReason.CAPACITY, lambda: self.table.reshape(event.change))
            case ReservationMade():
                self._reserve(event)
            case ReservationDropped():
                self._drop(event.name)
            case Began():
                self._begin(event)
            case _:
                raise TypeError(f"no event of backfilling: {event!r}")

    def _entry(self, key: JobKey) -> Entry[N, S]:
        entry = self._waiting.get(key)
        if entry is None:
            raise ValueError(f"job {key} does not wait")
        return entry

    def _leave(self, entry: Entry[N, S]) -> None:
        """A waiting job is gone from the line."""
        if entry.spot is not None:
            self.table.give_back(entry.spot)
            entry.spot = None
        del self._waiting[entry.job.key]
        self._line.remove(entry)

    def _begin(self, event: Began[N, S]) -> None:
        """A job runs that was not started here."""
        key = event.job.key
        entry = self._running.pop(key, None) or self._waiting.get(key) or self._submit(event.job)
        if key in self._waiting:
            self._leave(entry)
        elif entry.spot is not None:
            self.table.give_back(entry.spot)
        entry.spot = event.spot
        self._running[key] = entry
        heappush(self._ends, (event.spot.end_s, entry.rank[2], key))
        self._take_surely(event.spot, BreakReason.OUTRANKED)
        self.order.started(entry.job, entry.length_s, self.now_s)

    def _reserve(self, event: ReservationMade[N]) -> None:
        start_s = max(event.start_s, self.now_s)
        if event.name in self._reservations or event.end_s <= start_s:
            self._refused.append(event.name)
            return

        def keep() -> None:
            spot = self.table.earliest(event.need, event.end_s - start_s, start_s, start_s)
            if spot is not None:
                self.table.take(spot)
                self._reservations[event.name] = spot

        keep()
        if event.may_break and event.name not in self._reservations:
            self._rebuild(BreakReason.RESERVATION, keep)
        if event.name not in self._reservations:
            self._refused.append(event.name)

    def _drop(self, name: str) -> None:
        spot = self._reservations.pop(name, None)
        if spot is None:
            raise ValueError(f"there is no reservation {name!r}")
        self.table.give_back(spot)

    def _forget_reservations(self) -> None:
        """Those that are over."""
        over = [name for name, spot in self._reservations.items() if spot.end_s <= self.now_s]
        for name in over:
            del self._reservations[name]
            self._freed = True

    # Promises that have to give way.

    def _extend_overrun(self) -> None:
        """Give longer to what should have ended by now."""
        ends = self._ends
        while ends and ends[0][0] <= self.now_s:
            end_s, _, key = heappop(ends)
            entry = self._running.get(key)
            if entry is None or entry.spot is None or entry.spot.end_s != end_s:
                continue
            start_s = entry.spot.start_s
            more_s = self.estimates.corrected_s(entry.job, self.now_s - start_s, entry.n_overruns)
            entry.n_overruns += 1
            self._put_off(key, max(start_s + more_s, math.nextafter(self.now_s, math.inf)))

    def _put_off(self, key: JobKey, end_s: float) -> None:
        """A running job will end then."""
        entry = self._running.get(key)
        if entry is None or entry.spot is None:
            raise ValueError(f"job {key} overran, but it does not run")
        self._freed = True
        self.table.give_back(entry.spot)
        entry.spot = self.table.lasting(entry.spot, entry.spot.start_s, end_s)
        heappush(self._ends, (entry.spot.end_s, entry.rank[2], key))
        self._take_surely(entry.spot, BreakReason.OVERRUN)

    def _take_surely(self, spot: S, reason: BreakReason) -> None:
        """A fact: promises give way to it."""
        if self.table.fits(spot):
            self.table.take(spot)
        else:
            self._rebuild(reason, lambda: self.table.force(spot))

    def _rebuild(self, reason: BreakReason, change: Callable[[], None]) -> None:
        """Keep every promise that still fits after the change, in the order of the line; renew the others."""
        self._close_ranks()
        promised = [entry for entry in self._line if entry.spot is not None]
        for entry in promised:
            self.table.give_back(_spot(entry))
        change()
        moved = [entry for entry in promised if not self._retake(entry)]
        lost = [entry for entry in moved if not self._same_start(entry, reason)]
        for entry in lost:
            self._promise(entry)
        self._freed = True

    def _retake(self, entry: Entry[N, S]) -> bool:
        """Whether the spot it was promised is still there for it."""
        spot = _spot(entry)
        if not self.table.fits(spot):
            return False
        self.table.take(spot)
        return True

    def _same_start(self, entry: Entry[N, S], reason: BreakReason) -> bool:
        """For a job whose spot is gone: is there another at the same time? Else its promise is lost."""
        start_s = max(_spot(entry).start_s, self.now_s)
        spot = self.table.earliest(entry.job.need, entry.length_s, start_s, start_s)
        if spot is None:
            self._lose(entry, reason)
            return False
        self.table.take(spot)
        self._settle(entry, spot)
        return True

    def _lose(self, entry: Entry[N, S], reason: BreakReason) -> None:
        """Its spot is not in the table any more."""
        if entry.told_s < math.inf:
            self._broken.setdefault(entry.job.key, reason)
        entry.spot = None

    def _demote(self, entry: Entry[N, S], reason: BreakReason) -> None:
        if entry.spot is not None:
            self.table.give_back(entry.spot)
            self._lose(entry, reason)

    def _promise(self, entry: Entry[N, S]) -> bool:
        """Promise the earliest start, if there is one within the window."""
        spot = self.table.earliest(
            entry.job.need, entry.length_s, self.now_s, self.now_s + self.bounds.window_s
        )
        if spot is None:
            return False
        self.table.take(spot)
        self._settle(entry, spot)
        return True

    def _settle(self, entry: Entry[N, S], spot: S) -> None:
        """The spot, already taken, is promised from now on."""
        entry.spot = spot
        self._changed[entry.job.key] = entry

    # Starts.

    def _start(self, entry: Entry[N, S]) -> None:
        """Its spot is taken and its time has come; the caller takes it out of the line."""
        spot, key = _spot(entry), entry.job.key
        del self._waiting[key]
        self._left.append(entry)
        self._running[key] = entry
        if spot.start_s < self.now_s:
            # The cycle is late: it holds the same place, for later.
            self.table.give_back(spot)
            spot = entry.spot = self.table.lasting(spot, self.now_s, self.now_s + entry.length_s)
            self._take_surely(spot, BreakReason.OVERRUN)
        heappush(self._ends, (spot.end_s, entry.rank[2], key))
        self.order.started(entry.job, entry.length_s, self.now_s)
        self._starts.append(Started(key, spot))

    def _may(self, entry: Entry[N, S]) -> bool:
        if self._may_start is None or self._may_start(entry.job.key):
            return True
        self._refuse(entry)
        return False

    def _refuse(self, entry: Entry[N, S]) -> None:
        """It cannot start in this instant."""
        entry.is_refused = True
        self._refused_jobs.append(entry)

    def _turns(self) -> Iterable[Entry[N, S]]:
        """The line, one after the other; a start may change who is next."""
        if self.order.is_static:
            return self._line
        return self._changing_turns()

    def _changing_turns(self) -> Iterator[Entry[N, S]]:
        self._sort()
        left, n_started = self._line, len(self._starts)
        while left:
            if n_started != len(self._starts):
                n_started = len(self._starts)
                self._rank(left)
            entry, left = left[0], left[1:]
            yield entry

    def _close_ranks(self) -> None:
        """Take out of the line what has started."""
        left = self._left
        if not left:
            return
        line = self._line
        if self.order.is_static and line[len(left) - 1] is left[-1]:
            # Jobs start in the order of the line, so these are its first ones.
            del line[: len(left)]
        elif self.order.is_static and len(left) * 32 <= len(line) + 256:
            for entry in left:
                del line[bisect_left(line, entry.rank, key=by_rank)]
        else:
            waiting = self._waiting
            self._line = [entry for entry in line if entry.job.key in waiting]
        left.clear()

    def _sort(self) -> None:
        """Rank the line anew, where time or starts change the order."""
        self._rank(self._line)

    def _rank(self, line: list[Entry[N, S]]) -> None:
        for entry in line:
            rank = self.order.rank(entry.job, entry.length_s, self.now_s)
            entry.rank = (rank, *entry.rank[1:])
        line.sort(key=by_rank)

    # Carried from one object to the next.

    def state(self) -> State[N, S]:
        """What a fresh object needs to go on exactly like this one; between two calls of `apply`."""
        return State(
            now_s=self.now_s,
            waiting=tuple(entry.as_waiting() for entry in self._line),
            running=tuple(entry.as_running() for entry in self._running.values()),
            reservations=tuple(KeptReservation(name, spot) for name, spot in self._reservations.items()),
            next_seq=self._seq,
            n_broken=self.n_broken,
            order=self.order.state(),
        )

    def restore(self, state: State[N, S]) -> None:
        """Go on from there; for a fresh object over a table where nothing is taken."""
        if self._waiting or self._running:
            raise ValueError("only a fresh policy can be restored")
        self.now_s, self._seq, self.n_broken = state.now_s, state.next_seq, state.n_broken
        self.order.restore(state.order)
        self.table.advance(state.now_s)
        for kept in state.reservations:
            self.table.force(kept.spot)
            self._reservations[kept.name] = kept.spot
        for ran in state.running:
            entry = self._restored(ran)
            self.table.force(ran.spot)
            entry.n_overruns = ran.n_overruns
            self._running[ran.job.key] = entry
            heappush(self._ends, (ran.spot.end_s, ran.seq, ran.job.key))
        for waited in state.waiting:
            entry = self._restored(waited)
            entry.made_s, entry.first_s = waited.made_s, waited.first_s
            entry.is_held = waited.is_held
            if waited.spot is not None:
                entry.told_s = waited.spot.start_s
            self._waiting[waited.job.key] = entry
            self._line.append(entry)
        self._line.sort(key=by_rank)
        self._restore_promises()
        self._freed = self._freed or state.freed

    def _restored(self, job: WaitingJob[N, S] | RunningJob[N, S]) -> Entry[N, S]:
        rank = (self.order.rank(job.job, job.length_s, self.now_s), job.job.submit_s, job.seq)
        entry: Entry[N, S] = Entry(job.job, job.length_s, rank, self.table.kinds(job.job.need))
        entry.spot = job.spot
        return entry

    def _restore_promises(self) -> None:
        """Keep the promises for which there is room; the table may have changed since."""
        promised = [entry for entry in self._line if entry.spot is not None]
        moved = [entry for entry in promised if not self._retake(entry)]
        lost = [entry for entry in moved if not self._same_start(entry, BreakReason.CAPACITY)]
        self._freed = bool(lost)
        self._wake_s = min((e.spot.start_s for e in self._line if e.spot is not None), default=math.inf)


def _spot(entry: Entry[N, S]) -> S:
    if entry.spot is None:
        raise ValueError(f"job {entry.job.key} has no spot")
    return entry.spot
