"""Settings: every key described, unknown keys named, and what pbs_sched's own files mean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.fixtures.torque_builders import NOW_S, node
from torque_sched.adapters.settings_file import described
from torque_sched.batch.torque.parse.sched_config import (
    KEYS,
    parse_dedicated_time,
    parse_holidays,
    parse_resource_group,
    parse_sched_config,
)
from torque_sched.daemon.c_policy import SettingsInForce, c_files_of
from torque_sched.daemon.checks import Level, avoided_nodes, rights
from torque_sched.daemon.config import Config, read_config
from torque_sched.daemon.startup import changes_of, taken_at_once
from torque_sched.decide.backfill import AgedReservations, NoReservations
from torque_sched.decide.fair_share import Share
from torque_sched.decide.order import COrder, FairShareOrder, FcfsOrder
from torque_sched.decide.placement.value import ValuePlacement
from torque_sched.decide.rules import Members, Qos, Rates, RunningLimits
from torque_sched.decide.throttling import QosOrder
from torque_sched.errors import ConfigError
from torque_sched.learn import History, HistorySettings
from torque_sched.learn.usage import USER, Account
from torque_sched.model.cluster import Server
from torque_sched.model.snapshot import Snapshot

Reading = Callable[[str], Config]

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


@pytest.fixture
def reading(tmp_path: Path) -> Callable[[str], Config]:
    """Reads settings of this text."""

    def read(text: str) -> Config:
        (tmp_path / "x.yaml").write_text(text)
        return read_config(tmp_path / "x.yaml")

    return read


def in_force(config: Config | None = None, **texts: str) -> SettingsInForce:
    """What these settings, and these files of pbs_sched, mean."""
    config = config or Config()
    return SettingsInForce(config, c_files_of(texts, config))


def test_a_key_under_its_old_name_is_taken_with_a_warning_that_names_the_new_one(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    config = reading("words_of_c: true\ngpus: {avoid_sick: false}\n")
    assert (config.pbs_sched_reasons_only, config.gpus.avoid_unhealthy) == (True, False)
    assert [message.split(": ", 1)[1].split(";")[0] for message in caplog.messages] == [
        "words_of_c is now called pbs_sched_reasons_only",
        "gpus.avoid_sick is now called gpus.avoid_unhealthy",
    ]


def test_every_key_is_described() -> None:
    def undescribed(model: BaseModel, place: str = "") -> Iterator[str]:
        for name, entry in type(model).model_fields.items():
            if not entry.description:
                yield f"{place}{name}"
            if isinstance(value := getattr(model, name), BaseModel):
                yield from undescribed(value, f"{place}{name}.")

    assert list(undescribed(Config())) == []


def test_the_effective_settings_can_be_read_back(reading: Reading) -> None:
    assert reading("\n".join(described(Config()))) == Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timer: 3", "timer: unknown key; known: accounts, "),
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
        ("words_of_c: true\npbs_sched_reasons_only: false", "old name of pbs_sched_reasons_only"),
        ("order: lifo", "order: no order 'lifo': known are "),
        ("limits: {starts_at_once: 0}", "limits that let no job start"),
        ("limits: {starts_s: 0}", "limits that let no job start"),
        ("placement: {name: projected, gpu_layout: heap}", "placement: gpu_layout 'heap'"),
        ("learning: {predictors: []}", "learning.predictors: "),
        ("reservations: [{name: a, nodes: [n1], start_s: 5, end_s: 5}]", "end_s does not come after"),
        ("order: {name: fair_share, shares: [{name: a, shares: -1}]}", "shares"),
        ("order: {name: fair_share, unknown_shares: -1}", "shares"),
        ("throttling: {groups: {chem: {max_job: 1}}}", "chem.max_job: unknown key; known: max_jobs"),
        ("throttling: {group: {}}", "throttling.group: unknown key; known: accounts, groups, queues, users"),
        (
            "throttling: {users: {a: {max_jobs: -1}}}",
            "throttling.users.a: max_jobs or soft_max_jobs is below 0",
        ),
        (
            "throttling: {users: {a: {max_procs: 1, soft_max_procs: 2}}}",
            "users.a: soft_max_procs 2 is above max_procs 1; lower soft_max_procs, or leave it out",
        ),
        ("throttling: {users: {a: {max_proc_s: .inf}}}", "max_proc_s: must be a finite number, not inf"),
        (
            "order: {name: fair_share, group_shares: {chem: 1}}",
            "order: group_shares are set and group_weight is 0",
        ),
        (
            "order: {name: fair_share, group_share: {chem: 1}}",
            "fair_share' has no setting group_share: known are ",
        ),
        (
            "qos: {a: {default_of: [q]}, b: {default_of: [q]}}",
            "queue q stands in default_of of a and b: leave it in one of them",
        ),
        (
            "qos: {a: {user: [x]}}",
            "qos.a.user: unknown key; known: accounts, default_of, each_user, groups, ",
        ),
        ("qos: {a: {limits: {max_jobs: -1}}}", "qos.a.limits: max_jobs or soft_max_jobs is below 0"),
        ("accounts: {a: {accounts: [b]}}", "accounts.a.accounts: unknown key; known: groups, users"),
        (
            "standing_reservations: [{name: a, nodes: [n1], start: '25:00', end: '18:00'}]",
            "standing_reservations.0.start: '25:00' is no time of day; write HH:MM, such as 08:00",
        ),
        (
            "standing_reservations: [{name: a, nodes: [n1], days: [monday], start: '8:00', end: '18:00'}]",
            "standing_reservations.0.days.0: must be 'mon', 'tue'",
        ),
        (
            "standing_reservations: [{name: a, nodes: [], start: '8:00', end: '9:00'}]",
            "reservations.0.nodes: ",
        ),
        ("max_starts: 1e-3", "max_starts: must be a whole number"),
        ("max_starts: 1.5", "max_starts: must be a whole number"),
        ("max_starts: 1e", "max_starts: must be a whole number"),
        ("node:", "node: unknown key"),
        ("- a", "not a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_wrong_settings_are_named(reading: Reading, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml") as caught:
        reading(text)
    assert words in str(caught.value)


def test_a_section_whose_keys_are_commented_out_has_its_defaults(reading: Reading) -> None:
    assert reading("nodes:\n  # avoid_busy: true\nbackfill:\ntimer_s: 7\n") == Config(timer_s=7)


def test_times_of_day_need_no_quotes(reading: Reading) -> None:
    """YAML 1.1 takes 18:00 for a number of minutes, and 08:00 for a text."""
    text = "standing_reservations: [{name: a, nodes: [n1], days: [mon, fri], start: 08:00, end: 18:00}]"
    (found,) = reading(text).standing_reservations
    assert (found.start, found.end, found.value().when) == ("08:00", "18:00", "mon,fri 08:00 to 18:00")


def test_limits_reach_the_policies(reading: Reading) -> None:
    config = reading('throttling: {groups: {chem: {max_procs: 4, soft_max_procs: 2}, "*": {max_jobs: 9}}}')
    found = SettingsInForce(config, c_files_of({}, config)).at(NOW_S).throttling
    assert found.groups == {
        "chem": RunningLimits(max_procs=4, soft_max_procs=2),
        "*": RunningLimits(max_jobs=9),
    }
    assert Config(**config.model_dump(mode="json", exclude_defaults=True)) == config


def test_qualities_of_service_reach_the_policies(reading: Reading) -> None:
    text = "qos: {low: {priority: -5, default_of: [batch], limits: {max_jobs: 3}}, top: {users: [ann]}}\n"
    config = reading(text + "accounts: {p1: {groups: [chem]}}")
    found = SettingsInForce(config, c_files_of({}, config)).at(NOW_S)
    low = Qos(-5, default_of=frozenset({"batch"}), limits=RunningLimits(max_jobs=3))
    assert found.throttling.qos == {"low": low, "top": Qos(members=Members(frozenset({"ann"})))}
    assert found.throttling.account_members == {"p1": Members(groups=frozenset({"chem"}))}
    assert found.order == QosOrder(FcfsOrder(), found.throttling)
    assert Config(**config.model_dump(mode="json", exclude_defaults=True)) == config


def test_limits_by_accounts_that_each_user_may_write_are_warned_of(reading: Reading) -> None:
    limits = "throttling: {accounts: {p1: {max_jobs: 1}}}\n"
    assert "any user may write any account" in next(reading(limits).warnings())
    assert not list(reading(limits + "accounts: {p1: {users: [ann]}}").warnings())
    assert list(reading("order: {name: fair_share, account_weight: 1}").warnings())


def test_policies_are_chosen_by_name_and_their_settings_taken_as_what_they_mean(reading: Reading) -> None:
    chosen = in_force(reading('placement: value\nbackfill: {name: aged, after_s: "60"}\n')).prime
    # Settings of earlier versions, which knew no other time, mean what they meant.
    assert chosen.backfill == AgedReservations(after_s=60.0, after_walltimes=0.0)
    assert isinstance(chosen.placement, ValuePlacement)


def test_a_plan_without_numpy_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install has no numpy; a daemon with such settings would fail in every cycle."""
    monkeypatch.delitem(sys.modules, "torque_sched.decide.future", raising=False)
    monkeypatch.setitem(sys.modules, "numpy", None)
    for name in ("conservative", "easy", "selective"):
        with pytest.raises(ConfigError, match="numpy"):
            in_force(Config(backfill=name))  # type: ignore[arg-type]
    assert isinstance(in_force().prime.backfill, AgedReservations)


