"""The use of cores, GPUs and bytes by requests, for each user and job.

It is noted for each connection as requests are answered, which costs a request a few additions, and added up
from time to time: for the metrics, and for the files of `yarn_accel.adapters.accounting`. A job is known by
the idempotency keys of its mappers, which begin with the id of the task; requests of one connection count for
the job of the first one. Work whose connection is lost before its answer is not counted.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from yarn_accel.adapters.accounting import INTERVAL_S, Accounting, JobUse
from yarn_accel.pipeline.counters import ConnectionUse

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.connections import Session
    from yarn_accel.pipeline.counters import Counters
    from yarn_accel.storage import Store

_CLOSE_S = 5.0
#: `CallKeys.other` puts a token before a key that was used otherwise.
_TASK = re.compile(r"(?:[0-9a-f]{16}/)?task_(\d{1,20}_\d{1,10})_")
_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_")


class RequestUse:
    """Adds up the use of all connections; a thread of its own writes it."""

    def __init__(self, config: PipelineConfig, store: Store, counters: Counters) -> None:
        container = os.environ.get("CONTAINER_ID", "")
        found = _CONTAINER.match(container)
        self._application = f"application_{found[1]}" if found else ""
        self._cores = config.cores_per_worker
        self._counters = counters
        name = container or f"server-{os.getpid()}-{time.time_ns()}"
        self._accounting = Accounting(store, config.accounting_uri, name)
        self._is_over = threading.Event()
        #: There is something to write, or all is over.
        self._has_begun = threading.Event()
        self._thread: threading.Thread | None = None
        if config.accounting_uri:
            self._thread = threading.Thread(target=self._work, name="accounting", daemon=True)

    def start(self) -> None:
        """Write what changes from time to time."""
        if self._thread is not None:
            self._thread.start()

    def close(self) -> None:
        """Write what changed, if the storage takes it within `_CLOSE_S`."""
        self._is_over.set()
        self._has_begun.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def add_up(self, sessions: Iterable[Session]) -> None:
        """Add up what these connections used; in the loop's thread."""
        for session in sessions:
            use = session.use
            if not use.n_answered:
                continue
            session.use = ConnectionUse()
            core_s = use.cpu_s * self._cores
            self._counters.used(session.tenant, core_s, use.gpu_s)
            self._accounting.add(
                JobUse(
                    session.tenant,
                    self._application,
                    job_of(use.key),
                    core_s,
                    use.gpu_s,
                    use.read_bytes,
                    use.written_bytes,
                    use.n_answered,
                    use.n_failed,
                    use.first_at,
                    time.time(),
                )
            )
            self._has_begun.set()

    def _work(self) -> None:
        # At once after the first use: `yarn-accel logs` finds a server that has ended by its file.
        self._has_begun.wait()
        self._accounting.write()
        while not self._is_over.wait(INTERVAL_S):
            self._accounting.write()
        self._accounting.write()


def job_of(key: str) -> str:
    """The MapReduce job whose task made a key; empty: none did.

    >>> job_of("task_1764_0001_m_000003/17/lu"), job_of("local-1f/1/lu")
    ('job_1764_0001', '')
    """
    found = _TASK.match(key)
    return f"job_{found[1]}" if found else ""
