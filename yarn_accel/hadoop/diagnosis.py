"""Finds the one line of a log that names the cause of a failure.

Our tasks write their diagnosis as the first line of standard error. Hadoop's client has its cause somewhere
in a stack trace.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from yarn_accel.core.application.exits import NOISE
from yarn_accel.hadoop.history import HistoryClient, TaskAttempt

LOG_PATIENCE_S = 20.0

_CLOSING = ("Try -help for more information", "Streaming Command Failed!")
_LAUNCH_ERROR = re.compile(r"Error [Ll]aunching job\s*:\s*(.+)")
_THROWN = re.compile(
    r"(?:Exception in thread \"[^\"]*\" |Caused by: )?((?:[\w$]+\.)+[\w$]*(?:Exception|Error))(?:: (.*))?$"
)
_OUTPUT_EXISTS = re.compile(r"Output directory (\S+) already exists")
_LOGGED_ERROR = re.compile(r"\b(?:ERROR|FATAL)\b,? (?:[\w.$]+: )?(.+)")


def client_error(lines: Sequence[str]) -> str:
    """The cause in the output of a Hadoop client that could not submit, with its cure where it has one."""
    for line in lines:
        exists = _OUTPUT_EXISTS.search(line)
        if exists:
            return f"{exists[0]}: remove it (hdfs dfs -rm -r {exists[1]}), or give another -output"
        launch = _LAUNCH_ERROR.search(line)
        if launch:
            return launch[1].strip()
    for line in lines:
        thrown = _THROWN.match(line.strip())
        if thrown:
            name = thrown[1].rpartition(".")[2]
            return f"{name}: {thrown[2].strip()}" if thrown[2] else name
    for line in lines:
        logged = _LOGGED_ERROR.search(line)
        if logged:
            return logged[1].strip()
    left = [line.strip() for line in lines if line.strip() and line.strip() not in _CLOSING]
    return left[-1] if left else "the client ended and wrote nothing"


def first_error_line(stderr: str) -> str:
    """The first line of a task's standard error that the task itself wrote; a traceback's is its last one."""
    is_traceback = False
    for line in stderr.splitlines():
        if not line.strip() or NOISE.match(line):
            continue
        if line.startswith("Traceback (most recent call last)"):
            is_traceback = True
        elif not (is_traceback and line[0].isspace()):
            return line.strip()
    return ""


def failed_attempt_diagnosis(
    history: HistoryClient,
    attempts: Sequence[TaskAttempt],
    patience_s: float = LOG_PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Why the first failed attempt of a job failed; empty when no attempt failed.

    Logs are aggregated a moment after the end of a job, so this waits for them up to ``patience_s``.
    """
    failed = sorted((a for a in attempts if a.state == "FAILED"), key=lambda a: (a.finish_s, a.attempt))
    if not failed:
        return ""
    first = failed[0]
    place = f"{first.attempt} on {first.node or 'no node'}"
    stderr = None
    end_s = time.monotonic() + patience_s
    while first.container and (stderr := history.log(first)) is None and time.monotonic() < end_s:
        sleep(0.5)
    line = first_error_line(stderr or "")
    if not line:
        line = next(
            (text.strip() for text in first.diagnostics.splitlines() if text.strip()), "no reason is given"
        )
    return f"{line} ({place})"
