"""The agent's Unix socket: one line of JSON in, one line out.

``{"v": 1, "want": "servers"}`` returns what `heartbeat_response.local_response` makes; ``"want": "status"``
returns the last state.  The kernel identifies the caller (SO_PEERCRED).  Requests are short,
connections few and brief, and no user can use all of them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import pwd
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from yarn_accel.errors import ConfigError, StartupError

__all__ = ["LocalEndpoint", "user_ids"]

logger = logging.getLogger(__name__)

MAX_QUESTION_BYTES = 1024
MAX_CONNECTIONS = 128
MAX_PER_USER = 64
PATIENCE_S = 2.0
_UCRED = struct.Struct("3i")


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


class LocalEndpoint:
    """A Unix socket that answers local mappers.

    Args:
        path: where it listens; a socket left there by a killed agent is replaced.
        mode: its file mode.
        users: ids of the users that get answers; empty: all local users.
        answers: handlers by the value of ``want``.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        users: frozenset[int],
        answers: Mapping[str, Callable[[], dict[str, Any]]],
    ) -> None:
        self._path = path
        self._mode = mode
        self._users = users
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._open: collections.Counter[int] = collections.Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        #: How questions ended: answered, refused, bad, late, broken.
        self.counts: collections.Counter[str] = collections.Counter()

    async def open(self) -> None:
        """Listen.

        Raises:
            StartupError: something else is there, or the socket cannot be made.
        """
        try:
            if self._path.is_socket():
                self._path.unlink()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.bind(str(self._path))
                self._path.chmod(self._mode)
                sock.setblocking(False)
                self._server = await asyncio.start_unix_server(
                    self._handle, sock=sock, limit=MAX_QUESTION_BYTES, backlog=MAX_CONNECTIONS
                )
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            raise StartupError(f"{self._path}: {(error.strerror or str(error)).lower()}") from None

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(OSError):
            self._path.unlink()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        user = _user(writer)
        try:
            if self._is_allowed(user):
                self._open[user] += 1
                try:
                    await asyncio.wait_for(self._serve(reader, writer), PATIENCE_S)
                finally:
                    self._open[user] -= 1
            else:
                self.counts["refused"] += 1
        except asyncio.TimeoutError:
            self.counts["late"] += 1
        except OSError:
            self.counts["broken"] += 1
        finally:
            self._tasks.discard(task)
            # What is not sent by now is not waited for.
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    def _is_allowed(self, user: int) -> bool:
        if self._users and user not in self._users and user != 0:
            return False
        self._open += collections.Counter()  # drops the zeros
        return self._open.total() < MAX_CONNECTIONS and self._open[user] < MAX_PER_USER

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
        except ValueError:
            line = b""
        want = _wanted(line)
        if want in self._answers:
            self.counts["answered"] += 1
            document = self._answers[want]()
        else:
            self.counts["bad"] += 1
            known = ", ".join(sorted(self._answers))
            document = {"v": 1, "error": f"expected one line such as {{'v': 1, 'want': ...}}; known: {known}"}
        writer.write(json.dumps(document, allow_nan=False).encode() + b"\n")
        await writer.drain()


def _wanted(line: bytes) -> str:
    try:
        question = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(question, dict) or question.get("v") != 1:
        return ""
    return str(question.get("want", ""))


def _user(writer: asyncio.StreamWriter) -> int:
    sock = writer.get_extra_info("socket")
    _, user, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(user)
