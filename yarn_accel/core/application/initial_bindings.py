"""When an attempt makes its first bindings.

The first attempt makes them at once. A later one keeps the published bindings to running servers: it collects
reports for `Settings.settle_s`, and then until the RM has listed all nodes and every server with a bound node
has reported, but for `Settings.recall_s` at most. A server whose last report is so old that it would soon
count as silent must report again: otherwise it could be lost at the moment at which all nodes are bound.
"""

from __future__ import annotations

from yarn_accel.core.application.cluster_state import ClusterState


class InitialBindings:
    """Opens the bindings of a cluster when it is time."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._expected: list[str] | None = None

    def step(self) -> None:
        """Make the first bindings if that is due."""
        cluster = self._cluster
        if cluster.bindings.is_open:
            return
        is_ending = cluster.life.stopping_s is not None and cluster.life.attempt > 0
        is_settled = cluster.now_s >= cluster.bind_from_s and cluster.is_listed
        if is_ending or cluster.now_s >= cluster.bind_by_s or (is_settled and not self._is_waiting()):
            self._open()

    def next_s(self) -> float:
        """When they are due at the latest."""
        cluster = self._cluster
        return cluster.bind_from_s if cluster.now_s < cluster.bind_from_s else cluster.bind_by_s

    def _open(self) -> None:
        cluster = self._cluster
        published, cluster.published = cluster.published, {}
        cluster.bindings.open(cluster.now_s, published)

    def _is_waiting(self) -> bool:
        """Whether a server with bound nodes may yet report; one that was skipped stays so."""
        if self._expected is None:
            self._expected = sorted(set(self._cluster.published.values()))
        while self._expected and not self._may_report(self._expected[-1]):
            self._expected.pop()
        return bool(self._expected)

    def _may_report(self, host: str) -> bool:
        cluster = self._cluster
        node = cluster.nodes.get(host)
        instance = cluster.server_instance(node) if node is not None and node.is_usable else None
        if instance is None or host in cluster.drained:
            return False
        if (
            instance.report is not None
            and cluster.now_s < instance.report.at_s + cluster.settings.silence_s / 2
        ):
            return False
        return any(record.was_launched for record in instance.live())
