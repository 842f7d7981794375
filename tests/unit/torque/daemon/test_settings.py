"""Settings: every key described, unknown keys named, and what pbs_sched's own files mean."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.unit.torque.policies.builders import NOW_S, node
from torque_sched.adapters.settings_file import described
from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import JobId, NodeName, Server
from torque_sched.core.snapshot import Snapshot
from torque_sched.daemon.back_off import Steps
from torque_sched.daemon.black_holes import BlackHoleRules
from torque_sched.daemon.c_policy import SettingsInForce, c_files_of
from torque_sched.daemon.checks import Level, avoided_nodes, rights
from torque_sched.daemon.config import Config, read_config
from torque_sched.daemon.reloading import AT_ONCE, changes_of, taken_at_once
from torque_sched.daemon.standing import BackOffRules, Standing
from torque_sched.errors import ConfigError
from torque_sched.learning import History, HistorySettings
from torque_sched.learning.usage import USER, Account
from torque_sched.parse.qrun import RunKind, RunResult
from torque_sched.parse.sched_config import (
    KEYS,
    parse_dedicated_time,
    parse_holidays,
    parse_resource_group,
    parse_sched_config,
)
from torque_sched.policies.backfill import AgedReservations, NoReservations
from torque_sched.policies.fair_share import Share
from torque_sched.policies.order import COrder, FairShareOrder, FcfsOrder
from torque_sched.policies.placement.value import ValuePlacement
from torque_sched.policies.rules import Rates

SHIPPED = """\
# comment
round_robin: False\tall
by_queue: True\t\tprime
by_queue: True\t\tnon_prime
strict_fifo: false\tALL
fair_share: false\tALL
help_starving_jobs\ttrue\tALL
sort_queues\ttrue\tALL
load_balancing: false\tALL
load_balancing_rr: false\tALL
sort_by: shortest_job_first\tALL
log_filter: 256
dedicated_prefix: ded
max_starve: 24:00:00
half_life: 24:00:00
unknown_shares: 10
sync_time: 1:00:00
"""


def test_a_key_under_its_old_name_is_taken_with_a_warning_that_names_the_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "torque_sched.yaml"
    file.write_text("words_of_c: true\ngpus: {avoid_sick: false}\n")
    config = read_config(file)
    assert config.pbs_sched_reasons_only
    assert not config.gpus.avoid_unhealthy
    assert [message.split(": ", 1)[1].split(";")[0] for message in caplog.messages] == [
        "words_of_c is now called pbs_sched_reasons_only",
        "gpus.avoid_sick is now called gpus.avoid_unhealthy",
    ]


def test_a_key_under_both_its_names_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "torque_sched.yaml"
    file.write_text("words_of_c: true\npbs_sched_reasons_only: false\n")
    with pytest.raises(ConfigError, match="old name of pbs_sched_reasons_only"):
        read_config(file)


def every(model: BaseModel, place: str = "") -> list[tuple[str, str]]:
    found = []
    for name, entry in type(model).model_fields.items():
        found.append((f"{place}{name}", entry.description or ""))
        if isinstance(value := getattr(model, name), BaseModel):
            found += every(value, f"{place}{name}.")
    return found


def test_every_key_is_described() -> None:
    assert [name for name, text in every(Config()) if not text] == []


def test_the_effective_settings_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text("\n".join(described(Config())))
    assert read_config(path) == Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timer: 3", "timer: unknown key; known: addresses, "),
        ("back_off: {job: {first_s: 3, longest_s: 2}}", "first_s 3 is above longest_s 2"),
        ("back_off: {job: {frist_s: 1, longest_s: 2}}", "back_off.job.frist_s: unknown key; known: first_s"),
        (
            "reservations: [{name: a, nodes: [n1], start_s: 1, end_s: 2, user: [u]}]",
            "reservations.0.user: unknown key; known: end_s, name, nodes, start_s, users",
        ),
        ("timer_s: 0", "timer_s: must be greater than 0, not 0"),
        ("timer_s: fast", "timer_s: must be a number, not 'fast'"),
        ("timer_s: .inf", "timer_s: must be a finite number, not inf"),
        (
            "timer_s: 1\nport: 2\ntimer_s: 3",
            "timer_s stands in line 1 and again in line 3: leave one of them",
        ),
        ("nodes: {avoid_busy: true, avoid_busy: false}", "avoid_busy stands in line 1 and again in line 1"),
        ('restricted: "*"', "restricted: must be a list, not '*'"),
        ("journal: {n_files: 2.5}", "journal.n_files: must be a whole number, not 2.5"),
        ("comments: maybe", "comments: must be true or false, not 'maybe'"),
        ("nodes: 3", "nodes: must be a mapping of keys to values, not 3"),
        ("reservations: [{name: x, start_s: 1, end_s: 2}]", "reservations.0.nodes: missing"),
        (
            "learning: {predictors: [seeed]}",
            "learning.predictors: no predictor 'seeed': known are chain, seed",
        ),
        ("backfill: conservativ", "backfill: no backfill 'conservativ': known are aged, "),
        ("backfill: {name: aged, after_s: long}", "backfill.after_s: must be a number, not 'long'"),
        ("backfill: {name: easy, slack_s: .nan}", "backfill.slack_s: must be a finite number, not nan"),
        ("order: {name: fair_share, shares: 3}", "order.shares: must be a list, not 3"),
        ("placement: {name: value, k9: 1}", "placement: placement 'value' has no setting k9: known are "),
        ("- a", "not a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml") as caught:
        read_config(path)
    assert words in str(caught.value)


def test_a_section_whose_keys_are_commented_out_has_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("nodes:\n  # avoid_busy: true\nbackfill:\ntimer_s: 7\n")
    assert read_config(path) == Config(timer_s=7)
    path.write_text("node:\n")
    with pytest.raises(ConfigError, match="node: unknown key"):
        read_config(path)


def test_settings_of_a_policy_are_taken_as_what_they_mean(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text('backfill: {name: aged, after_s: "60"}\n')
    settings = SettingsInForce(read_config(path), c_files_of({}, Config())).prime
    assert settings.backfill == AgedReservations(after_s=60.0)


def test_unknown_policies_and_their_settings_are_named() -> None:
    for values in ({"placement": "best"}, {"placement": {"name": "value", "k9": 1}}, {"order": "lifo"}):
        with pytest.raises(ConfigError, match="known are"):
            SettingsInForce(Config(**yaml.safe_load(yaml.safe_dump(values))), c_files_of({}, Config()))
    chosen = SettingsInForce(Config(placement="value"), c_files_of({}, Config()))  # type: ignore[arg-type]
    assert isinstance(chosen.prime.placement, ValuePlacement)


def test_a_plan_without_numpy_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install has no numpy; a daemon with such settings would fail in every cycle."""
    for name in [each for each in sys.modules if each.startswith("torque_sched.policies.backfilling")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    files = c_files_of({}, Config())
    for name in ("conservative", "easy", "selective"):
        with pytest.raises(ConfigError, match="numpy"):
            SettingsInForce(Config(backfill=name), files)  # type: ignore[arg-type]
    assert isinstance(SettingsInForce(Config(), files).prime.backfill, AgedReservations)


def test_the_shipped_file() -> None:
    found = parse_sched_config(SHIPPED)
    assert found.warnings == ()
    assert found == type(found)()
    in_force = SettingsInForce(Config(), c_files_of({"sched_config": SHIPPED}, Config()))
    assert isinstance(in_force.prime.order, COrder)
    assert isinstance(in_force.prime.backfill, AgedReservations)
    assert in_force.prime.queues.dedicated_prefix == "ded"


def test_an_unknown_key_is_one_warning_and_nothing_else() -> None:
    found = parse_sched_config(
        "cpus_per_ssinode: 3\n" + SHIPPED + "sort_by: biggest ALL\nround_robin: maybe\n"
    )
    assert [text.split(": ")[0] for text in found.warnings] == [
        "sched_config, line 1", "sched_config, line 19", "sched_config, line 20"
    ]  # fmt: skip
    assert found.prime == parse_sched_config(SHIPPED).prime


def test_a_file_that_is_no_text_is_told_of_shortly() -> None:
    text = "k" * 3_000_000 + ": 1\nlog_filter: abc\nsort_by: " + "\0\x1b[2J" * 1000
    first, second, third = parse_sched_config(text).warnings
    assert len(first) < 600
    assert "log_filter: 'abc' is no whole number; the default stays" in second
    assert len(third) < 600
    assert third.isprintable()


def test_keys_of_non_prime_time_are_kept_or_lost_as_the_c_daemon_does() -> None:
    text = "sort_by: multi_sort ALL\nkey: high_priority_first prime\nkey: short_walltime_first non_prime\n"
    fixed, lost = parse_sched_config(text), parse_sched_config(text, as_c=True)
    assert fixed.non_prime.keys == ("short_walltime_first",)
    assert lost.non_prime.keys == ()
    assert fixed.prime.keys == lost.prime.keys == ("high_priority_first",)


@given(st.text(max_size=300))
def test_no_text_breaks_any_of_the_files(text: str) -> None:
    parse_sched_config(text)
    parse_holidays(text)
    parse_dedicated_time(text)
    parse_resource_group(text)


@given(st.sampled_from(KEYS), st.text(max_size=20))
def test_no_value_breaks_a_key(key: str, value: str) -> None:
    parse_sched_config(f"{key}: {value} prime")


def test_of_files_that_are_something_else_a_few_lines_are_told() -> None:
    text = "".join(f"{'k' * 90}{number} x\n" for number in range(500))
    files = c_files_of(
        dict.fromkeys(("sched_config", "holidays", "dedicated_time", "resource_group"), text), Config()
    )
    assert len(files.warnings) == 4 * 21
    assert [warning for warning in files.warnings if "480 more lines" in warning] == [
        f"{name}: 480 more lines are not understood"
        for name in ("sched_config", "holidays", "dedicated_time", "resource_group")
    ]
    assert max(map(len, files.warnings)) < 500


def test_what_the_files_mean() -> None:
    sched = "strict_fifo: true prime\nfair_share: true non_prime\nhelp_starving_jobs: false ALL\n"
    sched += "ignore_queue: test\n"
    texts = {
        "sched_config": sched,
        "holidays": "YEAR 2026\nweekday 0600 1730\nsaturday none all\nsunday none all\n1 Jan_1 New Year\n",
        "resource_group": "grp 10 root 60\nalice 11 grp 1\nbob 12 grp 2\n",
        "dedicated_time": "11/20/2026 10:00 11/20/2026 12:00\n",
    }
    files = c_files_of(texts, Config())
    in_force = SettingsInForce(Config(), files)
    assert files.warnings == ()
    assert (in_force.prime.queues.strict, in_force.non_prime.queues.strict) == (True, False)
    assert in_force.prime.order == COrder(strict_fifo=True)
    assert isinstance(in_force.non_prime.order, FairShareOrder)
    assert isinstance(in_force.prime.backfill, NoReservations)
    assert in_force.prime.queues.ignored == {"test"}
    assert files.dedicated[0].end_s - files.dedicated[0].start_s == 7200
    friday = datetime(2026, 11, 20, 9, 0)  # noqa: DTZ001 -- the host's own time
    assert in_force.at(friday.timestamp()).queues.strict
    assert not in_force.at(friday.replace(hour=18).timestamp()).queues.strict


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limits: {starts_at_once: 0}", "limits that let no job start"),
        ("limits: {starts_s: 0}", "limits that let no job start"),
        ("placement: {name: projected, gpu_layout: heap}", "placement: gpu_layout 'heap'"),
        ("learning: {predictors: []}", "learning.predictors: "),
        ("reservations: [{name: a, nodes: [n1], start_s: 5, end_s: 5}]", "end_s does not come after"),
    ],
)
def test_what_would_start_no_job_or_fail_every_cycle_is_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "torque_sched.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_config(path)


