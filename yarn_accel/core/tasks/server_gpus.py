"""GPUs of pipeline servers as places for operation tasks: which worker may use how many of them.

A worker's node has one server to begin with: its own, else the one that it is bound to. The GPUs of a server
are divided among the workers of the nodes that it serves, so that together they use no more than there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServingServers:
    """The pipeline servers that serve now.

    Attributes:
        n_gpus: node of each server -> its GPUs; of a server without any, how much it computes at once.
        server_of: node -> node of the server that it asks first; a node without a server is absent.
    """

    n_gpus: Mapping[str, int] = field(default_factory=dict)
    server_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def most_gpus(self) -> int:
        """Of all servers that serve some node, the most that one has."""
        return max((self.n_gpus.get(server, 0) for server in self.server_of.values()), default=0)


def share_server_gpus(servers: ServingServers, node_of: Mapping[str, str]) -> dict[str, int]:
    """How many GPUs of its server each worker may use: equal parts, the rest to the server's own node first.

    >>> servers = ServingServers({"w1": 3}, {"w1": "w1", "w2": "w1"})
    >>> share_server_gpus(servers, {"a": "w2", "b": "w1", "c": "w3"})
    {'a': 1, 'b': 2, 'c': 0}

    Args:
        node_of: worker -> its node.
    """
    shares = dict.fromkeys(node_of, 0)
    users: dict[str, list[str]] = {}
    for worker, node in node_of.items():
        server = servers.server_of.get(node)
        if server is not None:
            users.setdefault(server, []).append(worker)
    for server, workers in users.items():
        each, rest = divmod(servers.n_gpus.get(server, 0), len(workers))
        workers.sort(key=lambda worker: (node_of[worker] != server, worker))
        for place, worker in enumerate(workers):
            shares[worker] = each + (place < rest)
    return shares
