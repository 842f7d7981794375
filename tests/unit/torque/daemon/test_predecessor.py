"""What pbs_sched leaves behind: the files it shipped, its usage file, what means nothing here."""

from __future__ import annotations

import json
import os
import struct
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.torque_builders import NOW_S, job, node, queue, running, snapshot
from tests.fixtures.torque_printing import format_usage
from torque_sched.batch.torque.parse.sched_config import parse_holidays, parse_usage
from torque_sched.daemon.c_policy import SettingsInForce, c_files_of
from torque_sched.daemon.config import Config
from torque_sched.daemon.paths import Options
from torque_sched.daemon.shadow import Shadow, read_report, words_of
from torque_sched.daemon.startup import take_over_usage, without_effect
from torque_sched.decide.backfill import AgedReservations, DrainForStarving
from torque_sched.decide.context import Context
from torque_sched.decide.decide import decide
from torque_sched.decide.order import FairShareOrder
from torque_sched.decide.settings import Settings
from torque_sched.errors import RecordError
from torque_sched.learn import History, HistorySettings
from torque_sched.model.cluster import Job, Node
from torque_sched.model.decisions import Decision
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState

HOLIDAYS = """\
* comment
HOLIDAYFILE_VERSION1\t\tFile version number
*
YEAR\t2026
*\t\tPrime\tNon-Prime
  weekday\t0600\t1730
  saturday\tnone\tall
  sunday\tnone\tall
    1           Jan 1           New Year's Day
  358           Dec 24          Christmas Day
"""


def at(day: int, hour: int, minute: int = 0) -> datetime:
    """In November 2026; the 20th is a Friday."""
    return datetime(2026, 11, day, hour, minute)  # noqa: DTZ001 -- the host's own time


def test_the_form_in_which_holidays_are_shipped_is_no_trouble() -> None:
    found = parse_holidays(HOLIDAYS)
    assert (found.warnings, found.days, found.year) == ((), {1, 358}, 2026)
    assert [found.is_prime(at(20, hour)) for hour in (5, 6, 17, 18)] == [False, True, True, False]
    assert not found.is_prime(at(21, 12))
    assert [found.is_prime(datetime(year, 1, 1, 12)) for year in (2026, 2027)] == [False, True]  # noqa: DTZ001
    assert parse_holidays("YEAR 2026\n2026 0400 1530\n").weekday == (240, 930), "the older form"


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("YEAR 2026\nweekday 2200 0600\n", {22, 23, 0, 5}),
        ("weekday 0600 1730\n", {21, 22, 23, 0, 5, 6, 12}),
        ("", {21, 22, 23, 0, 5, 6, 12}),
    ],
    ids=["over midnight", "without a year always", "no file"],
)
def test_hours_of_prime_time(text: str, hours: set[int]) -> None:
    found = parse_holidays(text)
    assert {hour for hour in (21, 22, 23, 0, 5, 6, 12) if found.is_prime(at(20, hour))} == hours
    assert any("no YEAR line" in each for each in found.warnings) == text.startswith("weekday")


def test_load_balancing_and_the_port_of_moms_are_warned_of_once() -> None:
    for text, n in (("load_balancing: true ALL\n", 1), ("load_balancing: false ALL\n", 0)):
        warnings = c_files_of({"sched_config": text}, Config()).warnings
        assert len([each for each in warnings if "placement: loadave" in each]) == n
    assert "no effect" in without_effect(Options(Path("/x"), mom_port=15003))[0]
    assert without_effect(Options(Path("/x"))) == []


def test_another_time_to_starve_than_the_shipped_is_heeded() -> None:
    def backfill(sched: str, **settings: object) -> object:
        config = Config(**settings)  # type: ignore[arg-type]
        return SettingsInForce(config, c_files_of({"sched_config": sched}, config)).prime.backfill

    default = AgedReservations().after_s
    assert backfill("max_starve: 24:00:00\n") == AgedReservations(after_s=default)
    assert backfill("max_starve: 02:00:00\n") == AgedReservations(after_s=7200.0)
    assert backfill("max_starve: 02:00:00\n", backfill="drain") == DrainForStarving(7200.0)
    told = backfill("max_starve: 02:00:00\n", backfill={"name": "drain", "max_starve_s": 60.0})
    assert told == DrainForStarving(60.0)


