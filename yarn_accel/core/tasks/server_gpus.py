"""GPUs of pipeline servers as places for operation tasks: which worker may use how many of them.

A worker's node has one server to begin with: its own, else the one that it is bound to. The GPUs of a server
are divided among the workers of the nodes that it serves, so that together they use no more than there are.
What cannot be divided goes round: with one GPU for four nodes each has it for every fourth turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def share_server_gpus(
    servers: ServingServers, node_of: Mapping[str, str], turn: int = 0, used: Mapping[str, int] | None = None
) -> dict[str, int]:
    """How many GPUs of its server each worker may use: equal parts, the rest by turns, its own node first.

    >>> servers = ServingServers({"w1": 3}, {"w1": "w1", "w2": "w1"})
    >>> [share_server_gpus(servers, {"a": "w2", "b": "w1", "c": "w3"}, turn) for turn in (0, 1)]
    [{'a': 1, 'b': 2, 'c': 0}, {'a': 2, 'b': 1, 'c': 0}]

    Args:
        node_of: worker -> its node.
        turn: whose turn it is, counted up.
        used: GPUs that the tasks of a worker use now, which it keeps until these end; None: none.
    """
    shares = dict.fromkeys(node_of, 0)
    users: dict[str, list[str]] = {}
    for worker, node in node_of.items():
        server = servers.server_of.get(node)
        if server is not None:
            users.setdefault(server, []).append(worker)
    for server, workers in users.items():
        workers.sort(key=lambda worker: (node_of[worker] != server, worker))
        shares.update(_shares(servers.n_gpus.get(server, 0), workers, turn, used or {}))
    return shares


def _shares(n_gpus: int, workers: Sequence[str], turn: int, used: Mapping[str, int]) -> dict[str, int]:
    each, rest = divmod(n_gpus, len(workers))
    shares = {worker: used.get(worker, 0) for worker in workers}
    n_left = n_gpus - sum(shares.values())
    for place, worker in enumerate(workers):
        wanted = each + ((place - turn * rest) % len(workers) < rest)
        n_more = max(0, min(wanted - shares[worker], n_left))
        shares[worker] += n_more
        n_left -= n_more
    return shares
