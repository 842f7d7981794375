"""Comments: only differences, grouped, started jobs first, and rarely for figures alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from torque_sched.batch.system import Look, OrderKind, OrderResult
from torque_sched.daemon import comments
from torque_sched.daemon import cycle as cycle_module
from torque_sched.daemon.c_policy import CFiles, SettingsInForce
from torque_sched.daemon.comments import IDS_PER_CALL, CommentCall, CommentPace, CommentPlan, Renewal
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleLimits, SchedulingCycle, comment_of_start
from torque_sched.daemon.decision_engine import DecisionEngine
from torque_sched.daemon.pending_orders import PendingOrders
from torque_sched.learn import History
from torque_sched.model.cluster import Job, JobId, NodeName, QueueName, Server
from torque_sched.model.decisions import Hold, NodeShare, Reserve, Start
from torque_sched.model.reasons import Reason
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import HoldType, JobState

LIMIT = "Not Running: Queue job limit has been reached."


def snapshot(*jobs: Job, now_s: float = 1000.0) -> Snapshot:
    return Snapshot(now_s, Server(), (), (), jobs)


def waiting(number: int, comment: str = "") -> Job:
    return Job(JobId(f"{number}.head"), JobState.QUEUED, QueueName("batch"), comment=comment)


def hold(number: int, reason: Reason = Reason.QUEUE_JOB_LIMIT, **details: str) -> Hold:
    return Hold(JobId(f"{number}.head"), reason, details)


def ids(calls: list[CommentCall]) -> list[str]:
    return [job for call in calls for job in call.jobs]


def plan(maker: CommentPlan, looked: Snapshot, *decisions: object, failure: str = "") -> list[CommentCall]:
    return maker.plan(looked, decisions, {}, lambda job: failure, lambda at_s: "started")  # type: ignore[arg-type]


def test_only_what_differs_is_written_grouped_by_text() -> None:
    jobs = (waiting(1, LIMIT), waiting(2), waiting(3, "other"), waiting(4))
    calls = plan(CommentPlan(), snapshot(*jobs), hold(1), hold(2), hold(3), hold(4, Reason.STRICT_FIFO))
    assert calls == [
        CommentCall(LIMIT, (JobId("2.head"),)),
        CommentCall("Not Running: Strict fifo order", (JobId("4.head"),)),
        CommentCall(LIMIT, (JobId("3.head"),)),
    ]


def test_who_was_told_nothing_yet_is_told_first_and_the_newest_before_all() -> None:
    """After a burst a new job does not wait until the whole burst was told."""
    jobs = (waiting(1, "old"), waiting(2), waiting(3))
    calls = plan(CommentPlan(), snapshot(*jobs), hold(1), hold(2), hold(3))
    assert ids(calls) == ["3.head", "2.head", "1.head"]


def test_a_call_is_as_long_as_its_time_allows() -> None:
    pace = CommentPace(call_s=0.2, n_jobs=64)
    sizes = []
    for n_jobs in (64, 128, 108):
        sizes.append(min(n_jobs, pace.n_jobs))
        pace.took(n_jobs, 0.001 * n_jobs)
    assert sizes == [64, 128, 108]
    # The last call for fewer jobs says nothing about one for more.
    for n_jobs, took_s, then in ((100, 10.0, 2), (1, 1000.0, 1), (1, 0.0, 2), (1, 0.0, 2)):
        pace.took(n_jobs, took_s)
        assert pace.n_jobs == then
    for _ in range(20):
        pace.took(pace.n_jobs, 0.0)
    assert pace.n_jobs == IDS_PER_CALL


class SlowServer:
    """A server that shows jobs and takes comments, each of which takes it some time by its own clock."""

    def __init__(self, jobs: tuple[Job, ...], comment_s: float, *, one_by_one: bool) -> None:
        self.jobs, self.comment_s, self.one_order_at_a_time = jobs, comment_s, one_by_one
        self.joins_equal_starts = False
        self.now_s = 1000.0
        self.sizes: list[int] = []
        self.kind = OrderKind.STARTED

    async def look(self) -> Look:
        return Look(replace(snapshot(*self.jobs), server=Server(scheduling=True)), {})

    async def comment(self, jobs: tuple[JobId, ...], _text: str) -> OrderResult:
        self.sizes.append(len(jobs))
        self.now_s += self.comment_s * len(jobs)
        return OrderResult(self.kind, "")


@contextmanager
def cycle_of(
    monkeypatch: pytest.MonkeyPatch, server: SlowServer, comments_s: float = 0.2
) -> Iterator[SchedulingCycle]:
    """One that runs by the server's clock."""
    monkeypatch.setattr(
        cycle_module, "time", SimpleNamespace(monotonic=lambda: server.now_s, localtime=time.localtime)
    )
    history = History.open(None)
    engine = DecisionEngine(SettingsInForce(Config(), CFiles()).at, history)
    limits = CycleLimits(comments_s=comments_s)
    yield SchedulingCycle(server, engine, PendingOrders(), CommentPlan(), limits, lambda: 1000.0)  # type: ignore[arg-type]
    history.close()