def test_fair_share_keeps_the_rules_of_queues() -> None:
    text = "fair_share: true ALL\nsort_queues: false ALL\n"
    order = SettingsInForce(Config(), c_files_of({"sched_config": text}, Config())).prime.order
    assert isinstance(order, FairShareOrder)
    assert (order.by_queue, order.round_robin, order.sort_queues) == (True, False, False)


names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)


@given(st.dictionaries(names, st.integers(0, 2**62).map(float), max_size=20))
def test_usage_is_read_as_it_was_written(usage: dict[str, float]) -> None:
    assert parse_usage(format_usage(usage)) == usage


def test_usage_of_a_32_bit_machine_and_with_what_lay_in_the_gap() -> None:
    assert parse_usage(struct.pack("<12si", b"ann\0old rub", 77)) == {"ann": 77.0}
    assert parse_usage(struct.pack("<16sq", b"bob\0garbage in it", 5)) == {"bob": 5.0}
    assert parse_usage(b"") == {}


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        assert all(amount >= 0 for amount in parse_usage(data).values())
    except RecordError as error:
        assert "remove it" in error.cure


@pytest.fixture
def options(tmp_path: Path) -> Options:
    (tmp_path / "sched_priv").mkdir()
    return Options(tmp_path)


def test_usage_is_taken_over_and_decays(options: Options) -> None:
    history = History.open(None, HistorySettings(half_life_s=3600.0))
    assert take_over_usage(history, options) == ""
    path = options.sched_priv / "usage"
    path.write_bytes(format_usage({"ann": 800.0, "bob": 100.0}))
    now_s = time.time()
    os.utime(path, (now_s - 3600.0, now_s - 3600.0))
    assert "of 2 users" in take_over_usage(history, options)
    assert history.usage(now_s) == pytest.approx({"ann": 400.0, "bob": 50.0}, rel=1e-3)
    history.close()


def test_usage_is_not_counted_a_second_time_beside_accounting(options: Options, tmp_path: Path) -> None:
    (options.sched_priv / "usage").write_bytes(format_usage({"ann": 800.0}))
    history = History.open(None, accounting=tmp_path)
    assert "the accounting tells" in take_over_usage(history, options)
    assert history.usage(time.time()) == {}
    history.close()


def test_a_damaged_usage_file_hinders_nobody(options: Options) -> None:
    (options.sched_priv / "usage").write_bytes(b"not so")
    history = History.open(None)
    assert "fair share begins without it" in take_over_usage(history, options)
    history.close()


# The shadow's sums: waits, nodes and GPUs of the real scheduler against ours, one step at a time.


def answers(shot: Snapshot, context: Context) -> tuple[Decision, ...]:
    return decide(shot, Settings(), context)


class Watch:
    """A shadow and the looks it is shown, at seconds after the first."""

    def __init__(self, path: Path, nodes: list[Node]) -> None:
        self.shadow, self.nodes = Shadow(path, answers), nodes

    def look(self, at_s: float, *jobs: Job, **changes: object) -> None:
        shot = replace(snapshot(self.nodes, jobs, **changes), now_s=NOW_S + at_s)  # type: ignore[arg-type]
        self.shadow.compare(shot, Context(), answers(shot, Context()))

    def started(self, number: int, where: str, at_s: float, spec: str = "1") -> Job:
        return running(number, where, spec, since_s=-at_s)


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path / "report.json", [node("n1", 4), node("n2", 4, gpus=2)])


def test_a_job_started_later_than_we_would_have_waited_so_much_longer(watch: Watch) -> None:
    watch.look(0, job(1))
    watch.look(30, job(1))
    watch.look(60, watch.started(1, "n1/0", 50))
    report = watch.shadow.report
    assert (report.n_wished, report.n_started, report.n_withdrawn) == (1, 1, 0)
    # It was submitted a minute before the first look.
    assert (report.waited_longer_s, report.waited_s, report.watched_s) == (50, 110, 60)


def test_a_start_is_judged_in_the_state_it_met(watch: Watch) -> None:
    """Full until just before: the last look held the job, and yet we would have started it as well."""
    full = [running(number, f"n1/{number}+n2/{number}", "2") for number in range(4)]
    watch.look(0, *full, job(7))
    watch.look(30, *full[:3], watch.started(7, "n1/3", 20))
    report = watch.shadow.report
    assert (report.n_wished, report.n_judged, report.n_held, report.n_same_nodes) == (0, 1, 0, 1)


