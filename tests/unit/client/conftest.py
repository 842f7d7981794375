"""A scripted server: a thread that uses the protocol over a real socket and does what the test says."""

import contextlib
import mmap
import os
import socket
import threading
import time

import pytest

from yarn_accel import wire
from yarn_accel.client.binding import Endpoint
from yarn_accel.errors import AuthenticationError, RemoteProtocolError

MASTER = bytes(range(32))


class Peer:
    """The server's end of one accepted connection."""

    def __init__(self, sock, master=MASTER, max_lent_bytes=0, capabilities=()):
        self.sock = sock
        is_lending = sock.family == socket.AF_UNIX and max_lent_bytes
        capabilities = (wire.MEMFD,) if is_lending else capabilities
        lends = {"capabilities": capabilities, "max_lent_bytes": max_lent_bytes}
        checksums = ("xxh3", "crc32", "none")
        self.connection = wire.ServerConnection(master, b"s" * 32, time.time(), "w1", checksums, **lends)
        self.payload = b""
        self.segments = {}
        self.given_back = []

    def next_event(self):
        while True:
            try:
                event = self.connection.next_event()
            finally:
                for part in self.connection.data_to_send():
                    self.sock.sendall(part)
            if self.connection.payload_left and isinstance(event, wire.Request):
                buffer = bytearray(self.connection.payload_left)
                self.connection.take_payload([memoryview(buffer)])
                while not isinstance(self.connection.next_event(), wire.PayloadComplete):
                    self.connection.receive_data(self.sock.recv(65536))
                self.payload = bytes(buffer)
            if isinstance(event, wire.GiveBack):
                self.given_back.append(event.segment)
            elif event is wire.NEED_DATA:
                self.connection.receive_data(self.sock.recv(65536))
            else:
                return event

    def send(self, message, payload=()):
        self.sock.sendall(b"".join(bytes(part) for part in self.connection.send(message, payload)))

    def answer(self, request, data=b"xyz", **changes):
        tensors = (wire.NamedTensor("out", wire.TensorSpec("|u1", (len(data),))),)
        result = wire.Result(request.id, {}, tensors, "w1", "cpu", {}, 3, len(data))
        self.send(result._replace(**changes), [data])

    def lend(self, asked, n_bytes, segment=None):
        """Lend a new segment; asked: the id of the Lend, 0 for an answer."""
        number = len(self.segments) + 1 if segment is None else segment
        fd = os.memfd_create("segment")
        try:
            os.ftruncate(fd, n_bytes)
            self.segments[number] = mmap.mmap(fd, n_bytes)
            [frame] = self.connection.send(wire.Lent(asked, number, n_bytes))
            socket.send_fds(self.sock, [frame], [fd])
        finally:
            os.close(fd)
        return number

    def next_request(self):
        """The next request; what the client asks for meanwhile is granted."""
        while True:
            event = self.next_event()
            if not isinstance(event, wire.Lend):
                return event
            self.lend(event.id, event.n_bytes)

    def inputs(self, request):
        """The bytes of each input, wherever they are."""
        sizes = [spec.nbytes for spec in request.inputs]
        if request.placement is None:
            ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
            return [self.payload[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        memory = self.segments[request.placement.segment]
        return [memory[at : at + n] for at, n in zip(request.placement.offsets, sizes, strict=True)]

    def answer_in(self, segment, request, offset, data):
        """Put an answer into a segment."""
        self.segments[segment][offset : offset + len(data)] = data
        tensors = (wire.NamedTensor("out", wire.TensorSpec("|u1", (len(data),))),)
        placement = wire.Placement(segment, (offset,))
        self.send(wire.Result(request.id, {}, tensors, "w1", "cpu", {}, 3, len(data), placement))


@pytest.fixture
def serve(tmp_path):
    """A function that runs a script for each connection in turn and returns the endpoint."""
    threads, listeners, failures = [], [], []

    def run(listener, scripts, master, wrap, options):
        try:
            for script in scripts:
                sock, _ = listener.accept()
                sock.settimeout(60)
                with sock if wrap is None else wrap(sock) as own:
                    peer = Peer(own, master, **options)
                    with contextlib.suppress(AuthenticationError, RemoteProtocolError):
                        peer.next_event()
                        script(peer)
        except Exception as error:  # noqa: BLE001 -- shown at the end of the test
            failures.append(error)

    def serve(*scripts, master=MASTER, unix=False, wrap=None, **options):
        path = str(tmp_path / f"socket{len(threads)}") if unix else ""
        if unix:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen()
        else:
            listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(60)
        listeners.append(listener)
        thread = threading.Thread(target=run, args=(listener, scripts, master, wrap, options))
        thread.start()
        threads.append(thread)
        if unix:
            return Endpoint("w1", "", 0, path)
        return Endpoint("w1", "127.0.0.1", listener.getsockname()[1])

    yield serve
    for thread in threads:
        thread.join(120)
    for listener in listeners:
        listener.close()
    assert not failures