def test_shares_below_zero_are_told_at_the_start_and_not_in_every_cycle(tmp_path: Path) -> None:
    texts = {
        "sched_config": "fair_share: true ALL\nunknown_shares: -5\n",
        "resource_group": "grp 10 root 60\nalice 11 grp -1\nbob 12 grp 2\n",
    }
    files = c_files_of(texts, Config())
    assert [warning.partition(":")[0] for warning in files.warnings] == [
        "sched_config, line 2", "resource_group, line 2"
    ]  # fmt: skip
    order = SettingsInForce(Config(), files).prime.order
    assert order == FairShareOrder(
        (Share("grp", 60), Share("bob", 2, "grp")), by_queue=True, sort_queues=True
    )
    for wrong in ("shares: [{name: a, shares: -1}]", "unknown_shares: -1"):
        path = tmp_path / "torque_sched.yaml"
        path.write_text(f"order: {{name: fair_share, {wrong}}}\n")
        with pytest.raises(ConfigError, match="shares"):
            read_config(path)


def test_strict_fifo_goes_before_fair_share() -> None:
    """As in fifo.c of 6.1.3."""
    for text in ("fair_share: true ALL", "sort_by: fair_share ALL"):
        files = c_files_of({"sched_config": f"strict_fifo: true ALL\n{text}\n"}, Config())
        assert SettingsInForce(Config(), files).prime.order == FcfsOrder()


