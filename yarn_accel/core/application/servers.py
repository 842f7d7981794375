"""Whether the server of a node serves, and when a draining one may be stopped."""

from __future__ import annotations

from yarn_accel.core.application.bindings import NodeBinding, NodeKind
from yarn_accel.core.application.events import NodeView, ServerGauges
from yarn_accel.core.application.role_instance import DesiredState, Node, RoleInstance, StatusReport
from yarn_accel.core.application.settings import Settings
from yarn_accel.core.application.timers import NEVER
from yarn_accel.core.binding.stacks import MAX_WEIGHT

_MAX_CAPACITY = 100_000
_LEAST_WEIGHT = 0.001


def serves(node: Node, instance: RoleInstance, now_s: float) -> StatusReport | None:
    """The last report of the node's server, if it takes requests from other nodes now; else None."""
    report = instance.report
    if report is None or not report.is_healthy or not node.is_usable or instance.ending_s is not None:
        return None
    return report if now_s < report.silent_from_s else None


def reason_not_serving(node: Node, instance: RoleInstance, now_s: float) -> str:
    """Why a server does not serve, for people."""
    report = instance.report
    if not node.is_usable:
        return "its node is gone"
    if instance.ending_s is not None:
        return "it is being drained"
    if report is None:
        return (
            f"no server has reported: {instance.backoff.reason}"
            if instance.backoff.reason
            else "not heard yet"
        )
    if now_s >= report.silent_from_s:
        return f"silent for {now_s - report.at_s:.1f} s"
    return report.detail or "it says that it is not healthy"


def server_binding(view: NodeView, report: StatusReport) -> NodeBinding:
    """The node of a serving server, as the policy sees it; what it says of itself is kept in bounds."""
    gauges = report.gauges
    capacity = min(max(gauges.capacity, 1), _MAX_CAPACITY)
    return NodeBinding(NodeKind.ANODE, view.rack, _weight(gauges), report.endpoint, capacity)


def drain_step(
    instance: RoleInstance, settings: Settings, is_stopping: bool, now_s: float
) -> tuple[DesiredState, float]:
    """Whether a draining server may still finish its requests, and when to look again.

    It is stopped when it reports no open request after `drain_grace_s`, in which its clients learn of their
    new server, or when `drain_limit_s` has passed.  One that never reported is stopped at once.
    """
    if instance.ending_s is None:
        instance.ending_s = now_s
    limit_s = instance.ending_s + (settings.stop_drain_s if is_stopping else settings.drain_limit_s)
    grace_s = instance.ending_s + (0.0 if is_stopping else settings.drain_grace_s)
    report = instance.report
    if report is None or now_s >= limit_s or (report.gauges.n_open <= 0 and report.at_s >= grace_s):
        return DesiredState.ABSENT, NEVER
    return DesiredState.RETAINED, limit_s


def _weight(gauges: ServerGauges) -> float:
    # What is no number above 0 says nothing.
    return min(max(gauges.weight, _LEAST_WEIGHT), MAX_WEIGHT) if gauges.weight > 0 else 1.0
