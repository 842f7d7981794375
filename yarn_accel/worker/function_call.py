"""One call of a function in a process that runs already, and what the process answers.

The process belongs to the function: whatever it sends is checked and bounded. Its answer is
``{"call": N, "result": JSON, "is_clean": ...}`` or the same with ``error``. All that it prints comes through
one pipe. A call has begun once its message was taken: the kernel tells of a message that never was.
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
from yarn_accel.worker.process_tree import bytes_read

_MAX_REPLY_BYTES = 4 * MAX_RESULT
_READ_BYTES = 64 * 1024
#: So long what a process prints is taken after it was ended, and after it said that it has ended a call.
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
        log: the end of a pipe from which all that it prints is read.
        key: what an attempt must have in common with those that ran in it before.
        folder: its own, with archives; deleted with it.
        environ: the environment it was started with.

    Attributes:
        bytes_read: what it had read when its last call ended, or when it was started.
    """

    def __init__(
        self,
        process: GuardedProcess,
        channel: socket.socket,
        log: int,
        key: object,
        folder: Path,
        environ: Mapping[str, str],
    ) -> None:
        self.process = process
        self.key = key
        self._channel = channel
        self._log = FileIO(log, "r")
        self._folder = folder
        self._environ = environ
        self._n_calls = 0
        self._feed: Callable[[bytes], None] = _ignored
        self.bytes_read = bytes_read([process.pid])
        #: Whether another call may be made in it.
        self.is_usable = True

    @property
    def is_new(self) -> bool:
        """Whether no call but the last one was made in it."""
        return self._n_calls <= 1

    def call(
        self, function: FunctionCall, folder: Path, environ: Mapping[str, str], feed: Callable[[bytes], None]
    ) -> CallReply:
        """Call a function in a folder; nothing that it has started runs when this returns.

        Args:
            environ: the whole environment of the call.
            feed: gets what it prints.

        Raises:
            FunctionProcessLost: the process is gone.
        """
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
        self._feed = feed
        try:
            self._send(message)
            answer = self._answer()
            self.bytes_read = bytes_read([self.process.pid])
            if answer.get("is_clean") is True:
                self._drain(0.0)
                self.is_usable = True
            else:
                self.end()
        finally:
            self._feed = _ignored
        return _reply(answer)

    def end(self) -> None:
        """Kill it and all that it has started; returns when nothing of it runs any more."""
        self.is_usable = False
        self.process.signal(force=True)
        with contextlib.suppress(AccelError):
            self.process.wait()
        self._channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self._log.closed:
            with self._log:
                self._drain(_DRAIN_S)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            send(self._channel, message)
        except OSError:
            raise self._lost(has_begun=False) from None

    def _answer(self) -> dict[str, Any]:
        """The answer to the call; meanwhile what the process prints is taken."""
        log = self._log.fileno()
        poll = select.poll()
        for fd in (log, self._channel.fileno()):
            poll.register(fd, select.POLLIN)
        raw = bytearray()
        while True:
            for fd, _ in poll.poll():
                if fd == log:
                    if text := os.read(log, _READ_BYTES):
                        self._feed(text)
                    else:
                        poll.unregister(log)
                    continue
                raw += self._received()
                while (answer := self._next_answer(raw)) is not None:
                    if answer.get("call") == self._n_calls:
                        return answer

    def _received(self) -> bytes:
        try:
            part = self._channel.recv(_READ_BYTES)
        except ConnectionResetError:  # it ended with the message, or a part of it, in its socket
            raise self._lost(has_begun=False) from None
        except OSError:
            part = b""
        if not part:
            raise self._lost(has_begun=True)
        return part

    def _drain(self, limit_s: float) -> None:
        """Take what was printed: what is there, and for a time what comes until nobody can print."""
        poll = select.poll()
        poll.register(self._log.fileno(), select.POLLIN)
        now_s = time.monotonic()
        until_s = now_s + limit_s
        # Who prints without end, and says that it is clean, is not waited for either.
        while now_s <= until_s + _DRAIN_S and poll.poll(1000 * max(0.0, until_s - now_s)):
            if not (text := os.read(self._log.fileno(), _READ_BYTES)):
                return
            self._feed(text)
            now_s = time.monotonic()

    def _next_answer(self, raw: bytearray) -> dict[str, Any] | None:
        """Take an answer out of what came; None: it is not whole."""
        if len(raw) < HEADER.size:
            return None
        (n_bytes,) = HEADER.unpack_from(raw)
        if n_bytes > _MAX_REPLY_BYTES:
            raise self._lost(True, f"answered with {n_bytes} bytes, {_MAX_REPLY_BYTES} are taken")
        if len(raw) < HEADER.size + n_bytes:
            return None
        body = bytes(raw[HEADER.size : HEADER.size + n_bytes])
        del raw[: HEADER.size + n_bytes]
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._lost(True, "answered with what is no object in JSON")
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


def _ignored(text: bytes) -> None:
    """Nobody wants to know what is printed between calls."""
