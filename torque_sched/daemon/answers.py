"""Answers questions of users from the last look, so that they need not ask pbs_server.

The loop takes connections, a few at a time and for each user; a question is answered by a child of this
process, which has all the daemon knows as it is at that moment, and gives way to it. So a cycle waits neither
for who asks nor for the answer: it costs one fork.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torque_sched.adapters.answer_socket import (
    ANSWER_BYTES,
    QUESTION_BYTES,
    line_of,
    listen,
    mapping_of,
    peer_uid,
)
from torque_sched.adapters.waiting import within
from torque_sched.daemon.config import Config
from torque_sched.daemon.process import be_called
from torque_sched.decide.context import Context, PendingStart
from torque_sched.decide.settings import Settings
from torque_sched.errors import StartupError
from torque_sched.learn import History
from torque_sched.model.snapshot import Snapshot

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_FAULT = {"fault": "the answer failed, which is a fault of ours: see the scheduler's log"}


@dataclass(frozen=True, slots=True)
class LastLook:
    """What an answer is made of: the last cycle's look, and what the daemon knew then."""

    snapshot: Snapshot
    settings: Settings
    context: Context
    history: History
    """The daemon's own, as it is when the answer is made."""
    started: tuple[PendingStart, ...]
    """What that cycle started."""
    config: Config
    journal: Path
    state: Path
    """The state file of this daemon."""
    at_monotonic_s: float


Teller = Callable[[LastLook, Mapping[str, Any], int], Mapping[str, Any]]
"""Makes the answer to a question of a user, whose id is the last argument; runs in a child."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What who asks may take.

    Attributes:
        n_connections: open at the same time; further ones are closed at once.
        n_of_user: of one user.
        n_children: answers made at the same time, one for each user.
        accepted_at_once: taken in one go, then none for ``pause_s``.
        read_s: for the whole question.
        answer_s: for making and taking the answer; a child also gets no more CPU time.
    """

    n_connections: int = 64
    n_of_user: int = 8
    n_children: int = 2
    accepted_at_once: int = 16
    pause_s: float = 0.05
    read_s: float = 5.0
    answer_s: float = 30.0


class AnswerPort:
    """The daemon's end of the socket.

    Args:
        home: the PBS home.
        teller: gives what makes the answers; called once, when it is first needed, in a thread.
        limits: what who asks may take.
        on_wake: root, or the daemon's own account, has changed something: run a cycle soon.

    Raises:
        StartupError: the socket cannot be made.
    """

    def __init__(
        self,
        home: Path,
        teller: Callable[[], Teller],
        limits: AnswerLimits = AnswerLimits(),
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.last: LastLook | None = None
        """Set after each cycle."""
        self._listener = listen(home)
        self._new_teller = teller
        self._teller: Teller | None = None
        self._limits = limits
        self._on_wake = on_wake
        self._of_user: Counter[int] = Counter()
        self._turns: dict[int, asyncio.Lock] = {}
        self._children = asyncio.Semaphore(limits.n_children)
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to listen; in the running loop."""
        self._later = None
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Close the socket and end what is being answered."""
        asyncio.get_running_loop().remove_reader(self._listener)
        if self._later is not None:
            self._later.cancel()
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(self._limits.accepted_at_once):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                break
            self._take(connection)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._later = loop.call_later(self._limits.pause_s, self.start)

    def _take(self, connection: socket.socket) -> None:
        try:
            uid = peer_uid(connection)
        except OSError:
            connection.close()
            return
        limits = self._limits
        if len(self._tasks) >= limits.n_connections or self._of_user[uid] >= limits.n_of_user:
            _refuse(connection)
            return
        connection.setblocking(False)
        self._of_user[uid] += 1
        task = asyncio.ensure_future(self._serve(connection, uid))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, uid: int) -> None:
        try:
            line = await within(self._limits.read_s, self._line(connection))
            question = mapping_of(line)
            if question.get("ask") == "wake":
                if uid in {0, os.geteuid()}:
                    self._on_wake()
                return
            if self._teller is None:
                self._teller = await asyncio.to_thread(self._new_teller)
            async with self._turns.setdefault(uid, asyncio.Lock()), self._children:
                await self._answer(connection, question, uid)
        except (OSError, ValueError, asyncio.TimeoutError):
            pass
        finally:
            connection.close()
            self._of_user[uid] -= 1
            if not self._of_user[uid]:
                del self._of_user[uid]
                self._turns.pop(uid, None)

    async def _line(self, connection: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()
        line = b""
        while not line.endswith(b"\n"):
            part = await loop.sock_recv(connection, QUESTION_BYTES + 1 - len(line))
            line += part
            if not part or len(line) > QUESTION_BYTES:
                raise ValueError("no question in one line of bounded length")
        return line

    async def _answer(self, connection: socket.socket, question: Mapping[str, Any], uid: int) -> None:
        last, teller = self.last, self._teller
        assert teller is not None
        if last is None:
            await asyncio.get_running_loop().sock_sendall(connection, line_of({"refused": "no look yet"}))
            return
        deadline_s = time.monotonic() + self._limits.answer_s
        pid = os.fork()
        if pid == 0:
            _child(connection, lambda: teller(last, question, uid), self._limits.answer_s)
        try:
            while time.monotonic() < deadline_s:
                if _has_ended(pid):
                    pid = 0
                    return
                await asyncio.sleep(_POLL_S)
        finally:
            _end(pid)


def _has_ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def _end(pid: int) -> None:
    """End a child that has not ended; 0: it has."""
    if pid:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _refuse(connection: socket.socket) -> None:
    """Say that there are too many, if that takes no time."""
    with connection, suppress(OSError):
        connection.setblocking(False)
        connection.send(line_of({"busy": True}))


def _child(connection: socket.socket, tell: Callable[[], Mapping[str, Any]], limit_s: float) -> None:
    """Make the answer, send it and end; nothing of the daemon's is closed, written or waited for."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        be_called("torque-answers")
        logging.disable()
        gc.disable()
        _keep_only(connection.fileno())
        os.nice(10)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 1))
        connection.settimeout(limit_s)
        try:
            data = line_of(tell())
        except Exception as error:  # noqa: BLE001 -- whoever asked is to know
            data = line_of({**_FAULT, "error": f"{error!r:.500}"})
        if len(data) > ANSWER_BYTES:
            data = line_of({"refused": f"the answer is longer than {ANSWER_BYTES} bytes"})
        connection.sendall(data)
    finally:
        os._exit(0)


def _keep_only(kept: int) -> None:
    """Close what else is open: a lock that is shared with the daemon must not live longer than it."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- of numbers
        if int(name) > 2 and int(name) != kept:
            with suppress(OSError):
                os.close(int(name))


def open_port(
    home: Path, teller: Callable[[], Teller], on_wake: Callable[[], None] = lambda: None
) -> AnswerPort | None:
    """The port, where it can be made; otherwise the log says what to do, and all else goes on."""
    try:
        return AnswerPort(home, teller, on_wake=on_wake)
    except StartupError as error:
        logger.warning("users' questions are not answered: %s", error)
        return None
