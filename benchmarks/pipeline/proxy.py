"""A link of limited rate: a relay with a token bucket for each direction, in a process of its own.

No root is needed, as it would be for the kernel's queueing disciplines; at the rates used here (about 100
MB/s) the relay itself costs a few per cent of a core.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_BURST_S = 0.004
_PIECE_BYTES = 128 << 10


class TokenBucket:
    """Says how long to wait before bytes may pass.

    Args:
        bytes_per_s: the rate.
        burst_bytes: how much may pass at once after a pause.
    """

    def __init__(self, bytes_per_s: float, burst_bytes: float) -> None:
        self._bytes_per_s, self._burst_bytes = bytes_per_s, burst_bytes
        self._tokens = burst_bytes
        self._then_s = 0.0

    def take(self, n_bytes: int, now_s: float) -> float:
        """Take tokens, on credit if need be; the seconds until the credit is paid."""
        gained = (now_s - self._then_s) * self._bytes_per_s
        self._tokens = min(self._burst_bytes, self._tokens + gained) - n_bytes
        self._then_s = now_s
        return max(0.0, -self._tokens / self._bytes_per_s)


def _open(order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Listen; every connection is relayed to ``target_port`` at ``bytes_per_s`` in each direction."""
    listener = socket.create_server(("127.0.0.1", 0))
    target, rate = int(order["target_port"]), float(order["bytes_per_s"])

    def accept() -> None:
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", target))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_relay, args=(source, sink, rate), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return {"port": listener.getsockname()[1]}


def _relay(source: socket.socket, sink: socket.socket, rate: float) -> None:
    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bucket = TokenBucket(rate, max(rate * _BURST_S, _PIECE_BYTES))
    buffer = memoryview(bytearray(_PIECE_BYTES))
    try:
        while n_received := source.recv_into(buffer):
            time.sleep(bucket.take(n_received, time.monotonic()))
            sink.sendall(buffer[:n_received])
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


ACTS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {"open": _open}
