import io
import threading

from yarn_accel.client.reporter import Reporter


def lines(stream):
    return stream.getvalue().splitlines()


def test_counters_have_exactly_three_fields():
    stream = io.StringIO()
    reporter = Reporter(stream)
    reporter.counter("a,b", "c\nd,e", 3)
    reporter.count("done", 2)
    assert lines(stream) == ["reporter:counter:a b,c d e,3", "reporter:counter:yarn-accel,done,2"]


def test_zero_is_not_written_and_totals_add_up():
    stream = io.StringIO()
    reporter = Reporter(stream)
    reporter.count("done", 0)
    reporter.count("done", 2)
    reporter.count("done", 3)
    assert len(lines(stream)) == 2
    assert reporter.total("done") == 5
    assert reporter.total("sent") == 0


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
        assert beaten.wait(30)
    n_lines = len(lines(stream))
    assert lines(stream)[:3] == ["reporter:status:call 1", "reporter:status:call 2", "reporter:status:call 3"]
    assert not any(thread.name == "keep-alive" for thread in threading.enumerate())
    assert len(lines(stream)) == n_lines
