"""Unix sockets for users of this node, with lines of JSON; the kernel identifies the caller (SO_PEERCRED).

`LocalEndpoint` answers one question per connection. The agent answers ``{"v": 1, "want": "servers"}`` with
what `heartbeat_response.local_response` makes, and ``"want": "status"`` with the last state; the master's is
in `master.credential_endpoint`. The agent's second socket is `late_binding.ClaimSocket`.

Nothing that comes is trusted: lines are short, and the first one comes soon. Connections that have not asked
yet are few; when there are too many, the user with most of them loses the oldest.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import pwd
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from yarn_accel.errors import ConfigError, RemoteProtocolError, StartupError

#: Bounds of the connections that have not asked yet, and how long each may take to ask.
MAX_CONNECTIONS = 128
MAX_PER_USER = 64
FIRST_LINE_S = 2.0
_MAX_QUESTION_BYTES = 1024
_UCRED = struct.Struct("3i")
_OVERFLOW_UID_FILE = Path("/proc/sys/kernel/overflowuid")
_OVERFLOW_UID = 65534
#: Makes the answer to a question of a user, given the uid and the question.
Handler = Callable[[int, Mapping[str, Any]], "dict[str, Any] | Awaitable[dict[str, Any]]"]


def user_ids(names: tuple[str, ...]) -> frozenset[int]:
    """The numbers of these users.

    Raises:
        ConfigError: there is no such user.
    """
    found = set()
    for name in names:
        try:
            found.add(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise ConfigError(f"socket_users: this node has no user {name!r}") from None
    return frozenset(found)


def overflow_uid() -> int:
    """The user id that the kernel reports for processes of other user namespaces: it may be anybody's."""
    try:
        return int(_OVERFLOW_UID_FILE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _OVERFLOW_UID


class LocalSocket:
    """A Unix socket that bounds how many connections of each user have not asked yet.

    Args:
        path: where it listens; a socket left there by a killed process is replaced.
        mode: its file mode.
        users: ids of the users that are admitted; empty: all local users.
        max_line_bytes: of a line that comes.

    Attributes:
        counts: how connections ended, by outcome: refused, displaced, broken, and those of `serve`.
    """

    def __init__(self, path: Path, mode: int, users: frozenset[int], max_line_bytes: int) -> None:
        self._path = path
        self._mode = mode
        self._users = users
        self._max_line_bytes = max_line_bytes
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # Those that have not asked yet, by user, the oldest first.
        self._pending: dict[int, dict[asyncio.Task[None], None]] = {}
        self.counts = collections.Counter[str]()

    async def serve(
        self, pid: int, user: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Serve one connection to its end; returns its outcome, empty where it is counted already."""
        raise NotImplementedError

    async def open(self) -> None:
        """Listen.

        Raises:
            StartupError: something else is there, or the socket cannot be made.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._path.is_socket():
                self._path.unlink()
            sock.bind(str(self._path))
            self._path.chmod(self._mode)
            sock.setblocking(False)
            self._inode = self._path.lstat().st_ino
            self._server = await asyncio.start_unix_server(
                self._handle, sock=sock, limit=self._max_line_bytes, backlog=MAX_CONNECTIONS
            )
        except OSError as error:
            sock.close()
            raise StartupError(f"{self._path}: {(error.strerror or str(error)).lower()}") from None
        except BaseException:
            sock.close()
            raise

    async def close(self) -> None:
        """Stop listening, close all connections, and remove the socket unless a successor has replaced it."""
        if self._server is None:
            return
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        pid, user, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if not self._admits(user):
            self.counts["refused"] += 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._pending.setdefault(user, {})[task] = None
        try:
            if outcome := await self.serve(pid, user, reader, writer):
                self.counts[outcome] += 1
        except asyncio.CancelledError:
            # If raised, asyncio before Python 3.12 logs a traceback.
            self.counts["displaced"] += 1
        except OSError:
            self.counts["broken"] += 1
        finally:
            self._tasks.discard(task)
            self.asked(user)
            # Data that is not sent by now is not waited for.
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            writer.close()

    def asked(self, user: int) -> None:
        """The current connection, of this user, has asked: it does not count any more."""
        own, task = self._pending.get(user, {}), asyncio.current_task()
        if task is not None:
            own.pop(task, None)
        if not own:
            self._pending.pop(user, None)

    def _admits(self, user: int) -> bool:
        """Whether one more of this user may ask; if need be, the user with most loses the oldest."""
        if self._users and user not in self._users and user != 0:
            return False
        n_own = len(self._pending.get(user, ()))
        if n_own >= MAX_PER_USER:
            return False
        if sum(map(len, self._pending.values())) < MAX_CONNECTIONS:
            return True
        most = max(self._pending.values(), key=len)
        if len(most) <= n_own + 1:
            return False
        next(iter(most)).cancel()
        return True


class LocalEndpoint(LocalSocket):
    """Answers local mappers: one line in, one line out. Outcomes: answered, bad, late.

    Args:
        path, mode, users: as of `LocalSocket`.
        answers: handlers by the value of ``want``.
    """

    def __init__(self, path: Path, mode: int, users: frozenset[int], answers: Mapping[str, Handler]) -> None:
        super().__init__(path, mode, users, _MAX_QUESTION_BYTES)
        self._answers = answers

    async def serve(
        self, pid: int, user: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Answer the one question."""
        try:
            await asyncio.wait_for(self._answer(user, reader, writer), FIRST_LINE_S)
        except asyncio.TimeoutError:
            return "late"
        return ""

    async def _answer(self, user: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = _document(await reader.readline())
        except (ValueError, RemoteProtocolError):
            question = {}
        handler = self._answers.get(str(question.get("want", ""))) if question.get("v") == 1 else None
        if handler is not None:
            self.counts["answered"] += 1
            answer = handler(user, question)
            document = answer if isinstance(answer, dict) else await answer
        else:
            self.counts["bad"] += 1
            known = ", ".join(sorted(self._answers))
            document = {"v": 1, "error": f"expected one line such as {{'v': 1, 'want': ...}}; known: {known}"}
        writer.write(json.dumps(document, allow_nan=False).encode() + b"\n")
        await writer.drain()


async def read_line(reader: asyncio.StreamReader) -> Mapping[str, Any] | None:
    """The next line; None at the end.

    Raises:
        ValueError: it is too long.
        RemoteProtocolError: it is no object of JSON.
    """
    line = await reader.readline()
    return _document(line) if line.endswith(b"\n") else None


def _document(line: bytes) -> Mapping[str, Any]:
    document = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(line)
    if not isinstance(document, dict):
        raise RemoteProtocolError("claim: a line that is no object of JSON")
    return document