def test_holidays() -> None:
    found = parse_holidays("YEAR 2026\nweekday 0600 1730\nsaturday none all\nsunday all none\n1 Jan_1 x\n")
    noon = [datetime(2026, 11, day, 12) for day in (20, 21, 22)]  # noqa: DTZ001
    assert [found.is_prime(at) for at in noon] == [True, False, True]
    assert not found.is_prime(datetime(2026, 1, 1, 12))  # noqa: DTZ001
    assert found.is_prime(datetime(2027, 1, 1, 12))  # noqa: DTZ001 -- written for another year
    assert parse_holidays("").is_prime(noon[1])


@pytest.mark.parametrize(
    ("text", "value"), [("1e3", 1000), ("1E+3", 1000), ("1.5e3", 1500), ("'1000'", 1000), ("10", 10)]
)
def test_numbers_with_an_exponent_are_numbers(tmp_path: Path, text: str, value: int) -> None:
    path = tmp_path / "torque_sched.yaml"
    path.write_text(f"max_starts: {text}\nbackfill: {{name: conservative, node_exact_jobs: {text}}}\n")
    config = read_config(path)
    assert config.max_starts == value
    assert config.backfill is not None
    assert config.backfill.values == {"node_exact_jobs": value}


@pytest.mark.parametrize("text", ["1e-3", "1.5", "1e"])
def test_what_is_no_whole_number_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "torque_sched.yaml"
    path.write_text(f"max_starts: {text}\n")
    with pytest.raises(ConfigError, match="max_starts: must be a whole number"):
        read_config(path)