def test_what_we_would_have_held_is_counted_with_our_reason(watch: Watch) -> None:
    watch.look(0)
    watch.look(30, watch.started(1, "n1/0", 20), queues=[queue(max_running=0)])
    assert watch.shadow.report.n_held == 1
    assert watch.shadow.report.held == {"queue-job-limit": 1}


def test_the_nodes_are_compared_together(tmp_path: Path) -> None:
    """Three jobs on one node are worse than one on each, which no single move would show so well."""
    watch = Watch(tmp_path / "report.json", [node(f"n{i}", 4) for i in range(3)])
    watch.look(0)
    watch.look(30, *(watch.started(number, f"n0/{number}", 20) for number in range(3)))
    report = watch.shadow.report
    assert (report.n_compared, report.n_same_nodes) == (1, 1)
    assert (report.real_imbalance, report.our_imbalance) == pytest.approx((0.3535, 0.0), abs=1e-3)


def test_load_that_no_job_explains_counts_by_the_processors_there_really_are(tmp_path: Path) -> None:
    """np differs, the machines and their load do not: equally busy."""
    busy = {"ncpus": 4, "loadave": 4.0}
    watch = Watch(tmp_path / "report.json", [node("n0", 4, **busy), node("n1", 8, **busy)])
    watch.look(0)
    watch.look(30, watch.started(1, "n0/0", 20))
    assert watch.shadow.report.real_imbalance == pytest.approx(0.0)


def test_gpus_idle_while_a_job_could_have_them_are_counted(watch: Watch) -> None:
    runs = watch.started(1, "n2/0+n2-gpu/0+n2-gpu/1", 150, "1:gpus=2")
    for at_s, seen in ((0, job(1, "1:gpus=2")), (100, job(1, "1:gpus=2")), (160, runs), (400, runs)):
        watch.look(at_s, seen)
    assert watch.shadow.report.idle_gpu_s == 320


def test_what_runs_already_is_not_judged_and_what_goes_is_withdrawn(watch: Watch) -> None:
    watch.look(0, running(1, "n1/0"), job(2), job(3))
    held = replace(job(3), state=JobState.HELD)
    watch.look(30, running(1, "n1/0"), held)
    report = watch.shadow.report
    assert (report.n_judged, report.n_started, report.n_withdrawn) == (0, 0, 2)


def test_the_sums_outlive_the_daemon_and_a_gap_is_not_watched(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    nodes = [node("n1", 4, gpus=1)]
    first = Watch(path, nodes)
    first.look(0, job(1, "1:gpus=1"))
    first.look(10, job(1, "1:gpus=1"))
    first.shadow.save()
    second = Watch(path, nodes)
    second.look(1000, second.started(1, "n1/0+n1-gpu/0", 900, "1:gpus=1"))
    report = second.shadow.report
    assert (report.n_cycles, report.n_started, report.waited_longer_s) == (3, 1, 900)
    assert (report.watched_s, report.idle_gpu_s) == (10, 10)
    assert report.n_judged == 0


@pytest.mark.parametrize("text", ["", "[]", '{"wishes": {"1.head": {"when": 3}}}', '{"n_cycles": 3}'])
def test_a_file_that_is_no_report_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text, encoding="utf-8")
    assert Shadow(path, answers).report.n_cycles == 0


def test_the_words_name_every_sum(watch: Watch) -> None:
    assert words_of({}) == []
    watch.look(0, job(1), job(2, "1:gpus=1"), job(3))
    watch.look(
        3600, watch.started(1, "n1/0", 1800), job(2, "1:gpus=1"), watch.started(4, "n1/1", 20),
        queues=[queue(max_user_run=0)],
    )  # fmt: skip
    watch.shadow.save()
    text = "\n".join(words_of(read_report(watch.shadow.path)))
    assert "watched 60.0 min in 2 looks" in text
    assert "1 jobs we would have started before it did: they waited 31.0 min" in text
    assert "30.0 min of it longer than with us (30.0 min in all)" in text
    assert "held 2 (queue-user-limit: 2)" in text
    assert ": 1 GPU hours" in text
    assert "1 jobs we would have started went" in text
    assert json.loads(watch.shadow.path.read_text(encoding="utf-8"))["wishes"].keys() == {"2.head"}
