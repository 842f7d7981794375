"""The table of roles: which containers run on which nodes.  A new kind of container is a new row.

A container says to which row it belongs by its *priority*: every row has its own, the RM gives it back with
each container, and NMs report it after a restart of the RM, so it is known for containers of previous
attempts too.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from yarn_accel.errors import ConfigError


class NodeSelector(enum.Enum):
    """The nodes that get one container of a role each; `NodesChosen` names those of CHOSEN."""

    ACCELERATOR = "accelerator"
    EVERY = "every"
    CHOSEN = "chosen"


class RestartPolicy(enum.Enum):
    """Whether a container that ended by itself is replaced."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"


@dataclass(frozen=True, slots=True)
class RoleResource:
    """The resources of a role's container.

    Attributes:
        other: amounts of custom resource types, such as ``(("acct/memory", 4),)``.
        whole: custom types of which it gets all that the node has, such as ``yarn.io/gpu``; a node without
            any is asked for none.
    """

    memory_mib: int
    vcores: int = 1
    other: tuple[tuple[str, int], ...] = ()
    whole: tuple[str, ...] = ()

    def on(self, capability: Mapping[str, int]) -> dict[str, int]:
        """The vector to ask for on a node that has `capability`, by YARN's names of the types."""
        vector = {"memory-mb": self.memory_mib, "vcores": self.vcores, **dict(self.other)}
        vector.update((name, capability[name]) for name in self.whole if capability.get(name))
        return vector


@dataclass(frozen=True, slots=True)
class ContainerRole:
    """One row: at most one container of it on a node.

    Attributes:
        priority: YARN priority of its requests, different in every row, 0..1000.
        is_server: what it says about itself decides whether its node is an ANode; one row at most.
    """

    name: str
    where: NodeSelector
    resource: RoleResource
    priority: int
    restart: RestartPolicy = RestartPolicy.ALWAYS
    is_server: bool = False

    def fits(self, is_accelerator: bool) -> bool:
        """Whether such a node gets a container of this role by what it is."""
        return self.where is NodeSelector.EVERY or (is_accelerator and self.where is NodeSelector.ACCELERATOR)


class RoleTable:
    """The checked table.

    Raises:
        ConfigError: two rows with one name or priority, or two rows of servers.
    """

    def __init__(self, rows: Iterable[ContainerRole]) -> None:
        self._rows = tuple(rows)
        self._by_priority = {role.priority: role for role in self._rows}
        names = [role.name for role in self._rows]
        if len(set(names)) < len(names):
            raise ConfigError(f"roles: two rows have the same name: {', '.join(sorted(names))}")
        if len(self._by_priority) < len(names):
            raise ConfigError(
                "roles: two rows have the same priority",
                cure="give each its own: it tells whose a container is after a restart",
            )
        servers = [role for role in self._rows if role.is_server]
        if len(servers) > 1:
            raise ConfigError(f"roles: more than one row of servers: {', '.join(r.name for r in servers)}")
        self.server = servers[0] if servers else None

    def __iter__(self) -> Iterator[ContainerRole]:
        return iter(self._rows)

    def of_priority(self, priority: int) -> ContainerRole | None:
        """The row that asks with this priority; None: no row does."""
        return self._by_priority.get(priority)