def test_the_shipped_file() -> None:
    found = parse_sched_config(SHIPPED)
    assert (found, found.warnings) == (type(found)(), ())
    prime = in_force(sched_config=SHIPPED).prime
    assert isinstance(prime.order, COrder)
    assert isinstance(prime.backfill, AgedReservations)
    assert prime.queues.dedicated_prefix == "ded"


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
    names = ("sched_config", "holidays", "dedicated_time", "resource_group")
    warnings = c_files_of(dict.fromkeys(names, text), Config()).warnings
    assert len(warnings) == 4 * 21
    assert [each for each in warnings if "480 more lines" in each] == [
        f"{name}: 480 more lines are not understood" for name in names
    ]
    assert max(map(len, warnings)) < 500


def test_what_the_files_mean() -> None:
    sched = "strict_fifo: true prime\nfair_share: true non_prime\nhelp_starving_jobs: false ALL\n"
    texts = {
        "sched_config": sched + "ignore_queue: test\n",
        "holidays": "YEAR 2026\nweekday 0600 1730\nsaturday none all\nsunday none all\n1 Jan_1 New Year\n",
        "resource_group": "grp 10 root 60\nalice 11 grp 1\nbob 12 grp 2\n",
        "dedicated_time": "11/20/2026 10:00 11/20/2026 12:00\n",
    }
    files = c_files_of(texts, Config())
    assert files.warnings == ()
    assert files.dedicated[0].end_s - files.dedicated[0].start_s == 7200
    found = SettingsInForce(Config(), files)
    assert found.prime.order == COrder(strict_fifo=True)
    assert isinstance(found.non_prime.order, FairShareOrder)
    assert isinstance(found.prime.backfill, NoReservations)
    assert found.prime.queues.ignored == {"test"}
    friday = datetime(2026, 11, 20, 9, 0)  # noqa: DTZ001 -- the host's own time
    hours = [friday.replace(hour=hour).timestamp() for hour in (9, 18)]
    assert [found.at(at_s).queues.strict for at_s in hours] == [True, False]


