"""What an expected start is worth: the first one of each job against its real start, over restarts."""

from __future__ import annotations

from pathlib import Path

from tests.unit.torque.learn.build import NOW_S, job, snapshot
from torque_sched.learn import History
from torque_sched.learn.expectations import ErrorSeen, ExpectationBook, error_seen
from torque_sched.learn.rows import Expectation
from torque_sched.learn.store import Store
from torque_sched.model.states import StartProgress
from torque_sched.report.outlook import error_words


def test_the_error_is_real_start_less_the_first_expectation() -> None:
    book = ExpectationBook()
    for after_s in (100.0, 900.0):
        book.reported(snapshot(job(1)), {job(1).id: NOW_S + after_s})
    assert book.error is None
    # Its mom may still refuse it; in the end it counts once.
    book.observe(snapshot(job(1, "R", start_s=NOW_S + 10.0)), {})
    assert book.error is None
    for seen in (
        job(1, "R", start_s=NOW_S + 130.0, progress=StartProgress.BEGUN),
        job(1, "C", start_s=NOW_S + 130.0),
    ):
        book.observe(snapshot(seen), {})
        assert book.error == ErrorSeen(1, 30.0, 30.0, 30.0)


def test_a_start_is_known_by_accounting_too_and_a_deleted_job_tells_nothing() -> None:
    book = ExpectationBook()
    both = snapshot(job(1), job(2))
    book.reported(both, {each.id: NOW_S + 50.0 for each in both.jobs})
    book.observe(snapshot(), {(job(1).id, job(1).ctime_s or 0.0): NOW_S + 40.0})
    assert book.error == ErrorSeen(1, -10.0, -10.0, -10.0)
    rows, gone = book.facts()
    assert [row.start_s for row in rows] == [NOW_S + 40.0]
    assert [key[0] for key in gone] == ["2.head"]


def test_errors_survive_a_restart_and_are_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    memory = History.open(path)
    names = range(1, 6)
    waiting = snapshot(*(job(n) for n in names), job(9))
    memory.observe(waiting)
    memory.expectations.reported(waiting, {each.id: NOW_S + 60.0 for each in waiting.jobs})
    memory.observe(waiting)
    memory.close()
    memory = History.open(path)
    began = [job(n, "R", start_s=NOW_S + 60.0 + (n - 3) * 60.0, progress=StartProgress.BEGUN) for n in names]
    memory.observe(snapshot(*began, job(9)))
    memory.close()
    for again in (History.open(path), History.copy_of(path)):
        assert again.expectations.error == ErrorSeen(5, 0.0, -60.0, 60.0)
        assert error_words(again.expectations.error) == (
            "of 5 past starts half came between 00:01:00 earlier and 00:01:00 later than expected, "
            "the middle one 00:00:00 later"
        )
        again.close()
    with Store.looked_at(path) as store:
        assert [row.key[0] for row in store.expected() if row.start_s is None] == ["9.head"]


def test_no_past_starts_are_no_error() -> None:
    assert error_seen([]) is None
    assert error_words(None) == "no past starts to compare"


def test_the_last_thousand_count() -> None:
    rows = [Expectation((f"{n}.head", 0.0), 0.0, 0.0, float(n)) for n in range(3000)]
    found = ExpectationBook(rows).error
    assert found is not None
    assert found.n == 1000
    assert found.median_s > 2000.0
