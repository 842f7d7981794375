"""One call of a function in a process that runs already, and what the process answers.

The process belongs to the function: whatever it sends is checked and bounded. Its answer is
``{"begun": N}``, then ``{"call": N, "result": JSON, "is_clean": ...}`` or the same with ``error``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from yarn_accel.core.tasks.attempt_orders import FunctionCall
from yarn_accel.core.tasks.worker_messages import MAX_RESULT
from yarn_accel.errors import AccelError
from yarn_accel.worker.guarded_process import GuardedProcess
from yarn_accel.worker.message_channel import HEADER, send

_MAX_REPLY_BYTES = 4 * MAX_RESULT
_READ_BYTES = 64 * 1024
#: What still prints after the call, and is found neither as a child nor by its environment, does so in vain.
_DRAIN_S = 1.0


class FunctionProcessLost(AccelError):
    """The process ended before its function had returned, or answered what is no answer.

    Attributes:
        has_begun: whether the call had begun.
    """

    def __init__(self, message: str, has_begun: bool) -> None:
        super().__init__(message)
        self.has_begun = has_begun


class CallReply(NamedTuple):
    """What became of a call: a result as JSON, or one line on why there is none."""

    result: str
    error: str


class FunctionProcess:
    """A process that calls functions of one application; used by one attempt at a time.

    Args:
        key: what an attempt must have in common with those that ran in it before.
        folder: its own, with archives; deleted with it.
        environ: the environment it was started with.
    """

    def __init__(
        self,
        process: GuardedProcess,
        channel: socket.socket,
        key: object,
        folder: Path,
        environ: Mapping[str, str],
    ) -> None:
        self.process = process
        self.key = key
        self._channel = channel
        self._folder = folder
        self._environ = environ
        self._n_calls = 0
        #: Whether another call may be made in it.
        self.is_usable = True

    @property
    def is_new(self) -> bool:
        """Whether no call but the last one was made in it."""
        return self._n_calls <= 1

    def call(
        self,
        function: FunctionCall,
        folder: Path,
        environ: Mapping[str, str],
        log: tuple[FileIO, FileIO],
        feed: Callable[[bytes], None],
    ) -> CallReply:
        """Call a function in a folder; nothing that it has started runs when this returns.

        Args:
            environ: the whole environment of the call.
            log: both ends of a pipe for all that it prints; closed here.
            feed: gets what it prints.

        Raises:
            FunctionProcessLost: the process is gone.
        """
        read_end, write_end = log
        self._n_calls += 1
        self.is_usable, was_usable = False, self.is_usable
        assert was_usable
        message = {
            "call": self._n_calls,
            "function": function.function,
            "arguments": function.arguments,
            "max_result": MAX_RESULT,
            "folder": str(folder),
            "environment": {name: text for name, text in environ.items() if self._environ.get(name) != text},
        }
        with read_end:
            with write_end:
                self._send(message, write_end.fileno())
            try:
                answer = self._answer(read_end.fileno(), feed)
                is_clean = answer.get("is_clean") is True and not self.process.has_started_others()
                if not is_clean:
                    self.end()
                self.is_usable = is_clean
            finally:
                _drain(read_end.fileno(), feed)
        return _reply(answer)

    def end(self) -> None:
        """Kill it and all that it has started; returns when nothing of it runs any more."""
        self.is_usable = False
        self.process.signal(force=True)
        with contextlib.suppress(AccelError):
            self.process.wait()
        self._channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, message: dict[str, Any], log: int) -> None:
        try:
            send(self._channel, message, (log,))
        except OSError:
            raise self._lost(has_begun=False) from None

    def _answer(self, log: int, feed: Callable[[bytes], None]) -> dict[str, Any]:
        """The answer to the call; meanwhile what it prints is taken."""
        poll = select.poll()
        for fd in (log, self._channel.fileno()):
            poll.register(fd, select.POLLIN)
        raw = bytearray()
        has_begun = False
        while True:
            for fd, _ in poll.poll():
                if fd == log:
                    if text := os.read(log, _READ_BYTES):
                        feed(text)
                    else:
                        poll.unregister(log)
                    continue
                raw += self._received(has_begun)
                while (answer := self._next_answer(raw, has_begun)) is not None:
                    if answer.get("call") == self._n_calls:
                        return answer
                    has_begun = has_begun or answer.get("begun") == self._n_calls

    def _received(self, has_begun: bool) -> bytes:
        with contextlib.suppress(OSError):
            if part := self._channel.recv(_READ_BYTES):
                return part
        raise self._lost(has_begun)

    def _next_answer(self, raw: bytearray, has_begun: bool) -> dict[str, Any] | None:
        """Take an answer out of what came; None: it is not whole."""
        if len(raw) < HEADER.size:
            return None
        (n_bytes,) = HEADER.unpack_from(raw)
        if n_bytes > _MAX_REPLY_BYTES:
            raise self._lost(has_begun, f"answered with {n_bytes} bytes, {_MAX_REPLY_BYTES} are taken")
        if len(raw) < HEADER.size + n_bytes:
            return None
        body = bytes(raw[HEADER.size : HEADER.size + n_bytes])
        del raw[: HEADER.size + n_bytes]
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._lost(has_begun, "answered with what is no object in JSON")
        return found

    def _lost(self, has_begun: bool, why: str = "") -> FunctionProcessLost:
        """End the process, and say how it ended."""
        self.end()
        if not why:
            status = self.process.wait().exit_status
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            why = f"ended ({how}) before it returned"
        return FunctionProcessLost(f"the function's process {why}", has_begun)


def checked_result(text: object) -> str:
    """A result as the master takes it.

    Raises:
        AccelError: it is none.
    """
    if not isinstance(text, str) or len(text) > MAX_RESULT or not text.isascii():
        raise AccelError(f"the result is no text of at most {MAX_RESULT} ASCII characters")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise AccelError("the result is no JSON") from None
    return text


def _reply(answer: dict[str, Any]) -> CallReply:
    if "error" in answer:
        return CallReply("", str(answer["error"]))
    try:
        return CallReply(checked_result(answer.get("result")), "")
    except AccelError as error:
        return CallReply("", str(error))


def _drain(log: int, feed: Callable[[bytes], None]) -> None:
    """Take what was printed until nobody can print any more."""
    poll = select.poll()
    poll.register(log, select.POLLIN)
    until_s = time.monotonic() + _DRAIN_S
    while (left_s := until_s - time.monotonic()) > 0 and poll.poll(left_s * 1000):
        if not (text := os.read(log, _READ_BYTES)):
            return
        feed(text)