BURST = tuple(waiting(number) for number in range(2000))


@pytest.mark.parametrize(("one_by_one", "sizes"), [(False, [64, 128]), (True, [1] * 204)])
def test_a_cycle_ends_after_a_slice_of_comments_and_the_others_follow(
    monkeypatch: pytest.MonkeyPatch, one_by_one: bool, sizes: list[int]
) -> None:
    """Starts go first: what is left to say is written until the next cycle is wanted."""
    server = SlowServer(BURST, 1 / 1024, one_by_one=one_by_one)
    with cycle_of(monkeypatch, server) as cycle:
        report = asyncio.run(cycle.run())
        assert (server.sizes, report.n_commented) == (sizes, sum(sizes))
        assert (report.n_comments_left, report.is_unfinished) == (2000 - sum(sizes), False)
        until_s = server.now_s + 0.1
        n_more, _ = asyncio.run(cycle.write_comments(is_over=lambda: server.now_s >= until_s))
        assert 0 < n_more < 2000 - sum(sizes)
        assert cycle.n_comments_owed == 2000 - sum(server.sizes)
        asyncio.run(cycle.write_comments())
        assert (sum(server.sizes), cycle.n_comments_owed) == (2000, 0)


def test_a_cycle_that_is_wanted_goes_before_comments_and_expected_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SlowServer(BURST, 1 / 1024, one_by_one=True)
    with cycle_of(monkeypatch, server) as cycle:
        report = asyncio.run(cycle.run(is_wanted=lambda: True))
        assert (server.sizes, report.n_commented, report.n_comments_left) == ([], 0, 2000)
        report = asyncio.run(cycle.run(is_wanted=lambda: len(server.sizes) >= 3))
        assert (report.n_commented, report.n_comments_left) == (3, 1997)


