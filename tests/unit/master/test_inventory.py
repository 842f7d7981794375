"""Who counts as an accelerator node, and what is forgotten."""

import pytest

from yarn_accel.adapters.hadoop_rpc import NodeId, records
from yarn_accel.master.inventory import Inventory


def report(host, state=records.NodeState.RUNNING, gpus=0, **values):
    size = records.YarnResource.of(4096, 4, {"yarn.io/gpu": gpus, "acct/slot": 5})
    return records.NodeReport(
        NodeId(host, values.pop("port", 1)), rack="/r", capability=size, state=state, **values
    )


def test_what_makes_an_accelerator_node():
    attribute = records.NodeAttribute(records.NodeAttributeKey("nm.yarn.io", "accel-gpus"), value="2")
    forged = records.NodeAttribute(records.NodeAttributeKey("rm.yarn.io", "accel-gpus"), value="2")
    inventory = Inventory(["emulated-*"])
    views = inventory.complete(
        [
            report("plain"),
            report("gpu", gpus=1),
            report("attribute", attributes=(attribute,)),
            report("other", attributes=(forged,)),
            report("emulated-7"),
        ]
    )
    assert {view.host for view in views if view.is_accelerator} == {"gpu", "attribute", "emulated-7"}
    assert (views[0].slots, views[0].capability) == (5, {"memory-mb": 4096, "vcores": 4, "yarn.io/gpu": 0})


def test_the_agent_knows_better_than_yarn():
    inventory = Inventory(["emulated"])
    inventory.complete([report("gpu", gpus=1), report("plain"), report("emulated")])
    broken, found = inventory.devices("gpu", False), inventory.devices("plain", True)
    assert not broken.is_accelerator
    assert found.is_accelerator
    assert inventory.devices("plain", True) is None, "no news"
    assert inventory.devices("plain", None) is None, "it does not know: what was said last counts"
    (view,) = inventory.updated([report("plain")])
    assert view.is_accelerator
    emulated = inventory.devices("emulated", False)
    assert emulated.is_accelerator
    assert inventory.devices("unknown", True) is None


@pytest.mark.parametrize(
    ("state", "is_usable", "is_leaving"),
    [
        (records.NodeState.RUNNING, True, False),
        (records.NodeState.DECOMMISSIONING, True, True),
        (records.NodeState.LOST, False, False),
        (records.NodeState.UNHEALTHY, False, False),
        (records.NodeState.SHUTDOWN, False, False),
    ],
)
def test_states(state, is_usable, is_leaving):
    (view,) = Inventory().updated([report("w1", state)])
    assert (view.is_usable, view.is_leaving) == (is_usable, is_leaving)


def test_a_node_started_anew_on_another_port_is_the_live_one():
    inventory = Inventory()
    inventory.complete([report("w1", port=1)])
    assert inventory.updated([report("w1", port=2)])[0].port == 2
    assert inventory.updated([report("w1", records.NodeState.LOST, port=1)]) == ()
    assert inventory.node_id("w1") == NodeId("w1", 2)
    inventory.complete([report("w2")])
    assert "w1" not in inventory
    assert inventory.rack("w1") is None
    assert inventory.rack("w2") == "/r"


def test_what_was_published_of_a_node_is_known_to_the_next_attempt():
    mark = records.NodeAttribute(records.NodeAttributeKey("rm.yarn.io", "accel-bind"), value="a1")
    forged = records.NodeAttribute(records.NodeAttributeKey("nm.yarn.io", "accel-bind"), value="a9")
    inventory = Inventory()
    views = inventory.complete(
        [report("w1", attributes=(mark,)), report("w2", attributes=(forged,)), report("w3")]
    )
    assert {view.host: view.bound for view in views} == {"w1": "a1", "w2": None, "w3": None}
