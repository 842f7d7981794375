"""The daemon's pace: events that come while the server rests from a look wait, and become one cycle."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torque_sched.adapters.commands import Commands
from torque_sched.adapters.log_file import LogFile
from torque_sched.adapters.pbs import Look
from torque_sched.core.model import JobId, Server
from torque_sched.core.snapshot import Snapshot
from torque_sched.daemon.cycle import CycleReport
from torque_sched.daemon.event_port import SchedCommand
from torque_sched.daemon.service import Ending, Pace, Service
from torque_sched.parse.qrun import RunKind, RunResult


def looked(began_s: float, ended_s: float, **known: object) -> CycleReport:
    return CycleReport(0.0, looked_monotonic_s=(began_s, ended_s), **known)  # type: ignore[arg-type]


def test_a_look_is_followed_by_a_rest_of_a_multiple_of_what_it_took() -> None:
    pace = Pace(settle_s=0.2, look_rest=2.4)
    assert pace.rest_s(looked(100.0, 110.0), 110.0) == pytest.approx(24.0)
    assert pace.rest_s(looked(100.0, 110.0), 120.0) == pytest.approx(14.0)
    assert pace.rest_s(looked(100.0, 110.0, n_comments_left=1), 134.0) == 0.2
    refused = {JobId("1"): RunResult(RunKind.NOT_NOW, "")}
    assert pace.rest_s(looked(100.0, 110.0, results=refused), 134.0) == 1.0


def test_reading_what_the_server_had_answered_costs_it_no_rest() -> None:
    nodes = Snapshot(0.0, Server(), (), (), ())
    report = looked(100.0, 110.0, look=Look(nodes, {}, read_s=8.0))
    assert Pace(settle_s=0.2, look_rest=2.4).rest_s(report, 110.0) == pytest.approx(4.8)


def test_a_small_cluster_is_looked_at_as_soon_as_before() -> None:
    assert Pace(settle_s=0.2).rest_s(looked(100.0, 100.05), 100.06) == 0.2
    assert Pace(settle_s=0.2, look_rest=0.0).rest_s(looked(100.0, 110.0), 110.0) == 0.2


def test_a_server_that_was_lost_or_gave_no_look_rests_too() -> None:
    pace = Pace(timer_s=30.0, retry_s=5.0)
    gone = RunResult(RunKind.SERVER_GONE, "gone")
    assert pace.rest_s(looked(100.0, 100.1, stopped_by=gone), 100.2) == 5.0
    assert pace.rest_after_failure_s(0.1) == 5.0
    assert pace.rest_after_failure_s(10.0) == 24.0
    assert pace.rest_after_failure_s(60.0) == 30.0


class SlowToShow:
    """A look takes 0.1 s, three events come with each, and the daemon ends after the second cycle."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, float]] = []
        self.service: Service | None = None

    async def run(self, *, dry: bool) -> CycleReport:
        assert self.service is not None
        began_s = time.monotonic()
        await asyncio.sleep(0.1)
        self.looks.append((began_s, time.monotonic()))
        for _ in range(3):
            self.service.heard(SchedCommand.NEW)
        if len(self.looks) > 1:
            self.service.heard(SchedCommand.QUIT)
        return looked(*self.looks[-1])

    async def write_comments(self, *, is_over: Callable[[], bool]) -> tuple[int, RunResult | None]:
        return 0, None


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def test_events_that_come_meanwhile_wait_and_become_one_cycle(tmp_path: Path, alarm: None) -> None:
    cycle = SlowToShow()
    causes: list[str] = []

    async def serve() -> None:
        service = Service(
            cycle,  # type: ignore[arg-type]
            None,
            LogFile(tmp_path / "logs", None, dialect=6, filter_mask=0),
            Commands({}),
            Pace(timer_s=3600.0, settle_s=0.0, look_rest=5.0),
            on_report=lambda report, cause: causes.append(cause),
        )
        cycle.service = service
        await service.run()

    asyncio.run(serve())
    (began_s, ended_s), (next_s, _) = cycle.looks
    assert causes == ["start", "new"]
    assert next_s - ended_s >= 5.0 * (ended_s - began_s) - 0.001


class Talkative:
    """Comments without an end; an event, or a signal, comes while they are written."""

    n_comments_owed = 1

    def __init__(self, calls_s: float, then: Callable[[Service], None]) -> None:
        self.calls_s, self.then = calls_s, then
        self.service: Service | None = None
        self.n_looks = 0
        self.written_before: list[int] = []
        self.n_written = 0

    async def run(self, *, dry: bool) -> CycleReport:
        self.n_looks += 1
        self.written_before.append(self.n_written)
        if self.n_looks > 2 and self.service is not None:
            self.service.heard(SchedCommand.QUIT)
        return looked(0.0, 0.0)

    async def write_comments(self, *, is_over: Callable[[], bool]) -> tuple[int, RunResult | None]:
        assert self.service is not None
        while self.n_looks and not is_over():
            await asyncio.sleep(self.calls_s)
            self.n_written += 1
            self.then(self.service)
        return self.n_written, None


def serving(cycle: Talkative, folder: Path) -> None:
    async def serve() -> None:
        log = LogFile(folder / "logs", None, dialect=6, filter_mask=0)
        service = Service(cycle, None, log, Commands({}), Pace(timer_s=3600.0, settle_s=0.0))  # type: ignore[arg-type]
        cycle.service = service
        await asyncio.wait_for(service.run(), 120.0)

    asyncio.run(serve())


def test_comments_are_written_between_looks_until_a_cycle_is_wanted(tmp_path: Path, alarm: None) -> None:
    cycle = Talkative(0.001, lambda service: service.heard(SchedCommand.NEW))
    serving(cycle, tmp_path)
    assert cycle.n_looks == 3
    assert cycle.written_before[0] == 0
    assert 0 < cycle.written_before[1] < cycle.written_before[2]


def test_a_signal_ends_a_comment_that_hangs(tmp_path: Path, alarm: None) -> None:
    def end(service: Service) -> None:
        cycle.calls_s = 3600.0
        os.kill(os.getpid(), signal.SIGTERM)

    cycle = Talkative(0.001, end)
    serving(cycle, tmp_path)
    assert (cycle.n_looks, cycle.n_written) == (1, 1)


class LongDecision:
    """Computes without end, as with thousands of jobs under load, and gets a signal in the middle."""

    n_comments_owed = 0

    def __init__(self) -> None:
        self.is_deciding = False
        self.went_on = False

    async def run(self, *, dry: bool) -> CycleReport:
        await asyncio.sleep(0)
        self.is_deciding = True
        os.kill(os.getpid(), signal.SIGTERM)
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            pass
        self.went_on = True
        return looked(0.0, 0.0)


def test_a_signal_ends_the_daemon_in_the_middle_of_a_decision(tmp_path: Path, alarm: None) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    log = LogFile(tmp_path / "logs", None, dialect=6, filter_mask=0)
    ended: list[bool] = []
    cycle = LongDecision()

    async def serve() -> Ending:
        service = Service(
            cycle,  # type: ignore[arg-type]
            None, log, Commands({}), Pace(timer_s=3600.0, settle_s=0.0), on_end=lambda: ended.append(True),
        )  # fmt: skip
        return await service.run()

    log.open()
    try:
        ending = asyncio.run(serve())
    finally:
        log.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    (file,) = (tmp_path / "logs").iterdir()
    assert (ending, ended, cycle.went_on) == (Ending(1, "caught signal 15"), [True], False)
    assert file.read_text(encoding="utf-8").count("caught signal 15") == 1
