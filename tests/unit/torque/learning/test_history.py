"""What the daemon's memory takes from snapshots, and what it answers."""

from __future__ import annotations

import functools
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.torque.learning.build import NOW_S, job, node, snapshot
from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import Job, NodeName, UsedResources
from torque_sched.errors import NoSpaceError
from torque_sched.learning import History, HistorySettings, accounting
from torque_sched.learning.figures import Figure
from torque_sched.learning.store import Store
from torque_sched.policies.context import PendingStart, Predictions
from torque_sched.policies.rules import Rates
from torque_sched.sampler.form import GpuSample, JobSample, NodeSample, format_sample


def history(path: Path | None = None, **rest: object) -> History:
    return History.open(path, HistorySettings(), **rest)  # type: ignore[arg-type]


def varattr(sample: NodeSample) -> dict[str, str]:
    return dict(line.split(":", 1) for line in format_sample(sample).splitlines())


def teach(memory: History, n: int = 6, *, first: int = 100, **job_values: object) -> None:
    memory.observe(snapshot(*(job(first + i, "C", **job_values) for i in range(n))))  # type: ignore[arg-type]


def test_without_history_nothing_is_expected() -> None:
    memory = history()
    assert memory.predictions().expect(job(1)) is None
    assert memory.predictions().explain(job(1)) == ()


def test_a_job_like_others_is_expected_to_use_what_they_used() -> None:
    memory = history()
    teach(memory, cores=1.5, mem_bytes=3 << 30, runtime_s=200.0)
    predictions: Predictions = memory.predictions()
    expected = predictions.expect(job(1))
    assert expected is not None
    assert expected.load.cpu_cores == pytest.approx(1.5)
    assert expected.load.mem_bytes == pytest.approx(3 << 30)
    assert expected.runtime_s == pytest.approx(200.0)
    assert expected.mem_upper_bytes is not None
    assert expected.mem_upper_bytes >= expected.load.mem_bytes * 0.999
    assert "user, script, shape, limit" in expected.evidence


def test_twice_the_processors_are_expected_to_be_as_busy_each() -> None:
    memory = history()
    teach(memory, cores=1.5, ppn=2)
    wide = memory.predictions().expect(job(1, ppn=8))
    assert wide is not None
    assert wide.load.cpu_cores == pytest.approx(6.0)


def test_a_run_time_is_never_expected_beyond_the_walltime() -> None:
    memory = history()
    teach(memory, runtime_s=5000.0)
    short = memory.predictions().expect(job(1, walltime_s=60.0))
    assert short is not None
    assert short.runtime_s == 60.0


def test_memory_is_bounded_only_by_jobs_of_the_same_script() -> None:
    memory = history()
    teach(memory, 2)
    assert memory.predictions().expect(job(1)).mem_upper_bytes is None  # type: ignore[union-attr]
    teach(memory, 2, first=200)
    assert memory.predictions().expect(job(1)).mem_upper_bytes is not None  # type: ignore[union-attr]
    stranger = memory.predictions().expect(job(1, user="eve", name="other"))
    assert stranger is not None
    assert stranger.mem_upper_bytes is None


