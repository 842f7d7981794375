"""What the daemon's memory takes from snapshots, and what it answers."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.torque.learn.build import NOW_S, job, node, snapshot
from torque_sched.batch import accounting
from torque_sched.decide.context import PendingStart, Prediction
from torque_sched.decide.rules import Rates
from torque_sched.errors import NoSpaceError
from torque_sched.learn import History, HistorySettings
from torque_sched.learn.figures import Figure
from torque_sched.learn.rows import EndedJob
from torque_sched.learn.store import Store
from torque_sched.model.cluster import Job, NodeName, UsedResources
from torque_sched.model.decisions import GuaranteedStart, NodeShare, Reserve
from torque_sched.model.snapshot import Snapshot
from torque_sched.sampler.form import GpuSample, JobSample, NodeSample, format_sample


def history(path: Path | None = None, **rest: object) -> History:
    return History.open(path, HistorySettings(), **rest)  # type: ignore[arg-type]


def ended(path: Path) -> tuple[EndedJob, ...]:
    """The jobs in the file."""
    with Store.looked_at(path) as store:
        return store.ended(1000)


def varattr(sample: NodeSample) -> dict[str, str]:
    return dict(line.split(":", 1) for line in format_sample(sample).splitlines())


def looked(memory: History, *jobs: Job, **more: Any) -> Snapshot:
    """A look that the memory has seen."""
    look = snapshot(*jobs, **more)
    memory.observe(look)
    return look


def teach(memory: History, n: int = 6, *, first: int = 100, **job_values: object) -> None:
    memory.observe(snapshot(*(job(first + i, "C", **job_values) for i in range(n))))  # type: ignore[arg-type]


def expected(memory: History, **changes: Any) -> Prediction:
    """What a job like those taught is expected to use."""
    found = memory.predictions().expect(job(1, **changes))
    assert found is not None
    return found


def test_a_job_like_others_is_expected_to_use_what_they_used() -> None:
    memory = history()
    assert (memory.predictions().expect(job(1)), memory.predictions().explain(job(1))) == (None, ())
    teach(memory, 2, cores=1.5, mem_bytes=3 << 30, runtime_s=200.0)
    assert expected(memory).mem_upper_bytes is None, "two jobs are too few for a bound"
    teach(memory, 4, first=200, cores=1.5, mem_bytes=3 << 30, runtime_s=200.0)
    found = expected(memory)
    assert found.load.cpu_cores == pytest.approx(1.5)
    assert found.load.mem_bytes == pytest.approx(3 << 30)
    assert found.runtime_s == pytest.approx(200.0)
    assert (found.mem_upper_bytes or 0) >= found.load.mem_bytes * 0.999
    assert "user, script, shape, limit" in found.evidence
    assert expected(memory, ppn=8).load.cpu_cores == pytest.approx(6.0), "each processor is as busy"
    # After a qalter it is of its new kind, and never expected to run beyond its limit.
    assert (expected(memory, walltime_s=60.0).runtime_s, expected(memory)) == (60.0, found)
    assert expected(memory, user="eve", name="other").mem_upper_bytes is None


def test_a_job_is_learned_once_however_long_it_stays_listed_over_restarts(tmp_path: Path) -> None:
    jobs = [job(100 + i, "C") for i in range(5)]
    for n_learned in ([5, 0], [0, 0]):
        memory = history(tmp_path / "h.sqlite")
        assert [memory.observe(snapshot(*jobs)) for _ in range(2)] == n_learned
        assert [e.n_similar for e in memory.predictions().explain(job(1)) if e.figure is Figure.CPU] == [5]
        memory.close()


def test_a_new_daemon_expects_what_the_old_one_did(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    memory = history(path)
    for n in range(12):
        teach(memory, 1, first=100 + n, cores=1.0 + n % 3, mem_bytes=(1 + n) << 28)
    before = memory.predictions().expect(job(1))
    memory.close()
    again = history(path)
    assert again.predictions().expect(job(1)) == before
    again.close()


def test_the_error_is_that_of_what_was_said_when_the_job_began(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    memory = history(path)
    teach(memory, 8, cores=1.0)
    memory.observe(snapshot(job(1, "R")))
    teach(memory, 8, first=300, cores=2.0)
    memory.observe(snapshot(job(1, "C", cores=2.0)))
    assert memory.predictions().errors[Figure.CPU].n >= 1
    assert '"chain":[0.5,' in ended(path)[-1].said


def test_gpu_use_comes_from_moms_report_and_the_gpus_held() -> None:
    memory = history()
    for tick in range(6):
        at_s = NOW_S + 45.0 * tick
        machine = node(rectime_s=at_s, gpus=(0.8, 0.4, 0.0))
        memory.observe(snapshot(job(1, "R", gpus=2, start_s=NOW_S), nodes=(machine,), now_s=at_s + 5))
    memory.observe(snapshot(job(1, "C", gpus=2, start_s=NOW_S, runtime_s=250)))
    load = expected(memory, gpus=2).load
    assert (load.gpus, load.gpu_mem_bytes) == pytest.approx((1.2, 2 << 30))


def test_one_report_is_one_sample_however_many_cycles_see_it(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    memory = history(path)
    busy, idle = node(rectime_s=NOW_S + 50, gpus=(1.0,)), node(rectime_s=NOW_S + 95, gpus=(0.0,))
    running = job(1, "R", gpus=1, start_s=NOW_S)
    for now_s in range(51, 60):
        memory.observe(snapshot(running, nodes=(busy,), now_s=NOW_S + now_s))
    memory.observe(snapshot(running, nodes=(idle,), now_s=NOW_S + 96))
    memory.observe(snapshot(job(1, "C", gpus=1, start_s=NOW_S)))
    assert ended(path)[0].used.gpus == pytest.approx(0.5)


def test_samples_survive_a_new_daemon(tmp_path: Path) -> None:
    path, running = tmp_path / "h.sqlite", job(1, "R", gpus=1, start_s=NOW_S)
    for after_s, busy in ((50, 1.0), (95, 0.5)):
        memory = history(path)
        memory.observe(snapshot(running, nodes=(node(rectime_s=NOW_S + after_s, gpus=(busy,)),)))
        if busy == 0.5:
            memory.observe(snapshot(job(1, "C", gpus=1, start_s=NOW_S)))
        memory.close()
    assert ended(path)[0].used.gpus == pytest.approx(0.75)


def test_the_samplers_figures_go_before_moms() -> None:
    memory = history()
    sample = NodeSample(NOW_S, 3.5, 2.0**33, (GpuSample(0, 0.9, 2.0**32),))
    machine = node(rectime_s=NOW_S + 3, loadave=0.1, varattr=varattr(sample), gpus=(0.0,))
    look = looked(memory, nodes=(machine, node("n2")))
    measured = memory.measured(look)
    assert measured.keys() == {"n1"}  # of n2 mom's own report is used
    load = measured[NodeName("n1")].load
    assert (load.cpu_cores, load.mem_bytes, load.gpus, load.gpu_mem_bytes) == (3.5, 2.0**33, 0.9, 2.0**32)
    assert measured[NodeName("n1")].sample_s == NOW_S


@pytest.mark.parametrize(("age_s", "is_used"), [(5, True), (119, True), (121, False), (-50, True)])
def test_a_sampler_that_is_gone_is_not_believed(age_s: float, is_used: bool) -> None:
    memory = history()
    machine = node(rectime_s=NOW_S, varattr=varattr(NodeSample(NOW_S - age_s, 3.5, 1.0)))
    look = looked(memory, nodes=(machine,))
    found = memory.measured(look)
    assert (NodeName("n1") in found) == is_used
    # A node's clock that is ahead does not make a sample newer than the report it came in.
    assert all(each.sample_s <= NOW_S for each in found.values())


@pytest.mark.parametrize(
    ("at_s", "sampled", "cores"),
    [(80, True, 3.0), (95, True, 5.0), (80, False, 2.5)],
    ids=["before its end", "after it", "without a sampler, off mom's figures"],
)
def test_the_load_of_an_ended_job_is_taken_off_a_sample_from_before_its_end(
    at_s: float, sampled: bool, cores: float
) -> None:
    memory = history()
    sample = NodeSample(NOW_S + at_s, 5.0, 2.0**33, (), (JobSample("1.head", 2.0, 2.0**32),))
    machine = node(rectime_s=NOW_S + at_s, loadave=4.0, varattr=varattr(sample) if sampled else None)
    done = job(1, "C", start_s=NOW_S - 100, runtime_s=190, cores=1.5)
    if at_s > 90:
        earlier = node(rectime_s=NOW_S + 80, varattr=varattr(replace(sample, at_s=NOW_S + 80)))
        memory.observe(snapshot(done, nodes=(earlier,), now_s=NOW_S + 91))
    look = looked(memory, done, nodes=(machine,), now_s=NOW_S + max(at_s, 90) + 1)
    assert memory.measured(look)[NodeName("n1")].load.cpu_cores == pytest.approx(cores)


def test_a_job_just_started_counts_until_a_sample_contains_it() -> None:
    memory, running = history(), job(1, "R", start_s=NOW_S)
    teach(memory, cores=1.5)
    before = looked(memory, running, nodes=(node(rectime_s=NOW_S + 30),), now_s=NOW_S + 31)
    [placed] = memory.placed(before)
    assert (placed.job, placed.node, placed.placed_s) == ("1.head", "n1", NOW_S)
    assert placed.load.cpu_cores == pytest.approx(1.5)
    after = looked(memory, running, nodes=(node(rectime_s=NOW_S + 75),), now_s=NOW_S + 76)
    assert memory.placed(after) == ()


@pytest.mark.parametrize(
    ("age_s", "is_listed", "n_placed"), [(9, True, 1), (11, True, 0), (11, False, 1), (61, False, 0)]
)
def test_what_the_sampler_lists_counts_once(age_s: float, is_listed: bool, n_placed: int) -> None:
    """Its figures are of the last seconds, so they need not wait as a load average does."""
    memory = history()
    jobs = (JobSample("1.head", 2.0, 2.0**30),) if is_listed else ()
    sample = NodeSample(NOW_S + age_s, 2.0, 2.0**32, (), jobs)
    machine = node(rectime_s=NOW_S + age_s, varattr=varattr(sample))
    look = looked(memory, job(1, "R", start_s=NOW_S), nodes=(machine,), now_s=NOW_S + age_s)
    assert len(memory.placed(look)) == n_placed
    done = job(1, "C", start_s=NOW_S, runtime_s=age_s + 1)
    look = looked(memory, done, nodes=(machine,), now_s=NOW_S + age_s + 2)
    # The other half: what is in the figures is taken off them when the job has ended.
    assert (memory.measured(look)[NodeName("n1")].load.cpu_cores < 2.0) == (not n_placed)


def test_a_copy_counts_no_job_again_that_the_server_still_shows(tmp_path: Path) -> None:
    memory = history(tmp_path / "h.sqlite")
    done = [job(number, "C", start_s=NOW_S) for number in range(1, 8)]
    memory.observe(snapshot(*done))
    copy = History.copy_of(tmp_path / "h.sqlite")
    later = snapshot(*done, job(8, "C", start_s=NOW_S), now_s=NOW_S + 200)
    assert copy.observe(later) == memory.observe(later) == 1
    checks = [{each: error.n for each, error in m.predictions().errors.items()} for m in (copy, memory)]
    assert checks[0] == checks[1]
    assert copy.usage(NOW_S + 200) == pytest.approx(memory.usage(NOW_S + 200), rel=0.01)
    memory.close()


def test_a_start_only_asked_for_counts_as_soon_as_it_is_asked() -> None:
    memory, start = history(), PendingStart(job(1).id, (NodeShare(NodeName("n1"), 2),), NOW_S)
    assert [each.load.cpu_cores for each in memory.placed(looked(memory, job(1)), [start])] == [2.0]
    assert memory.placed(looked(memory), [start]) == ()


def test_run_times_travel_between_clocks() -> None:
    memory = history(rates={"slow": Rates(1.0), "fast": Rates(4.0)})
    jobs = [job(100 + i, "C", runtime_s=400.0) for i in range(4)]
    memory.observe(snapshot(*jobs, nodes=(node("n1", properties=("slow",)),)))
    memory.observe(snapshot(nodes=(node("n2", properties=("fast",)),)))
    found = expected(memory)
    assert (found.runtime_s, found.load.cpu_cores) == pytest.approx((100.0, 1.0))


def test_a_full_disk_stops_no_cycle_and_loses_no_job_no_usage_and_no_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waits = tmp_path / "h.sqlite", job(9)
    memory, seen = history(path), snapshot(waits)
    shares = (NodeShare(NodeName("n1"), 2),)
    promise = GuaranteedStart(waits.id, NOW_S + 500, shares, 3600.0, NOW_S, NOW_S + 500, NOW_S)
    told = (Reserve(waits.id, NOW_S + 500, shares, promise=promise),)
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> frozenset[object]:
            raise sqlite3.OperationalError("database or disk is full")

        patched.setattr(Store, "record", refuse)
        assert memory.observe(snapshot(job(1, "C"), job(2, "C"))) == 2
        assert memory.observe(snapshot(job(2, "C"), job(3, "C"))) == 1
        memory.decided(seen, told, ())
        assert memory.promises.carried(seen)[waits.id].start_s == NOW_S + 500
    assert "disk is full" in memory.trouble
    assert memory.predictions().expect(waits) is not None
    assert memory.observe(snapshot(job(3, "C"), job(4, "C"))) == 1
    memory.decided(seen, told, ())
    assert memory.trouble == ""
    assert [each.key[0] for each in ended(path)] == [f"{n}.head" for n in (1, 2, 3, 4)]
    assert [e.n_similar for e in memory.predictions().explain(waits) if e.figure is Figure.CPU] == [4]
    used = memory.usage(NOW_S)
    memory.close()
    again = history(path)
    assert again.promises.carried(seen)[waits.id].start_s == NOW_S + 500
    assert again.usage(NOW_S) == pytest.approx(used)
    assert used["ada"] == pytest.approx(4 * 200.0, rel=0.01)
    again.close()


class _Full(sqlite3.Connection):
    """A disk without room: SQLite ends the transaction by itself then."""

    def execute(self, sql: str, *words: object) -> sqlite3.Cursor:
        if sql.lstrip().startswith("CREATE"):
            super().execute("ROLLBACK")
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *words)  # type: ignore[arg-type]


def test_no_room_for_a_file_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=_Full))
    with pytest.raises(NoSpaceError, match="disk is full"):
        History.open(tmp_path / "history.sqlite")
    monkeypatch.undo()
    memory = History.open(None, lasting_trouble="no room")
    assert memory.troubles == ["no room"]
    memory.trouble = "and this"
    assert memory.troubles == ["no room", "and this"]


def written(path: Path, *numbers: int) -> None:
    memory = history(path)
    memory.observe(snapshot(*(job(number, "C") for number in numbers)))
    memory.close()


def kept_aside(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{path.name}.damaged-*[0-9]"))


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_what_is_no_history_is_put_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"damaged" * 1000)
    written(path, 1)
    assert len(kept_aside(path)) == len(ended(path)) == 1


PROMISE = "INSERT INTO promises VALUES ('9.head', 1, 5, '[]', 1, 1, 1, 1, '', 0, 0, 0, {})"
DAMAGES = {
    "no JSON": ("UPDATE jobs SET nodes = '[' WHERE job = '2.head'", "1 row of jobs"),
    "another JSON": ("UPDATE jobs SET nodes = '{\"n1\": \"2\"}' WHERE job = '2.head'", "1 row of jobs"),
    "no text": ("UPDATE jobs SET user = CAST(x'ff00' AS TEXT) WHERE job = '2.head'", "user is no TEXT"),
    "no number": ("UPDATE jobs SET end_s = 'soon' WHERE job = '2.head'", "end_s is no REAL"),
    "an absurd number": ("UPDATE jobs SET runtime_s = -5 WHERE job = '2.head'", "1 row of jobs"),
    "a promise": (PROMISE.format("'{}}'"), "1 row of promises"),
    "no table": ("DROP TABLE expected", ""),
    "a column": ("ALTER TABLE promises RENAME COLUMN changes TO chan_es", "no such column"),
    "a pause": ("INSERT INTO pauses VALUES ('job', '1.head', '', 'often', 1, '')", "failures is no INTEGER"),
    "usage": ("UPDATE usage SET proc_s = 'much' WHERE kind = 'user'", "1 row of usage"),
    "a position": ("INSERT INTO position VALUES (1, '20261120', 'end')", "1 row of position"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_row_that_cannot_be_read_costs_itself_alone_and_the_file_as_it_was_is_kept(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.sqlite"
    written(path, 1, 2, 3)
    statement, told = DAMAGES[damage]
    change(path, statement)
    memory = history(path)
    [trouble] = memory.troubles
    assert told in trouble
    assert caplog.text.count("was damaged: ") == 1
    assert caplog.text.count("is left out") <= 1
    assert memory.observe(snapshot(job(4, "C"))) == 1
    memory.close()
    [aside] = kept_aside(path)
    with closing(sqlite3.connect(aside)) as db:
        assert db.execute("SELECT COUNT(*) FROM jobs").fetchone() == (3,)
    gone = ["2.head"] if statement.startswith("UPDATE jobs") else []
    kept = [each for each in ("1.head", "2.head", "3.head", "4.head") if each not in gone]
    assert [each.key[0] for each in ended(path)] == kept
    again = history(path)
    assert not again.troubles
    again.close()


def test_a_page_that_cannot_be_read_costs_what_stands_on_it(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    written(path, *range(1, 400))
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    pages = bytearray(path.read_bytes())
    at = pages.index(b"200.head") & ~4095
    pages[at : at + 4096] = b"\xff" * 4096
    path.write_bytes(pages)
    written(path, 1000)
    numbers = [int(each.key[0].partition(".")[0]) for each in ended(path)]
    assert 350 < len(numbers) < 400
    assert {1, 399, 1000} < set(numbers)
    assert 200 not in numbers


def test_whoever_only_looks_leaves_out_an_unreadable_row(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    written(path, 1, 2)
    change(path, "UPDATE jobs SET nodes = '[' WHERE job = '2.head'", "INSERT INTO reservations VALUES"
           " ('r', '7', 0, 9e9, '[]', '', 0, NULL, NULL, '')")  # fmt: skip
    with Store.looked_at(path) as store:
        assert [each.key[0] for each in store.ended(9)] == ["1.head"]
        assert not store.reservations().live(NOW_S)
        assert [words[:22] for words in store.unreadable.words] == [
            "1 row of jobs cannot b", "1 row of reservations ",
        ]  # fmt: skip
    assert not kept_aside(path)


LINE = (
    "11/20/2026 17:4{n}:00;E;{n}.head;user=ada group=g jobname=relax queue=batch ctime={at} qtime={at} "
    "etime={at} start={at} owner=ada@head exec_host=n1/0 Resource_List.nodes=1:ppn=2 "
    "Resource_List.walltime=01:00:00 session=1 end={end} Exit_status=0 "
    "resources_used.cput=00:02:30 resources_used.mem=1048576kb "
    "resources_used.walltime=00:01:40\n"
)


def line(number: int) -> str:
    return LINE.format(n=number, at=int(NOW_S) + number, end=int(NOW_S) + number + 100)


def test_accounting_and_qstat_together_count_each_job_once(tmp_path: Path) -> None:
    folder = tmp_path / "accounting"
    folder.mkdir()
    day = folder / "20261120"
    day.write_text(line(1) + line(2) + line(3)[:50], encoding="ascii")
    memory = history(tmp_path / "h.sqlite", accounting=folder)
    assert memory.observe(snapshot(job(2, "C"), job(4, "C"))) == 3
    # The torn line is read when it is whole, the others are not read again.
    day.write_text(line(1) + line(2) + line(3), encoding="ascii")
    assert memory.observe(snapshot(job(4, "C"))) == 1
    memory.close()
    again = history(tmp_path / "h.sqlite", accounting=folder)
    (folder / "20261121").write_text(line(5), encoding="ascii")
    assert again.observe(snapshot(job(5, "C"))) == 1
    keys = sorted(each.key[0] for each in ended(tmp_path / "h.sqlite"))
    assert keys == ["1.head", "2.head", "3.head", "4.head", "5.head"]
    again.close()


def test_a_damaged_line_of_accounting_is_left_out_named_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    day = tmp_path / "20261120"
    other = "2026-11-20 17:21:01;E;9.head;queue=of_another_version\n"
    day.write_text(line(1) + "no record at all\n" + other + line(2), encoding="ascii")
    memory = history(tmp_path / "h.sqlite", accounting=tmp_path)
    assert memory.observe(snapshot()) == 2
    assert memory.observe(snapshot()) == 0
    assert caplog.text.count("left out: accounting file 20261120 from byte 0 on: line 2") == 1
    [trouble] = memory.troubles
    assert trouble.startswith("accounting: 2 records left out, the last: ")
    memory.close()


def test_days_longer_than_what_is_read_in_a_cycle_are_read_to_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "_PART_BYTES", 1000)
    for day in range(3):
        text = "".join(line(1).replace("1.head", f"{20 * day + number}.head") for number in range(20))
        (tmp_path / f"2026112{day}").write_text(text + "x" * 3000 + "\n", encoding="ascii")
    memory = history(accounting=tmp_path)
    n_learned = [memory.observe(snapshot(now_s=NOW_S + cycle)) for cycle in range(60)]
    assert sum(n_learned) == 60
    assert max(n_learned) < 5


def test_without_the_right_to_read_accounting_qstat_serves(tmp_path: Path) -> None:
    memory = history(accounting=tmp_path / "nothing here")
    assert memory.observe(snapshot(job(1, "C"))) == 1


def test_a_job_deleted_while_it_waited_teaches_nothing_whatever_it_asked_for() -> None:
    memory, nothing = history(), UsedResources()
    waited = job(1, "C", exit_status=271, ppn=10**18)
    waited = replace(waited, start_s=None, used=nothing, allocated_slots=())
    assert memory.observe(snapshot(waited)) == 0
    assert memory.observe(snapshot(waited, replace(job(2, "C", ppn=10**17), allocated_slots=()))) == 1
    assert memory.trouble == ""