# SIGHUP: which settings a running daemon takes anew.


def test_every_key_that_is_taken_at_once_is_a_key() -> None:
    assert set(Config.model_fields) >= AT_ONCE


def test_what_can_change_is_taken_and_the_rest_stays() -> None:
    old, new = Config(), Config(port=16000, look_rest=5.0, max_starts=7)
    assert changes_of(old, new) == ("port", "look_rest", "max_starts")
    taken = taken_at_once(old, new)
    assert (taken.port, taken.look_rest, taken.max_starts) == (old.port, 5.0, 7)
    assert taken_at_once(old, old) == old


def test_the_keys_stand_in_the_manual() -> None:
    manual = (Path(__file__).parents[4] / "docs" / "torque.md").read_text(encoding="utf-8")
    listed = manual.partition("`systemctl reload`")[2].partition("\n\n")[0]
    now, _, later = listed.partition("After a restart only:")
    words = re.compile("`([a-z_]+)`")
    assert set(words.findall(now)) == AT_ONCE
    assert set(words.findall(later.partition(". The log")[0])) == set(Config.model_fields) - AT_ONCE


def test_other_steps_count_for_what_failed_before() -> None:
    standing = Standing(BackOffRules(job=Steps(600.0, 600.0)))
    job, share = JobId("1.head"), NodeShare(NodeName("n1"), 1)
    for each in (job, JobId("2.head")):
        standing.asked(each, (share,), 0.0)
        standing.answered(each, RunResult(RunKind.WRONG_STATE, "no"), 0.0)
    assert set(standing.back_off(100.0).jobs) == {job, JobId("2.head")}
    standing.use(BackOffRules(job=Steps(30.0, 60.0)), BlackHoleRules())
    assert set(standing.back_off(100.0).jobs) == set()
    standing.asked(job, (share,), 100.0)
    standing.answered(job, RunResult(RunKind.WRONG_STATE, "no"), 100.0)
    assert standing.back_off(100.0).jobs[job].until_s - 100.0 in (30.0, 60.0)


