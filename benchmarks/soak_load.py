"""The load of the soak: clients that come, ask for this and that at a steady pace, and go; some die."""

from __future__ import annotations

import collections
import contextlib
import random
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError
from yarn_accel.wire import ClientConnection, Request, TensorSpec
from yarn_accel.wire.credential import Credential, issue

#: Tenant and its weight.
TENANTS = {"alice": 1.0, "bob": 2.0, "carol": 4.0}
_CREDENTIAL_S = 7200
_MEAN_LIFE_S = 8.0
_DIES_MID_FRAME = 0.15
_ECHO_BYTES = (64, 4096, 65536, 1 << 20, 4 << 20)
_ORDERS = (16, 48, 100, 200, 400)
_CHECKED_ORDER = 100
_LOCAL_SHARE = 0.6


class Pace:
    """How many calls a second all clients together begin; adjusted to the load that is wanted."""

    def __init__(self, calls_per_s: float) -> None:
        self.calls_per_s = calls_per_s
        self._lock = threading.Lock()
        self._next_s = time.monotonic()

    def wait(self, stop: threading.Event) -> None:
        """Wait for this caller's turn."""
        with self._lock:
            now_s = time.monotonic()
            # What was missed is not caught up: a late crowd would arrive all at once.
            self._next_s = max(self._next_s, now_s - 0.05) + 1.0 / self.calls_per_s
            wait_s = self._next_s - now_s
        if wait_s > 0:
            stop.wait(wait_s)

    def adjust(self, load: float, wanted: float) -> None:
        """Change the pace a little, having seen `load`; what was in the queue is felt for a while yet."""
        self.calls_per_s *= min(1.2, max(0.8, (wanted / max(load, 0.01)) ** 0.3))


@dataclass
class Tally:
    """What the crowd saw; counts by name."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str) -> None:
        """Count one."""
        with self.lock:
            self.counts[name] += 1


class Crowd:
    """Clients coming and going, `n_clients` at a time.

    Args:
        endpoint: the server.
        master: the site's master secret, to issue credentials.
        n_clients: how many at a time.
        pace: what they keep to, together.
    """

    def __init__(self, endpoint: Endpoint, master: bytes, n_clients: int, pace: Pace) -> None:
        self.tally = Tally()
        self._endpoint = endpoint
        self._pace = pace
        self._stop = threading.Event()
        self._credentials = [
            issue(master, tenant, int(time.time()) + _CREDENTIAL_S, "soak") for tenant in TENANTS
        ]
        self._threads = [
            threading.Thread(target=self._place, args=(number,), name=f"soak-{number}", daemon=True)
            for number in range(n_clients)
        ]

    def start(self) -> None:
        """Let them come."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let them finish and go."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60.0)

    def _place(self, number: int) -> None:
        """One place in the crowd: a client, then the next one."""
        rng = random.Random(number)
        while not self._stop.is_set():
            credential = rng.choice(self._credentials)
            try:
                self._one_life(rng, credential)
            except (AccelError, OSError) as error:  # the latter: nobody listens any more
                self.tally.add(f"connection: {type(error).__name__}")
                self._stop.wait(0.2)

    def _one_life(self, rng: random.Random, credential: Credential) -> None:
        is_local = rng.random() < _LOCAL_SHARE
        until_s = time.monotonic() + rng.expovariate(1 / _MEAN_LIFE_S)
        self.tally.add("clients that came")
        with Client(self._endpoint, credential, node=None if is_local else "elsewhere") as client:
            while time.monotonic() < until_s and not self._stop.is_set():
                self._pace.wait(self._stop)
                call, check = _some_call(rng)
                try:
                    reply = client.call(call)
                except AccelError as error:
                    self.tally.add(f"answer: {type(error).__name__}")
                    continue
                self.tally.add("answers")
                if not check(reply):
                    self.tally.add("wrong answers")
            if rng.random() < _DIES_MID_FRAME:
                self._die_mid_frame(rng, credential)

    def _die_mid_frame(self, rng: random.Random, credential: Credential) -> None:
        """What is seen of a client killed while it sends: part of a frame, then the end of the connection."""
        with socket.create_connection((self._endpoint.host, self._endpoint.port), 10) as sock:
            sock.settimeout(10)
            connection = ClientConnection(credential, rng.randbytes(32), ("crc32",))
            with contextlib.suppress(OSError):
                while connection.welcome is None:
                    for part in connection.data_to_send():
                        sock.sendall(part)
                    connection.receive_data(sock.recv(65536))
                    connection.next_event()
                request = Request(
                    1, f"dead-{rng.getrandbits(64)}", "echo", {}, (TensorSpec("|u1", (1 << 20,)),)
                )
                frame = b"".join(bytes(part) for part in connection.send(request, [bytes(1 << 20)]))
                sock.sendall(frame[: rng.randrange(1, len(frame))])
        self.tally.add("clients that died mid-frame")


def _some_call(rng: random.Random) -> tuple[Call, Any]:
    """A call, and what tells whether its reply is right."""
    key = f"{rng.getrandbits(64):x}"
    operation = rng.choice(("echo", "echo", "lu", "qr", "cholesky", "gemm", "kmeans"))
    numbers = np.random.default_rng(rng.getrandbits(32))
    if operation == "echo":
        data = np.frombuffer(rng.randbytes(4096) * -(-rng.choice(_ECHO_BYTES) // 4096), "u1")
        return Call(key, "echo", {}, (Tensor.of(data),)), lambda reply: _same(_first(reply), data)
    if operation == "kmeans":
        points = numbers.standard_normal((500, 8))
        return Call(key, "kmeans", {"k": 4, "seed": 1}, (Tensor.of(points),)), lambda reply: bool(
            reply.tensors
        )
    n = rng.choice(_ORDERS)
    a = np.asfortranarray(numbers.standard_normal((n, n)))
    if operation == "cholesky":
        a = np.asfortranarray(a @ a.T + n * np.eye(n))
    if operation == "gemm":
        return Call(key, "gemm", {}, (Tensor.of(a), Tensor.of(a))), lambda reply: _near(
            _first(reply), a @ a, n
        )
    return Call(key, operation, {}, (Tensor.of(a),)), lambda reply: _is_factored(operation, reply, a, n)


def _is_factored(operation: str, reply: Reply, a: Any, n: int) -> bool:
    if n > _CHECKED_ORDER or operation == "lu":
        return bool(reply.tensors)
    if operation == "qr":
        return _near(reply.tensors["q"].array() @ reply.tensors["r"].array(), a, n)
    lower = np.tril(_first(reply))
    return _near(lower @ lower.T, a, n)


def _first(reply: Reply) -> Any:
    return next(iter(reply.tensors.values())).array()


def _same(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(found, expected))


def _near(found: Any, expected: Any, n: int) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-10 * n * max(1.0, np.abs(expected).max()))
