"""What the JobHistoryServer knows about a finished job: counters, task attempts, container logs.

Its REST sends one object where a list of one is meant, and null for an empty list; both are accepted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from yarn_accel.adapters.rest import as_list, get_json, get_text
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
        timeout_s: for one request.
    """

    def __init__(self, web: str, timeout_s: float = 10.0) -> None:
        self._web = web.rstrip("/")
        self._jobs = f"{self._web}/ws/v1/history/mapreduce/jobs"
        self._timeout_s = timeout_s

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
            return log_contents(get_text(url, max_bytes=max_bytes, timeout_s=self._timeout_s))
        except (RejectedError, UnavailableError):
            return None

    def _get(self, url: str) -> Any:
        return get_json(url, timeout_s=self._timeout_s) or {}


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
