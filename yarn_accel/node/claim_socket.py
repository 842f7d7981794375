"""The agent's second Unix socket, at which mappers claim places: a connection for each claim, while it lasts.

Lines of JSON, as in `late_binding.messages`. Nothing that comes is trusted: lines are short, few in a second,
and the first one comes soon; connections that have not asked yet are few, and the user with most of them
loses the oldest. What closes is a lost claim, so a killed mapper's place is free at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from yarn_accel.errors import AccelError, RemoteProtocolError, StartupError
from yarn_accel.node.local_endpoint import bound_socket, peer_of, remove_socket

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 4096
MAX_PENDING = 128
MAX_PENDING_PER_USER = 64
FIRST_LINE_S = 2.0
_MAX_LINES_PER_S = 50
_MAX_UNSENT_BYTES = 65536


class ClaimHandler(Protocol):
    """What makes of the lines of mappers claims of a node."""

    def greeting(self) -> Mapping[str, Any]:
        """The first line to a mapper."""
        ...

    async def asked(self, connection: ClaimConnection, question: Mapping[str, Any]) -> None:
        """Its first line; raises AccelError where it gets no place for what it says there."""
        ...

    def said(self, connection: ClaimConnection, message: Mapping[str, Any]) -> None:
        """A later line."""
        ...

    def closed(self, connection: ClaimConnection) -> None:
        """It is gone; only after `asked` was called."""
        ...


class ClaimConnection:
    """One mapper.

    Attributes:
        pid, uid: of the process that connected, as the kernel says.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.pid, self.uid = peer_of(writer)
        self._writer = writer

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line; who does not read loses the connection."""
        if self._writer.is_closing():
            return
        self._writer.write(json.dumps(message, allow_nan=False).encode() + b"\n")
        if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self._writer.transport.abort()

    def close(self) -> None:
        """Send what is not sent yet if that goes at once, and close."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        self._writer.close()


class ClaimSocket:
    """Listens.

    Args:
        users: ids of the users that get places; empty: all local users.
    """

    def __init__(self, path: Path, mode: int, users: frozenset[int], handler: ClaimHandler) -> None:
        self._path = path
        self._mode = mode
        self._users = users
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # Those that have not asked yet, by user, the oldest first.
        self._pending: dict[int, dict[asyncio.Task[None], None]] = {}
        #: How connections ended: closed, refused, displaced, silent, oversized, flooding, bad, broken.
        self.counts = Counter[str]()

    async def open(self) -> None:
        """Listen.

        Raises:
            StartupError: something else is there, or the socket cannot be made.
        """
        try:
            sock, self._inode = bound_socket(self._path, self._mode)
            try:
                self._server = await asyncio.start_unix_server(
                    self._handle, sock=sock, limit=MAX_LINE_BYTES, backlog=MAX_PENDING
                )
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            raise StartupError(f"{self._path}: {(error.strerror or str(error)).lower()}") from None

    async def close(self) -> None:
        """Stop listening, close all connections and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        remove_socket(self._path, self._inode)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ClaimConnection(writer)
        if not self._has_place(connection.uid):
            self.counts["refused"] += 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._pending.setdefault(connection.uid, {})[task] = None
        outcome = "broken"
        try:
            outcome = await self._serve(connection, task, reader)
        except asyncio.CancelledError:
            outcome = "displaced"
        except OSError:
            pass
        finally:
            self.counts[outcome] += 1
            self._tasks.discard(task)
            self._asked(connection.uid, task)
            connection.close()

    def _has_place(self, uid: int) -> bool:
        """Whether one more of this user may ask; if need be, the user with most loses the oldest."""
        if self._users and uid not in self._users and uid != 0:
            return False
        n_own = len(self._pending.get(uid, ()))
        if n_own >= MAX_PENDING_PER_USER:
            return False
        if sum(map(len, self._pending.values())) < MAX_PENDING:
            return True
        most = max(self._pending.values(), key=len)
        if len(most) <= n_own + 1:
            return False
        next(iter(most)).cancel()
        return True

    def _asked(self, uid: int, task: asyncio.Task[None]) -> None:
        own = self._pending.get(uid, {})
        own.pop(task, None)
        if not own:
            self._pending.pop(uid, None)

    async def _serve(
        self, connection: ClaimConnection, task: asyncio.Task[None], reader: asyncio.StreamReader
    ) -> str:
        """One mapper from its first line to its last; how that ended."""
        connection.send(self._handler.greeting())
        try:
            question = await asyncio.wait_for(_line(reader), FIRST_LINE_S)
        except asyncio.TimeoutError:
            return "silent"
        except (RemoteProtocolError, ValueError) as error:
            return self._refused(connection, error)
        if question is None:
            return "closed"
        try:
            await self._handler.asked(connection, question)
            self._asked(connection.uid, task)
            return await self._listen(connection, reader)
        except AccelError as error:
            return self._refused(connection, error)
        finally:
            self._handler.closed(connection)

    async def _listen(self, connection: ClaimConnection, reader: asyncio.StreamReader) -> str:
        second, n_lines = 0, 0
        while True:
            try:
                message = await _line(reader)
            except ValueError:
                return "oversized"
            except RemoteProtocolError:
                return "bad"
            if message is None:
                return "closed"
            now = int(time.monotonic())
            second, n_lines = now, n_lines + 1 if now == second else 1
            if n_lines > _MAX_LINES_PER_S:
                return "flooding"
            self._handler.said(connection, message)

    def _refused(self, connection: ClaimConnection, error: Exception) -> str:
        code = error.code if isinstance(error, AccelError) else "oversized"
        connection.send({"refused": code, "message": str(error)[:500]})
        return "bad" if isinstance(error, AccelError) else "oversized"


async def _line(reader: asyncio.StreamReader) -> Mapping[str, Any] | None:
    """The next line; None at the end.

    Raises:
        ValueError: it is too long.
        RemoteProtocolError: it is no object of JSON.
    """
    line = await reader.readline()
    if not line.endswith(b"\n"):
        return None
    document = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(line)
    if not isinstance(document, dict):
        raise RemoteProtocolError("claim: a line that is no object of JSON")
    return document
