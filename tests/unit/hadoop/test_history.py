"""The history server's answers, and the line of a log that names the cause of a failure."""

from dataclasses import replace

import pytest

from yarn_accel.hadoop import history

COUNTER = {"name": "done", "totalCounterValue": 8, "mapCounterValue": 0, "reduceCounterValue": 0}
ATTEMPT = {"id": "attempt_1_0001_m_000000_0", "type": "MAP", "rack": "/rack1", "state": "FAILED"}
ATTEMPT |= {"nodeHttpAddress": "w1:8042", "startTime": 1500, "finishTime": 4500}
ATTEMPT |= {"assignedContainerId": "container_1", "diagnostics": "Error: x"}
LOG = (
    "Container: container_1 on w1_8041\nLogAggregationType: AGGREGATED\n====\nLogType:stderr\n"
    "LogLastModifiedTime:Sat\nLogLength:{}\nLogContents:\n{}\nEnd of LogType:stderr\n*****\n\n"
)


@pytest.mark.parametrize("counter", [COUNTER, [COUNTER]])
@pytest.mark.parametrize("as_group", [lambda g: g, lambda g: [g]])
def test_counters_of_one_or_many(counter, as_group):
    group = {"counterGroupName": "yarn-accel", "counter": counter}
    assert history.parse_counters({"jobCounters": {"id": "job_1", "counterGroup": as_group(group)}}) == {
        "yarn-accel": {"done": 8}
    }


@pytest.mark.parametrize("nothing", [{}, {"jobCounters": None, "taskAttempts": None}])
def test_no_counters_and_no_attempts(nothing):
    assert history.parse_counters(nothing or {"jobCounters": {"counterGroup": None}}) == {}
    assert history.parse_attempts(nothing or {"taskAttempts": {"taskAttempt": None}}) == []


@pytest.mark.parametrize("sent", [ATTEMPT, [ATTEMPT]])
def test_an_attempt(sent):
    (attempt,) = history.parse_attempts({"taskAttempts": {"taskAttempt": sent}})
    assert (attempt.node, attempt.rack, attempt.kind, attempt.state) == ("w1", "/rack1", "MAP", "FAILED")
    assert (attempt.start_s, attempt.finish_s) == (1.5, 4.5)
    assert (attempt.container, attempt.node_web) == ("container_1", "w1:8042")


def test_an_attempt_that_never_got_a_container():
    bare = {"id": "attempt_1_0001_m_000000_0", "nodeHttpAddress": None, "startTime": -1, "finishTime": None}
    (attempt,) = history.parse_attempts({"taskAttempts": {"taskAttempt": bare}}, "MAP")
    assert (attempt.node, attempt.rack, attempt.kind) == ("", "", "MAP")
    assert (attempt.start_s, attempt.finish_s, attempt.container) == (0.0, 0.0, "")


@pytest.mark.parametrize("text", ["", "one\ntwo", "it says\nEnd of LogType:stderr\nitself"])
def test_a_log_comes_out_of_its_frame(text):
    assert history.log_contents(LOG.format(len(text), text)) == text


def test_no_log_and_a_log_that_was_cut():
    assert history.log_contents("Can not find logs for container:container_1") is None
    assert history.log_contents(LOG.format(9, "one\ntwo").partition("two")[0]) == "one\n"


GOOD = history.TaskAttempt("attempt_1_m_0_0", "MAP", "w1", "/r1", "SUCCEEDED", 1, 2, "container_1", "w1:8042")
BAD = replace(
    GOOD, attempt="attempt_1_m_1_0", state="FAILED", container="container_2", diagnostics="Error: a\n at b"
)


class Logs:
    """Stands in for the history server: answers one log after the other for each look."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def log(self, attempt):
        self.asked.append(attempt.attempt)
        return self.answers.pop(0)


def diagnose(logs, *attempts, patience_s=60):
    return history.failed_attempt_diagnosis(logs, attempts, patience_s, lambda _: None)


def test_the_first_line_of_the_first_failed_attempt():
    later = replace(BAD, attempt="attempt_1_m_2_0", finish_s=9)
    logs = Logs("log4j:WARN no appenders\nno numpy on this node\nTraceback\n")
    assert diagnose(logs, GOOD, later, BAD) == "no numpy on this node (attempt_1_m_1_0 on w1)"
    assert logs.asked == ["attempt_1_m_1_0"]


def test_logs_that_are_not_aggregated_yet_are_waited_for():
    logs = Logs(None, None, "boom\n")
    assert diagnose(logs, BAD).startswith("boom (")
    assert len(logs.asked) == 3


def test_where_a_task_wrote_nothing_hadoops_diagnostics_serve():
    assert diagnose(Logs(""), BAD) == "Error: a (attempt_1_m_1_0 on w1)"
    assert diagnose(Logs(None), BAD, patience_s=0) == "Error: a (attempt_1_m_1_0 on w1)"
    assert diagnose(Logs(), replace(BAD, container="", node="", diagnostics="")).startswith(
        "no reason is given"
    )


def test_no_failed_attempt_no_diagnosis():
    assert diagnose(Logs(), GOOD) == ""


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            [
                "2026 ERROR StreamJob: Error Launching job : Output directory hdfs://m/o exists",
                "Streaming Command Failed!",
            ],
            "Output directory hdfs://m/o exists",
        ),
        (
            [
                "2026 ERROR StreamJob: Error Launching job : Output directory hdfs://m/o already exists",
                "Streaming Command Failed!",
            ],
            "Output directory hdfs://m/o already exists: remove it (hdfs dfs -rm -r hdfs://m/o), "
            "or give another -output",
        ),
        (
            [
                'Exception in thread "main" java.lang.IllegalArgumentException: x.y.UnknownHost: m',
                "\tat org.x.Y(Y.java:1)",
            ],
            "IllegalArgumentException: x.y.UnknownHost: m",
        ),
        (["INFO a", "ERROR StreamJob: Unrecognized option: -x", "Try -help"], "Unrecognized option: -x"),
        (["one", "the last word", ""], "the last word"),
        (
            [
                "-inputformat : class not found : x.Y",
                "Try -help for more information",
                "Streaming Command Failed!",
            ],
            "-inputformat : class not found : x.Y",
        ),
        ([], "the client ended and wrote nothing"),
    ],
)
def test_the_cause_in_a_client_s_output(lines, cause):
    assert history.client_error(lines) == cause


def test_lines_of_the_machinery_are_not_the_task_s_own():
    noise = "log4j:WARN x\nreporter:counter:a,b,1\nreporter:status:s\nOpenJDK 64-Bit Server VM warning: y\n\n"
    assert history.first_error_line(noise + "mine\nother") == "mine"
    assert history.first_error_line(noise) == ""


def test_a_traceback_is_the_line_that_names_the_exception():
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "my_mapper.py", line 1, in <module>\n'
        "    import numpy\n"
        "ModuleNotFoundError: No module named 'numpy'\n"
        "INFO: x\n"
    )
    assert history.first_error_line(traceback) == "ModuleNotFoundError: No module named 'numpy'"
