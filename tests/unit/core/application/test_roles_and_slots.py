"""The small parts: the table of roles, shares of slots, back-off, exits, alarms."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.core.application import ContainerRole, NodeSelector, RoleResource, RoleTable, Settings
from yarn_accel.core.application.exits import describe_exit, failure_line, is_excused, is_lasting, is_refusal
from yarn_accel.core.application.nodes import NEVER, Backoff, EventHistory, Timers
from yarn_accel.core.application.slots import shares
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch import bootstrap
from yarn_accel.launch.device_lock import EXIT_DEVICES

SMALL = RoleResource(128)


def role(name, priority, is_server=False):
    return ContainerRole(name, NodeSelector.EVERY, SMALL, priority, is_server=is_server)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([role("a", 1), role("a", 2)], "same name"),
        ([role("a", 1), role("b", 1)], "same priority"),
        ([role("a", 1, True), role("b", 2, True)], "more than one row of servers: a, b"),
    ],
)
def test_a_wrong_table_is_refused(rows, words):
    with pytest.raises(ConfigError, match=words):
        RoleTable(rows)


def test_a_container_tells_its_role_by_its_priority():
    server, agent = role("server", 10, True), role("agent", 11)
    roles = RoleTable([server, agent])
    assert [roles.of_priority(priority) for priority in (10, 11, 12)] == [server, agent, None]
    assert (roles.server, RoleTable([agent]).server) == (server, None)


def test_whole_resources_are_all_that_the_node_has():
    resource = RoleResource(1024, 2, (("acct/memory", 3),), ("yarn.io/gpu",))
    base = {"memory-mb": 1024, "vcores": 2, "acct/memory": 3}
    assert resource.on({"yarn.io/gpu": 4, "memory-mb": 9}) == base | {"yarn.io/gpu": 4}
    assert resource.on({"yarn.io/gpu": 0}) == base
    assert resource.on({}) == base


@pytest.mark.parametrize(
    ("capacity", "bound", "expected"),
    [
        (8, [], {"a": 8}),
        (8, ["n"], {"a": 4, "n": 4}),
        (8, ["n2", "n1"], {"a": 3, "n1": 3, "n2": 2}),
        (2, ["n1", "n2", "n3"], {"a": 1, "n1": 1, "n2": 1, "n3": 1}),
        (0, ["n"], {"a": 1, "n": 1}),
        (-5, [], {"a": 1}),
    ],
)
def test_shares(capacity, bound, expected):
    assert shares(capacity, "a", bound) == expected


@given(st.integers(-3, 500), st.sets(st.sampled_from([f"n{i}" for i in range(30)])))
def test_shares_add_up_and_are_even(capacity, bound):
    share = shares(capacity, "a", bound)
    assert share.keys() == bound | {"a"}
    assert sum(share.values()) == max(capacity, len(share))
    assert max(share.values()) - min(share.values()) <= 1
    assert share == shares(capacity, "a", sorted(bound, reverse=True))


def test_backoff_doubles_up_to_its_bound_and_a_healthy_time_clears_it():
    settings = Settings(first_delay_s=1.0, max_delay_s=5.0, healthy_s=30.0)
    backoff = Backoff()
    waits = []
    for _ in range(6):
        backoff.failed(settings, 29.9, "exit status 1", 100.0)
        waits.append(backoff.until_s - 100.0)
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.failed(settings, 30.0, "exit status 1", 100.0)
    assert (backoff.until_s, backoff.n_failures) == (100.0, 1)


def test_backoff_survives_ten_thousand_failures():
    assert Backoff(n_failures=10_000).delay_s(Settings(max_delay_s=300.0)) == 300.0


@pytest.mark.parametrize(
    ("is_to_be_excused", "statuses"),
    [(True, (-100, -102, -105, -106, -107, -108)), (False, (0, 1, 137, 143, -101, -103, -104, -1000))],
)
def test_who_is_killed_by_others_is_excused(is_to_be_excused, statuses):
    assert {is_excused(status) for status in statuses} == {is_to_be_excused}


def test_exits_that_last():
    """All refusals of our own programs, but for devices that may be free in a moment."""
    refusals = {getattr(bootstrap, name) for name in vars(bootstrap) if name.startswith("EXIT_")}
    assert {status for status in range(-2000, 300) if is_lasting(status)} == refusals
    assert not is_lasting(EXIT_DEVICES)


def test_a_lasting_failure_waits_as_long_as_any():
    backoff, settings = Backoff(), Settings(max_delay_s=300.0)
    backoff.failed(settings, 0.0, "no space", 10.0, is_lasting=True)
    assert backoff.until_s == 310.0
    backoff.failed(settings, 0.0, "killed", 310.0)
    assert backoff.until_s == 311.0
    backoff.forgive()
    assert backoff == Backoff()


def test_a_program_that_refuses_to_start_three_times_in_a_row_waits_as_long_as_any():
    """Before, two roles of three nodes were started 38 times in 90 s against a lock of others."""
    backoff, settings, now_s, n_starts = Backoff(), Settings(max_delay_s=300.0), 0.0, 0
    while now_s < 90.0:
        n_starts += 1
        backoff.failed(settings, 0.0, "another agent serves this node", now_s, is_refusal=is_refusal(3))
        now_s = max(backoff.until_s, now_s + 1.0)
    assert n_starts == 3
    backoff.failed(settings, 0.0, "killed", now_s)
    backoff.failed(settings, 0.0, "another agent serves this node", now_s, is_refusal=True)
    assert not backoff.is_lasting, "only refusals in a row"
    assert [status for status in range(-2000, 300) if is_refusal(status)] == [
        ConfigError.exit_code,
        StartupError.exit_code,
    ]


OVER = "[2026-11-27 11:13:35.232]Container [pid=7] is running beyond its limit.\nDump"


@pytest.mark.parametrize(
    ("status", "diagnostics", "words"),
    [
        (-102, "Container preempted by scheduler", "preempted"),
        (7, "\na word\nmore", "exit status 7: a word"),
        (137, "", "exit status 137: SIGKILL: by the kernel where memory ran out, or from outside"),
        (-1000, "", "exit status unknown"),
        (-104, OVER, "over its limit of memory: Container [pid=7] is running beyond its limit."),
    ],
)
def test_exits_in_words(status, diagnostics, words):
    assert describe_exit(status, diagnostics) == words


def cut(text):
    """The text from somewhere on, as Hadoop cuts long ones."""
    return st.integers(0, len(text)).map(lambda at: text[at:])


#: What Hadoop 3.5.0 says of applications whose master's container failed (recorded; long ones shortened).
DIAGNOSTICS = json.loads((Path(__file__).parent / "diagnostics.json").read_text())


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("traceback", "ValueError: the settings name no node"),
        (
            "own_error",
            "another agent (pid 4711) serves this node: it holds /run/yarn-accel/w1/agent.lock (cure:",
        ),
        ("missing_interpreter", "/bin/bash: line 1: exec: python3.99: not found"),
        ("disk_full", "OSError: [Errno 28] No space left on device"),
        ("long_stderr", "the key is damaged"),
        ("java", "Caused by: java.lang.ClassNotFoundException: org.example.Main"),
        ("broken_script", "/bin/bash: -c: line 1: unexpected EOF while looking for matching `''"),
        ("warned_at_exit", "the pool does not fit into the container"),
        ("misleading", "the true reason"),
        ("missing_file", "File does not exist: hdfs://master:8020/nowhere/x.zip"),
        ("changed_file", "Resource hdfs://master:8020/user/ann/.yarn-accel/diag-x changed on src filesystem"),
    ],
)
def test_the_line_that_says_why_is_found_in_what_hadoop_says(name, line):
    """In the words of an application, and of the one container."""
    container = DIAGNOSTICS[name].partition("Diagnostics: ")[2].partition("For more detailed")[0]
    assert failure_line(DIAGNOSTICS[name]).startswith(line)
    assert failure_line(container).startswith(line)


@pytest.mark.parametrize("name", ["silent", "killed_137", "sigterm"])
def test_hadoops_own_lines_are_no_reason(name):
    assert failure_line(DIAGNOSTICS[name]) == ""


@given(st.text(max_size=300) | st.sampled_from(sorted(DIAGNOSTICS.values())).flatmap(cut))
def test_any_text_gives_one_short_line(text):
    line = failure_line(text)
    assert len(line) <= 300
    assert line == " ".join(line.split())


def test_history_is_bounded_and_finds_a_node():
    history = EventHistory(3)
    for i, node in enumerate(["a", "b", "a", "a"]):
        history.add(float(i), node, "x")
    assert [note.at_s for note in history] == [1.0, 2.0, 3.0]
    assert [note.at_s for note in history.about("a", 1)] == [3.0]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.just(NEVER), st.integers(0, 30)), st.integers(0, 3)),
        max_size=60,
    )
)
def test_alarms_ring_for_each_key_at_its_time_and_at_no_other(story):
    alarms, now_s, expected = Timers(), 0.0, {}
    for key, at_s, step_s in story:
        alarms.set(key, at_s)
        expected[key] = at_s
        now_s += step_s
        due = {key for key, at_s in expected.items() if at_s <= now_s}
        assert set(alarms.due(now_s, 9)) == due
        expected = {key: at_s for key, at_s in expected.items() if key not in due and at_s < NEVER}
        assert alarms.next_s() <= min(expected.values(), default=NEVER)
        assert alarms.next_s() > now_s
        assert all(alarms.at(key) == expected.get(key, NEVER) for key in "abc")


def test_not_all_alarms_ring_at_once():
    alarms = Timers()
    for key in "cab":
        alarms.set(key, 1.0)
    assert alarms.due(2.0, 2) == ["a", "b"]
    assert alarms.next_s() == 1.0
    assert alarms.due(2.0, 2) == ["c"]


def test_a_thousand_heartbeats_leave_no_trail():
    alarms = Timers()
    for i in range(1000):
        alarms.set("a", i + 3.0)
    assert alarms.due(500.0, 9) == []
    assert alarms.next_s() == 1002.0
    assert alarms.due(1002.0, 9) == ["a"]
    assert alarms.next_s() == NEVER