def test_another_weight_and_half_life_count_for_all_that_was_used() -> None:
    history = History.open(None, HistorySettings(half_life_s=100.0, gpu_weight=10.0))
    history.used.put({(USER, "ann"): Account(proc_s=1000.0, gpu_s=100.0, at_s=0.0)})
    assert history.usage(100.0) == {"ann": 1000.0}
    history.use(HistorySettings(half_life_s=50.0, gpu_weight=30.0), {})
    assert history.usage(100.0) == {"ann": 1000.0}
    history.use(HistorySettings(half_life_s=50.0, gpu_weight=0.0), {})
    assert history.usage(100.0) == {"ann": 250.0}
    history.close()


def test_other_speeds_of_nodes_and_another_lag_are_used() -> None:
    history = History.open(None, HistorySettings(sample_lag_s=60.0))
    history.use(HistorySettings(sample_lag_s=5.0), {"n1": Rates(cpu=2.0)})
    assert history._settings.sample_lag_s == 5.0
    seen = Snapshot(NOW_S, Server(name="head"), (), (node("n1"),), ())
    assert history._usual_rate(seen) == 2.0
    history.close()


# What doctor says of this user's rights at the server, and of nodes that the server avoids.


@pytest.mark.parametrize(
    ("managers", "operators", "user", "is_root_there", "level"),
    [
        # As real servers answered, 4.2.10 and 6.1.3: root on their host may do everything, whoever is named.
        ((), (), "root@head", True, Level.OK),
        (("bob@head",), ("carol@head",), "root@head", True, Level.OK),
        (("bob@head",), ("carol@head",), "root@other", False, Level.WARNING),
        (("root@other",), (), "root@other", False, Level.OK),
        ((), ("carol@*",), "carol@head.example.org", False, Level.OK),
        ((), ("carol@head",), "carol@head.example.org", False, Level.OK),
        ((), ("carolus@head",), "carol@head", False, Level.WARNING),
        ((), (), "carol@head", False, Level.WARNING),
    ],
)
def test_rights(
    managers: tuple[str, ...], operators: tuple[str, ...], user: str, is_root_there: bool, level: str
) -> None:
    server = Server(name="head", managers=managers, operators=operators)
    found = rights(server, user, is_root_there=is_root_there)
    assert found.level == level
    assert (f"operators += {user}" in found.line) == (level == Level.WARNING)


@pytest.mark.parametrize(("version", "found"), [("6.1.3.h5", ["n2"]), ("4.2.10", [])])
def test_a_node_that_reports_and_is_left_alone_is_named(version: str, found: list[str]) -> None:
    nodes = (
        node("n1"),
        node("n2", state="down", rectime_s=NOW_S - 8),
        node("n3", state="down", rectime_s=NOW_S - 400),
        node("n4", state="down,offline", rectime_s=NOW_S - 8),
    )
    seen = Snapshot(NOW_S, Server(name="head", version=version), (), nodes, ())
    lines = [check.line for check in avoided_nodes(seen)]
    assert [line.split()[2] for line in lines] == found
    assert all("set node n2 state = free" in line for line in lines)
