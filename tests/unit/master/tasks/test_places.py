"""Workers of several sizes: each on nodes of its own choice, one container per node and size."""

from types import SimpleNamespace

from yarn_accel.adapters.hadoop_rpc.records import NodeAttribute, NodeAttributeKey
from yarn_accel.core.application import RoleResource
from yarn_accel.core.tasks.worker_nodes import WorkerNodes
from yarn_accel.master.credentials import MasterCredentials
from yarn_accel.master.tasks.places import SizePlaces, WorkerPlaces, usable_nodes


def places(chosen):
    sizes = [
        SizePlaces("worker", WorkerNodes(60.0), lambda: ["n1", "n2", "n3"]),
        SizePlaces("worker-large", WorkerNodes(60.0), lambda: ["n3", "n2"]),
    ]
    return WorkerPlaces(sizes, chosen.__setitem__)


def test_each_size_gets_as_many_nodes_as_it_wants():
    chosen = {}
    found = places(chosen)
    found.want((("worker", 2), ("worker-large", 1)))
    found.choose({}, (), 1.0)
    assert chosen == {"worker": {"n1", "n2"}, "worker-large": {"n3"}}
    assert (found.n_wanted, found.nodes) == (3, ["n1", "n2", "n3"])
    # Those of an earlier master that have not reported stay, and say their node by their name alone.
    found.choose({"n1": "n1", "n3_large": ""}, (), 2.0)
    found.want((("worker", 0), ("worker-large", 0)))
    found.choose({"n1": "n1", "n3_large": ""}, (), 3.0)
    assert chosen == {"worker": {"n1"}, "worker-large": {"n3"}}
    found.release(found.worker("worker-large", "n3"))
    found.choose({"n1": "n1"}, (), 4.0)
    assert chosen == {"worker": {"n1"}, "worker-large": frozenset()}


def test_two_workers_of_a_node_have_names_and_keys_of_their_own():
    found = places({})
    assert found.worker("worker", "n1") == "n1"
    assert found.worker("worker-large", "n1") == "n1_large"
    assert found.worker("agent", "n1") is None
    assert found.role_of("n1_large", "n1") == "worker-large"
    assert found.role_of("n1_large", "n2") is None
    assert found.role_of("n1_huge", "n1") is None
    credentials = MasterCredentials(None, b"control" * 8)
    keys = {credentials.of_container(role, "n1") for role in ("agent", "worker", "worker-large")}
    assert len(keys) == 3


def test_preferred_nodes_come_first():
    chosen = {}
    found = places(chosen)
    found.want((("worker", 1), ("worker-large", 0)))
    found.choose({}, {"n3": "n1"}, 1.0)
    assert chosen["worker"] == {"n3"}


def report(host, memory_mib, labels=(), disk=""):
    attribute = NodeAttribute(NodeAttributeKey("nm.yarn.io", "disk"), value=disk)
    return SimpleNamespace(
        node=SimpleNamespace(host=host),
        capability=SimpleNamespace(memory_mib=memory_mib, vcores=8, other={}),
        is_usable=True,
        labels=labels,
        attributes=(attribute,) if disk else (),
    )


def test_a_size_may_be_for_nodes_of_a_label_or_an_attribute():
    nodes = [report("a", 4096), report("b", 8192, ("gpu",)), report("c", 9000, (), "ssd"), report("d", 100)]
    inventory = SimpleNamespace(reports=lambda: nodes)
    need = RoleResource(1024, 2)
    assert usable_nodes(inventory, need) == ["c", "b", "a"]
    assert usable_nodes(inventory, need, label="gpu") == ["b"]
    assert usable_nodes(inventory, need, attribute="nm.yarn.io/disk=ssd") == ["c"]
    assert usable_nodes(inventory, need, attribute="nm.yarn.io/disk=hdd") == []
