"""The backfilling policies: fcfs, easy, conservative and selective."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate, islice
from operator import or_

from torque_sched.model.lengths import expansion_factor
from torque_sched.simulate.counts.estimates import Walltimes
from torque_sched.simulate.counts.jobs import CountJob, StaticOrder
from torque_sched.simulate.counts.scheduler import (
    OUTRANKED,
    CountScheduler,
    PolicySettings,
    by_rank,
    planned_of,
)
from torque_sched.simulate.counts.table import Interval, ProcessorTable

_EVERYBODY = -1


class FcfsPolicy(CountScheduler):
    """First come, first served: nobody goes ahead of the first job that cannot start; no reservations."""

    def _pass(self, new: Sequence[CountJob]) -> None:
        for job in self._turns():
            if not job.width_bit & self.table.startable() or not self._start_if_free(job):
                break
        self._remove_started()


class EasyPolicy(CountScheduler):
    """Reservations for the first jobs of the queue that cannot start; who does not delay them goes ahead.

    With depth 1 this is EASY itself (Lifka 1995): the reservation is at the shadow time of the first job.
    Reservations are made anew in every pass, as nobody but the first `depth` has a claim.
    """

    def __init__(
        self,
        table: ProcessorTable,
        order: StaticOrder | None = None,
        estimates: Walltimes | None = None,
        settings: PolicySettings | None = None,
    ) -> None:
        super().__init__(table, order, estimates, settings)
        self._depth = self.settings.depth or 1
        self._reserved: list[CountJob] = []
        has_limits = min(self.settings.window_s, self.settings.max_jobs) < math.inf
        # A pass with limits, or in another order, may answer otherwise the next time.
        self._may_skip = self._is_static and not has_limits

    def _pass(self, new: Sequence[CountJob]) -> None:
        tail = self._queue[len(self._queue) - len(new) :]
        if self._may_skip and not self._freed and self._wake_s > self.now_s and {*new} == {*tail}:
            # The others keep their turns and cannot start yet.
            self._pass_over(tail)
        else:
            self._pass_all()
        self._remove_started()
        starts_s = (job.planned.start_s for job in self._reserved if job.planned is not None)
        self._wake_s = min(starts_s, default=math.inf)

    def _pass_all(self) -> None:
        """Start who can, and reserve anew."""
        reserved, queue = self._reserved, self._queue
        if self._is_static and len(reserved) == 1 and reserved == queue[:1] and self._keeps(queue[0]):
            self._pass_over(islice(queue, 1, None))
            return
        before = [job for job in reserved if job.planned is not None and job.is_waiting]
        for job in before:
            self.table.give_back(planned_of(job))
            job.planned = None
        self._reserved = []
        self._pass_over(self._turns())
        for job in before:
            if job.is_waiting and (job.planned is None or job.planned.start_s > job.guaranteed_s):
                self._broken.setdefault(job.place, (job, OUTRANKED))

    def _keeps(self, first: CountJob) -> bool:
        """Whether the only job with a reservation cannot start yet: it keeps it, or gets an earlier one."""
        planned = first.planned
        if planned is None or planned.start_s <= self.now_s:
            return False
        earlier = self.table.earlier(first.procs, first.length_s, planned, self.now_s)
        if earlier is None:
            return True
        if earlier.start_s <= self.now_s:
            return False
        self.table.give_back(planned)
        self._plan(first, earlier)
        return True

    def _pass_over(self, turns: Iterable[CountJob]) -> None:
        """Start who can, and reserve a start for the first who cannot."""
        left = self.settings.max_jobs
        turns = iter(turns)
        while len(self._reserved) < self._depth:
            job = next(turns, None)
            left -= 1
            if job is None or left < 0:
                return
            if not self._start_if_free(job) and self._reserve(job):
                self._reserved.append(job)
        self._backfill(turns, left)

    def _backfill(self, turns: Iterable[CountJob], left: float) -> None:
        """Start who can; nobody else gets a reservation."""
        table, now_s = self.table, self.now_s
        startable = table.startable()
        if not startable:
            return
        if self._is_static and left == math.inf:
            until_s, long = table.startable_past()
            turns = [
                job
                for job in turns
                if (bit := job.width_bit) & startable and (bit & long or now_s + job.length_s <= until_s)
            ]
        for job in turns:
            left -= 1
            if left < 0:
                return
            if job.width_bit & startable and self._start_if_free(job):
                startable = table.startable()
                if not startable:
                    return


class ConservativePolicy(CountScheduler):
    """A reservation for every job at its submission, which only improves.

    A job goes ahead of others where it delays none of them (Mu'alem, Feitelson 2001; Lu, Han, Sun 2007,
    section 3.2.2). When a job ends early, compression uses what it leaves free: every waiting job, in the
    order of the queue, moves to the earliest start that it can have now. The paper prints the algorithm
    without this step (`compress=False`): then reservations that rest on too long walltimes never improve.

    Compression tries only jobs that it may help. A job that was tried in vain can only be helped by a time
    that has become free enough for it since. So every give-back is logged as the set of widths that it opened
    (`ProcessorTable.opened`). `_log` holds these sets since the begin of the last compression;
    `CountJob.n_tried` says how many of them a job was tried on. The result is that of trying everybody.
    """

    def __init__(
        self,
        table: ProcessorTable,
        order: StaticOrder | None = None,
        estimates: Walltimes | None = None,
        settings: PolicySettings | None = None,
    ) -> None:
        super().__init__(table, order, estimates, settings)
        depth = self.settings.depth
        self._depth = math.inf if depth is None else depth
        self._has_unreserved = True
        self._log: list[int] = [_EVERYBODY]
        #: Reserved starts and places, those that are out of date among them.
        self._due: list[tuple[float, int]] = []
        self._reserved: dict[int, CountJob] = {}

    def deserves_reservation(self, job: CountJob) -> bool:
        """Whether a job that cannot start now gets a reservation."""
        return True

    def _use_freed(self, interval: Interval) -> None:
        if self.settings.at_once:
            return
        # A job that ends as planned frees nothing that was not known: compression is for early ends.
        if self.settings.compress and interval.end_s > self.now_s:
            self._log.append(self.table.opened(interval))
            if not self._is_static:
                self._sort()
            self._compress()

    def _plan(self, job: CountJob, interval: Interval) -> None:
        super()._plan(job, interval)
        self._reserved[job.place] = job
        heappush(self._due, (interval.start_s, job.place))

    def _lose(self, job: CountJob) -> None:
        super()._lose(job)
        self._has_unreserved = True

    def _pass(self, new: Sequence[CountJob]) -> None:
        if not self._is_static:
            self._sort()
        if self._wake_s <= self.now_s:
            self._start_due()
        if self._freed or self.settings.at_once:
            if self.settings.compress:
                self._log.append(_EVERYBODY)
                self._compress()
            else:
                self._find_wake()
        if self._has_unreserved or len(new) > 1 or (new and self._depth < math.inf):
            self._consider_all()
        elif new:
            self._has_unreserved = not self._consider(new[0], 0)
        if self._wake_s <= self.now_s:
            self._start_due()

    def _compress(self) -> None:
        """Move every reservation to the earliest start that there is now, in the order of the queue."""
        opened_since = [*accumulate(reversed(self._log), or_, initial=0)]
        if not opened_since[-1]:
            return
        opened_since.reverse()
        log: list[int] = []
        opened, table, now_s = 0, self.table, self.now_s
        for job in self._queue:
            planned = job.planned
            if planned is not None:
                if planned.start_s > now_s and (opened_since[job.n_tried] | opened) & job.width_bit:
                    better = table.earlier(job.procs, job.length_s, planned, now_s)
                    if better is not None:
                        table.give_back(planned)
                        self._plan(job, better)
                        log.append(table.opened(planned, better))
                        opened |= log[-1]
                job.n_tried = len(log)
        self._log = log
        self._find_wake()

    def _consider_all(self) -> None:
        """Jobs without a reservation, in the order of the queue."""
        left = self.settings.max_jobs
        self._has_unreserved = False
        n_reserved = 0
        for job in self._queue:
            if job.planned is None:
                left -= 1
                if left < 0 or not self._consider(job, n_reserved):
                    self._has_unreserved = True
                    continue
            n_reserved += 1

    def _consider(self, job: CountJob, n_reserved: int) -> bool:
        """Whether a job without a reservation has one now: for later, or to start at once."""
        if n_reserved < self._depth and self.deserves_reservation(job):
            if not self._reserve(job):
                return False
        else:
            if not job.width_bit & self.table.startable():
                return False
            interval = self.table.earliest(job.procs, job.length_s, self.now_s, self.now_s)
            if interval is None:
                return False
            self._plan(job, interval)
        job.n_tried = len(self._log)
        self._wake_s = min(self._wake_s, planned_of(job).start_s)
        return True

    def _start_due(self) -> None:
        """Start the jobs whose reservations begin now."""
        now_s, heap = self.now_s, self._due
        due: dict[int, CountJob] = {}
        while heap and heap[0][0] <= now_s:
            job = self._holder(*heappop(heap))
            if job is not None:
                due[job.place] = job
        for job in sorted(due.values(), key=by_rank):
            del self._reserved[job.place]
            self._start(job)
        self._remove_started()
        self._find_wake()

    def _holder(self, start_s: float, place: int) -> CountJob | None:
        """The job with this reservation; None where it is out of date."""
        job = self._reserved.get(place)
        return None if job is None or job.planned is None or job.planned.start_s != start_s else job

    def _find_wake(self) -> None:
        heap = self._due
        while heap and self._holder(*heap[0]) is None:
            heappop(heap)
        self._wake_s = heap[0][0] if heap else math.inf


class SelectivePolicy(ConservativePolicy):
    """A reservation for each job whose expansion factor passes a threshold, from then on as all have.

    Between EASY and conservative (Srinivasan, Kettimuthu, Subramani, Sadayappan 2002): jobs without a
    reservation are in nobody's way, and none of them waits for ever.
    """

    def deserves_reservation(self, job: CountJob) -> bool:
        """As `ConservativePolicy.deserves_reservation`."""
        return expansion_factor(self.now_s - job.submit_s, job.length_s) > self.settings.threshold


POLICIES: Mapping[str, type[CountScheduler]] = {
    "fcfs": FcfsPolicy,
    "easy": EasyPolicy,
    "conservative": ConservativePolicy,
    "selective": SelectivePolicy,
}
