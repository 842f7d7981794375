"""ZeroMQ: a ROUTER that sends back what DEALERs send it, over ipc or tcp; frames are not copied."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

from benchmarks.pipeline.peers.candidate import Address, More, Route, in_turn


def serve(folder: Path) -> tuple[Address, object]:
    """One router on both carriers, in a thread of its own."""
    router = _unbounded(zmq.Context.instance().socket(zmq.ROUTER))
    ipc = f"ipc://{folder / 'zmq.sock'}"
    router.bind(ipc)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    threading.Thread(target=_send_back, args=(router,), daemon=True).start()
    return {"unix": ipc, "tcp": f"tcp://127.0.0.1:{port}"}, None


def _unbounded(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    socket.set_hwm(0)
    socket.linger = 0
    return socket


def _send_back(router: zmq.Socket[bytes]) -> None:
    with contextlib.suppress(zmq.ZMQError):
        while True:
            router.send_multipart(router.recv_multipart(copy=False), copy=False)


class Client:
    """A DEALER; answers come in the order of the requests."""

    def __init__(self, address: Address, route: Route) -> None:
        self._socket = _unbounded(zmq.Context.instance().socket(zmq.DEALER))
        self._socket.connect(address["tcp" if route.carrier == "tcp" else "unix"])

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """As `EchoClient.echoes`."""
        return in_turn(
            lambda: self._socket.send(payload, copy=False),
            lambda _: self._socket.recv(copy=False).buffer,
            more,
            window,
        )

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
