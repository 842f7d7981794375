"""One scheduling cycle: look at the cluster, decide, enact, and leave the checking to the next look."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from torque_sched.batch.cycle_lock import CycleLock
from torque_sched.batch.documents import hosts_text
from torque_sched.batch.system import BatchSystem, Look, OrderKind, OrderResult
from torque_sched.daemon.comments import CommentCall, CommentPace, CommentPlan, Renewal, with_an_old_comment
from torque_sched.daemon.decision_engine import DecisionEngine
from torque_sched.daemon.failures import Finding
from torque_sched.daemon.pending_orders import PendingOrders
from torque_sched.decide.context import Context
from torque_sched.errors import ConfigError
from torque_sched.learn.promises import Change, Outcome
from torque_sched.model.cluster import JobId, NodeName
from torque_sched.model.decisions import Decision, Hold, Reserve, Start
from torque_sched.model.reasons import Reason, started_comment
from torque_sched.model.snapshot import Snapshot

logger = logging.getLogger(__name__)

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """What one cycle may take.

    Attributes:
        starts_at_once: qruns running at the same time.
        starts_s: no further start is begun after this time; the rest waits for the next cycle.
        comments_s: comments take a cycle so long; the others are written while no cycle is wanted.
        lock_s: a cycle waits so long for the grid's site service to end its look; then it is left out.
    """

    starts_at_once: int = 4
    starts_s: float = 30.0
    comments_s: float = 0.1
    lock_s: float = 10.0

    def __post_init__(self) -> None:
        if self.starts_at_once < 1 or self.starts_s <= 0:
            raise ConfigError(
                "limits that let no job start", cure="starts_at_once is at least 1, starts_s above 0"
            )


_STARTS_TO_JOIN = 64
"""Starts given at the same time to a system that makes one order of those that are equal."""


@dataclass(slots=True)
class CycleReport:
    """What one cycle did; times in seconds since the epoch or of duration, as their names say."""

    at_s: float
    look: Look | None = None
    context: Context | None = None
    decisions: tuple[Decision, ...] = ()
    with_expected: tuple[Decision, ...] = ()
    """The decisions with the expected starts in their words, which nothing is decided by."""
    results: dict[JobId, OrderResult] = field(default_factory=dict)
    started_s: dict[JobId, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    promises: list[tuple[JobId, Change]] = field(default_factory=list)
    """What was promised, or promised otherwise, in this cycle."""
    settled: tuple[Outcome, ...] = ()
    """Promises whose jobs were first seen running in this cycle."""
    n_commented: int = 0
    n_comments_left: int = 0
    """Written after this cycle, until the next one looks."""
    query_total_s: float = 0.0
    """The four commands and reading what they printed."""
    looked_monotonic_s: tuple[float, float] = (0.0, 0.0)
    """When the look began and ended, on the monotonic clock."""
    decide_s: float = 0.0
    total_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    """How long each part of the cycle took, by its name; in the order in which they began."""
    stopped_by: OrderResult | None = None
    """The answer that ended all starts of this cycle: server gone, or not allowed."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block to a part of the cycle."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + time.monotonic() - began_s

    @property
    def n_holding(self) -> int | None:
        """How many jobs hold nodes after this cycle while others wait; None: none wait, or nobody counted."""
        if self.look is None or not self.look.snapshot.queued or not self.look.snapshot.server.state_count:
            return None
        return self.look.snapshot.server.n_holding + len(self.started_s)

    @property
    def is_unfinished(self) -> bool:
        """Whether another cycle soon would do more."""
        left = any(isinstance(each, Hold) and each.reason is Reason.CYCLE_FULL for each in self.decisions)
        return self.stopped_by is None and (left or self.n_failed > 0)

    @property
    def lost_the_server(self) -> bool:
        """Whether the server, or the way to it, was gone in the middle: nothing is known of the rest."""
        return self.stopped_by is not None and self.stopped_by.kind is OrderKind.SERVER_GONE

    @property
    def reported(self) -> tuple[Decision, ...]:
        """The decisions in the words that users see."""
        return self.with_expected or self.decisions

    @property
    def next_start_s(self) -> float | None:
        """When the next job is promised a start; None: none is."""
        reserved = (each for each in self.decisions if isinstance(each, Reserve) and each.promise is not None)
        return min((each.start_s for each in reserved if each.start_s > self.at_s), default=None)

    @property
    def n_failed(self) -> int:
        """Starts that were refused."""
        return sum(result.kind is not OrderKind.STARTED for result in self.results.values())


