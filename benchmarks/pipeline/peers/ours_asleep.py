"""Our own server with cores that sleep as the kernel likes; the same client."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.peers.candidate import Address
from benchmarks.pipeline.peers.ours import Client as Client
from yarn_accel.pipeline.config import CORES_MAY_SLEEP


def serve(folder: Path) -> tuple[Address, object]:
    """A server with a worker per core, by its defaults but for that."""
    server = OwnServer(folder, wake_latency_us=CORES_MAY_SLEEP)
    return server.address, server
