"""Our own server and client, used as anybody would."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pipeline.peers.candidate import Address, More, Route
from benchmarks.pipeline.setting import OwnServer, connect
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.errors import AccelError
from yarn_accel.pipeline.config import CORES_MAY_SLEEP


def serve(folder: Path) -> tuple[Address, object]:
    """A server with a worker per core, by its defaults."""
    server = OwnServer(folder)
    return server.address, server


def serve_ours_asleep(folder: Path) -> tuple[Address, object]:
    """The same, but its cores sleep as the kernel likes."""
    server = OwnServer(folder, wake_latency_us=CORES_MAY_SLEEP)
    return server.address, server


class Client:
    """One connection; echo goes through all stages like any other operation."""

    def __init__(self, address: Address, route: Route) -> None:
        self._client = connect(address, route.carrier, route.checksum)
        self.carrier = self._client.carrier

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """As `EchoClient.echoes`."""
        prefix = secrets.token_hex(6)
        inputs = (Tensor.of(payload),)

        def calls() -> Iterator[Call]:
            n = 0
            while more():
                n += 1
                yield Call(f"{prefix}-{n}", "echo", {}, inputs)

        for _, outcome in self._client.map(calls(), window):
            if isinstance(outcome, AccelError):
                raise outcome
            yield outcome.tensors["input_0"].data

    def close(self) -> None:
        """Disconnect."""
        self._client.close()
