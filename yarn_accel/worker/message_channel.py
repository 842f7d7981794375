"""Messages between the processes of a worker: JSON after four bytes of length, descriptors beside it."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEADER = struct.Struct("!I")
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_FDS = 4


def send(channel: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send a message with descriptors."""
    body = json.dumps(message).encode()
    raw = HEADER.pack(len(body)) + body
    n_sent = socket.send_fds(channel, [raw], list(fds)) if fds else 0
    channel.sendall(raw[n_sent:])


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """A message and its descriptors; None when the other end is gone."""
    header, fds, _, _ = socket.recv_fds(channel, HEADER.size, _FDS)
    header += _exactly(channel, HEADER.size - len(header)) if header else b""
    if len(header) < HEADER.size:
        return None
    (n_bytes,) = HEADER.unpack(header)
    if n_bytes > _MAX_MESSAGE_BYTES:
        return None
    body = _exactly(channel, n_bytes)
    return (json.loads(body), fds) if len(body) == n_bytes else None


def _exactly(channel: socket.socket, n_bytes: int) -> bytes:
    parts = []
    while n_bytes and (part := channel.recv(min(n_bytes, 1 << 20))):
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)
