"""What runs in the processes of this benchmark: one server, or one client that measures on command.

``python -m benchmarks.pipeline.child server|client|bench|inference|relay NAME``, NAME a candidate; ``bench``
computes without a server, see `lapack`, ``inference`` is a process of the benchmark `inference`, ``relay``
is a link of limited rate. Orders come in and answers go out as lines of JSON on stdin and stdout. Whatever a
library prints goes to stderr, which is a log file.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from benchmarks.pipeline.peers.candidate import EchoClient, More, Route

MODULES: Mapping[str, str] = {
    "bare": "bare",
    "ours": "ours",
    "ours-asleep": "ours",
    "grpc": "grpc_stream",
    "flight": "flight_exchange",
    "ray": "ray_actor",
    "dask": "dask_submit",
    "zmq": "zmq_router",
    "triton": "triton_model",
}
_ACTING: Mapping[str, str] = {"bench": "benchmarks.pipeline.lapack", "inference": "benchmarks.inference"}
"""The modules with the orders of the other roles."""
_BURST_S = 0.004
_PIECE_BYTES = 128 << 10
_WARM_UP_S = 0.1
_SLOW_S = 0.25
"""Whoever needs longer for one request is not filled with a window of them only to warm up."""
Act = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""What an order does: its values in, the answer's out; both fit for JSON."""


def _module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.pipeline.peers.{MODULES[name]}")


def _say(out: TextIO, value: Mapping[str, Any]) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


def _serve(name: str, out: TextIO) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        module = _module(name)
        # One that is measured in two forms has a function for the other one.
        serve = getattr(module, f"serve_{name.replace('-', '_')}", module.serve)
        address, service = serve(Path(folder))
        _say(out, {"address": address})
        sys.stdin.read()  # until the parent closes it, or is gone
        if hasattr(service, "close"):
            service.close()


class _Session:
    """A connected client with its payload and window."""

    def __init__(self, client: EchoClient, payload: Any, window: int) -> None:
        self.client, self.payload, self.window = client, payload, window

    def echoes(self, more: More) -> Iterator[Any]:
        return self.client.echoes(self.payload, more, self.window)


class _Measuring:
    """The clients of this process by the name of their candidate; one of them works at a time."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._sessions: dict[str, _Session] = {}
        self._payload: Any = None

    def prepare(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Connect, make the payload, warm up, and see that it comes back as it went."""
        import numpy as np

        n_bytes, window = int(order["n_bytes"]), int(order["window"])
        if self._payload is None or len(self._payload) != n_bytes:
            self._payload = np.random.default_rng(os.getpid()).integers(0, 256, n_bytes, dtype=np.uint8)
        route = Route(str(order["carrier"]), str(order["checksum"]))
        client: EchoClient = _module(self._program).Client(order["address"], route)
        session = self._sessions[order["name"]] = _Session(client, self._payload, window)
        first_s = self._warm(session, 1, 0.0)
        if first_s < _SLOW_S:
            self._warm(session, window + 1, _WARM_UP_S)
        return {"carrier": getattr(client, "carrier", route.carrier)}

    def _warm(self, session: _Session, n_least: int, for_s: float) -> float:
        """Requests whose first and last answer are looked at; the seconds they took."""
        start_s = time.monotonic()
        answer = None
        for n, answer in enumerate(session.echoes(_counted(n_least, start_s + for_s))):
            if n == 0:
                _check(self._payload, answer)
        took_s = time.monotonic() - start_s
        _check(self._payload, answer)
        return took_s

    def go(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Measure from one moment on; all clients of a run share it.

        Each fills its window at least: who hears of it late would send nothing else.
        """
        session = self._sessions[order["name"]]
        start_s = float(order["start_s"])
        time.sleep(max(0.0, start_s - time.monotonic()))
        times_s = [time.monotonic()]
        tick, now = times_s.append, time.monotonic
        until_s = start_s + float(order["duration_s"])
        cpu_s = time.process_time()
        for _ in session.echoes(_counted(session.window, until_s)):
            tick(now())
        gaps_s = sorted(later - before for before, later in pairwise(times_s)) or [0.0]
        return {
            "n": len(times_s) - 1,
            "end_s": times_s[-1],
            "cpu_s": time.process_time() - cpu_s,
            "median_s": statistics.median(gaps_s),
            "p99_s": gaps_s[int(0.99 * (len(gaps_s) - 1))],
        }

    def end(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Disconnect all and forget the payload."""
        for session in self._sessions.values():
            session.client.close()
        self._sessions.clear()
        self._payload = None
        return {}


def _counted(n: int, until_s: float) -> More:
    """At least `n` requests, and on until a moment."""
    asked = iter(range(n))
    return lambda: next(asked, None) is not None or time.monotonic() < until_s


def _check(payload: Any, answer: Any) -> None:
    import numpy as np

    returned = np.frombuffer(answer, dtype=np.uint8)
    if not np.array_equal(returned, payload):
        raise ValueError("the answer is not what was sent")


def _take_orders(acts: Mapping[str, Act], out: TextIO) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = acts[order["act"]](order)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(out, answer)


# ---- a link of limited rate
#
# A relay with a token bucket for each direction. No root is needed, as it would be for the kernel's queueing
# disciplines; at the rates used here (about 100 MB/s) the relay itself costs a few per cent of a core.


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


def _main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    role, name = sys.argv[1:3]
    if role == "server":
        _serve(name, out)
    elif role == "client":
        measuring = _Measuring(name)
        _take_orders({"prepare": measuring.prepare, "go": measuring.go, "end": measuring.end}, out)
        with contextlib.suppress(Exception):
            measuring.end({})
    elif role == "relay":
        _take_orders({"open": _open}, out)
    else:
        _take_orders(importlib.import_module(_ACTING[role]).ACTS, out)
    out.flush()
    os._exit(0)  # some libraries wait here for threads of theirs, or for nothing


if __name__ == "__main__":
    _main()
