"""The task attempt that this process is, from Hadoop Streaming's environment variables.

Standard library only, Python 3.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Hadoop Streaming gives a task its job's properties, with underscores for dots.
_ATTEMPT_VARIABLE = "mapreduce_task_attempt_id"


@dataclass(frozen=True)
class CurrentAttempt:
    """One try at one task.

    A key made of `task_id` is the same in every try, so a server can drop what a speculative twin sends
    again.

    Attributes:
        is_streaming: Hadoop Streaming started this process, or another one that it started.
    """

    job_id: str
    task_id: str
    attempt_id: str
    partition: int
    node: str
    is_streaming: bool = True

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> CurrentAttempt:
        """Read the attempt; a process that Hadoop did not start gets the names of a local one."""
        partition = environ.get("mapreduce_task_partition", "0")
        return cls(
            job_id=environ.get("mapreduce_job_id", "job_local_0001"),
            task_id=environ.get("mapreduce_task_id", "task_local_0001_m_000000"),
            attempt_id=environ.get(_ATTEMPT_VARIABLE, "attempt_local_0001_m_000000_0"),
            partition=int(partition) if partition.isdigit() else 0,
            node=environ.get("NM_HOST", "localhost"),
            is_streaming=_ATTEMPT_VARIABLE in environ,
        )

    def request_key(self, record: int, step: str) -> str:
        """The idempotency key of one request: `record` counts the records of this task from 1."""
        return f"{self.task_id}/{record}/{step}"
