from dataclasses import replace

import pytest

from yarn_accel.hadoop.diagnosis import client_error, failed_attempt_diagnosis, first_error_line
from yarn_accel.hadoop.history import TaskAttempt

GOOD = TaskAttempt("attempt_1_m_0_0", "MAP", "w1", "/r1", "SUCCEEDED", 1, 2, "container_1", "w1:8042")
BAD = replace(
    GOOD, attempt="attempt_1_m_1_0", state="FAILED", container="container_2", diagnostics="Error: a\n at b"
)


class Logs:
    """Stands in for the history server: answers one log after the other for each look."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def log(self, attempt: TaskAttempt) -> str | None:
        self.asked.append(attempt.attempt)
        return self.answers.pop(0)


def diagnose(logs: Logs, *attempts: TaskAttempt, patience_s: float = 60) -> str:
    return failed_attempt_diagnosis(logs, attempts, patience_s, lambda _: None)  # type: ignore[arg-type]


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
def test_the_cause_in_a_client_s_output(lines: list[str], cause: str):
    assert client_error(lines) == cause


def test_lines_of_the_machinery_are_not_the_task_s_own():
    noise = "log4j:WARN x\nreporter:counter:a,b,1\nreporter:status:s\nOpenJDK 64-Bit Server VM warning: y\n\n"
    assert first_error_line(noise + "mine\nother") == "mine"
    assert first_error_line(noise) == ""


def test_a_traceback_is_the_line_that_names_the_exception():
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "my_mapper.py", line 1, in <module>\n'
        "    import numpy\n"
        "ModuleNotFoundError: No module named 'numpy'\n"
        "INFO: x\n"
    )
    assert first_error_line(traceback) == "ModuleNotFoundError: No module named 'numpy'"
