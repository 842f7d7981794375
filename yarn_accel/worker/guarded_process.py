"""The worker's end of the guard: starts commands, signals them and waits for them; safe between threads."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from yarn_accel.errors import StartupError, UnavailableError
from yarn_accel.worker.message_channel import receive, send

#: Names the attempt that a process belongs to, to the process and to the guard.
ATTEMPT_VARIABLE = "mapreduce_task_attempt_id"

_END_S = 10.0


class ProcessEnd(NamedTuple):
    """The end of a command.

    Attributes:
        exit_status: of its first process, negative for a signal.
        read_bytes: what that process has read, with all children for which it waited; from caches, too.
    """

    exit_status: int
    read_bytes: int


class GuardedProcess:
    """A command that runs, and whatever it has started."""

    def __init__(self, guard: Guard, number: int, pid: int, status: Future[ProcessEnd]) -> None:
        self._guard = guard
        self._number = number
        self._status = status
        #: Of its first process, which is the number of its session.
        self.pid = pid

    def wait(self) -> ProcessEnd:
        """Its end, once nothing of it runs any more.

        Raises:
            UnavailableError: the guard is gone.
        """
        return self._status.result()

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._status.done()

    def signal(self, force: bool) -> None:
        """Send SIGTERM, or SIGKILL, to all its processes."""
        self._guard.signal(self._number, force)


class Guard:
    """The guard's process.

    Args:
        on_lost: called from another thread when it is gone without having been asked to.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._n_started = 0
        self._starts: dict[int, Future[int]] = {}
        self._statuses: dict[int, Future[ProcessEnd]] = {}
        self._is_closing = False
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "yarn_accel.worker.guard", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # What ends this process's group must not end the one that cleans up after it.
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(each or str(Path.cwd()) for each in sys.path),
                },
            )
        self._listener = threading.Thread(target=self._listen, name="guard", daemon=True)
        self._listener.start()

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        fds: tuple[int, int, int],
        mark: str = ATTEMPT_VARIABLE,
        own: Collection[str] = (),
    ) -> GuardedProcess:
        """Start a command in a session of its own.

        Args:
            fds: its standard input, output and error; the caller closes its own copies.
            mark: the variable of `env` by which what it starts is known as its own.
            own: all variables of `env` that another command of its kind would not have, or not so; without
                any it is never forked.

        Raises:
            StartupError: there is no such program, or it may not be run.
            UnavailableError: the guard is gone.
        """
        started: Future[int] = Future()
        status: Future[ProcessEnd] = Future()
        with self._lock:
            self._n_started += 1
            number = self._n_started
            self._starts[number], self._statuses[number] = started, status
            message = {"start": number, "argv": list(argv), "env": dict(env), "cwd": str(cwd), "mark": mark}
            message["own"] = list(own)
            self._send(message, fds)
        return GuardedProcess(self, number, started.result(), status)

    def signal(self, number: int, force: bool) -> None:
        """Send SIGTERM, or SIGKILL, to all processes of a command; it may have ended."""
        with self._lock, contextlib.suppress(UnavailableError):
            self._send({"signal": number, "force": force})

    def close(self) -> None:
        """End all commands, and the guard."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._channel.close()

    def _send(self, message: dict[str, object], fds: tuple[int, ...] = ()) -> None:
        try:
            send(self._channel, message, fds)
        except OSError as error:
            raise UnavailableError(f"the guard of this worker is gone: {error}") from None

    def _listen(self) -> None:
        try:
            while (received := receive(self._channel)) is not None:
                self._take(received[0])
        except OSError:
            pass  # as at its end
        gone = UnavailableError("the guard of this worker is gone")
        with self._lock:
            waiting: list[Future[Any]] = [*self._starts.values(), *self._statuses.values()]
            self._starts, self._statuses = {}, {}
        for future in waiting:
            future.set_exception(gone)
        if not self._is_closing:
            self._on_lost()

    def _take(self, message: dict[str, object]) -> None:
        number = int(str(message["number"]))
        with self._lock:
            if "status" in message:
                end = ProcessEnd(int(str(message["status"])), int(str(message["read_bytes"])))
                self._statuses.pop(number).set_result(end)
            elif "pid" in message:
                self._starts.pop(number).set_result(int(str(message["pid"])))
            else:
                self._statuses.pop(number)
                self._starts.pop(number).set_exception(StartupError(str(message["error"])))
