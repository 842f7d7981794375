import io
import itertools
import re
import threading
import time

import pytest

from yarn_accel.client import Binding, connect
from yarn_accel.client import reporter as reporter_module
from yarn_accel.client.discovery import DiscoveredServers, ServerWatch
from yarn_accel.client.reporter import Reporter
from yarn_accel.wire.credential import issue


def lines(stream):
    return stream.getvalue().splitlines()


def test_counters_have_exactly_three_fields_and_totals_add_up():
    stream = io.StringIO()
    reporter = Reporter(stream)
    reporter.counter("a,b", "c\nd,e", 3)
    for amount in (0, 2, 3):
        reporter.count("done", amount)
    counted = [f"reporter:counter:yarn-accel,done,{amount}" for amount in (2, 3)]
    assert lines(stream) == ["reporter:counter:a b,c d e,3", *counted]
    assert (reporter.total("done"), reporter.total("sent")) == (5, 0)


def test_status_is_one_line():
    stream = io.StringIO()
    Reporter(stream).status("waiting,\n  still\twaiting " + "x" * 1000)
    (line,) = lines(stream)
    assert line.startswith("reporter:status:waiting, still waiting xxx")
    assert len(line) < 600


def test_a_note_cannot_pose_as_a_counter():
    stream = io.StringIO()
    Reporter(stream).note("reporter:counter:yarn-accel,done,1000")
    assert not stream.getvalue().startswith("reporter:")


def test_keep_alive_repeats_the_current_state_and_stops():
    stream = io.StringIO()
    beaten = threading.Event()
    n_calls = []

    def describe():
        n_calls.append(1)
        if len(n_calls) == 3:
            beaten.set()
        return f"call {len(n_calls)}"

    with Reporter(stream).keep_alive(describe, interval_s=0.001):
        assert beaten.wait(300)
    n_lines = len(lines(stream))
    assert lines(stream)[:3] == ["reporter:status:call 1", "reporter:status:call 2", "reporter:status:call 3"]
    assert not any(thread.name == "keep-alive" for thread in threading.enumerate())
    assert len(lines(stream)) == n_lines


@pytest.mark.parametrize("text", ["server w1", "waiting for server w1"])
def test_a_wait_is_said_within_10_s_and_then_at_growing_intervals(text):
    said = []
    waits = reporter_module.WaitReporter(said.append)
    began_s = time.monotonic()
    waits.note("me", text)
    times = []
    for now_s in range(700):
        waits.look(began_s + now_s)
        times += [now_s] * (len(said) - len(times))
    assert times[0] <= 10
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert steps == sorted(steps)
    assert 3 < len(said) < 10
    assert re.fullmatch(r"waiting for server w1, since \d\d:\d\d:\d\d \(\d+ s\)", said[0])
    assert waits.sentence().startswith("waiting for server w1")
    waits.clear("me")
    waits.look(began_s + 10_000)
    assert len(said) == len(times)
    assert waits.sentence() == ""
    waits.close()


class Stderr(io.StringIO):
    """Sets `has_waited` when a line says that somebody waits for this."""

    def __init__(self, what):
        super().__init__()
        self.what = what
        self.has_waited = threading.Event()

    def write(self, text):
        super().write(text)
        if self.what in text and text.startswith("yarn-accel:"):
            self.has_waited.set()
        return len(text)


def test_who_waits_for_an_answer_says_for_whose(serve, monkeypatch):
    monkeypatch.setattr(reporter_module, "FIRST_S", 0.05)
    stderr = Stderr("have no answer")

    def script(peer):
        request = peer.next_event()
        assert stderr.has_waited.wait(120)
        peer.answer(request)

    binding = Binding((serve(script),))
    credential = issue(bytes(range(32)), "alice", 2**40, "k1")
    reporter = Reporter(stderr)
    with connect(environ={}, binding=binding, credential=credential, reporter=reporter) as accel:
        accel.call("lu", b"abc", key="mine")
    lines = stderr.getvalue().splitlines()
    said = [line for line in lines if "1 call(s) have no answer, the oldest is lu mine, since" in line]
    assert {line.partition("waiting")[0] for line in said} == {"reporter:status:", "yarn-accel: "}


def test_who_is_stuck_within_discovery_says_so_too(monkeypatch):
    monkeypatch.setattr(reporter_module, "FIRST_S", 0.05)
    stderr = Stderr("to name the servers")

    def now(watch, is_urgent=False):
        assert stderr.has_waited.wait(120)
        return DiscoveredServers(reason="nobody")

    monkeypatch.setattr(ServerWatch, "now", now)
    with connect(environ={}, reporter=Reporter(stderr)):
        pass
    assert "waiting for the node's agent or the master to name the servers, since" in stderr.getvalue()
