"""Slots and attributes of nodes: nothing is changed that cannot be restored, and no order is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.adapters.hadoop_rpc import (
    ApplicationGoneError,
    ApplicationId,
    AttributeOperation,
    NodeId,
    RemoteCallError,
)
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationReport,
    ApplicationState,
    NodeAttribute,
    NodeAttributeKey,
    NodeReport,
    NodeState,
    YarnResource,
)
from yarn_accel.core.application.commands import PublishBindings, SetSlots
from yarn_accel.core.application.events import Event, SlotsRefused, SlotsSet
from yarn_accel.errors import UnavailableError
from yarn_accel.master import operator_commands
from yarn_accel.master.operator_commands import OperatorCommands

DENIED = RemoteCallError(
    "org.apache.hadoop.yarn.exceptions.YarnException", "rm: YarnException: AccessControlException: User ann"
)


class Manager:
    """Nodes with slots and attributes; ``trouble`` is raised by the calls it names."""

    def __init__(self, **slots: int) -> None:
        self.slots = dict(slots)
        self.memory = dict.fromkeys(slots, 4096)
        self.attributes: dict[str, dict[str, str]] = {host: {} for host in slots}
        self.trouble: dict[str, Exception] = {}
        self.calls: list[str] = []
        #: What the ResourceManager says of applications; of others it knows nothing.
        self.states: dict[str, ApplicationState] = {}

    async def report(self, application: ApplicationId) -> ApplicationReport:
        self._called("report")
        state = self.states.get(str(application))
        if state is None:
            raise ApplicationGoneError("ApplicationNotFoundException", f"no {application}")
        return ApplicationReport(application, user="ann", name="ann's", state=state)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.trouble:
            raise self.trouble[name]

    async def nodes(self) -> tuple[NodeReport, ...]:
        self._called("nodes")
        return tuple(
            NodeReport(
                NodeId(host, 1),
                state=NodeState.RUNNING,
                capability=YarnResource.of(self.memory[host], 4, {"acct/slot": n, "yarn.io/gpu": 1}),
                attributes=tuple(
                    NodeAttribute(NodeAttributeKey("rm.yarn.io", k), value=v)
                    for k, v in self.attributes[host].items()
                ),
            )
            for host, n in self.slots.items()
        )

    async def update_node_resource(self, node: NodeId, resource: YarnResource, *_: Any) -> None:
        self._called(f"update {node.host}")
        assert self.attributes[node.host].get("accel-slots"), "remembered before it is changed"
        assert resource.other["yarn.io/gpu"] == 1
        self.slots[node.host] = resource.other["acct/slot"]
        self.memory[node.host] = resource.memory_mib

    async def map_attributes(
        self, operation: AttributeOperation, attributes: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._called(f"map {operation.name}")
        for host, named in attributes.items():
            for name, value in named.items():
                if operation is AttributeOperation.REMOVE:
                    self.attributes[host].pop(name, None)
                else:
                    self.attributes[host].setdefault(name, value)  # as YARN does


def play(
    manager: Manager, story: Callable[[OperatorCommands, list[Event]], Awaitable[None]], **options: bool | str
) -> None:
    async def run() -> None:
        reported: list[Event] = []
        operator = OperatorCommands(manager, reported.append, lambda: 0.0, **options)  # type: ignore[arg-type]
        working = asyncio.create_task(operator.work())
        try:
            await asyncio.wait_for(story(operator, reported), 60)
            assert not working.done()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_commands, "_PAUSE_S", 0.01)
    monkeypatch.setattr(operator_commands, "_HELD_S", 0.02)


def test_slots_are_changed_and_restored_to_what_was_first() -> None:
    manager = Manager(w1=7, w2=7)

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        operator.set_slots(SetSlots("w1", 3))
        await soon(lambda: SlotsSet("w1", 3, 0.0) in reported)
        manager.memory["w1"] = 8192
        operator.set_slots(SetSlots("w1", 4))
        await soon(lambda: SlotsSet("w1", 4, 0.0) in reported)
        assert (manager.slots, manager.attributes["w1"]) == ({"w1": 4, "w2": 7}, {"accel-slots": "7"})
        operator.set_slots(SetSlots("w1", None))
        operator.set_slots(SetSlots("w2", None))
        await soon(lambda: SlotsSet("w2", None, 0.0) in reported and SlotsSet("w1", None, 0.0) in reported)
        await soon(lambda: not manager.attributes["w1"])

    play(manager, story)
    assert manager.slots == {"w1": 7, "w2": 7}
    assert manager.memory["w1"] == 8192
    assert "update w2" not in manager.calls, "it was never changed"


def test_orders_wait_while_nobody_answers_and_the_newest_counts() -> None:
    manager = Manager(w1=7, w2=7, w3=7)
    manager.attributes["w3"]["accel-bind"] = "of an earlier application"

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        manager.trouble = {"map ADD": UnavailableError("gone")}
        operator.set_slots(SetSlots("w1", 3))
        operator.publish(PublishBindings(1, (("w1", "a1"), ("w2", "a1")), (), is_full=True))
        operator.drain("w1", is_drained=True)
        await soon(lambda: manager.calls.count("map ADD") > 2)
        operator.set_slots(SetSlots("w1", 5))
        operator.publish(PublishBindings(2, (("w1", "a2"),), ()))
        manager.trouble = {}
        await soon(lambda: manager.attributes["w1"].get("accel-bind") == "a2")
        await soon(lambda: "accel-bind" not in manager.attributes["w3"])

    play(manager, story)
    assert manager.slots["w1"] == 5
    assert manager.attributes["w1"] == {"accel-bind": "a2", "accel-drained": "true", "accel-slots": "7"}
    assert manager.attributes["w2"] == {"accel-bind": "a1"}


def test_without_the_right_it_is_said_once() -> None:
    manager = Manager(w1=7)
    manager.trouble = {"map ADD": DENIED}

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        operator.set_slots(SetSlots("w1", 3))
        await soon(lambda: reported)
        operator.publish(PublishBindings(1, (("w1", "a1"),), ()))
        await soon(lambda: operator.refusals["attributes"])
        assert "yarn.admin.acl" in operator.refusals["attributes"]
        n_calls = len(manager.calls)
        operator.set_slots(SetSlots("w1", 4))
        operator.publish(PublishBindings(2, (("w1", "a2"),), ()))
        await soon(lambda: len(manager.calls) > n_calls)
        assert [each for each in manager.calls[n_calls:] if each != "nodes"] == []
        assert [type(each) for each in reported] == [SlotsRefused]

    play(manager, story)
    assert manager.slots == {"w1": 7}


def test_a_node_that_is_gone_meanwhile_holds_up_nobody() -> None:
    manager = Manager(w1=7, w2=7)
    manager.trouble = {"update w1": RemoteCallError("x.YarnException", "rm: no such node w1:1")}

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        operator.set_slots(SetSlots("w1", 3))
        operator.set_slots(SetSlots("w2", 3))
        await soon(lambda: SlotsSet("w2", 3, 0.0) in reported)
        assert SlotsSet("w1", 3, 0.0) not in reported, "not confirmed: it is ordered again"
        assert not operator.refusals["slots"]

    play(manager, story)


def test_a_cluster_without_the_resource_type_gets_a_cure() -> None:
    manager = Manager(w1=0)

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        operator.lack(("memory-mb", "vcores"))
        operator.lack(("memory-mb", "vcores"))
        (refused,) = reported
        assert isinstance(refused, SlotsRefused)
        assert "resource-types.xml" in refused.why

    play(manager, story)


def test_what_is_switched_off_is_left_alone() -> None:
    manager = Manager(w1=7)

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        operator.publish(PublishBindings(1, (("w1", "a1"),), (), is_full=True))
        operator.set_slots(SetSlots("w1", 3))
        operator.lack(("memory-mb",))
        await soon(lambda: manager.calls)
        assert reported == []

    play(manager, story, has_slots=False, has_attributes=False)
    assert set(manager.calls) == {"nodes"}


def test_at_the_end_all_is_as_before_whatever_was_left() -> None:
    manager = Manager(w1=3, w2=7)
    manager.attributes["w1"] = {"accel-slots": "7", "accel-bind": "a1", "accel-drained": "true", "rack": "x"}

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        await operator.restore()
        operator.publish(PublishBindings(9, (("w2", "a1"),), ()))
        await asyncio.sleep(0.05)

    play(manager, story)
    assert manager.slots == {"w1": 7, "w2": 7}
    assert manager.attributes == {"w1": {"rack": "x"}, "w2": {}}


FIRST, SECOND = "application_17_0001", "application_17_0002"


def test_the_first_application_holds_the_nodes_until_it_is_over() -> None:
    """The second changes nothing meanwhile, says whose they are, and then takes over what was configured."""
    manager = Manager(w1=9, w2=9)
    manager.states = {FIRST: ApplicationState.RUNNING, SECOND: ApplicationState.RUNNING}

    async def first(operator: OperatorCommands, reported: list[Event]) -> None:
        operator.set_slots(SetSlots("w1", 3))
        await soon(lambda: SlotsSet("w1", 3, 0.0) in reported)

    async def second(operator: OperatorCommands, reported: list[Event]) -> None:
        before = {host: dict(named) for host, named in manager.attributes.items()}
        operator.set_slots(SetSlots("w1", 5))
        operator.publish(PublishBindings(1, (("w2", "w1"),), (), is_full=True))
        await soon(lambda: operator.held_by)
        assert operator.held_by == f"{FIRST} (ann's, of ann)"
        operator.set_slots(SetSlots("w2", None))
        await soon(lambda: SlotsSet("w2", None, 0.0) in reported)
        assert (manager.slots, manager.attributes) == ({"w1": 3, "w2": 9}, before)
        await operator_commands.OperatorCommands(manager, reported.append, lambda: 0.0).restore()  # type: ignore[arg-type]
        assert (manager.slots, manager.attributes) == ({"w1": 3, "w2": 9}, before), "a start restores nothing"
        manager.states[FIRST] = ApplicationState.KILLED
        await soon(lambda: SlotsSet("w1", 5, 0.0) in reported)
        await soon(lambda: manager.attributes["w2"].get("accel-bind") == "w1")
        assert operator.held_by == ""
        assert manager.attributes["w1"] == {"accel-slots": "9", "accel-owner": SECOND}
        await operator.restore()

    play(manager, first, application=FIRST)
    play(manager, second, application=SECOND)
    assert (manager.slots, manager.attributes) == ({"w1": 9, "w2": 9}, {"w1": {}, "w2": {}})


def test_an_end_leaves_what_another_application_holds() -> None:
    manager = Manager(w1=3)
    manager.states = {FIRST: ApplicationState.RUNNING}
    manager.attributes["w1"] = {"accel-slots": "9", "accel-owner": FIRST, "accel-drained": "true"}
    before = dict(manager.attributes["w1"])

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        await operator.restore()

    play(manager, story, application=SECOND)
    assert (manager.slots, manager.attributes["w1"]) == ({"w1": 3}, before)


@pytest.mark.parametrize("state", [None, ApplicationState.FAILED, ApplicationState.FINISHED])
def test_what_an_application_left_that_is_over_is_restored_but_for_drains(
    state: ApplicationState | None,
) -> None:
    """None: the ResourceManager has forgotten it, so it cannot run."""
    manager = Manager(w1=3, w2=9)
    manager.states = {} if state is None else {FIRST: state}
    manager.attributes["w1"] = {"accel-slots": "9", "accel-owner": FIRST, "accel-bind": "w2"}
    manager.attributes["w2"] = {"accel-owner": FIRST, "accel-drained": "true"}

    async def story(operator: OperatorCommands, reported: list[Event]) -> None:
        await operator.restore(has_drains=False)

    play(manager, story)
    assert manager.slots == {"w1": 9, "w2": 9}
    assert manager.attributes == {"w1": {}, "w2": {"accel-drained": "true"}}
