"""The daemon's life: start up, run cycles when the server knocks or the timer rings, shut down.

The first event acts at once; those that come while a cycle runs, or right after it, become one more cycle.
So a lost event costs at most one period of the timer, and a burst of a thousand costs two cycles. A server
that is slow to show its jobs rests in between for a multiple of the time that it took.

A real server knocks up to a quarter of a second after a job has ended. While jobs wait and others were
started a moment ago, its count of jobs that hold nodes is asked for as well; where it falls, a cycle runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

from torque_sched.adapters.commands import Commands
from torque_sched.adapters.log_file import Event, LogFile
from torque_sched.adapters.waiting import within
from torque_sched.batch.system import EventSource, OrderKind
from torque_sched.daemon.answers import AnswerPort
from torque_sched.daemon.cycle import CycleReport, SchedulingCycle
from torque_sched.errors import SnapshotError, StartupError, TorqueSchedError

logger = logging.getLogger(__name__)

_EXEC_FAILED = 3
_WATCH_FOR_S = 10.0
"""The server's count is watched so long after a cycle that started something."""
_WATCH_REST = 20.0
"""Between two questions for it there are so many times what the last one took."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When cycles run; all in seconds.

    Attributes:
        timer_s: a cycle at least so often.
        settle_s: rest after a cycle that was run for an event.
        retry_s: until the next try after a cycle that got no snapshot, or lost the server later.
        alarm_s: a cycle that takes longer makes the daemon begin anew; 0: never.
        watch_s: the server's count of jobs that hold nodes is asked for so often at most; 0: never.
        look_rest: from the end of a look to the next one at least so many times what it took, less the time
            in which we read what the server had answered; of one that failed at most ``timer_s``.
    """

    timer_s: float = 30.0
    settle_s: float = 0.05
    retry_s: float = 5.0
    alarm_s: int = 180
    look_rest: float = 2.4
    watch_s: float = 0.05

    def rest_s(self, report: CycleReport, now_s: float) -> float:
        """From now, on the monotonic clock, until the server may be looked at again after this cycle."""
        began_s, ended_s = report.looked_monotonic_s
        asked_s = ended_s - began_s - (report.look.read_s if report.look is not None else 0.0)
        least_s = max(self.settle_s, ended_s + self.look_rest * asked_s - now_s)
        if report.lost_the_server:
            return max(self.retry_s, least_s)
        if report.is_unfinished:
            return max(1.0, least_s)
        return least_s

    def rest_after_failure_s(self, took_s: float) -> float:
        """After a cycle without a look, which took so long."""
        return max(self.retry_s, min(self.look_rest * took_s, self.timer_s))


@dataclass(frozen=True, slots=True)
class Ending:
    """How the daemon ended."""

    exit_code: int
    text: str = ""


