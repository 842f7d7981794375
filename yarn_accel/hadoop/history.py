"""Finished jobs: counters, task attempts and logs from the JobHistoryServer, and the cause of a failure.

The server's REST sends one object where a list of one is meant, and null for an empty list; both are
accepted.

Our tasks write their diagnosis as the first line of standard error.  Hadoop's client has its cause somewhere
in a stack trace.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from yarn_accel.adapters.rest import WebAccess, as_list, get_json, get_text
from yarn_accel.core.application.exits import NOISE
from yarn_accel.errors import RejectedError, UnavailableError

Counters = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt at one task.

    Attributes:
        attempt: attempt id.
        kind: ``MAP`` or ``REDUCE``.
        node: host name of the node it ran on (empty: it never got a container).
        rack: that node's rack.
        state: such as ``SUCCEEDED``, ``FAILED``, ``KILLED``.
        start_s: start, unix seconds (0: never).
        finish_s: end, unix seconds (0: never).
        container: container id.
        node_web: host and port of the NodeManager's web service.
        diagnostics: Hadoop's own text about a failure.
    """

    attempt: str
    kind: str
    node: str
    rack: str
    state: str
    start_s: float
    finish_s: float
    container: str = ""
    node_web: str = ""
    diagnostics: str = ""


class HistoryClient:
    """The REST of one JobHistoryServer.

    Args:
        web: its web address, ``http://host:port``.
        access: to it.
    """

    def __init__(self, web: str, access: WebAccess) -> None:
        self._access = access
        self._web = web.rstrip("/")
        self._jobs = f"{self._web}/ws/v1/history/mapreduce/jobs"

    def wait_for_job(
        self, job_id: str, patience_s: float, sleep: Callable[[float], None] = time.sleep
    ) -> dict[str, Any]:
        """The job's summary; a job that ended just now may take a moment to appear.

        Raises:
            UnavailableError: the server does not answer, or does not know the job after ``patience_s``.
        """
        end_s = time.monotonic() + patience_s
        while True:
            try:
                return dict(self._get(f"{self._jobs}/{job_id}")["job"])
            except (RejectedError, UnavailableError) as error:
                if time.monotonic() > end_s:
                    raise UnavailableError(f"the history server does not know {job_id}: {error}") from error
            sleep(0.2)

    def counters(self, job_id: str) -> Counters:
        """All counters of a job: group -> name -> total."""
        return parse_counters(self._get(f"{self._jobs}/{job_id}/counters"))

    def attempts(self, job_id: str) -> list[TaskAttempt]:
        """Every attempt of every task, in the order of the tasks (one request per task)."""
        tasks = self._get(f"{self._jobs}/{job_id}/tasks").get("tasks") or {}
        found: list[TaskAttempt] = []
        for task in as_list(tasks.get("task")):
            answer = self._get(f"{self._jobs}/{job_id}/tasks/{task['id']}/attempts")
            found += parse_attempts(answer, str(task.get("type", "")))
        return found

    def log(self, attempt: TaskAttempt, name: str = "stderr", max_bytes: int = 1 << 20) -> str | None:
        """The start of an attempt's log file, from the aggregated logs; None when it is not there (yet)."""
        url = f"{self._web}/ws/v1/history/containerlogs/{attempt.container}/{name}"
        try:
            return log_contents(get_text(url, max_bytes=max_bytes, access=self._access))
        except (RejectedError, UnavailableError):
            return None

    def _get(self, url: str) -> Any:
        return get_json(url, access=self._access) or {}


def log_contents(answer: str) -> str | None:
    """The log itself out of the frame that the history server puts around it; None when it sent no log."""
    _, head, rest = answer.partition("\nLogContents:\n")
    if not head:
        return None
    contents, _, _ = rest.rpartition("\nEnd of LogType:")
    return contents or rest.partition("\nEnd of LogType:")[0]


def parse_counters(answer: Any) -> Counters:
    """Counters from the answer of ``/jobs/ID/counters``: group -> name -> total."""
    counters: Counters = {}
    for group in as_list((answer.get("jobCounters") or {}).get("counterGroup")):
        names = counters.setdefault(str(group.get("counterGroupName")), {})
        for counter in as_list(group.get("counter")):
            names[str(counter.get("name"))] = int(counter.get("totalCounterValue") or 0)
    return counters


def parse_attempts(answer: Any, kind: str = "") -> list[TaskAttempt]:
    """Attempts from the answer of ``/tasks/ID/attempts``; ``kind`` is for attempts that do not say theirs."""
    found = []
    for item in as_list((answer.get("taskAttempts") or {}).get("taskAttempt")):
        node_web = str(item.get("nodeHttpAddress") or "")
        found.append(
            TaskAttempt(
                attempt=str(item.get("id")),
                kind=str(item.get("type") or kind),
                node=node_web.rpartition(":")[0],
                rack=str(item.get("rack") or ""),
                state=str(item.get("state") or ""),
                start_s=max(0, int(item.get("startTime") or 0)) / 1000,
                finish_s=max(0, int(item.get("finishTime") or 0)) / 1000,
                container=str(item.get("assignedContainerId") or ""),
                node_web=node_web,
                diagnostics=str(item.get("diagnostics") or ""),
            )
        )
    return found


# ---- the cause of a failure

_LOG_PATIENCE_S = 20.0
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
    patience_s: float = _LOG_PATIENCE_S,
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
