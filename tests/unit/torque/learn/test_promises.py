"""Promises from cycle to cycle: what changed and why, what became of them, and that no trouble loses one."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.torque.learn.build import NOW_S, job, snapshot
from torque_sched.learn import History
from torque_sched.learn.promises import BETTER, MADE, UNEXPLAINED, WITHDRAWN, PromiseBook
from torque_sched.learn.rows import CycleFacts, PauseRow
from torque_sched.learn.store import Store
from torque_sched.model.cluster import Job, NodeName
from torque_sched.model.decisions import Decision, GuaranteedStart, Hold, NodeShare, Reserve, Start
from torque_sched.model.reasons import Broken, Reason
from torque_sched.model.states import StartProgress

SHARES = (NodeShare(NodeName("n1"), 2), NodeShare(NodeName("n2"), 2, 1))


def promised(waiting: Job, start_s: float, broken: Broken | None = None, why: str = "") -> Reserve:
    promise = GuaranteedStart(waiting.id, start_s, SHARES, 3600.0, NOW_S, start_s, NOW_S)
    details = {"broken": why} if why else {}
    return Reserve(waiting.id, start_s, SHARES, details=details, promise=promise, broken=broken)


WAITS = job(1)
KEY = WAITS.id, WAITS.ctime_s or 0.0


class Book(PromiseBook):
    """The book of one waiting job, which was promised a start 500 s from `NOW_S`."""

    def __init__(self) -> None:
        super().__init__()
        assert self.told(0, 500) == [MADE]

    def told(self, after_s: float, decision: Decision | float) -> list[str]:
        """One cycle with a decision, or a start promised in seconds from `NOW_S`; what changed."""
        if isinstance(decision, float | int):
            decision = promised(WAITS, NOW_S + decision)
        seen = snapshot(WAITS, now_s=NOW_S + after_s)
        self.observe(seen, {})
        return [change.kind for _, change in self.decided(seen, (decision,))]

    @property
    def kept(self) -> GuaranteedStart | None:
        return self.carried(snapshot(WAITS)).get(WAITS.id)


def test_a_promise_gets_better_and_is_broken_with_its_reason() -> None:
    book, later = Book(), promised(WAITS, NOW_S + 900, Broken.NODE_FAILED, "node n1 is down")
    assert (book.told(1, 500), book.told(2, 400), book.told(3, later)) == ([], [BETTER], ["node-failed"])
    row, kept = book.about(WAITS), book.kept
    assert row is not None
    assert (row.n_better, row.n_broken, row.changes[-1].why) == (1, 1, "node n1 is down")
    steps = ((None, 500), (NOW_S + 500, 400), (NOW_S + 400, 900))
    assert [(change.from_s, change.to_s) for change in row.changes] == [(a, NOW_S + b) for a, b in steps]
    assert kept is not None
    assert (kept.start_s, kept.first_s, kept.first_made_s) == (NOW_S + 900, NOW_S + 500, NOW_S)
    assert (kept.n_broken, kept.why_broken, kept.allocation) == (1, "node n1 is down", SHARES)


def test_a_later_start_without_a_reason_is_called_so() -> None:
    assert Book().told(1, 501) == [UNEXPLAINED]


@pytest.mark.parametrize("reason", [Reason.CYCLE_FULL, Reason.SCHEDULING_OFF, Reason.START_PENDING])
def test_a_hold_that_says_nothing_of_the_start_leaves_the_promise(reason: Reason) -> None:
    book = Book()
    assert book.told(1, Hold(WAITS.id, reason)) == []
    assert book.kept is not None
    assert book.kept.start_s == NOW_S + 500


def test_a_withdrawn_promise_is_not_carried_and_the_first_one_still_counts() -> None:
    book, hold = Book(), Hold(WAITS.id, Reason.SERVER_USER_LIMIT)
    assert (book.told(1, hold), book.told(2, hold), book.kept) == ([WITHDRAWN], [], None)
    assert book.told(3, 800) == [MADE]
    assert book.kept is not None
    assert (book.kept.first_s, book.kept.n_broken) == (NOW_S + 500, 1)
    runs = job(1, "R", start_s=NOW_S + 790, progress=StartProgress.BEGUN)
    (outcome,) = book.observe(snapshot(runs, now_s=NOW_S + 800), {})
    assert (outcome.first_error_s, outcome.last_error_s) == (290.0, -10.0)
    assert outcome.broken_kinds == (WITHDRAWN,)


def test_an_estimate_is_no_promise_and_takes_one_back() -> None:
    book, estimate = Book(), Reserve(WAITS.id, NOW_S + 500, ())
    assert (book.told(1, estimate), book.told(2, estimate)) == ([WITHDRAWN], [])


def test_a_start_that_its_mom_may_still_refuse_settles_nothing() -> None:
    book = Book()
    book.told(500, Start(WAITS.id, SHARES))
    assert book.observe(snapshot(job(1, "R")), {}) == []
    assert book.kept is not None
    assert book.kept.start_s == NOW_S + 500


def test_jobs_that_go_take_their_promise_along_and_a_new_server_counts_anew() -> None:
    book, namesake = Book(), snapshot(replace(WAITS, ctime_s=NOW_S + 7777))
    assert (book.observe(namesake, {}), book.carried(namesake), book.rows) == ([], {}, {})


def test_a_job_that_came_and_went_between_two_looks_is_settled_by_accounting() -> None:
    (outcome,) = Book().observe(snapshot(), {KEY: NOW_S + 450})
    assert outcome.last_error_s == -50.0


def test_the_history_of_a_promise_is_bounded_and_keeps_its_beginning() -> None:
    book = Book()
    for cycle in range(1, 200):
        book.told(cycle, 500 - cycle)
    row = book.about(WAITS)
    assert row is not None
    assert (len(row.changes), row.n_better) == (16, 199)
    assert (row.changes[0].kind, row.changes[-1].to_s) == (MADE, NOW_S + 500 - 199)


def test_the_file_has_what_the_book_has(tmp_path: Path) -> None:
    path, seen = tmp_path / "history.sqlite", snapshot(WAITS, job(2))
    history = History.open(path)
    history.observe(seen)
    pause = PauseRow("pair", "1.head", "n1", 3, NOW_S + 60, "mom said no")
    history.decided(seen, (promised(WAITS, NOW_S + 500), promised(job(2), NOW_S + 600)), (pause,))
    history.decided(seen, (promised(WAITS, NOW_S + 300),), (pause,))
    # Not closed: what is on the disk must do.
    again = History.open(path)
    assert again.promises.rows == history.promises.rows
    assert again.promises.carried(seen) == history.promises.carried(seen)
    assert again.pauses == (pause,)
    again.observe(
        snapshot(job(1, "R", start_s=NOW_S + 310, progress=StartProgress.BEGUN), job(2), now_s=NOW_S + 311)
    )
    again.remember(())
    with Store.looked_at(path) as store:
        assert ([row.key[0] for row in store.promises()], store.pauses()) == (["2.head"], ())
        (outcome,) = store.outcomes()
        assert (outcome.first_error_s, outcome.last_error_s, outcome.n_better) == (-190.0, 10.0, 1)
        assert store.outcomes(job="2.head") == ()
    again.close()
    history.close()


def test_a_cycle_without_news_writes_nothing(tmp_path: Path) -> None:
    history, told = History.open(tmp_path / "history.sqlite"), (promised(WAITS, NOW_S + 500),)
    history.decided(snapshot(WAITS), told, ())
    with sqlite3.connect(tmp_path / "history.sqlite") as other:
        before = other.execute("PRAGMA data_version").fetchone()
        history.decided(snapshot(WAITS, now_s=NOW_S + 5), told, ())
        assert other.execute("PRAGMA data_version").fetchone() == before
        history.decided(snapshot(WAITS, now_s=NOW_S + 6), (promised(WAITS, NOW_S + 400),), ())
        assert other.execute("PRAGMA data_version").fetchone() != before
    other.close()
    history.close()


STEPS = st.lists(
    st.tuples(st.sampled_from(["promise", "broken", "limit", "full", "gone"]), st.integers(1, 1000)),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_comes_the_file_holds_the_book_and_no_start_gets_later_unsaid(
    steps: list[tuple[str, int]],
) -> None:
    store, book = Store(None), Book()
    for cycle, (step, seconds) in enumerate(steps, 1):
        before = book.kept
        if step == "gone":
            book.observe(snapshot(), {})
        else:
            broken = (Broken.NODES, "they are busy") if step == "broken" else ()
            decision: Decision = promised(WAITS, NOW_S + seconds, *broken)
            if step in {"limit", "full"}:
                reason = Reason.SERVER_USER_LIMIT if step == "limit" else Reason.CYCLE_FULL
                decision = Hold(WAITS.id, reason)
            changes, after = book.told(cycle, decision), book.kept
            if before and after and after.start_s > before.start_s:
                assert changes == ["nodes" if step == "broken" else UNEXPLAINED]
        store.record(CycleFacts(), book.facts())
        book.saved()
        assert {row.key: row for row in store.promises()} == book.rows
    store.close()
