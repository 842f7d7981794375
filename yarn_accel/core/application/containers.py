"""[yarn_accel/core/application/containers.py]
Keeps one container of each role on every node that should have one.

A stop is repeated until the RM or the NM confirms the end of the container, or until `forget_s` has passed.
A container that reports after that is stopped again.  Ids of ended containers are kept for a while, so that
late and repeated messages about them change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.core.application.commands import (
    CancelRequest,
    Command,
    LaunchContainer,
    QueryContainer,
    ReleaseContainer,
    RequestContainer,
    StopContainer,
)
from yarn_accel.core.application.events import ContainerRef, NodeView
from yarn_accel.core.application.exits import describe_exit, is_excused, is_lasting, is_refusal
from yarn_accel.core.application.nodes import (
    NEVER,
    ContainerRecord,
    DesiredState,
    EventHistory,
    Node,
    Phase,
    RoleInstance,
)
from yarn_accel.core.application.settings import RestartPolicy, Settings

#: Ids of ended containers remembered: a few of each node of a large cluster.
_N_ENDED = 65536
_FIRST_OF_ATTEMPT = 32


class ContainerManager:
    """All containers and requests of the application.

    Attributes:
        instances: the role on a node, by container id.
        requests: the same, by id of an open request.
    """

    def __init__(self, settings: Settings, history: EventHistory, commands: list[Command]) -> None:
        self._settings = settings
        self._history = history
        self._commands = commands
        self.instances: dict[str, RoleInstance] = {}
        self.requests: dict[int, RoleInstance] = {}
        self._ended: dict[str, float] = {}
        self._request_id = 0

    def begin(self, attempt: int) -> None:
        """Make the request ids of this attempt differ from those of earlier ones."""
        self._request_id = max(self._request_id, attempt << _FIRST_OF_ATTEMPT)

    def knows(self, container: str) -> bool:
        """Whether it is or was a container of ours."""
        return container in self.instances or container in self._ended

    def adopt(self, instance: RoleInstance, container: ContainerRef, now_s: float) -> None:
        """Take over a running container of an earlier attempt."""
        record = ContainerRecord(container, Phase.RUNNING, now_s, was_launched=True, reason="found running")
        self._add(instance, record)
        self._history.add(now_s, instance.node, f"{instance.role.name} adopted", container.id)

    def grant(self, instance: RoleInstance, container: ContainerRef, now_s: float) -> None:
        """Add a container that the RM allocated."""
        self._add(instance, ContainerRecord(container, Phase.GRANTED, now_s))

    def answered(self, request_id: int, node: Node) -> None:
        """The RM allocated a container for the request.

        A repeated request is cancelled as well: the RM may have got the repetition after it answered the
        first one, and would allocate a second container.
        """
        instance = self.requests[request_id]
        if instance.asked_s > instance.first_asked_s:
            self._unask(instance, node)
        else:
            self._close(instance)

    def forget_requests(self) -> None:
        """The RM was restarted: open requests are sent again."""
        for instance in self.requests.values():
            instance.asked_s = -NEVER

    def query_missing(self, confirmed: Iterable[str], now_s: float) -> None:
        """Query the NMs of containers that the RM's list lacks."""
        for container in sorted(self.instances.keys() - set(confirmed)):
            record = self.instances[container].records[container]
            if record.was_launched and record.is_live:
                self._check(record, now_s)

    def confirm(self, container: str, now_s: float) -> None:
        """The container's NM runs it."""
        instance = self.instances.get(container)
        if instance is not None and instance.records[container].phase is Phase.LAUNCHING:
            record = instance.records[container]
            record.phase, record.since_s = Phase.RUNNING, now_s

    def not_started(self, container: str, why: str, now_s: float) -> None:
        """The container's launch failed."""
        instance = self.instances.get(container)
        if instance is not None and instance.records[container].phase is Phase.LAUNCHING:
            record = instance.records[container]
            self._fail(instance, record, f"not started: {why[:200]}", now_s)
            self._commands.append(ReleaseContainer(record.container))

    def completed(self, container: str, exit_status: int, diagnostics: str, now_s: float) -> None:
        """The container ended; a failure unless it was stopped, or the exit status excuses it."""
        instance = self.instances.get(container)
        if instance is None:
            self._remember(container, NEVER)
            return
        record = instance.records[container]
        was_live = record.is_live
        reason = describe_exit(exit_status, diagnostics)
        if was_live and exit_status == 0 and instance.role.restart is RestartPolicy.ON_FAILURE:
            instance.is_done = True
        elif was_live and not is_excused(exit_status):
            instance.backoff.failed(
                self._settings,
                instance.well_for_s(),
                reason,
                now_s,
                is_lasting=is_lasting(exit_status),
                is_refusal=is_refusal(exit_status),
            )
        self._end(instance, record, NEVER)
        self._history.add(
            now_s,
            instance.node,
            f"{instance.role.name} ended",
            reason if was_live else record.reason or reason,
        )

    def abandon(self, instance: RoleInstance, reason: str, now_s: float) -> None:
        """The node is gone: release its containers at the RM."""
        again_s = self._settings.stop_again_s
        for record in list(instance.records.values()):
            if record.is_live or now_s >= record.ordered_s + again_s:
                record.ordered_s = now_s
                self._commands.append(ReleaseContainer(record.container))
            self._end(instance, record, record.ordered_s + again_s)
            self._history.add(now_s, instance.node, f"{instance.role.name} given up", reason)
        instance.is_done = False

    def is_ended(self, container: ContainerRef, now_s: float) -> bool:
        """Whether a container has ended; one whose end was never confirmed is stopped again."""
        again_s = self._ended.get(container.id)
        if again_s is None:
            return False
        if now_s >= again_s:
            self._ended[container.id] = now_s + self._settings.stop_again_s
            self._commands += (StopContainer(container), ReleaseContainer(container))
        return True

    def keep(self, instance: RoleInstance, desired: DesiredState, node: Node, now_s: float) -> float:
        """Take the next step to the desired state; returns when to look again."""
        if desired is DesiredState.RUNNING and instance.request_id is None and len(instance.records) == 1:
            (only,) = instance.records.values()
            if only.is_live:
                return self._supervise(instance, only, node, now_s)
        if desired is DesiredState.ABSENT:
            self._stop(instance, list(instance.live()), "not wanted here any more", now_s)
        elif desired is DesiredState.RETAINED:
            granted = [record for record in instance.live() if record.phase is Phase.GRANTED]
            self._stop(instance, granted, "not wanted now", now_s)
        live = sorted(instance.live(), key=lambda record: _rank(instance, record))
        self._stop(instance, live[1:], "surplus", now_s)
        next_s = min(
            (self._insist_on_stop(instance, record, now_s) for record in _retiring(instance)), default=NEVER
        )
        first = next(instance.live(), None)
        if desired is not DesiredState.RUNNING or first is not None:
            self._unask(instance, node)
        if first is not None:
            return min(next_s, self._supervise(instance, first, node, now_s))
        if desired is not DesiredState.RUNNING:
            return next_s
        return min(next_s, self._request_if_due(instance, node, now_s))

    def _request_if_due(self, instance: RoleInstance, node: Node, now_s: float) -> float:
        """Request a container, unless the back-off forbids it."""
        if instance.is_vacating() or instance.is_done or node.view is None:
            return NEVER
        if instance.backoff.until_s > now_s:
            self._unask(instance, node)
            return instance.backoff.until_s
        if instance.request_id is None or now_s >= instance.asked_s + self._settings.ask_again_s:
            self._ask(instance, node.view, now_s)
        return instance.asked_s + self._settings.ask_again_s

    def _supervise(self, instance: RoleInstance, record: ContainerRecord, node: Node, now_s: float) -> float:
        """Launch the one live container, and stop it when it hangs."""
        settings = self._settings
        if record.phase is Phase.GRANTED:
            record.phase, record.since_s, record.ordered_s = Phase.LAUNCHING, now_s, now_s
            record.was_launched = True
            self._commands.append(LaunchContainer(record.container, instance.role.name))
        if record.phase is Phase.LAUNCHING:
            limit_s = record.since_s + settings.launch_limit_s
            if now_s < limit_s:
                return limit_s
            self._fail(instance, record, f"no answer to its launch for {settings.launch_limit_s:g} s", now_s)
            return record.ordered_s + settings.stop_again_s
        if record.is_hung:
            self._fail(instance, record, "its process hangs", now_s)
            return record.ordered_s + settings.stop_again_s
        well_s = max(record.since_s, instance.well_s)
        # A server is reported by its agent: while that is silent too, another server would be no better.
        reached_s = node.heard_s if instance.role.is_server else node.reached_s
        hung_s = well_s + settings.hung_s
        if now_s >= hung_s and reached_s >= well_s + settings.hung_s / 2:
            self._fail(instance, record, f"not well for {settings.hung_s:g} s", now_s)
            return record.ordered_s + settings.stop_again_s
        next_s = self._query_if_due(instance, record, now_s)
        return min(next_s, hung_s) if now_s < hung_s else next_s

    def _query_if_due(self, instance: RoleInstance, record: ContainerRecord, now_s: float) -> float:
        """Query the NM about a container that is silent, or dead; returns when to look again."""
        settings = self._settings
        if record.gone_s is not None:
            due_s, again_s = record.gone_s, max(settings.check_gone_s, now_s - record.gone_s)
            if record.checked_s >= record.gone_s:
                due_s = record.checked_s + max(settings.check_gone_s, record.checked_s - record.gone_s)
        else:
            again_s = settings.check_after_s
            report_s = instance.report.at_s if instance.report else record.since_s
            due_s = max(record.since_s, record.checked_s, report_s) + again_s
        if now_s < due_s:
            return due_s
        self._check(record, now_s)
        return now_s + again_s

    def _check(self, record: ContainerRecord, now_s: float) -> None:
        record.checked_s = now_s
        self._commands.append(QueryContainer(record.container))

    def _insist_on_stop(self, instance: RoleInstance, record: ContainerRecord, now_s: float) -> float:
        """Repeat the stop of a retiring container; returns when to look again."""
        settings = self._settings
        forget_s = record.since_s + settings.forget_s
        if now_s >= forget_s:
            self._end(instance, record, record.ordered_s + settings.stop_again_s)
            self._history.add(
                now_s, instance.node, f"{instance.role.name} forgotten", "its end was not confirmed"
            )
            return NEVER
        if now_s >= record.ordered_s + settings.stop_again_s:
            record.ordered_s = now_s
            if record.was_launched:
                self._commands.append(StopContainer(record.container))
            self._commands.append(ReleaseContainer(record.container))
        return min(record.ordered_s + settings.stop_again_s, forget_s)

    def _fail(self, instance: RoleInstance, record: ContainerRecord, reason: str, now_s: float) -> None:
        instance.backoff.failed(self._settings, instance.well_for_s(), reason, now_s)
        self._stop(instance, (record,), reason, now_s)

    def _stop(
        self, instance: RoleInstance, some: Iterable[ContainerRecord], reason: str, now_s: float
    ) -> None:
        for record in some:
            stop = StopContainer if record.was_launched else ReleaseContainer
            self._commands.append(stop(record.container))
            record.phase, record.since_s, record.ordered_s = Phase.RETIRING, now_s, now_s
            record.reason = reason
            _discard_report(instance, record)
            self._history.add(now_s, instance.node, f"{instance.role.name} is stopped", reason)

    def _ask(self, instance: RoleInstance, view: NodeView, now_s: float) -> None:
        if instance.request_id is None:
            self._request_id += 1
            instance.request_id = self._request_id
            instance.first_asked_s = now_s
            self.requests[instance.request_id] = instance
        instance.asked_s = now_s
        role = instance.role
        vector = role.resource.on(view.capability)
        self._commands.append(
            RequestContainer(role.name, view.host, view.rack, vector, role.priority, instance.request_id)
        )

    def _unask(self, instance: RoleInstance, node: Node) -> None:
        if instance.request_id is None:
            return
        rack = node.view.rack if node.view is not None else ""
        role = instance.role
        self._commands.append(
            CancelRequest(role.name, instance.node, rack, role.priority, instance.request_id)
        )
        self._close(instance)

    def _close(self, instance: RoleInstance) -> None:
        if instance.request_id is not None:
            del self.requests[instance.request_id]
            instance.request_id = None

    def _add(self, instance: RoleInstance, record: ContainerRecord) -> None:
        instance.records[record.container.id] = record
        self.instances[record.container.id] = instance

    def _end(self, instance: RoleInstance, record: ContainerRecord, stop_from_s: float) -> None:
        del instance.records[record.container.id]
        del self.instances[record.container.id]
        _discard_report(instance, record)
        self._remember(record.container.id, stop_from_s)

    def _remember(self, container: str, stop_from_s: float) -> None:
        """Remember an ended container: it is stopped again if it reports after `stop_from_s`."""
        self._ended.pop(container, None)
        self._ended[container] = stop_from_s
        if len(self._ended) > _N_ENDED:
            del self._ended[next(iter(self._ended))]


def _rank(instance: RoleInstance, record: ContainerRecord) -> tuple[bool, bool, str]:
    """The order in which containers are kept: one that reported, one that runs, the lowest id."""
    is_heard = instance.report is not None and instance.report.container == record.container.id
    return not is_heard, record.phase is not Phase.RUNNING, record.container.id


def _retiring(instance: RoleInstance) -> list[ContainerRecord]:
    return [record for record in instance.records.values() if not record.is_live]


def _discard_report(instance: RoleInstance, record: ContainerRecord) -> None:
    """Forget the report of a container that is no longer live."""
    if instance.report is None or instance.report.container == record.container.id:
        instance.report = None
        instance.well_since_s = None
        instance.well_s = -NEVER
