"""Slots and attributes of nodes: nothing is changed that cannot be restored, and no order is lost."""

import asyncio
import contextlib

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc import records
from yarn_accel.core.application.commands import PublishBindings, SetSlots
from yarn_accel.core.application.events import SlotsRefused, SlotsSet
from yarn_accel.errors import UnavailableError
from yarn_accel.master import operator_commands
from yarn_accel.master.operator_commands import OperatorCommands

DENIED = hadoop_rpc.RemoteCallError(
    "org.apache.hadoop.yarn.exceptions.YarnException", "rm: YarnException: AccessControlException: User ann"
)


class Manager:
    """Nodes with slots and attributes; ``trouble`` is raised by the calls it names."""

    def __init__(self, **slots):
        self.slots = dict(slots)
        self.memory = dict.fromkeys(slots, 4096)
        self.attributes = {host: {} for host in slots}
        self.trouble = {}
        self.calls = []
        #: What the ResourceManager says of applications; of others it knows nothing.
        self.states = {}

    async def report(self, application):
        self._called("report")
        state = self.states.get(str(application))
        if state is None:
            raise hadoop_rpc.ApplicationGoneError("ApplicationNotFoundException", f"no {application}")
        return records.ApplicationReport(application, user="ann", name="ann's", state=state)

    def _called(self, name):
        self.calls.append(name)
        if name in self.trouble:
            raise self.trouble[name]

    async def nodes(self):
        self._called("nodes")
        return tuple(
            records.NodeReport(
                hadoop_rpc.NodeId(host, 1),
                state=records.NodeState.RUNNING,
                capability=records.YarnResource.of(self.memory[host], 4, {"acct/slot": n, "yarn.io/gpu": 1}),
                attributes=tuple(
                    records.NodeAttribute(records.NodeAttributeKey("rm.yarn.io", k), value=v)
                    for k, v in self.attributes[host].items()
                ),
            )
            for host, n in self.slots.items()
        )

    async def update_node_resource(self, node, resource, *_):
        self._called(f"update {node.host}")
        assert self.attributes[node.host].get("accel-slots"), "remembered before it is changed"
        assert resource.other["yarn.io/gpu"] == 1
        self.slots[node.host] = resource.other["acct/slot"]
        self.memory[node.host] = resource.memory_mib

    async def map_attributes(self, operation, attributes):
        self._called(f"map {operation.name}")
        for host, named in attributes.items():
            for name, value in named.items():
                if operation is hadoop_rpc.AttributeOperation.REMOVE:
                    self.attributes[host].pop(name, None)
                else:
                    self.attributes[host].setdefault(name, value)  # as YARN does


@contextlib.asynccontextmanager
async def play(manager, **options):
    reported = []
    operator = OperatorCommands(manager, reported.append, lambda: 0.0, **options)
    working = asyncio.create_task(operator.work())
    try:
        yield operator, reported
        assert not working.done()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(operator_commands, "_PAUSE_S", 0.01)
    monkeypatch.setattr(operator_commands, "_HELD_S", 0.02)


async def test_slots_are_changed_and_restored_to_what_was_first():
    manager = Manager(w1=7, w2=7)
    async with play(manager) as (operator, reported):
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
    assert (manager.slots, manager.memory["w1"]) == ({"w1": 7, "w2": 7}, 8192)
    assert "update w2" not in manager.calls, "it was never changed"


async def test_an_admins_change_while_slots_are_set_stays():
    """YARN takes a node's resources as a whole; the admin's new ones are there before ours are written."""
    manager = Manager(w1=7)
    remember = manager.map_attributes

    async def map_attributes(operation, attributes):
        await remember(operation, attributes)
        if "accel-slots" in attributes["w1"]:
            manager.memory["w1"] = 8192

    manager.map_attributes = map_attributes
    async with play(manager) as (operator, reported):
        operator.set_slots(SetSlots("w1", 3))
        await soon(lambda: SlotsSet("w1", 3, 0.0) in reported)
    assert (manager.slots, manager.memory) == ({"w1": 3}, {"w1": 8192})


async def test_orders_wait_while_nobody_answers_and_the_newest_counts():
    manager = Manager(w1=7, w2=7, w3=7)
    manager.attributes["w3"]["accel-bind"] = "of an earlier application"
    async with play(manager) as (operator, _):
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
    assert manager.slots["w1"] == 5
    assert manager.attributes["w1"] == {"accel-bind": "a2", "accel-drained": "true", "accel-slots": "7"}
    assert manager.attributes["w2"] == {"accel-bind": "a1"}


async def test_what_a_restarted_resource_manager_has_lost_is_put_back():
    """Its attributes were in a folder of a machine: the ResourceManager that is active now has none."""
    manager = Manager(w1=7, w2=7)
    async with play(manager) as (operator, reported):
        operator.set_slots(SetSlots("w1", 3))
        operator.publish(PublishBindings(1, (("w2", "w1"),), (), is_full=True))
        operator.drain("w1", is_drained=True)
        kept = {"w1": {"accel-slots": "7", "accel-drained": "true"}, "w2": {"accel-bind": "w1"}}
        await soon(lambda: manager.attributes == kept)
        manager.attributes = {"w1": {}, "w2": {}}
        operator.resynced()
        operator.set_slots(SetSlots("w1", 4))
        await soon(lambda: SlotsSet("w1", 4, 0.0) in reported)
        assert manager.attributes == {"w1": {"accel-slots": "7"}, "w2": {}}, "not the 3 that were ours"
        operator.put_back(await manager.nodes())
        await soon(lambda: manager.attributes == kept)
        operator.set_slots(SetSlots("w1", None))
        await soon(lambda: SlotsSet("w1", None, 0.0) in reported)
    assert manager.slots == {"w1": 7, "w2": 7}


