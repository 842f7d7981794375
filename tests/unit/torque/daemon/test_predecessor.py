"""What pbs_sched leaves behind: the files it shipped, its usage file, what means nothing here."""

from __future__ import annotations

import os
import struct
import time
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torque_sched.daemon.c_policy import SettingsInForce, c_files_of
from torque_sched.daemon.config import Config
from torque_sched.daemon.place import Options
from torque_sched.daemon.predecessor import take_over_usage, without_effect
from torque_sched.errors import RecordError
from torque_sched.learning import History, HistorySettings
from torque_sched.parse.sched_config import parse_holidays
from torque_sched.parse.usage_file import format_usage, parse_usage
from torque_sched.policies.backfill import AgedReservations, DrainForStarving
from torque_sched.policies.order import FairShareOrder

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
    assert found.warnings == ()
    assert (found.days, found.year) == ({1, 358}, 2026)
    assert [found.is_prime(at(20, hour)) for hour in (5, 6, 17, 18)] == [False, True, True, False]
    assert not found.is_prime(at(21, 12))


def test_the_older_form_of_a_weekday() -> None:
    assert parse_holidays("YEAR 2026\n2026 0400 1530\n").weekday == (240, 930)


def test_prime_time_over_midnight() -> None:
    found = parse_holidays("YEAR 2026\nweekday 2200 0600\n")
    assert [found.is_prime(at(20, hour)) for hour in (21, 22, 23, 0, 5, 6, 12)] == [
        False, True, True, True, True, False, False
    ]  # fmt: skip


def test_without_a_year_it_is_always_prime_time_and_that_is_said() -> None:
    found = parse_holidays("weekday 0600 1730\n")
    assert found.is_prime(at(20, 3))
    assert "no YEAR line" in found.warnings[0]


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
