"""The trace opens whole, opens after kill -9, and never takes more memory or disk than its bounds."""

import itertools
import json
import resource
import signal
import subprocess
import sys
import time

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.pipeline import trace as trace_module
from yarn_accel.pipeline.trace import STAGES, Trace


def events_of(path):
    return json.loads(path.read_text())


def spans_of(path):
    return [event for event in events_of(path) if event["ph"] == "X"]


def test_a_span_says_where_when_and_what(tmp_path):
    trace = Trace(tmp_path / "t.json")
    now_s = time.monotonic()
    trace.span("compute", "worker 0", "lu", now_s, now_s + 0.25, tenant="alice", n=100)
    trace.close()
    (span,) = spans_of(tmp_path / "t.json")
    assert (span["name"], span["cat"], span["dur"]) == ("lu", "compute", 250000.0)
    assert (span["args"], span["pid"]) == ({"tenant": "alice", "n": 100}, STAGES.index("compute") + 1)
    assert 0 <= span["ts"] < 5e6
    rows = [event for event in events_of(tmp_path / "t.json") if event["name"] == "thread_name"]
    assert {(e["pid"], e["tid"]): e["args"]["name"] for e in rows}[span["pid"], span["tid"]] == "worker 0"


def test_spans_of_one_row_never_overlap(tmp_path):
    trace = Trace(tmp_path / "t.json")
    for start_s, end_s in ((0, 4), (1, 2), (3, 6), (2, 5), (6, 7), (5, 9)):
        trace.span("read", "session", "x", 1000.0 + start_s, 1000.0 + end_s)
    trace.close()
    rows = {}
    for span in spans_of(tmp_path / "t.json"):
        rows.setdefault(span["tid"], []).append((span["ts"], span["ts"] + span["dur"]))
    assert len(rows) == 3
    for row in rows.values():
        row.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(row))
    shown = {e["args"]["name"] for e in events_of(tmp_path / "t.json") if e["name"] == "thread_name"}
    assert shown == {"session", "session (2)", "session (3)"}


def test_the_file_opens_after_kill_9(tmp_path):
    program = (
        "import sys, time\n"
        "from yarn_accel.pipeline.trace import Trace\n"
        "trace = Trace(sys.argv[1])\n"
        "print('started', flush=True)\n"
        "while True:\n"
        "    now_s = time.monotonic()\n"
        "    trace.span('compute', 'worker 0', 'lu', now_s, now_s + 1e-5, text='a\"b\\n')\n"
        "    time.sleep(2e-5)\n"
    )
    path = tmp_path / "t.json"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        until_s = time.monotonic() + 120
        while path.stat().st_size < 200_000 and time.monotonic() < until_s:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    text = path.read_text()
    assert not text.rstrip().endswith("]")
    assert sum(event["ph"] == "X" for event in json.loads(text + "]")) > 500


def test_too_many_spans_are_dropped_counted_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_module, "_FLUSH_S", 60.0)
    trace = Trace(tmp_path / "t.json", max_pending=10)
    for _ in range(25):
        trace.span("read", "session", "x", 0.0, 0.0)
    assert trace.n_dropped == 15
    trace.close()
    assert len(spans_of(tmp_path / "t.json")) == 10
    assert any(e["name"] == "15 spans dropped" for e in events_of(tmp_path / "t.json"))


def test_the_file_stays_below_its_bound_and_opens(tmp_path):
    trace = Trace(tmp_path / "t.json", max_file_bytes=4000)
    for number in range(20):
        trace.span("read", "session", "x" * 200, number, number + 1)
        trace._flush()
    trace.close()
    assert (tmp_path / "t.json").stat().st_size <= 4003
    assert trace.n_dropped > 0
    assert 5 < len(spans_of(tmp_path / "t.json")) < 20


def test_lanes_and_rows_are_bounded(tmp_path):
    trace = Trace(tmp_path / "t.json")
    for number in range(300):
        trace.span("read", f"lane {number}", "x", 0.0, 1.0)
    for _ in range(100):
        trace.span("write", "never", "x", 0.0, 1.0)
        trace.span("read", "lane 0", "x", 0.0, 1.0)
    trace.close()
    assert len({span["tid"] for span in spans_of(tmp_path / "t.json")}) == 256 + 63
    assert trace.n_dropped == 44 + 100 + 37


def test_a_closed_trace_takes_nothing_and_closes_twice(tmp_path):
    trace = Trace(tmp_path / "t.json")
    trace.close()
    trace.span("read", "session", "x", 0.0, 1.0)
    trace.close()
    assert trace.n_dropped == 1
    assert spans_of(tmp_path / "t.json") == []


def test_a_file_that_cannot_be_written_is_a_startup_error(tmp_path):
    with pytest.raises(StartupError, match=r"trace_file .*no such file or directory: choose another"):
        Trace(tmp_path / "missing" / "t.json")


def test_a_full_disk_ends_the_trace_and_nothing_else(tmp_path, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    trace = Trace(tmp_path / "t.json")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
        for number in range(50):
            trace.span("read", "session", "x", number, number + 1)
        trace.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert "the trace ends here" in caplog.text
    trace.span("read", "session", "x", 0.0, 1.0)
