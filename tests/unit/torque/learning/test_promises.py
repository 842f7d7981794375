"""Promises from cycle to cycle: what changed and why, what became of them, and that no trouble loses one."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.torque.learning.build import NOW_S, job, snapshot
from torque_sched.core.decisions import Decision, Hold, NodeShare, Promise, Reserve, Start
from torque_sched.core.model import Job, NodeName
from torque_sched.core.reasons import Broken, Reason
from torque_sched.learning import History
from torque_sched.learning.promises import BETTER, MADE, UNEXPLAINED, WITHDRAWN, PromiseBook
from torque_sched.learning.rows import CycleFacts, PauseRow
from torque_sched.learning.store import Store

SHARES = (NodeShare(NodeName("n1"), 2), NodeShare(NodeName("n2"), 2, 1))


def promised(waiting: Job, start_s: float, broken: Broken | None = None, why: str = "") -> Reserve:
    promise = Promise(waiting.id, start_s, SHARES, 3600.0, NOW_S, start_s, NOW_S)
    details = {"broken": why} if why else {}
    return Reserve(waiting.id, start_s, SHARES, details=details, promise=promise, broken=broken)


def at(now_s: float, *jobs: Job, book: PromiseBook, decisions: tuple[Decision, ...]) -> list[str]:
    """One cycle; the kinds of what changed."""
    seen = snapshot(*jobs, now_s=now_s)
    book.observe(seen, {})
    return [change.kind for _, change in book.decided(seen, decisions)]


def test_a_promise_is_made_gets_better_and_is_broken_with_its_reason() -> None:
    waits, book = job(1), PromiseBook()
    assert at(NOW_S, waits, book=book, decisions=(promised(waits, NOW_S + 500),)) == [MADE]
    assert at(NOW_S + 1, waits, book=book, decisions=(promised(waits, NOW_S + 500),)) == []
    assert at(NOW_S + 2, waits, book=book, decisions=(promised(waits, NOW_S + 400),)) == [BETTER]
    later = promised(waits, NOW_S + 900, Broken.NODE_FAILED, "node n1 is down")
    assert at(NOW_S + 3, waits, book=book, decisions=(later,)) == ["node-failed"]
    row = book.about(waits)
    assert row is not None
    assert (row.n_better, row.n_broken) == (1, 1)
    assert [(change.from_s, change.to_s) for change in row.changes] == [
        (None, NOW_S + 500), (NOW_S + 500, NOW_S + 400), (NOW_S + 400, NOW_S + 900),
    ]  # fmt: skip
    assert row.changes[-1].why == "node n1 is down"
    carried = book.carried(snapshot(waits))[waits.id]
    assert (carried.start_s, carried.first_s, carried.first_made_s) == (NOW_S + 900, NOW_S + 500, NOW_S)
    assert (carried.n_broken, carried.why_broken, carried.allocation) == (1, "node n1 is down", SHARES)


def test_a_later_start_without_a_reason_is_called_so() -> None:
    waits, book = job(1), PromiseBook()
    at(NOW_S, waits, book=book, decisions=(promised(waits, NOW_S + 500),))
    assert at(NOW_S + 1, waits, book=book, decisions=(promised(waits, NOW_S + 501),)) == [UNEXPLAINED]


@pytest.mark.parametrize("reason", [Reason.CYCLE_FULL, Reason.SCHEDULING_OFF, Reason.START_PENDING])
def test_a_hold_that_says_nothing_of_the_start_leaves_the_promise(reason: Reason) -> None:
    waits, book = job(1), PromiseBook()
    at(NOW_S, waits, book=book, decisions=(promised(waits, NOW_S + 500),))
    assert at(NOW_S + 1, waits, book=book, decisions=(Hold(waits.id, reason),)) == []
    assert book.carried(snapshot(waits))[waits.id].start_s == NOW_S + 500


def test_a_withdrawn_promise_is_not_carried_and_the_first_one_still_counts() -> None:
    waits, book = job(1), PromiseBook()
    at(NOW_S, waits, book=book, decisions=(promised(waits, NOW_S + 500),))
    hold = Hold(waits.id, Reason.SERVER_USER_LIMIT)
    assert at(NOW_S + 1, waits, book=book, decisions=(hold,)) == [WITHDRAWN]
    assert at(NOW_S + 2, waits, book=book, decisions=(hold,)) == []
    assert book.carried(snapshot(waits)) == {}
    assert at(NOW_S + 3, waits, book=book, decisions=(promised(waits, NOW_S + 800),)) == [MADE]
    again = book.carried(snapshot(waits))[waits.id]
    assert (again.first_s, again.n_broken) == (NOW_S + 500, 1)
    runs = job(1, "R", start_s=NOW_S + 790, substate=42)
    (outcome,) = book.observe(snapshot(runs, now_s=NOW_S + 800), {})
    assert (outcome.first_error_s, outcome.last_error_s) == (290.0, -10.0)
    assert outcome.broken_kinds == (WITHDRAWN,)


def test_an_estimate_is_no_promise_and_takes_one_back() -> None:
    waits, book = job(1), PromiseBook()
    estimate = Reserve(waits.id, NOW_S + 500, ())
    assert at(NOW_S, waits, book=book, decisions=(estimate,)) == []
    at(NOW_S, waits, book=book, decisions=(promised(waits, NOW_S + 500),))
    assert at(NOW_S + 1, waits, book=book, decisions=(estimate,)) == [WITHDRAWN]


def test_a_start_that_its_mom_may_still_refuse_settles_nothing() -> None:
    waits, book = job(1), PromiseBook()
    at(NOW_S, waits, book=book, decisions=(promised(waits, NOW_S + 500),))
    at(NOW_S + 500, waits, book=book, decisions=(Start(waits.id, SHARES),))
    assert book.observe(snapshot(job(1, "R", substate=40)), {}) == []
    assert book.carried(snapshot(waits))[waits.id].start_s == NOW_S + 500


def test_jobs_that_go_take_their_promise_along_and_a_new_server_counts_anew() -> None:
    waits, book = job(1), PromiseBook()
    at(NOW_S, waits, book=book, decisions=(promised(waits, NOW_S + 500),))
    namesake = replace(waits, ctime_s=NOW_S + 7777)
    assert book.observe(snapshot(namesake), {}) == []
    assert book.carried(snapshot(namesake)) == {}
    assert book.rows == {}


def test_a_job_that_came_and_went_between_two_looks_is_settled_by_accounting() -> None:
    waits, book = job(1), PromiseBook()
    at(NOW_S, waits, book=book, decisions=(promised(waits, NOW_S + 500),))
    (outcome,) = book.observe(snapshot(), {(waits.id, waits.ctime_s or 0.0): NOW_S + 450})
    assert outcome.last_error_s == -50.0


def test_the_history_of_a_promise_is_bounded_and_keeps_its_beginning() -> None:
    waits, book = job(1), PromiseBook()
    for cycle in range(200):
        at(NOW_S + cycle, waits, book=book, decisions=(promised(waits, NOW_S + 9000 - cycle),))
    row = book.about(waits)
    assert row is not None
    assert len(row.changes) == 16
    assert row.changes[0].kind == MADE
    assert row.changes[-1].to_s == NOW_S + 9000 - 199
    assert row.n_better == 199


def test_the_file_has_what_the_book_has(tmp_path: Path) -> None:
    path, waits = tmp_path / "history.sqlite", job(1)
    history = History.open(path)
    seen = snapshot(waits, job(2))
    history.observe(seen)
    pause = PauseRow("pair", "1.head", "n1", 3, NOW_S + 60, "mom said no")
    history.decided(seen, (promised(waits, NOW_S + 500), promised(job(2), NOW_S + 600)), (pause,))
    history.decided(seen, (promised(waits, NOW_S + 300),), (pause,))
    # Not closed: what is on the disk must do.
    again = History.open(path)
    assert again.promises.rows == history.promises.rows
    assert again.promises.carried(seen) == history.promises.carried(seen)
    assert again.pauses == (pause,)
    again.observe(snapshot(job(1, "R", start_s=NOW_S + 310, substate=42), job(2), now_s=NOW_S + 311))
    again.remember(())
    store = Store.read_only(path)
    assert [row.key[0] for row in store.promises()] == ["2.head"]
    assert store.pauses() == ()
    (outcome,) = store.outcomes()
    assert (outcome.first_error_s, outcome.last_error_s, outcome.n_better) == (-190.0, 10.0, 1)
    assert store.outcomes(job="2.head") == ()
    store.close()
    again.close()
    history.close()


def test_promises_are_kept_in_memory_while_the_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waits = tmp_path / "history.sqlite", job(1)
    history = History.open(path)
    seen = snapshot(waits)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(history._store, "record", full)
        history.decided(seen, (promised(waits, NOW_S + 500),), ())
        assert "full" in history.trouble
        assert history.promises.carried(seen)[waits.id].start_s == NOW_S + 500
    history.decided(seen, (promised(waits, NOW_S + 500),), ())
    store = Store.read_only(path)
    assert [row.promise.start_s for row in store.promises()] == [NOW_S + 500]
    store.close()
    history.close()


def test_a_cycle_without_news_writes_nothing(tmp_path: Path) -> None:
    waits = job(1)
    history = History.open(tmp_path / "history.sqlite")
    history.decided(snapshot(waits), (promised(waits, NOW_S + 500),), ())
    calls: list[CycleFacts] = []
    history._store.record = lambda facts, *_: calls.append(facts) or frozenset()  # type: ignore[method-assign,func-returns-value,assignment]
    history.decided(snapshot(waits, now_s=NOW_S + 5), (promised(waits, NOW_S + 500),), ())
    assert calls == []
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
    store, book, waits = Store(None), PromiseBook(), job(1)
    for cycle, (step, seconds) in enumerate(steps):
        now_s = NOW_S + cycle
        before = book.carried(snapshot(waits))
        if step == "gone":
            book.observe(snapshot(), {})
        else:
            decision: Decision = promised(
                waits, NOW_S + seconds, Broken.NODES if step == "broken" else None, "they are busy"
            )
            if step in {"limit", "full"}:
                reason = Reason.SERVER_USER_LIMIT if step == "limit" else Reason.CYCLE_FULL
                decision = Hold(waits.id, reason)
            changes = book.decided(snapshot(waits, now_s=now_s), (decision,))
            after = book.carried(snapshot(waits))
            if before and after and after[waits.id].start_s > before[waits.id].start_s:
                ((_, change),) = changes
                assert change.kind == ("nodes" if step == "broken" else UNEXPLAINED)
        store.record(CycleFacts(), book.facts())
        book.saved()
        assert {row.key: row for row in store.promises()} == book.rows
    store.close()
