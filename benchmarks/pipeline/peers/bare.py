"""The bound: a socket, a length, the bytes; two threads at each end and buffers used again and again.

A frame is eight bytes of length, the payload, and with ``xxh3`` eight bytes of XXH3-64 of it, which every
receiver verifies and every sender computes anew, as a server does that cannot trust what it was sent. With a
window of one there is nothing to overlap, so one thread at each end does it all.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from xxhash import xxh3_64_intdigest

from benchmarks.pipeline.peers.candidate import Address, More, Route, at_once
from yarn_accel.errors import RemoteProtocolError

_LENGTH = struct.Struct("<Q")
_UNIX_BUFFER_BYTES = 4 << 20
_HELLO = struct.Struct("<QI?")  # the largest payload, the window, whether with xxh3


def serve(folder: Path) -> tuple[Address, object]:
    """Listen on both carriers; a thread accepts for each, and each connection has its own threads."""
    path = str(folder / "bare.sock")
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.bind(path)
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.bind(("127.0.0.1", 0))
    for listener in (unix, tcp):
        listener.listen(16)
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return {"path": path, "port": tcp.getsockname()[1]}, (unix, tcp)


class _Free:
    """The buffers that nobody uses; the one given back last goes out first, while caches still hold it."""

    def __init__(self, n_bytes: int, n: int) -> None:
        self._buffers = [memoryview(bytearray(n_bytes)) for _ in range(n)]
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(n):
            self._tokens.put(None)

    def get(self) -> memoryview:
        self._tokens.get()
        return self._buffers.pop()

    def put(self, buffer: memoryview) -> None:
        self._buffers.append(buffer)
        self._tokens.put(None)


def close(listeners: object) -> None:
    """Stop listening, and wake whoever waits in accept: after a bare close the thread would go on there, and
    take its number for whatever this process opens next."""
    for listener in cast("tuple[socket.socket, ...]", listeners):
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            connection = _tuned(listener.accept()[0])
        except OSError:
            return  # closed: see close()
        threading.Thread(target=_serve_one, args=(connection,), daemon=True).start()


def _serve_one(connection: socket.socket) -> None:
    hello = bytearray(_HELLO.size)
    receive_exactly(connection, memoryview(hello))
    n_bytes, window, is_checked = _HELLO.unpack(hello)
    free = _Free(n_bytes, window)
    filled: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
    if window > 1:
        threading.Thread(target=_send_back, args=(connection, filled, free, is_checked), daemon=True).start()
    try:
        while True:
            buffer = free.get()
            receive_frame(connection, buffer, is_checked)
            if window > 1:
                filled.put(buffer)
            else:
                send_frame(connection, buffer, is_checked)
                free.put(buffer)
    except (RemoteProtocolError, OSError):
        filled.put(None)
        if window == 1:
            connection.close()


def _send_back(
    connection: socket.socket,
    filled: queue.SimpleQueue[memoryview | None],
    free: _Free,
    is_checked: bool,
) -> None:
    try:
        while (buffer := filled.get()) is not None:
            send_frame(connection, buffer, is_checked)
            free.put(buffer)
    except OSError:
        pass  # the client has gone; the receiving thread notices, too
    connection.close()


def send_frame(connection: socket.socket, payload: memoryview, is_checked: bool) -> None:
    """Send one frame."""
    parts = [memoryview(_LENGTH.pack(len(payload))), payload]
    if is_checked:
        parts.append(memoryview(_LENGTH.pack(xxh3_64_intdigest(payload))))
    while parts:
        n_sent = connection.sendmsg(parts)
        while parts and n_sent >= len(parts[0]):
            n_sent -= len(parts.pop(0))
        if parts and n_sent:
            parts[0] = parts[0][n_sent:]


def receive_frame(connection: socket.socket, buffer: memoryview, is_checked: bool) -> None:
    """Receive one frame of exactly the buffer's length.

    Raises:
        RemoteProtocolError: the peer has gone, or sent another length or checksum.
    """
    word = memoryview(bytearray(8))
    receive_exactly(connection, word)
    if _LENGTH.unpack(word)[0] != len(buffer):
        raise RemoteProtocolError("a frame of another length")
    receive_exactly(connection, buffer)
    if is_checked:
        receive_exactly(connection, word)
        if _LENGTH.unpack(word)[0] != xxh3_64_intdigest(buffer):
            raise RemoteProtocolError("the checksum is wrong")


def receive_exactly(connection: socket.socket, buffer: memoryview) -> None:
    """Fill the buffer.

    Raises:
        RemoteProtocolError: the peer has gone.
    """
    n_left = len(buffer)
    while n_left:
        n_received = connection.recv_into(buffer[-n_left:], n_left, socket.MSG_WAITALL)
        if not n_received:
            raise RemoteProtocolError("the peer has gone")
        n_left -= n_received


def _tuned(connection: socket.socket) -> socket.socket:
    if connection.family == socket.AF_INET:
        connection.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # its buffers it sizes itself, and better
    else:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER_BYTES)
    return connection


class Client:
    """The other end. The connection and the buffers of both ends are kept from run to run."""

    def __init__(self, address: Address, route: Route) -> None:
        self._address, self._route = address, route
        self._connection: socket.socket | None = None
        self._answer = memoryview(b"")

    def _connected(self, n_bytes: int, window: int) -> socket.socket:
        if self._connection is None:
            is_tcp = self._route.carrier == "tcp"
            connection = socket.socket(socket.AF_INET if is_tcp else socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(("127.0.0.1", self._address["port"]) if is_tcp else self._address["path"])
            self._connection = _tuned(connection)
            self._connection.sendall(_HELLO.pack(n_bytes, window, self._route.checksum == "xxh3"))
            self._answer = memoryview(bytearray(n_bytes))
        return self._connection

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[memoryview]:
        """As `EchoClient.echoes`; all answers share one buffer, and the first run fixes length and window."""
        view = memoryview(payload).cast("B")
        connection = self._connected(len(view), window)
        is_checked = self._route.checksum == "xxh3"
        if window == 1:
            while more():
                send_frame(connection, view, is_checked)
                yield self._received(connection, is_checked)
        else:
            yield from at_once(
                lambda: send_frame(connection, view, is_checked),
                lambda: self._received(connection, is_checked),
                more,
                window,
            )

    def _received(self, connection: socket.socket, is_checked: bool) -> memoryview:
        receive_frame(connection, self._answer, is_checked)
        return self._answer

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
