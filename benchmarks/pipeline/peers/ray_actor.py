"""Ray: actors that return their argument, next to the caller (shared object store) or on another node (TCP).

Two raylets on this machine are two nodes with an object store each. Two actors on each, as our server has two
workers.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pipeline.peers.candidate import Address, More, Route, in_turn

ray: Any = importlib.import_module("ray")  # its types do not know what `remote` makes
_NAMESPACE = "bench"
_STORE_BYTES = 3 << 30
_N_ACTORS = 2


class _Echo:
    def echo(self, payload: Any) -> Any:
        return payload


class _Service:
    """The cluster and its actors."""

    def __init__(self) -> None:
        node: dict[str, Any] = {"num_cpus": _N_ACTORS, "object_store_memory": _STORE_BYTES}
        head = {**node, "include_dashboard": False, "resources": {"near": _N_ACTORS}}
        self._cluster = importlib.import_module("ray.cluster_utils").Cluster(
            initialize_head=True, head_node_args=head
        )
        self._cluster.add_node(**node, resources={"far": _N_ACTORS})
        self.address = str(self._cluster.address)
        ray.init(self.address, namespace=_NAMESPACE, log_to_driver=False, configure_logging=False)
        kind = ray.remote(_Echo)
        self._actors = [
            kind.options(name=f"{place}-{at}", num_cpus=1, resources={place: 1}).remote()
            for place in ("near", "far")
            for at in range(_N_ACTORS)
        ]
        ray.get([actor.echo.remote(b"") for actor in self._actors])

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


def serve(folder: Path) -> tuple[Address, object]:
    """Bring up the two nodes and four actors."""
    service = _Service()
    return {"address": service.address}, service


class Client:
    """A driver on the head node, connected once per process: Ray cannot do it twice cheaply."""

    def __init__(self, address: Address, route: Route) -> None:
        if not ray.is_initialized():
            ray.init(address["address"], namespace=_NAMESPACE, log_to_driver=False, configure_logging=False)
        self.carrier = "tcp" if route.carrier == "tcp" else "memory"
        place = "far" if self.carrier == "tcp" else "near"
        self._actor = ray.get_actor(f"{place}-{os.getpid() % _N_ACTORS}")

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """As `EchoClient.echoes`; small arguments travel with the call, large ones through the store."""
        return in_turn(lambda: self._actor.echo.remote(payload), ray.get, more, window)

    def close(self) -> None:
        """The driver stays for the next run."""