def test_shares_below_zero_are_told_at_the_start_and_not_in_every_cycle() -> None:
    texts = {
        "sched_config": "fair_share: true ALL\nunknown_shares: -5\n",
        "resource_group": "grp 10 root 60\nalice 11 grp -1\nbob 12 grp 2\n",
    }
    warnings = c_files_of(texts, Config()).warnings
    places = ["sched_config, line 2", "resource_group, line 2"]
    assert [warning.partition(":")[0] for warning in warnings] == places
    shares = (Share("grp", 60), Share("bob", 2, "grp"))
    assert in_force(**texts).prime.order == FairShareOrder(shares, by_queue=True, sort_queues=True)


@pytest.mark.parametrize("text", ["fair_share: true ALL", "sort_by: fair_share ALL"])
def test_strict_fifo_goes_before_fair_share(text: str) -> None:
    """As in fifo.c of 6.1.3."""
    assert in_force(sched_config=f"strict_fifo: true ALL\n{text}\n").prime.order == FcfsOrder()


@pytest.mark.parametrize(
    ("text", "value"), [("1e3", 1000), ("1E+3", 1000), ("1.5e3", 1500), ("'1000'", 1000), ("10", 10)]
)
def test_numbers_with_an_exponent_are_numbers(reading: Reading, text: str, value: int) -> None:
    config = reading(f"max_starts: {text}\nbackfill: {{name: conservative, node_exact_jobs: {text}}}\n")
    assert config.max_starts == value
    assert config.backfill is not None
    assert config.backfill.values == {"reservations": value}


# SIGHUP: which settings a running daemon takes anew.


def test_what_can_change_is_taken_and_the_rest_stays() -> None:
    old, new = Config(), Config(port=16000, look_rest=5.0, max_starts=7)
    assert changes_of(old, new) == ("port", "look_rest", "max_starts")
    taken = taken_at_once(old, new)
    assert (taken.port, taken.look_rest, taken.max_starts) == (old.port, 5.0, 7)
    assert taken_at_once(old, old) == old


def test_another_weight_and_half_life_count_for_all_that_was_used() -> None:
    history = History.open(None, HistorySettings(half_life_s=100.0, gpu_weight=10.0))
    history.used.put({(USER, "ann"): Account(proc_s=1000.0, gpu_s=100.0, at_s=0.0)})
    assert history.usage(100.0) == {"ann": 1000.0}
    for weight, usage in ((30.0, 1000.0), (0.0, 250.0)):
        history.use(HistorySettings(half_life_s=50.0, gpu_weight=weight), {})
        assert history.usage(100.0) == {"ann": usage}
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
