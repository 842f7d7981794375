"""The Unix socket at which the daemon answers questions: where it is, and one JSON line each way.

It lies in a folder of its own below the PBS home, in which only the daemon's account writes, so that nobody
else can put a socket there. Everybody may connect; who does, the kernel tells. All lengths are bounded
before memory is taken.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torque_sched.errors import StartupError

SOCKET_FOLDER = "sched_answers"
"""Below the PBS home."""
_NAME = "socket"
_BACKLOG = 64
QUESTION_BYTES = 16 << 10
ANSWER_BYTES = 8 << 20
_CREDENTIALS = struct.Struct("=iII")


def listen(home: Path) -> socket.socket:
    """A listening socket that does not block, in the place of one left by a daemon before.

    Raises:
        StartupError: there is no such folder and none can be made, or others may write to it.
    """
    folder = home / SOCKET_FOLDER
    cure = f"as root: install -d -m 755 -o USER {folder}, USER being the scheduler's"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o755)
        with _opened(folder, {0, os.geteuid()}) as place:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                with suppress(FileNotFoundError):
                    os.unlink(place)  # noqa: PTH108 -- a name in an open folder
                made.bind(place)
                os.chmod(place, 0o666)  # noqa: PTH101
                made.listen(_BACKLOG)
            except OSError:
                made.close()
                raise
    except OSError as error:
        raise StartupError(f"{folder}: {error.strerror or error}", cure=cure) from error
    return made


@contextmanager
def _opened(folder: Path, owners: set[int]) -> Iterator[str]:
    """The socket's name through the open folder: links are not followed, and its length does not matter."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid not in owners or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"it belongs to uid {status.st_uid}, or others may write to it")
        yield f"/proc/self/fd/{fd}/{_NAME}"
    finally:
        os.close(fd)


def peer_uid(connection: socket.socket) -> int:
    """Who is at the other end, by the kernel's word.

    Raises:
        OSError: it is gone.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def line_of(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def mapping_of(line: bytes) -> dict[str, Any]:
    """A message as it was sent.

    Raises:
        ValueError: it is none.
    """
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(message, dict) or not line.endswith(b"\n"):
        raise ValueError("not a JSON mapping in one line")
    return message


def ask(home: Path, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any] | None:
    """The answer of the daemon of this home; None: there is no daemon, or it gives none in time.

    Args:
        home: the PBS home.
        question: at most `QUESTION_BYTES` as a line.
        timeout_s: for all of it.

    Raises:
        BlockingIOError: more ask than it listens to.
    """
    try:
        # Its account need not be known: who can make the folder could also put a qstat in our way.
        owner = os.lstat(home / SOCKET_FOLDER).st_uid
        with (
            _opened(home / SOCKET_FOLDER, {owner}) as place,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            deadline_s = time.monotonic() + timeout_s
            connection.settimeout(timeout_s)
            connection.connect(place)
            connection.sendall(line_of(question))
            return mapping_of(_read_line(connection, deadline_s))
    except BlockingIOError:
        raise
    except (OSError, ValueError):
        return None


def _read_line(connection: socket.socket, deadline_s: float) -> bytes:
    parts: list[bytes] = []
    n_bytes = 0
    while n_bytes <= ANSWER_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        part = connection.recv(1 << 16)
        if not part:
            break
        parts.append(part)
        n_bytes += len(part)
    return b"".join(parts)