@dataclass
class Service:
    """Runs cycles until it is to stop.

    Attributes:
        cycle: one scheduling cycle.
        port: where the server knocks; None: the timer alone.
        log: pbs_sched's log.
        commands: whatever still runs is ended with the daemon.
        pace: when cycles run.
        dry: nothing is started and nothing said (shadow).
        on_report: called after each cycle with its report and its cause; journal, state and metrics.
        on_up: called when it listens and signals are taken.
        on_hang_up: SIGHUP: read again what is read again.
        on_failure: called when there was no snapshot.
        on_end: called when the last cycle is over.
        answers: where users ask; None: nobody does.
        started_in: the folder it was started in, for beginning anew with the same words.
    """

    cycle: SchedulingCycle
    port: EventSource | None
    log: LogFile
    commands: Commands
    pace: Pace
    dry: bool = False
    on_report: Callable[[CycleReport, str], None] = lambda report, cause: None
    on_up: Callable[[], None] = lambda: None
    on_hang_up: Callable[[], None] = lambda: None
    on_failure: Callable[[TorqueSchedError], None] = lambda error: None
    on_end: Callable[[], None] = lambda: None
    answers: AnswerPort | None = None
    started_in: str = ""
    n_cycles: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _causes: list[str] = field(default_factory=list)
    _ending: Ending | None = None
    _last_failure: str = ""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Task[float] | None = None
    _writing: asyncio.Task[None] | None = None
    """Comments that are written while no cycle runs."""
    _rested: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a rest is over: whatever is done meanwhile gives way to the cycle."""
    _watching: asyncio.Task[None] | None = None
    """Asks for the server's count while no cycle runs."""
    _n_holding: int | None = None
    """How many jobs hold nodes after the last cycle, where it matters when one ends."""
    _watch_until_s: float = 0.0
    _retry_due: bool = False
    _next_start_monotonic_s: float | None = None

    # -- what may happen

    def quit(self) -> None:
        """The server ordered it to end."""
        self._end(Ending(0, "the server ordered it to quit"))

    def begin_anew(self) -> None:
        """The server ordered it to read all settings again."""
        self.log.record(Event.SCHED, "Svr", "reconfig", "Scheduler is reconfiguring")
        self.log.close()
        re_execute(self.started_in)

    def wake(self, cause: str) -> None:
        """Run a cycle soon."""
        self._causes.append(cause)
        self._wake.set()

    def _end(self, ending: Ending) -> None:
        self._ending = ending if self._ending is None else self._ending
        self._wake.set()
        self._stop.set()

    def _cut_short(self, number: int, frame: FrameType | None) -> None:
        """The signal itself, wherever the program is: a long decision is left, as nothing depends on it."""
        if self.cycle.is_deciding and self._ending is None:
            self._caught(number)
            raise asyncio.CancelledError

    def _caught(self, number: int) -> None:
        if self._ending is None:
            self.log.record(Event.SYSTEM, "Svr", "die", f"caught signal {number}")
            self._end(Ending(1, f"caught signal {number}"))
        for task in (self._running, self._writing, self._watching):
            if task is not None:
                task.cancel()

    def _hung_up(self) -> None:
        with suppress(StartupError):
            self.log.reopen()
        try:
            self.on_hang_up()
        except TorqueSchedError as error:
            logger.error("%s", error)
        self.log.record(Event.SYSTEM, "Svr", "restart", f"restart on signal {signal.SIGHUP.value}")

    # -- its life

    async def run(self) -> Ending:
        """Until it is to stop."""
        await self._start_up()
        try:
            pause_s = 0.0
            self.wake("start")
            while self._ending is None:
                await self._rest_writing(pause_s)
                if self._ending is None:
                    pause_s = await self._guarded()
        finally:
            await self._shut_down()
        return Ending(0) if self._ending is None else self._ending

    async def _start_up(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._caught, number.value)
            signal.signal(number, self._cut_short)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        signal.signal(signal.SIGALRM, self._too_long)
        if self.port is not None:
            await self.port.start()
        if self.answers is not None:
            self.answers.start()
        self.on_up()

    async def _shut_down(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if self.port is not None:
            await self.port.stop()
        if self.answers is not None:
            await self.answers.stop()
        self.commands.kill_all()
        self.on_end()

    async def _rest_writing(self, pause_s: float) -> None:
        """Rest, and write the comments that are owed meanwhile; starts go first, so a cycle ends that."""
        self._rested.clear()
        self._writing = asyncio.ensure_future(self._write_comments())
        self._watching = asyncio.ensure_future(self._watch())
        try:
            await self._rest(pause_s)
        finally:
            self._rested.set()
            with suppress(asyncio.CancelledError):
                await self._writing
            with suppress(asyncio.CancelledError):
                await self._watching
            self._writing = self._watching = None

    async def _watch(self) -> None:
        """Run a cycle where fewer jobs hold nodes, by the server's count, than after the last cycle."""
        took_s, most = 0.0, self._n_holding
        while most is not None and self.pace.watch_s and time.monotonic() < self._watch_until_s:
            with suppress(asyncio.TimeoutError):
                await within(max(self.pace.watch_s, _WATCH_REST * took_s), self._rested.wait())
            if self._rested.is_set():
                return
            began_s = time.monotonic()
            n_holding = await self.cycle.n_holding()
            took_s = time.monotonic() - began_s
            if n_holding is None:
                return
            if n_holding < most:
                self.wake("ended")
                return
            most = max(most, n_holding)

    async def _write_comments(self) -> None:
        try:
            n_written, stopped_by = await self.cycle.write_comments(is_over=self._rested.is_set)
        except Exception as error:
            logger.error("comments failed, which is a fault of ours: %r", error, exc_info=error)
            return
        if n_written:
            text = f"{n_written} jobs commented between two looks, {self.cycle.n_comments_owed} are left"
            self.log.record(Event.DEBUG, "Svr", "comments", text)
        if stopped_by is not None:
            logger.error("comments were given up: %s", stopped_by.text)
            if stopped_by.kind is OrderKind.SERVER_GONE:
                self.wake("comments")

    async def _rest(self, pause_s: float) -> None:
        """Until an event, the timer or a promised start, but at least ``pause_s``."""
        began_s = time.monotonic()
        if pause_s > 0:
            with suppress(asyncio.TimeoutError):
                await within(pause_s, self._stop.wait())
        left_s = max(0.0, self.pace.timer_s - (time.monotonic() - began_s))
        if self._retry_due:
            return
        if self._next_start_monotonic_s is not None:
            left_s = min(left_s, max(self.pace.settle_s, self._next_start_monotonic_s - time.monotonic()))
        with suppress(asyncio.TimeoutError):
            await within(left_s, self._wake.wait())

    async def _guarded(self) -> float:
        """One cycle that may be cancelled by a signal; returns the rest it needs afterwards."""
        self._wake.clear()
        cause = ",".join(dict.fromkeys(self._causes)) or "timer"
        self._causes.clear()
        self._running = asyncio.ensure_future(self._one(cause))
        try:
            return await self._running
        except asyncio.CancelledError:
            if self._ending is None:
                raise
            return 0.0
        finally:
            self._running = None

    async def _one(self, cause: str) -> float:
        self._retry_due = False
        self._n_holding = None
        self.log.record(Event.DEBUG2, "Req", "", "Entering Schedule")
        signal.setitimer(signal.ITIMER_REAL, self.pace.alarm_s)
        began_s = time.monotonic()
        try:
            report = await self.cycle.run(dry=self.dry, is_wanted=self._wake.is_set)
        except SnapshotError as error:
            self._failed(error)
            self._retry_due = True
            return self.pace.rest_after_failure_s(time.monotonic() - began_s)
        except Exception as error:
            logger.error("a cycle failed, which is a fault of ours: %r", error, exc_info=error)
            return self.pace.retry_s
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            self.n_cycles += 1
            self.log.record(Event.DEBUG2, "Req", "", "Leaving schedule")
        if self._last_failure:
            logger.info("the server answers again")
            self._last_failure = ""
        self.on_report(report, cause)
        self._retry_due = report.is_unfinished or report.lost_the_server
        self._n_holding = None if self.dry else report.n_holding
        if report.started_s:
            self._watch_until_s = time.monotonic() + _WATCH_FOR_S
        next_s = report.next_start_s
        passed_s = time.monotonic() - report.total_s - report.at_s
        self._next_start_monotonic_s = None if next_s is None else next_s + passed_s
        return self.pace.rest_s(report, time.monotonic())

    def _failed(self, error: TorqueSchedError) -> None:
        if error.message != self._last_failure:
            logger.error("no cycle: %s", error)
            self._last_failure = error.message
        self.on_failure(error)

    def _too_long(self, number: int, frame: object) -> None:
        """SIGALRM: the cycle hangs or computes for ever; begin anew, as the C daemon does."""
        self.log.record(Event.SYSTEM, "Svr", "toolong", "alarm call: scheduling iteration took too long")
        self.commands.kill_all()
        self.log.close()
        re_execute(self.started_in)


def re_execute(folder: str = "") -> None:
    """Begin this very program anew in the same process; exit code 3 when that fails.

    Args:
        folder: where its words, such as ``-c callers``, name files; empty: here.
    """
    if folder:
        with suppress(OSError):
            os.chdir(folder)
    os.environ["TORQUE_SCHED_AGAIN"] = "1"
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError:
        os._exit(_EXEC_FAILED)