class SchedulingCycle:
    """Runs cycles, one at a time.

    Args:
        system: looked at and given orders.
        engine: decides.
        orders: what is remembered between cycles.
        comments: plans comments; None: none are written.
        limits: what one cycle may take.
        clock: seconds since the epoch.
        lock: held from the look to the end of the starts; None: nobody else acts on this cluster.
        deletes_impossible: delete a job that two cycles in a row found to fit nowhere ever.
        offlines_black_holes: set a node that swallows jobs offline, with a note.
    """

    def __init__(
        self,
        system: BatchSystem,
        engine: DecisionEngine,
        orders: PendingOrders,
        comments: CommentPlan | None,
        limits: CycleLimits,
        clock: Callable[[], float],
        *,
        lock: CycleLock | None = None,
        deletes_impossible: bool = False,
        offlines_black_holes: bool = False,
    ) -> None:
        self.is_deciding = False
        """Whether it computes, for seconds where thousands of jobs wait, and may be left at any point."""
        self._system = system
        self._engine = engine
        self.orders = orders
        self._comments = comments
        self._limits = limits
        self._clock = clock
        self._pace = CommentPace()
        self._owed: deque[CommentCall] = deque()
        self._lock = lock
        self._deletes_impossible = deletes_impossible
        self._offlines_black_holes = offlines_black_holes
        self._impossible: frozenset[JobId] = frozenset()
        self._lock_fd: int | None = None

    def use(
        self, limits: CycleLimits, renewal: Renewal, *, deletes_impossible: bool, offlines_black_holes: bool
    ) -> None:
        """Other settings, from the next cycle on."""
        self._limits = limits
        if self._comments is not None:
            self._comments.renewal = renewal
        self._deletes_impossible = deletes_impossible
        self._offlines_black_holes = offlines_black_holes

    async def run(self, *, dry: bool = False, is_wanted: Callable[[], bool] = lambda: False) -> CycleReport:
        """One cycle.

        Args:
            dry: look and decide, but neither start anything nor say anything.
            is_wanted: whether the next cycle is wanted already. Then comments are left owed, and expected
                starts as they were: whatever may start goes first.

        Raises:
            SnapshotError: there is no complete snapshot, or not the lock; nothing was done.
        """
        began_s = time.monotonic()
        report = CycleReport(self._clock())
        # Thousands of records live through a cycle and no longer; collecting in between finds nothing.
        gc.disable()
        try:
            async with self._alone(dry) as self._lock_fd:
                look_s = time.monotonic()
                report.phases_s["lock"] = look_s - began_s
                with report.phase("look"):
                    report.look = await self._system.look()
                report.looked_monotonic_s = (look_s, time.monotonic())
                report.query_total_s = report.looked_monotonic_s[1] - began_s
                snapshot = report.look.snapshot
                report.at_s = snapshot.now_s
                acts = not dry and snapshot.server.scheduling
                self._decide(report, snapshot, acts)
                if acts:
                    with report.phase("start"):
                        await self._start_all(report, snapshot)
            if acts:
                with report.phase("keep"):
                    self._engine.ended(self.orders)
                await asyncio.sleep(0)  # An event that came while nothing but the decision was at work.
                with report.phase("expect"):
                    self._expect(report, snapshot, may_renew=not is_wanted())
                with report.phase("comment"):
                    self._owe_comments(report, snapshot)
                    report.n_commented, stopped_by = await self.write_comments(
                        self._limits.comments_s, is_wanted
                    )
                report.n_comments_left = self.n_comments_owed
                report.stopped_by = report.stopped_by or stopped_by
                await self._clear_away(report)
            else:
                self._owed.clear()
        finally:
            gc.enable()
        report.total_s = time.monotonic() - began_s
        return report

    def _alone(self, dry: bool) -> AbstractAsyncContextManager[int | None]:
        if self._lock is None or dry:
            return nullcontext()
        return self._lock.taken_async(self._limits.lock_s)

    def _decide(self, report: CycleReport, snapshot: Snapshot, acts: bool) -> None:
        began_s = time.monotonic()
        with report.phase("learn"):
            report.findings += self.orders.observe(snapshot)
            report.context = self._engine.context(snapshot, self.orders)
            report.settled = self._engine.settled
        with report.phase("decide"), self._deciding():
            report.decisions = self._engine.decide(snapshot, report.context)
        report.decide_s = time.monotonic() - began_s
        if acts:
            with report.phase("promise"):
                report.promises = self._engine.decided(snapshot, report.decisions, self.orders)

    def _expect(self, report: CycleReport, snapshot: Snapshot, *, may_renew: bool) -> None:
        """When the jobs that wait are expected to start: said in comments, after all starts."""
        assert report.context is not None
        with self._deciding():
            report.with_expected = self._engine.expecting(
                report.decisions, snapshot, report.context, may_renew=may_renew
            )

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        self.is_deciding = True
        try:
            yield
        finally:
            self.is_deciding = False

    async def _start_all(self, report: CycleReport, snapshot: Snapshot) -> None:
        """Start in the order of the decisions, several at once where that is faster."""
        starts = iter([each for each in report.decisions if isinstance(each, Start)])
        deadline_s = time.monotonic() + self._limits.starts_s

        async def work() -> None:
            for start in starts:
                if report.stopped_by is not None or time.monotonic() > deadline_s:
                    return
                await self._start(start, report, snapshot)

        n_at_once = 1 if self._one_at_a_time() else self._limits.starts_at_once
        if self._system.joins_equal_starts:
            n_at_once = _STARTS_TO_JOIN
        await asyncio.gather(*(work() for _ in range(n_at_once)))

    async def _start(self, start: Start, report: CycleReport, snapshot: Snapshot) -> None:
        self.orders.asked(start.job, start.allocation, self._clock())
        job = snapshot.job_by_id[start.job]
        result = await self._system.start(job, start.allocation, self._lock_fd)
        now_s = self._clock()
        report.results[start.job] = result
        report.findings += self.orders.answered(start.job, result, now_s)
        if result.kind is OrderKind.STARTED:
            report.started_s[start.job] = now_s
            if report.context is not None:
                self._engine.started(start, snapshot, report.context)
        elif result.kind.stops_all:
            report.stopped_by = result
        else:
            logger.info("start of %s on %s refused: %s", start.job, hosts_text(start.allocation), result.text)

    def _owe_comments(self, report: CycleReport, snapshot: Snapshot) -> None:
        """Plan what is to be written; it takes the place of what was still to be written."""
        self._owed.clear()
        if self._comments is None or report.stopped_by is not None:
            return
        assert report.context is not None
        held = self._engine.held(with_an_old_comment(snapshot), snapshot, report.context)
        decided = (*report.reported, *held)
        self._owed.extend(
            self._comments.plan(
                snapshot, decided, report.started_s, self.orders.failure_text, comment_of_start
            )
        )

    async def n_holding(self) -> int | None:
        """As `BatchSystem` has it."""
        return await self._system.n_holding()

    async def write_comments(
        self, for_s: float = math.inf, is_over: Callable[[], bool] = lambda: False
    ) -> tuple[int, OrderResult | None]:
        """Write comments that are owed; those that are left stay owed until the next cycle plans them anew.

        It may be cancelled at any time.

        Args:
            for_s: no call is begun that would take it beyond this time, but for the first one.
            is_over: asked before each call; True: leave the rest.

        Returns:
            For how many jobs comments were written, and the answer that ended it: server gone, not allowed.
        """
        began_s, took_s, n_written = time.monotonic(), 0.0, 0
        while self._owed and not is_over():
            passed_s = time.monotonic() - began_s
            if n_written and passed_s + took_s >= for_s:
                break
            call = self._next_call()
            result = await self._system.comment(call.jobs, call.text)
            if result.kind.stops_all:
                self._owed.clear()
                return n_written, result
            took_s = time.monotonic() - began_s - passed_s
            self._pace.took(len(call.jobs), took_s)
            assert self._comments is not None
            self._comments.written(call, self._clock())
            n_written += len(call.jobs)
        return n_written, None

    def _next_call(self) -> CommentCall:
        """The first of what is owed, for as many jobs as one call is for now."""
        call = self._owed.popleft()
        n_jobs = 1 if self._one_at_a_time() else self._pace.n_jobs
        if len(call.jobs) > n_jobs:
            self._owed.appendleft(CommentCall(call.text, call.jobs[n_jobs:]))
        return CommentCall(call.text, call.jobs[:n_jobs])

    @property
    def n_comments_owed(self) -> int:
        """Jobs whose comments are still to be written."""
        return sum(len(call.jobs) for call in self._owed)

    def _one_at_a_time(self) -> bool:
        return self._system.one_order_at_a_time

    async def _clear_away(self, report: CycleReport) -> None:
        """What a site may allow besides: jobs that can never run, nodes that swallow jobs."""
        if report.stopped_by is not None:
            return
        holds = [each for each in report.decisions if isinstance(each, Hold)]
        never = {hold.job: hold for hold in holds if hold.reason is Reason.NEVER_FITS}
        if self._deletes_impossible:
            for job in sorted(never.keys() & self._impossible):
                await self._system.delete(job, f"Job could never run: {never[job].comment}")
        self._impossible = frozenset(never)
        if self._offlines_black_holes:
            for finding in report.findings:
                if finding.kind == "black-hole":
                    result = await self._system.set_offline(NodeName(finding.subject), finding.text)
                    if result.text:
                        logger.warning("%s was not set offline: %s", finding.subject, result.text)


def comment_of_start(at_s: float) -> str:
    """``Job started on Fri Nov 20 at 17:08``, in this host's time zone and the C locale's words."""
    at = time.localtime(at_s)
    return started_comment(_DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1], at.tm_mday, at.tm_hour, at.tm_min)
