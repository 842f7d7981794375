"""Which nodes have a worker of which size: one container per node and size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from yarn_accel.adapters.hadoop_rpc.records import NodeReport
from yarn_accel.core.application import RoleResource
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.core.tasks.worker_nodes import WorkerNodes
from yarn_accel.master.credentials import worker_name
from yarn_accel.master.inventory import Inventory, attribute_of


@dataclass(frozen=True, slots=True)
class SizePlaces:
    """Where workers of one size may be.

    Attributes:
        role: of its containers; also the name of the size.
        nodes: chooses among them.
        usable: nodes that are large enough, the best first.
        priority: of its containers.
    """

    role: str
    nodes: WorkerNodes
    usable: Callable[[], Iterable[str]]
    priority: int = -1


class WorkerPlaces:
    """The workers of all sizes.

    Args:
        choose: gets a role and the nodes that are to have a container of it, whenever these change.
    """

    def __init__(self, sizes: Sequence[SizePlaces], choose: Callable[[str, frozenset[str]], None]) -> None:
        self._sizes = {size.role: size for size in sizes}
        self._choose = choose
        self._wanted: dict[str, int] = {}
        self._chosen: dict[str, frozenset[str]] = {}

    @property
    def n_wanted(self) -> int:
        """Workers that are wanted, of all sizes."""
        return sum(self._wanted.values())

    @property
    def nodes(self) -> list[str]:
        """The nodes that are to have a worker."""
        return sorted(frozenset[str]().union(*self._chosen.values()))

    def worker(self, role: str, node: str) -> ResourceId | None:
        """The worker in a container of that role; None: the role is not one of workers."""
        return ResourceId(worker_name(role, node)) if role in self._sizes else None

    def worker_of(self, priority: int, node: str) -> ResourceId | None:
        """The worker in a container of that priority; None: it is not one of workers."""
        roles = (role for role, size in self._sizes.items() if size.priority == priority)
        role = next(roles, None)
        return None if role is None else self.worker(role, node)

    def role_of(self, worker: str, node: str) -> str | None:
        """The role of a worker of this name on that node; None: it may not be there."""
        return next((role for role in self._sizes if worker == worker_name(role, node)), None)

    def want(self, counts: Iterable[tuple[str, int]]) -> None:
        """Set how many workers of each size are wanted."""
        self._wanted = dict(counts)

    def release(self, worker: ResourceId) -> None:
        """Give up the node of a worker that is not wanted any more, or was lost."""
        for role, size in self._sizes.items():
            for node in size.nodes.chosen:
                if worker_name(role, node) == worker:
                    size.nodes.release(node)

    def choose(self, present: Mapping[str, str], preferred: Collection[str], now_s: float) -> None:
        """Choose nodes for the workers that are wanted.

        Args:
            present: workers that are to stay -> their nodes; empty where that is not known.
            preferred: nodes that come first.
        """
        for role, size in self._sizes.items():
            usable = sorted(size.usable(), key=lambda node: node not in preferred)
            here = [
                node
                for node in {*usable, *size.nodes.chosen, *present.values()}
                if worker_name(role, node) in present
            ]
            chosen = size.nodes.choose(self._wanted.get(role, 0), usable, sorted(here), now_s)
            if chosen != self._chosen.get(role):
                self._chosen[role] = chosen
                self._choose(role, chosen)


def usable_nodes(
    inventory: Inventory, resource: RoleResource, label: str = "", attribute: str = ""
) -> list[str]:
    """Nodes whose NodeManagers have what a worker needs, those with the most memory first.

    Args:
        label: of the nodes; empty: any.
        attribute: ``PREFIX/NAME=VALUE`` of the nodes; empty: any.
    """
    found = []
    for report in inventory.reports():
        size = report.capability
        if size is None or not report.is_usable or not _is_meant(report, label, attribute):
            continue
        has = {"memory-mb": size.memory_mib, "vcores": size.vcores, **size.other}
        if all(has.get(name, 0) >= amount for name, amount in resource.on(has).items()):
            found.append((-size.memory_mib, report.node.host))
    return [host for _, host in sorted(found)]


def _is_meant(report: NodeReport, label: str, attribute: str) -> bool:
    if label and label not in report.labels:
        return False
    key, _, value = attribute.partition("=")
    prefix, _, name = key.rpartition("/")
    return not attribute or attribute_of(report, name, prefix) == value
