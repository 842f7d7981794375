"""A trace of every stage, as a file that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

Theory of operation.  Whoever did something calls `Trace.span`, which only appends to a deque; a thread turns
what it finds there into events of the Chrome trace format and appends them to the file a few times a second.
The file is a JSON array whose closing bracket is optional in that format, and every write consists of whole
events with the comma in *front*: so after ``kill -9`` the file still opens, and the text plus ``]`` is JSON.

Each stage is a *process* of the trace and each lane (``compute: worker 0``) a group of *threads* there.
Spans of one thread must not overlap, but four connections may be read at once: what overlaps goes to
``read (2)`` and so on.

Memory is bounded by `MAX_PENDING` spans, the file by `MAX_FILE_BYTES`; what does not fit is counted and said
in the trace.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from yarn_accel.errors import StartupError

logger = logging.getLogger(__name__)

#: The stages in the order in which they are shown; their place is the process number in the trace.
STAGES = ("read", "queue", "compute", "write")
MAX_PENDING = 65536
MAX_FILE_BYTES = 1 << 30
_FLUSH_S = 0.25
_MAX_LANES = 256
_MAX_OVERLAP = 64
_WRITE_BYTES = 256 * 1024


class _Span(NamedTuple):
    """Seconds are monotonic."""

    stage: str
    lane: str
    name: str
    start_s: float
    end_s: float
    args: dict[str, Any]


class Trace:
    """An open trace file.

    Args:
        path: the file; an older one is replaced.
        max_pending: spans kept until they are written; more are dropped and counted.
        max_file_bytes: the file ends there.

    Raises:
        StartupError: the file cannot be written.
    """

    def __init__(
        self, path: str | Path, max_pending: int = MAX_PENDING, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self._pending: collections.deque[_Span] = collections.deque()
        self._max_pending = max_pending
        self._max_file_bytes = max_file_bytes
        self._n_dropped = 0
        self._n_reported = 0
        self._n_bytes = 0
        self._origin_s = time.monotonic()
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._closing = threading.Event()
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StartupError(
                f"trace_file {path}: {(error.strerror or str(error)).lower()}",
                cure="choose another trace_file",
            ) from None
        self._write("[\n" + ",\n".join(_stage_names()))
        self._runner = threading.Thread(target=self._write_loop, name="trace", daemon=True)
        self._runner.start()

    @property
    def n_dropped(self) -> int:
        """Spans that were not kept because too many waited, or the file is full or broken."""
        return self._n_dropped

    def span(self, stage: str, lane: str, name: str, start_s: float, end_s: float, **args: Any) -> None:
        """Note that something went on; about a microsecond, never blocks, from any thread.

        Args:
            stage: one of `STAGES`.
            lane: who did it, such as ``worker 0``; few different ones.
            name: what is shown on the bar, such as ``lu``.
            start_s: when it began, in seconds of ``time.monotonic``.
            end_s: when it ended.
            args: shown when the bar is clicked; numbers and short texts.
        """
        if len(self._pending) >= self._max_pending or self._closing.is_set():
            self._n_dropped += 1
            return
        self._pending.append(_Span(stage, lane, name, start_s, end_s, args))

    def close(self) -> None:
        """Write what waits, and the closing bracket; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._runner.join(timeout=10.0)
        self._flush()
        if self._fd >= 0:
            self._write("\n]\n")
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write_loop(self) -> None:
        while not self._closing.wait(_FLUSH_S):
            self._flush()

    def _flush(self) -> None:
        lines: list[str] = []
        n_bytes = 0
        for _ in range(len(self._pending)):
            for line in self._events_of(self._pending.popleft()):
                lines.append(line)
                n_bytes += len(line)
            if n_bytes >= _WRITE_BYTES:
                self._append(lines)
                lines, n_bytes = [], 0
        if self._n_dropped > self._n_reported:
            self._n_reported = self._n_dropped
            lines.append(_event("i", f"{self._n_dropped} spans dropped", 1, 0, ts=self._now_us(), s="g"))
        self._append(lines)

    def _append(self, lines: list[str]) -> None:
        if lines and self._fd >= 0:
            self._write("".join(",\n" + line for line in lines))

    def _write(self, text: str) -> None:
        data = text.encode()
        if self._n_bytes + len(data) > self._max_file_bytes and text != "\n]\n":
            self._n_dropped += text.count("\n")
            return
        self._n_bytes += len(data)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            # A full disk must not stop the server; half an event may be left, which viewers forgive.
            logger.warning("the trace ends here: %s", error)
            os.close(self._fd)
            self._fd = -1

    def _events_of(self, span: _Span) -> list[str]:
        pid = STAGES.index(span.stage) + 1
        lane = self._lanes.get((span.stage, span.lane))
        lines = []
        if lane is None:
            if len(self._lanes) >= _MAX_LANES:
                self._n_dropped += 1
                return []
            lane = self._lanes[span.stage, span.lane] = _Lane(1 + len(self._lanes) * _MAX_OVERLAP)
        row, is_new = lane.place(span.start_s, span.end_s)
        if row < 0:
            self._n_dropped += 1
            return []
        if is_new:
            shown = span.lane if row == 0 else f"{span.lane} ({row + 1})"
            lines.append(_event("M", "thread_name", pid, lane.first_tid + row, args={"name": shown}))
        start_us = round((span.start_s - self._origin_s) * 1e6, 1)
        took_us = round(max(0.0, span.end_s - span.start_s) * 1e6, 1)
        lines.append(
            _event(
                "X",
                span.name,
                pid,
                lane.first_tid + row,
                ts=start_us,
                dur=took_us,
                cat=span.stage,
                args=span.args,
            )
        )
        return lines

    def _now_us(self) -> float:
        return round((time.monotonic() - self._origin_s) * 1e6, 1)


class _Lane:
    """Rows of one lane, so that no two spans of a row overlap."""

    def __init__(self, first_tid: int) -> None:
        self.first_tid = first_tid
        self._ends_s: list[float] = []

    def place(self, start_s: float, end_s: float) -> tuple[int, bool]:
        """The first row that is free from `start_s`, and whether it is new; row -1: none is."""
        for row, busy_until_s in enumerate(self._ends_s):
            if busy_until_s <= start_s:
                self._ends_s[row] = end_s
                return row, False
        if len(self._ends_s) >= _MAX_OVERLAP:
            return -1, False
        self._ends_s.append(end_s)
        return len(self._ends_s) - 1, True


def _stage_names() -> list[str]:
    lines = []
    for at, stage in enumerate(STAGES):
        lines.append(_event("M", "process_name", at + 1, 0, args={"name": stage}))
        lines.append(_event("M", "process_sort_index", at + 1, 0, args={"sort_index": at}))
    return lines


#: json.dumps with options builds an encoder at every call.
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


def _event(phase: str, name: str, pid: int, tid: int, **fields: Any) -> str:
    return _encode({"ph": phase, "name": name, "pid": pid, "tid": tid, **fields})
