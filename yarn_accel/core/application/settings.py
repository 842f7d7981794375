"""The settings of the application: the table of roles, and its times.

The table of roles says which containers run on which nodes; a new kind of container is a new row. A container
tells its row by its *priority*: every row has its own, the RM returns it with each container, and NMs report
it after a restart of the RM. So the row is known for containers of earlier attempts, too.
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
        is_server: its status reports decide whether its node is an ANode; one row at most.
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
    """All rows, checked.

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
        """The row with this priority; None: no row has it."""
        return self._by_priority.get(priority)


@dataclass(frozen=True, slots=True)
class Settings:
    """Times after which something counts as failed or is repeated.

    Attributes:
        silence_s: a server without a report for so long loses its bindings.
        guest_after_s: an accelerator node without a server for so long is bound like a node without
            accelerator.
        settle_s: a later attempt collects reports for so long before it publishes its first binding, so that
            servers which report one after the other do not make every node move.
        recall_s: it collects for at most so much longer, until the RM has listed all nodes and every server
            that nodes are published as bound to has reported: published bindings are restored. Agents that
            could not reach the master for a while reconnect in that time; so, after a stall of `silence_s`
            or more, no silence counts before it is over.
        first_delay_s: back-off after the second failure in a row (none after the first); then it doubles.
        max_delay_s: bound of the back-off.
        healthy_s: a container that was well for so long begins with a clean record.
        ask_again_s: a request without an answer is repeated after so long.
        launch_limit_s: a launch neither confirmed nor refused counts as failed.
        check_after_s: the NM is queried whenever a container has not reported for so long.
        check_gone_s: the NM is queried at once about a container whose process is dead, then after so long,
            then after twice as long each time: the NM knows of the end before the RM does.
        hung_s: a container that is unhealthy for so long, on a node that can be reached, is replaced.
        stop_again_s: a command to stop is repeated after so long.
        forget_s: a stopped container whose end is not confirmed for so long is forgotten.
        drain_grace_s: a server is drained at least so long: its clients learn of their new one meanwhile,
            which takes an agent's heartbeat (1 s) and the time a mapper keeps an answer (2 s).
        drain_limit_s: a server is drained at most so long.
        stop_drain_s: the same limit when the whole application stops.
        stop_limit_s: the application unregisters so long after `StopRequested`, whatever is not done yet.
        restore_after_s: slots get their configured values when there is no server for so long.
        slots_again_s: slots that are not confirmed are set again after so long.
        slots_kept_s: a node's slots stay unchanged for so long while it waits for a container.
        recovery_s: a node that complete reports lack is gone after so long, counted from the last
            registration or from the first of these reports: a restarted RM may not have it back yet.
        register_again_s: registering and unregistering are repeated after so long.
        idle_release_s: a server that had no request for so long, while nobody asked for servers, gives its
            container back; it returns when somebody asks. 0: servers stay.
        has_slots: whether slots are set at all.
        n_history: how many of the last events are kept for people.
    """

    silence_s: float = 3.0
    guest_after_s: float = 10.0
    settle_s: float = 2.0
    recall_s: float = 5.0
    first_delay_s: float = 1.0
    max_delay_s: float = 300.0
    healthy_s: float = 30.0
    ask_again_s: float = 60.0
    launch_limit_s: float = 30.0
    check_after_s: float = 30.0
    check_gone_s: float = 0.1
    hung_s: float = 120.0
    stop_again_s: float = 5.0
    forget_s: float = 30.0
    drain_grace_s: float = 5.0
    drain_limit_s: float = 60.0
    stop_drain_s: float = 10.0
    stop_limit_s: float = 60.0
    restore_after_s: float = 10.0
    slots_again_s: float = 10.0
    slots_kept_s: float = 5.0
    recovery_s: float = 60.0
    register_again_s: float = 10.0
    idle_release_s: float = 0.0
    has_slots: bool = True
    n_history: int = 500
