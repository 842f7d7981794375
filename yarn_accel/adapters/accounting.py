"""Accounting: the core-seconds, GPU-seconds and bytes of each user, application and job, as JSON lines.

A job is an application of tasks, a DAG, or whose mappers' requests a pipeline server answered. Each attempt
counts, also one that failed or was ended for another one, from its start to its end, with the cores and GPUs
that it held; of a request its computation counts. Lines of a job add up: each master and each server begins a
file of its own, and goes on in a next one after `_MAX_JOBS` jobs. Of a process that is killed the last
seconds are lost, at most `INTERVAL_S`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from yarn_accel.errors import AccelError
from yarn_accel.storage import Store

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
_MAX_JOBS = 10_000


@dataclass(slots=True)
class JobUse:
    """One line, or what is added to it.

    Attributes:
        application: of YARN.
        job: its name in the task service, or the id of a MapReduce job; empty: it has none.
        gpu_s: GPUs of workers and of pipeline servers, by the time for which they were held.
        attempts: that ended, or requests that were answered; `failed` of them not well.
        first_at: Unix time of the first start, `last_at` of the last end.
    """

    user: str
    application: str
    job: str
    core_s: float = 0.0
    gpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    attempts: int = 0
    failed: int = 0
    first_at: float = 0.0
    last_at: float = 0.0

    def add(self, more: JobUse) -> None:
        """Add what another one has."""
        self.core_s += more.core_s
        self.gpu_s += more.gpu_s
        self.read_bytes += more.read_bytes
        self.written_bytes += more.written_bytes
        self.attempts += more.attempts
        self.failed += more.failed
        self.first_at = min(self.first_at or more.first_at, more.first_at)
        self.last_at = max(self.last_at, more.last_at)


class Accounting:
    """The use of all jobs; safe between threads.

    Args:
        folder_uri: of the files; empty: nothing is kept.
        file_name: of this process's files, without their number and ending.
    """

    def __init__(self, store: Store, folder_uri: str, file_name: str) -> None:
        self._store = store
        self._stem = f"{folder_uri.rstrip('/')}/{file_name}" if folder_uri else ""
        self._jobs: dict[tuple[str, str], JobUse] = {}
        self._n_files = 0
        self._is_changed = False
        self._problem = ""
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def add(self, use: JobUse) -> None:
        """Count what a job used."""
        with self._lock:
            known = self._jobs.get((use.user, use.job))
            if known is None:
                known = self._jobs[use.user, use.job] = JobUse(use.user, use.application, use.job)
            known.add(use)
            self._is_changed = True

    def write(self) -> None:
        """Write what changed; never raises."""
        with self._writing:
            with self._lock:
                if not self._stem or not self._is_changed:
                    return
                self._is_changed = False
                content = b"".join(line.encode() + b"\n" for line in self._lines())
                n_jobs, uri = len(self._jobs), f"{self._stem}-{self._n_files:04d}.jsonl"
            try:
                self._store.write_atomic(uri, lambda: [content])
            except AccelError as error:
                self._is_changed = True
                if str(error) != self._problem:
                    logger.warning("accounting is not written: %s", error)
                self._problem = str(error)
                return
            self._problem = ""
            with self._lock:
                if n_jobs >= _MAX_JOBS and not self._is_changed:
                    self._jobs.clear()
                    self._n_files += 1

    def _lines(self) -> Iterator[str]:
        for use in self._jobs.values():
            yield json.dumps({**asdict(use), "core_s": round(use.core_s, 3), "gpu_s": round(use.gpu_s, 3)})
