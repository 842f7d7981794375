"""Every node as the ResourceManager, its agent and the admin describe it, joined; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from yarn_accel.adapters.hadoop_rpc import NodeId
from yarn_accel.adapters.hadoop_rpc.records import NodeReport, NodeState
from yarn_accel.core.application.events import NodeView

GPU = "yarn.io/gpu"
SLOT = "acct/slot"
#: The server's node that a node is bound to, as published by an operator, such as an earlier master.
BIND = "accel-bind"
#: How many GPUs a node's agent sees, published by the NodeManager's script.
_GPUS_ATTRIBUTE = "accel-gpus"
_LIVE = (NodeState.RUNNING, NodeState.DECOMMISSIONING)


def container_logs(inventory: Inventory, node: str, container: str) -> str:
    """Where the node's NodeManager shows the logs of a container; empty: its address is not known."""
    report = inventory.report(node)
    web = report.http if report is not None else None
    return f"http://{web}/ws/v1/node/containerlogs/{container}" if web else ""


class Inventory:
    """All nodes that the ResourceManager has reported; a node is named by its host.

    Args:
        accelerator_nodes: names or globs of nodes that count as accelerator nodes whatever they have.
    """

    def __init__(self, accelerator_nodes: Sequence[str] = ()) -> None:
        self._accelerator_nodes = tuple(accelerator_nodes)
        self._reports: dict[str, NodeReport] = {}
        self._has_device: dict[str, bool] = {}

    def __contains__(self, host: str) -> bool:
        return host in self._reports

    def report(self, host: str) -> NodeReport | None:
        """The last report of a node."""
        return self._reports.get(host)

    def reports(self) -> tuple[NodeReport, ...]:
        """The last report of every node."""
        return tuple(self._reports.values())

    def node_id(self, host: str) -> NodeId | None:
        """Where its NodeManager listens."""
        report = self._reports.get(host)
        return report.node if report is not None else None

    def rack(self, host: str) -> str | None:
        """Its rack; None: the node is not known."""
        report = self._reports.get(host)
        return report.rack if report is not None else None

    def complete(self, reports: Iterable[NodeReport]) -> tuple[NodeView, ...]:
        """Replace all reports; returns the views of all nodes."""
        self._reports = {}
        for report in reports:
            self._take(report)
        return tuple(self._view(report) for report in self._reports.values())

    def updated(self, reports: Iterable[NodeReport]) -> tuple[NodeView, ...]:
        """Apply reports; returns the views of the nodes that changed."""
        hosts = [report.node.host for report in reports if self._take(report)]
        return tuple(self._view(self._reports[host]) for host in dict.fromkeys(hosts))

    def devices(self, host: str, has_device: bool | None) -> NodeView | None:
        """Apply the devices that the node's agent reports; returns the node's view if it changed.

        Args:
            has_device: a healthy accelerator, or only broken ones; None: it does not know of any.
        """
        before = self._has_device.get(host)
        if has_device is None or before is has_device:
            return None
        self._has_device[host] = has_device
        report = self._reports.get(host)
        return self._view(report) if report is not None else None

    def is_accelerator(self, report: NodeReport) -> bool:
        """Whether it has an accelerator that works: by the settings, its agent, or the RM."""
        host = report.node.host
        if any(fnmatchcase(host, each) for each in self._accelerator_nodes):
            return True
        seen = self._has_device.get(host)
        if seen is not None:
            return seen
        if report.capability is not None and report.capability.other.get(GPU, 0) > 0:
            return True
        n_gpus = attribute_of(report, _GPUS_ATTRIBUTE, prefix="nm.yarn.io") or ""
        return n_gpus.isdecimal() and int(n_gpus) > 0

    def _take(self, report: NodeReport) -> bool:
        """Keep a report, unless it is a dead node's whose host has a live one on another port."""
        old = self._reports.get(report.node.host)
        is_other = old is not None and old.node != report.node
        if is_other and old is not None and old.state in _LIVE and report.state not in _LIVE:
            return False
        self._reports[report.node.host] = report
        return True

    def _view(self, report: NodeReport) -> NodeView:
        capability = {}
        if report.capability is not None:
            size = report.capability
            capability = {"memory-mb": size.memory_mib, "vcores": size.vcores, **size.other}
        return NodeView(
            report.node.host,
            report.node.port,
            report.rack,
            is_usable=report.state in _LIVE,
            is_accelerator=self.is_accelerator(report),
            is_leaving=report.state is NodeState.DECOMMISSIONING,
            # Its slots change with every share, and say nothing about the node.
            capability={name: amount for name, amount in capability.items() if name != SLOT},
            slots=capability.get(SLOT),
            bound=attribute_of(report, BIND),
        )


def attribute_of(report: NodeReport, name: str, prefix: str = "rm.yarn.io") -> str | None:
    """The value of a node attribute."""
    for each in report.attributes:
        if (each.key.prefix, each.key.name) == (prefix, name):
            return each.value or ""
    return None