def test_a_job_is_learned_once_however_long_it_stays_listed(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    memory = history(path)
    jobs = [job(100 + i, "C") for i in range(5)]
    assert memory.observe(snapshot(*jobs)) == 5
    assert memory.observe(snapshot(*jobs)) == 0
    memory.close()
    again = history(path)
    assert again.observe(snapshot(*jobs)) == 0
    assert [e.n_similar for e in again.predictions().explain(job(1)) if e.figure is Figure.CPU] == [5]
    again.close()


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


def test_the_error_is_that_of_what_was_said_when_the_job_began() -> None:
    memory = history()
    teach(memory, 8, cores=1.0)
    memory.observe(snapshot(job(1, "R")))
    teach(memory, 8, first=300, cores=2.0)
    memory.observe(snapshot(job(1, "C", cores=2.0)))
    last = memory.predictions().errors[Figure.CPU]
    assert last.n >= 1
    store = memory._store
    said = store.ended(1)[0].said
    assert '"chain":[0.5,' in said


def test_gpu_use_comes_from_moms_report_and_the_gpus_held() -> None:
    memory = history()
    for tick in range(6):
        at_s = NOW_S + 45.0 * tick
        machine = node(rectime_s=at_s, gpus=(0.8, 0.4, 0.0))
        memory.observe(snapshot(job(1, "R", gpus=2, start_s=NOW_S), nodes=(machine,), now_s=at_s + 5))
    memory.observe(snapshot(job(1, "C", gpus=2, start_s=NOW_S, runtime_s=250)))
    expected = memory.predictions().expect(job(2, gpus=2))
    assert expected is not None
    assert expected.load.gpus == pytest.approx(1.2)
    assert expected.load.gpu_mem_bytes == pytest.approx(2 << 30)


def test_one_report_is_one_sample_however_many_cycles_see_it() -> None:
    memory = history()
    busy, idle = node(rectime_s=NOW_S + 50, gpus=(1.0,)), node(rectime_s=NOW_S + 95, gpus=(0.0,))
    running = job(1, "R", gpus=1, start_s=NOW_S)
    for now_s in range(51, 60):
        memory.observe(snapshot(running, nodes=(busy,), now_s=NOW_S + now_s))
    memory.observe(snapshot(running, nodes=(idle,), now_s=NOW_S + 96))
    memory.observe(snapshot(job(1, "C", gpus=1, start_s=NOW_S)))
    assert memory._store.ended(1)[0].used.gpus == pytest.approx(0.5)


def test_samples_survive_a_new_daemon(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    running = job(1, "R", gpus=1, start_s=NOW_S)
    memory = history(path)
    memory.observe(snapshot(running, nodes=(node(rectime_s=NOW_S + 50, gpus=(1.0,)),)))
    memory.close()
    memory = history(path)
    memory.observe(snapshot(running, nodes=(node(rectime_s=NOW_S + 95, gpus=(0.5,)),)))
    memory.observe(snapshot(job(1, "C", gpus=1, start_s=NOW_S)))
    assert memory._store.ended(1)[0].used.gpus == pytest.approx(0.75)
    memory.close()


def test_the_samplers_figures_go_before_moms() -> None:
    memory = history()
    sample = NodeSample(NOW_S, 3.5, 2.0**33, (GpuSample(0, 0.9, 2.0**32),))
    machine = node(rectime_s=NOW_S + 3, loadave=0.1, varattr=varattr(sample), gpus=(0.0,))
    look = snapshot(nodes=(machine, node("n2")))
    memory.observe(look)
    measured = memory.measured(look)
    assert measured.keys() == {"n1"}  # of n2 mom's own report is used
    load = measured[NodeName("n1")].load
    assert (load.cpu_cores, load.mem_bytes, load.gpus, load.gpu_mem_bytes) == (3.5, 2.0**33, 0.9, 2.0**32)
    assert measured[NodeName("n1")].sample_s == NOW_S


@pytest.mark.parametrize(("age_s", "is_used"), [(5, True), (119, True), (121, False), (-50, True)])
def test_a_sampler_that_is_gone_is_not_believed(age_s: float, is_used: bool) -> None:
    memory = history()
    machine = node(rectime_s=NOW_S, varattr=varattr(NodeSample(NOW_S - age_s, 3.5, 1.0)))
    look = snapshot(nodes=(machine,))
    memory.observe(look)
    found = memory.measured(look)
    assert (NodeName("n1") in found) == is_used
    # A node's clock that is ahead does not make a sample newer than the report it came in.
    assert all(each.sample_s <= NOW_S for each in found.values())


def test_the_load_of_an_ended_job_is_taken_off_a_sample_from_before_its_end() -> None:
    memory = history()
    sample = NodeSample(NOW_S + 80, 5.0, 2.0**33, (), (JobSample("1.head", 2.0, 2.0**32),))
    machine = node(rectime_s=NOW_S + 80, varattr=varattr(sample))
    done = job(1, "C", start_s=NOW_S - 100, runtime_s=190)
    look = snapshot(done, nodes=(machine,), now_s=NOW_S + 91)
    memory.observe(look)
    assert memory.measured(look)[NodeName("n1")].load.cpu_cores == pytest.approx(3.0)
    fresh = node(rectime_s=NOW_S + 95, varattr=varattr(replace(sample, at_s=NOW_S + 95)))
    look = snapshot(done, nodes=(fresh,), now_s=NOW_S + 96)
    memory.observe(look)
    assert memory.measured(look)[NodeName("n1")].load.cpu_cores == pytest.approx(5.0)


def test_without_a_sampler_an_ended_job_is_taken_off_moms_figures() -> None:
    memory = history()
    machine = node(rectime_s=NOW_S + 80, loadave=4.0)
    done = job(1, "C", start_s=NOW_S - 100, runtime_s=190, cores=1.5)
    look = snapshot(done, nodes=(machine,), now_s=NOW_S + 91)
    memory.observe(look)
    assert memory.measured(look)[NodeName("n1")].load.cpu_cores == pytest.approx(2.5)


def test_a_job_just_started_counts_until_a_sample_contains_it() -> None:
    memory = history()
    teach(memory, cores=1.5)
    running = job(1, "R", start_s=NOW_S)
    before = snapshot(running, nodes=(node(rectime_s=NOW_S + 30),), now_s=NOW_S + 31)
    memory.observe(before)
    placed = memory.placed(before)
    assert [(each.job, each.node, each.placed_s) for each in placed] == [("1.head", "n1", NOW_S)]
    assert placed[0].load.cpu_cores == pytest.approx(1.5)
    after = snapshot(running, nodes=(node(rectime_s=NOW_S + 75),), now_s=NOW_S + 76)
    memory.observe(after)
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
    look = snapshot(job(1, "R", start_s=NOW_S), nodes=(machine,), now_s=NOW_S + age_s)
    memory.observe(look)
    assert len(memory.placed(look)) == n_placed
    done = job(1, "C", start_s=NOW_S, runtime_s=age_s + 1)
    look = snapshot(done, nodes=(machine,), now_s=NOW_S + age_s + 2)
    memory.observe(look)
    # The other half: what is in the figures is taken off them when the job has ended.
    assert (memory.measured(look)[NodeName("n1")].load.cpu_cores < 2.0) == (not n_placed)


def test_a_copy_counts_no_job_again_that_the_server_still_shows(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    memory = history(path)
    done = [job(number, "C", start_s=NOW_S) for number in range(1, 8)]
    memory.observe(snapshot(*done))
    copy = History.copy_of(path)
    later = snapshot(*done, job(8, "C", start_s=NOW_S), now_s=NOW_S + 200)
    assert copy.observe(later) == memory.observe(later) == 1
    assert {each: error.n for each, error in copy.predictions().errors.items()} == {
        each: error.n for each, error in memory.predictions().errors.items()
    }
    assert copy.usage(NOW_S + 200) == pytest.approx(memory.usage(NOW_S + 200), rel=0.01)
    memory.close()


def test_a_start_only_asked_for_counts_as_soon_as_it_is_asked() -> None:
    memory = history()
    start = PendingStart(job(1).id, (NodeShare(NodeName("n1"), 2),), NOW_S)
    look = snapshot(job(1))
    memory.observe(look)
    assert [each.load.cpu_cores for each in memory.placed(look, [start])] == [2.0]
    gone = snapshot()
    memory.observe(gone)
    assert memory.placed(gone, [start]) == ()


def test_run_times_travel_between_clocks() -> None:
    rates = {"slow": Rates(1.0), "fast": Rates(4.0)}
    memory = history(rates=rates)
    slow, fast = node("n1", properties=("slow",)), node("n2", properties=("fast",))
    jobs = [job(100 + i, "C", runtime_s=400.0) for i in range(4)]
    memory.observe(snapshot(*jobs, nodes=(slow,)))
    memory.observe(snapshot(nodes=(fast,)))
    expected = memory.predictions().expect(job(1))
    assert expected is not None
    assert expected.runtime_s == pytest.approx(100.0)
    assert expected.load.cpu_cores == pytest.approx(1.0)


def test_a_full_disk_stops_no_cycle_and_loses_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = history(tmp_path / "h.sqlite")
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> frozenset[object]:
            raise sqlite3.OperationalError("database or disk is full")

        patched.setattr(Store, "record", refuse)
        assert memory.observe(snapshot(job(1, "C"), job(2, "C"))) == 2
        assert memory.observe(snapshot(job(2, "C"), job(3, "C"))) == 1
    assert "disk is full" in memory.trouble
    assert memory.predictions().expect(job(9)) is not None
    assert memory.observe(snapshot(job(3, "C"), job(4, "C"))) == 1
    assert memory.trouble == ""
    assert [each.key[0] for each in memory._store.ended(10)] == ["1.head", "2.head", "3.head", "4.head"]
    assert [e.n_similar for e in memory.predictions().explain(job(9)) if e.figure is Figure.CPU] == [4]
    memory.close()


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


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"damaged" * 1000)
    memory = history(path)
    memory.observe(snapshot(job(1, "C")))
    memory.close()
    assert [each.name for each in tmp_path.glob("h.sqlite.damaged-*")]
    store = Store.read_only(path)
    assert store.n_jobs() == 1
    store.close()


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
    keys = sorted(each.key[0] for each in again._store.ended(10))
    assert keys == ["1.head", "2.head", "3.head", "4.head", "5.head"]
    again.close()


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


def test_usage_is_what_was_allocated_and_fades() -> None:
    memory = History.open(None, HistorySettings(half_life_s=100_000.0))
    done = job(1, "C", start_s=NOW_S - 100, runtime_s=100.0, cores=0.1)
    memory.observe(snapshot(done, now_s=NOW_S))
    assert memory.usage(NOW_S)["ada"] == pytest.approx(200.0, rel=1e-3)
    assert memory.usage(NOW_S + 200_000)["ada"] == pytest.approx(50.0, rel=1e-3)
    memory.observe(snapshot(done, job(2, "R", user="bob", gpus=1, start_s=NOW_S - 10)))
    assert memory.usage(NOW_S)["bob"] == pytest.approx(10 * (2 + 10 * 1), rel=1e-3)
    assert memory.usage(NOW_S)["ada"] == pytest.approx(200.0, rel=1e-3)


def test_predictions_hold_still_within_a_cycle() -> None:
    memory = history()
    teach(memory)
    asked: list[Job] = [job(n) for n in range(5)]
    first = [memory.predictions().expect(each) for each in asked]
    assert [memory.predictions().expect(each) for each in reversed(asked)] == first[::-1]


def test_a_job_changed_by_qalter_is_of_its_new_kind() -> None:
    memory = history()
    teach(memory, runtime_s=5000.0)
    before, after = (memory.predictions().expect(job(1, walltime_s=limit)) for limit in (3600.0, 60.0))
    assert before is not None
    assert after is not None
    assert after.runtime_s == 60.0
    assert before.runtime_s == 3600.0


def test_a_job_deleted_while_it_waited_teaches_nothing_whatever_it_asked_for() -> None:
    memory = history()
    waited = replace(
        job(1, "C", exit_status=271, ppn=10**18), start_s=None, used=UsedResources(), exec_host=()
    )
    assert memory.observe(snapshot(waited)) == 0
    huge = job(2, "C", ppn=10**17)
    assert memory.observe(snapshot(waited, replace(huge, exec_host=()))) == 1
    assert memory.trouble == ""
