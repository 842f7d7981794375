"""A Unix socket for users of this node: one line of JSON in, one line out.

The agent's answers ``{"v": 1, "want": "servers"}`` with what `heartbeat_response.local_response` makes, and
``"want": "status"`` with the last state; the master's is in `master.credential_endpoint`.  The kernel
identifies the caller (SO_PEERCRED).  Requests are short, connections few and brief, and when there are too
many, the user with most of them loses the oldest.
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
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from yarn_accel.errors import ConfigError, StartupError

logger = logging.getLogger(__name__)

MAX_QUESTION_BYTES = 1024
MAX_CONNECTIONS = 128
MAX_PER_USER = 64
PATIENCE_S = 2.0
_UCRED = struct.Struct("3i")
_OVERFLOW_UID_FILE = Path("/proc/sys/kernel/overflowuid")
_OVERFLOW_UID = 65534
#: What makes the answer to a question of a user, given the uid and the question.
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
    """Whom the kernel names where a process of another user namespace connects: that may be anybody."""
    try:
        return int(_OVERFLOW_UID_FILE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _OVERFLOW_UID


def bound_socket(path: Path, mode: int) -> tuple[socket.socket, int]:
    """A Unix socket at a path, in the place of one left there, and its inode.

    Raises:
        OSError: something else is there, or it cannot be made.
    """
    if path.is_socket():
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        path.chmod(mode)
        sock.setblocking(False)
        return sock, path.lstat().st_ino
    except BaseException:
        sock.close()
        raise


def remove_socket(path: Path, inode: int) -> None:
    """Remove a socket, unless a successor has put its own there already."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()


def peer_of(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """Process and user id at the other end, as the kernel has them since the connection was made."""
    sock = writer.get_extra_info("socket")
    pid, user, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(pid), int(user)


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
        answers: Mapping[str, Handler],
    ) -> None:
        self._path = path
        self._mode = mode
        self._users = users
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._inode = 0
        # By user, the oldest first.
        self._tasks: dict[int, dict[asyncio.Task[None], None]] = {}
        #: How questions ended: answered, refused, bad, late, broken.
        self.counts: collections.Counter[str] = collections.Counter()

    async def open(self) -> None:
        """Listen.

        Raises:
            StartupError: something else is there, or the socket cannot be made.
        """
        try:
            sock, self._inode = bound_socket(self._path, self._mode)
            try:
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
        tasks = [task for some in self._tasks.values() for task in some]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        remove_socket(self._path, self._inode)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, user = peer_of(writer)
        if not self._is_allowed(user):
            self.counts["refused"] += 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.setdefault(user, {})[task] = None
        try:
            await asyncio.wait_for(self._serve(user, reader, writer), PATIENCE_S)
        except asyncio.TimeoutError:
            self.counts["late"] += 1
        except asyncio.CancelledError:
            # It is counted as displaced. If raised, asyncio before Python 3.12 logs a traceback.
            return
        except OSError:
            self.counts["broken"] += 1
        finally:
            del self._tasks[user][task]
            if not self._tasks[user]:
                del self._tasks[user]
            # What is not sent by now is not waited for.
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    def _is_allowed(self, user: int) -> bool:
        """Whether there is a place for a user; if need be, the one with most places loses the oldest."""
        if self._users and user not in self._users and user != 0:
            return False
        n_own = len(self._tasks.get(user, ()))
        if n_own >= MAX_PER_USER:
            return False
        if sum(map(len, self._tasks.values())) < MAX_CONNECTIONS:
            return True
        most = max(self._tasks.values(), key=len)
        if len(most) <= n_own + 1:
            return False
        next(iter(most)).cancel()
        self.counts["displaced"] += 1
        return True

    async def _serve(self, user: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = _question(await reader.readline())
        except ValueError:
            question = {}
        handler = self._answers.get(str(question.get("want", "")))
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


def _question(line: bytes) -> dict[str, Any]:
    """The question in a line; an empty one where there is none of this version."""
    try:
        question = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return question if isinstance(question, dict) and question.get("v") == 1 else {}