def test_what_is_still_owed_gives_way_to_what_a_newer_look_says(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SlowServer(BURST, 1 / 1024, one_by_one=True)
    with cycle_of(monkeypatch, server) as cycle:
        asyncio.run(cycle.run())
        server.jobs = BURST[:10]
        server.sizes.clear()
        asyncio.run(cycle.run())
        assert (len(server.sizes), cycle.n_comments_owed) == (10, 0), "the other jobs are gone"


def test_comments_end_where_the_server_is_gone_and_are_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SlowServer(BURST, 1 / 1024, one_by_one=True)
    with cycle_of(monkeypatch, server) as cycle:
        asyncio.run(cycle.run())
        server.kind = OrderKind.SERVER_GONE
        n_written, stopped_by = asyncio.run(cycle.write_comments())
        assert (n_written, stopped_by and stopped_by.kind) == (0, OrderKind.SERVER_GONE)
        assert cycle.n_comments_owed == 0
        server.kind = OrderKind.STARTED
        report = asyncio.run(cycle.run())
        assert report.n_commented + report.n_comments_left == 2000


@pytest.mark.parametrize("comment_s", [0.03, 0.5, 7.0])
def test_a_slow_server_holds_a_cycle_up_by_one_comment_more_than_allowed(
    monkeypatch: pytest.MonkeyPatch, comment_s: float
) -> None:
    """By the protocol each comment is a request of its own, and time is looked at between any two."""
    server = SlowServer(BURST, comment_s, one_by_one=True)
    with cycle_of(monkeypatch, server) as cycle:
        report = asyncio.run(cycle.run())
    assert server.now_s - 1000.0 <= 0.2 + comment_s
    assert 0 < report.n_commented < 2000


def test_a_start_whose_comment_was_never_written_is_told_later() -> None:
    """By the next cycle, or by the next daemon: the job runs and has no comment, or the one from before."""
    texts = ("", "Not Running: Draining", "Job started on Fri Nov 20 at 17:08", "mine")
    jobs = [replace(waiting(number, text), state=JobState.RUNNING) for number, text in enumerate(texts)]
    [call] = plan(CommentPlan(), snapshot(*jobs))
    assert call.jobs == ("0.head", "1.head")


def test_long_lists_are_cut() -> None:
    n_jobs = IDS_PER_CALL + 1
    calls = plan(CommentPlan(), snapshot(*map(waiting, range(n_jobs))), *map(hold, range(n_jobs)))
    assert [len(call.jobs) for call in calls] == [IDS_PER_CALL, 1]


def test_figures_alone_are_not_news() -> None:
    maker = CommentPlan(Renewal(every_s=60.0))
    reason = Reason.NO_FREE_SLOTS
    [first] = plan(maker, snapshot(waiting(1)), hold(1, reason, why="needs 3"))
    maker.written(first, 1000.0)
    looked = snapshot(waiting(1, first.text), now_s=1010.0)
    assert plan(maker, looked, hold(1, reason, why="needs 2")) == []
    assert plan(maker, looked, hold(1)) != []  # another reason is
    late = snapshot(waiting(1, first.text), now_s=1061.0)
    assert plan(maker, late, hold(1, reason, why="needs 2")) != []


PLANNED = "Not Running: Nodes are reserved for it; estimated start 1970-01-01 {} UTC"


def planned(number: int, start_s: float) -> Reserve:
    told = datetime.fromtimestamp(start_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Reserve(JobId(f"{number}.head"), start_s, (), details={"start": told})


@pytest.mark.parametrize(("new_s", "is_told"), [(3 * 3600.0, False), (2.6 * 3600, True), (3.4 * 3600, True)])
def test_a_planned_start_is_corrected_when_it_moved_by_a_tenth_of_what_is_left(
    new_s: float, is_told: bool
) -> None:
    """Told at 00:16 were 3:01, so 2:45 are left; 3:00 is no news, 2:36 and 3:24 are."""
    looked = snapshot(waiting(1, PLANNED.format("03:01")), now_s=960.0)
    assert bool(plan(CommentPlan(), looked, planned(1, new_s))) is is_told
    assert plan(CommentPlan(Renewal(moved=10.0)), looked, planned(1, new_s)) == []
    assert plan(CommentPlan(), looked, hold(1)) != []  # another reason is told at once


def test_what_moved_most_is_corrected_first_at_the_pace_of_the_timer() -> None:
    maker = CommentPlan(Renewal(timer_s=30.0, per_s=0.1))
    jobs = [waiting(n, PLANNED.format("03:01")) for n in range(1, 6)]
    starts = [planned(n, 3600.0 * (3 + n)) for n in range(1, 6)]
    for now_s, told in ((1000.0, 3), (1029.0, 0), (1030.0, 3), (900.0, 3)):
        calls = plan(maker, snapshot(*jobs, now_s=now_s), *starts)
        assert ids(calls) == ["5.head", "4.head", "3.head"][:told]


def test_what_the_server_said_stays_until_the_next_try() -> None:
    start, seen = Start(JobId("1.head"), (NodeShare(NodeName("n1"), 1),)), snapshot(waiting(1))
    for decision in (start, hold(1, Reason.JOB_BACK_OFF)):
        [call] = plan(CommentPlan(), seen, decision, failure="Unknown node-attribute")
        assert call.text == "Not Running - PBS Error: Unknown node-attribute"
    for silent in (start, hold(1, Reason.START_PENDING)):
        assert plan(CommentPlan(), seen, silent) == []


def test_a_running_job_that_still_says_it_waits_is_corrected() -> None:
    by_text = {1: LIMIT, 2: "do not touch"}
    jobs = [replace(waiting(n, text), state=JobState.RUNNING, start_s=5.0) for n, text in by_text.items()]
    assert plan(CommentPlan(), snapshot(*jobs)) == [CommentCall("started", (JobId("1.head"),))]


def test_forms() -> None:
    assert comment_of_start(1795195600.0).startswith("Job started on ")
    assert comments.plain_comment('a, b=c "d"') == "a; b=c 'd'"


def test_the_blank_that_qalter_leaves_after_a_quoted_text_is_no_difference() -> None:
    wanted = hold(1, Reason.BAD_REQUEST, why="ppn=x is no number")
    [call] = plan(CommentPlan(), snapshot(waiting(1)), wanted)
    assert "=" in call.text
    assert plan(CommentPlan(), snapshot(waiting(1, call.text + " ")), wanted) == []


def test_held_jobs_that_were_told_something_else_are_told_anew() -> None:
    told = replace(waiting(1, LIMIT), state=JobState.HELD, hold_types=frozenset({HoldType.USER}))
    ran = replace(waiting(2, "Job started on Fri Nov 20 at 17:08"), state=JobState.WAITING)
    others = (
        waiting(3, LIMIT),
        replace(told, id=JobId("4.head"), comment=""),
        replace(told, id=JobId("5.head"), comment="by its owner"),
        replace(told, id=JobId("6.head"), hold_types=frozenset()),
        replace(told, id=JobId("7[].head"), sequence=7, array_index=-1),
    )
    assert comments.with_an_old_comment(snapshot(told, ran, *others)) == [told, ran]
    held = hold(1, Reason.JOB_HELD, holds="user")
    [call] = plan(CommentPlan(), snapshot(told), held)
    assert call.text == "Not Running: Job is held (user)"
    assert plan(CommentPlan(), snapshot(replace(told, comment=call.text)), held) == []
