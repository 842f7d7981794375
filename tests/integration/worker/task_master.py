"""A master for tests: it lists what it is asked to, and keeps every report. Signed HTTP as the real one's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from yarn_accel.adapters.signed_http import RequestVerifier, guarded, sender_key
from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder
from yarn_accel.core.tasks.worker_messages import (
    MAX_REPORT_BYTES,
    AttemptEnd,
    AttemptPhase,
    OrderNumber,
    WorkerOrder,
    WorkerReport,
    order_document,
    parse_report,
)
from yarn_accel.worker.service import REPORT_PATH

SECRET = b"0123456789abcdef0123456789abcdef"
_HOLD_S = 1.0
_WAIT_S = 240.0


def start_worker(
    place: Path,
    name: str,
    master_port: int,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    **settings: Any,
) -> subprocess.Popen[bytes]:
    """Start a worker of a master on this machine as a process, all its files in `place`, which is made."""
    place.mkdir()
    key = place / "key"
    key.write_text(sender_key(SECRET, f"worker:{name}").hex())
    key.chmod(0o600)
    lines = {
        "node": name,
        "key_file": str(key),
        "master_url": f"http://127.0.0.1:{master_port}",
        "work_dir": str(place / "work"),
        "log_dir": str(place / "logs"),
        **settings,
    }
    config = place / "worker.yaml"
    config.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    argv = [sys.executable, "-m", "yarn_accel.worker", "--config", str(config)]
    with (place / "stderr").open("wb") as log:
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=log, env=environ, cwd=cwd)


class TaskMaster:
    """Runs in a thread of its own; everything may be called from any other one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._changed = threading.Condition()
        self._news = asyncio.Event()
        self._listed: dict[AttemptId, AttemptOrder] = {}
        self._sequence = 0
        self.reports: dict[str, WorkerReport] = {}
        self.ends: dict[AttemptId, AttemptEnd] = {}
        self.port = 0
        #: Who gets what is listed.
        self.worker = ""
        #: Replaces each reply while it is set.
        self.bad_reply: Any = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    async def _open(self) -> None:
        verifier = RequestVerifier(lambda sender: sender_key(SECRET, sender))
        app = web.Application()
        app.router.add_post(REPORT_PATH, guarded(verifier, self._answer, max_bytes=MAX_REPORT_BYTES))
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        await self._runner.cleanup()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _answer(self, sender: str, document: Any) -> Any:
        report = parse_report(document)
        assert sender == f"worker:{report.worker}"
        received_s = time.monotonic()
        with self._changed:
            self.reports[report.worker] = report
            for each in report.attempts:
                if each.end is not None and each.attempt not in self.ends:
                    self.ends[each.attempt] = each.end
                    self._listed.pop(each.attempt, None)
                    self._sequence += 1
                    self.ended(each.attempt, received_s)
            self._changed.notify_all()
        # A report that is held is answered when a newer one is there.
        self._news.set()
        if report.order is not None and report.order.sequence == self._sequence:
            self._news.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), _HOLD_S)
        if self.bad_reply is not None:
            return self.bad_reply
        listed = tuple(self._listed.values()) if report.worker == self.worker else ()
        number = OrderNumber(1, self._sequence)
        return order_document(WorkerOrder(number, report.incarnation, report.sequence, listed))

    def ended(self, attempt: AttemptId, received_s: float) -> None:
        """The first report of an end is there; `_listed` may be changed."""

    def list(self, *orders: AttemptOrder) -> None:
        """List these besides those that are listed."""
        with self._changed:
            self._listed.update((each.attempt, each) for each in orders)
            self._sequence += 1
        self._loop.call_soon_threadsafe(self._news.set)

    def drop(self, attempt: AttemptId) -> None:
        with self._changed:
            self._listed.pop(attempt, None)
            self._sequence += 1
        self._loop.call_soon_threadsafe(self._news.set)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a report makes this true, and return it."""
        with self._changed:
            assert self._changed.wait_for(condition, _WAIT_S), self.reports
            return condition()

    def phase(self, attempt: AttemptId, worker: str = "") -> AttemptPhase | None:
        report = self.reports.get(worker or self.worker)
        found = [each.phase for each in report.attempts if each.attempt == attempt] if report else []
        return found[0] if found else None

    def run(self, order: AttemptOrder) -> AttemptEnd:
        """List an attempt and wait for its end."""
        self.list(order)
        return self.end_of(order.attempt)

    def end_of(self, attempt: AttemptId) -> AttemptEnd:
        self.until(lambda: attempt in self.ends)
        return self.ends[attempt]
