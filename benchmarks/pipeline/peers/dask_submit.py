"""Dask: a function submitted with its argument; large arguments are scattered straight to the worker.

Two workers of one thread, as our server has. Dask has no carrier of its own for the same node: it is TCP.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask

from benchmarks.pipeline.peers.candidate import Address, More, Route, in_turn

distributed: Any = importlib.import_module("distributed")  # it carries half of its types, which is worse
_SCATTERED_BYTES = 512 << 10


def echo(payload: Any) -> Any:
    """The argument; workers import it by name."""
    return payload


def serve(folder: Path) -> tuple[Address, object]:
    """A scheduler and two workers."""
    dask.config.set({"temporary-directory": str(folder)})
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0
    )
    return {"address": cluster.scheduler_address}, cluster


class Client:
    """A client with its event loop in a thread, as everybody uses it."""

    carrier = "tcp"

    def __init__(self, address: Address, route: Route) -> None:
        self._client = distributed.Client(address["address"], set_as_default=False, direct_to_workers=True)

    def _submit(self, payload: Any) -> Any:
        if len(payload) >= _SCATTERED_BYTES:
            payload = self._client.scatter(payload, direct=True, hash=False)
        return self._client.submit(echo, payload, pure=False)

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """As `EchoClient.echoes`."""
        return in_turn(
            lambda: self._submit(payload),
            lambda future: self._client.gather(future, direct=True),
            more,
            window,
        )

    def close(self) -> None:
        """Disconnect."""
        self._client.close()