async def test_without_the_right_it_is_said_once():
    manager = Manager(w1=7)
    manager.trouble = {"map ADD": DENIED}
    async with play(manager) as (operator, reported):
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
    assert manager.slots == {"w1": 7}


async def test_a_node_that_is_gone_meanwhile_holds_up_nobody():
    manager = Manager(w1=7, w2=7)
    manager.trouble = {"update w1": hadoop_rpc.RemoteCallError("x.YarnException", "rm: no such node w1:1")}
    async with play(manager) as (operator, reported):
        operator.set_slots(SetSlots("w1", 3))
        operator.set_slots(SetSlots("w2", 3))
        await soon(lambda: SlotsSet("w2", 3, 0.0) in reported)
        assert SlotsSet("w1", 3, 0.0) not in reported, "not confirmed: it is ordered again"
        assert not operator.refusals["slots"]


async def test_a_cluster_without_the_resource_type_gets_a_cure():
    async with play(Manager(w1=0)) as (operator, reported):
        operator.lack(("memory-mb", "vcores"))
        operator.lack(("memory-mb", "vcores"))
        (refused,) = reported
        assert isinstance(refused, SlotsRefused)
        assert "resource-types.xml" in refused.why


async def test_what_is_switched_off_is_left_alone():
    manager = Manager(w1=7)
    async with play(manager, has_slots=False, has_attributes=False) as (operator, reported):
        operator.publish(PublishBindings(1, (("w1", "a1"),), (), is_full=True))
        operator.set_slots(SetSlots("w1", 3))
        operator.lack(("memory-mb",))
        await soon(lambda: manager.calls)
        assert reported == []
    assert set(manager.calls) == {"nodes"}


async def test_at_the_end_all_is_as_before_whatever_was_left():
    manager = Manager(w1=3, w2=7)
    manager.attributes["w1"] = {"accel-slots": "7", "accel-bind": "a1", "accel-drained": "true", "rack": "x"}
    async with play(manager) as (operator, _):
        await operator.restore()
        operator.publish(PublishBindings(9, (("w2", "a1"),), ()))
        await asyncio.sleep(0.05)
    assert (manager.slots, manager.attributes) == ({"w1": 7, "w2": 7}, {"w1": {"rack": "x"}, "w2": {}})


FIRST, SECOND = "application_17_0001", "application_17_0002"


async def test_the_first_application_holds_the_nodes_until_it_is_over():
    """The second changes nothing meanwhile, says whose they are, and then takes over what was configured."""
    manager = Manager(w1=9, w2=9)
    manager.states = dict.fromkeys((FIRST, SECOND), records.ApplicationState.RUNNING)
    async with play(manager, application=FIRST) as (operator, reported):
        operator.set_slots(SetSlots("w1", 3))
        await soon(lambda: SlotsSet("w1", 3, 0.0) in reported)
    before = {"w1": 3, "w2": 9}, {host: dict(named) for host, named in manager.attributes.items()}
    async with play(manager, application=SECOND) as (operator, reported):
        operator.set_slots(SetSlots("w1", 5))
        operator.publish(PublishBindings(1, (("w2", "w1"),), (), is_full=True))
        await soon(lambda: operator.held_by)
        assert operator.held_by == f"{FIRST} (ann's, of ann)"
        operator.set_slots(SetSlots("w2", None))
        await soon(lambda: SlotsSet("w2", None, 0.0) in reported)
        assert (manager.slots, manager.attributes) == before
        await operator_commands.OperatorCommands(manager, reported.append, lambda: 0.0).restore()
        assert (manager.slots, manager.attributes) == before, "a start restores nothing"
        manager.states[FIRST] = records.ApplicationState.KILLED
        await soon(lambda: SlotsSet("w1", 5, 0.0) in reported)
        await soon(lambda: manager.attributes["w2"].get("accel-bind") == "w1")
        assert operator.held_by == ""
        assert manager.attributes["w1"] == {"accel-slots": "9", "accel-owner": SECOND}
        await operator.restore()
    assert (manager.slots, manager.attributes) == ({"w1": 9, "w2": 9}, {"w1": {}, "w2": {}})


async def test_an_end_leaves_what_another_application_holds():
    manager = Manager(w1=3)
    manager.states = {FIRST: records.ApplicationState.RUNNING}
    before = {"accel-slots": "9", "accel-owner": FIRST, "accel-drained": "true"}
    manager.attributes["w1"] = dict(before)
    async with play(manager, application=SECOND) as (operator, _):
        await operator.restore()
    assert (manager.slots, manager.attributes["w1"]) == ({"w1": 3}, before)


@pytest.mark.parametrize("state", [None, records.ApplicationState.FAILED, records.ApplicationState.FINISHED])
async def test_what_an_application_left_that_is_over_is_restored_but_for_drains(state):
    """None: the ResourceManager has forgotten it, so it cannot run."""
    manager = Manager(w1=3, w2=9)
    manager.states = {} if state is None else {FIRST: state}
    manager.attributes["w1"] = {"accel-slots": "9", "accel-owner": FIRST, "accel-bind": "w2"}
    manager.attributes["w2"] = {"accel-owner": FIRST, "accel-drained": "true"}
    async with play(manager) as (operator, _):
        await operator.restore(has_drains=False)
    assert manager.slots == {"w1": 9, "w2": 9}
    assert manager.attributes == {"w1": {}, "w2": {"accel-drained": "true"}}
