from itertools import chain

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.master.scenes import Scene, claiming, four_nodes
from yarn_accel.adapters.metric_families import exposition
from yarn_accel.core.application import events as ev
from yarn_accel.master.metrics import PREFIX, families


def samples(state, more=()):
    """Name without our prefix -> values of the labels, these by name -> value; from Prometheus' text."""
    found = {}
    for family in text_string_to_metric_families(exposition(chain(families(state), more)).decode()):
        for sample in family.samples:
            assert sample.name.startswith(PREFIX)
            values = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name.removeprefix(PREFIX), {})[values] = sample.value
    return found


def test_the_application():
    found = samples(four_nodes().state())
    assert (found["registered"], found["attempt"], found["stopping"]) == ({(): 1}, {(): 1}, {(): 0})
    assert found["binding_changes_total"][()] >= 1
    assert found["resource_manager_failures_total"] == {(): 2}
    assert (found["resource_manager_silence_seconds"], found["resident_bytes"]) == ({(): 0.4}, {(): 45e6})


def test_nodes_and_containers_are_counted():
    scene = four_nodes()
    scene.report(w4="gone")
    found = samples(scene.state())
    assert found["nodes"] == {("/rack1", "usable"): 2, ("/rack2", "usable"): 1, ("/rack2", "gone"): 1}
    assert found["containers"] == {("running", "server"): 2, ("running", "agent"): 3}
    assert found["bound_nodes"] == {(): 1}


def test_what_is_asked_for_and_not_there():
    scene = Scene([])
    scene.enact = lambda command: None
    scene.nodes["w1"] = ("/r", True)
    scene.report()
    assert samples(scene.state())["requested_containers"] == {("server",): 1, ("agent",): 1}


def test_servers():
    found = samples(four_nodes().state())
    one, two = ("/rack1", "w1"), ("/rack2", "w3")
    assert (found["server_serving"], found["server_bound_nodes"]) == ({one: 1, two: 1}, {one: 1, two: 1})
    assert found["server_load"] == {one: 1, two: 1}
    assert found["server_answers_total"] == {one: 12 * 12, two: 12 * 22}
    assert found["server_stage_busy_seconds_total"][(*one, "compute")] == 12 * 12 * 0.042


def test_what_is_not_known_has_no_sample():
    scene = four_nodes(0)
    state = {**scene.state(), "service": {}}
    found = samples(state)
    assert not {"events_total", "oldest_heartbeat_seconds", "server_answers_total"} & set(found)
    assert found["server_serving"] == {("/rack1", "w1"): 0, ("/rack2", "w3"): 0}


def test_the_agent_that_is_silent_longest():
    scene = four_nodes()
    for _ in range(3):
        scene.heartbeat(silent=("w2",))
    assert samples(scene.state())["oldest_heartbeat_seconds"] == {(): 3}


def test_failures():
    scene = four_nodes()
    container = next(c for c, place in scene.containers.items() if place == ("w1", "server"))
    scene.tell(ev.ContainerCompleted, container, 1, "")
    assert samples(scene.state())["consecutive_failures"] == {(): 1}


def test_late_binding():
    found = samples(claiming(lost="many").state())
    assert found["node_claims"] == {
        (host, "/rack1", state): n
        for host in ("w1", "w2")
        for state, n in (("waiting", 1), ("cpu", 2), ("gpu", 3))
    }
    assert found["node_claim_results_total"] == {
        ("w1", "/rack1", "decided"): 40,
        ("w1", "/rack1", "undecided"): 5,
        ("w1", "/rack1", "lost"): 6,
        ("w2", "/rack1", "decided"): 40,
        ("w2", "/rack1", "undecided"): 5,
    }
    assert found["node_counts_age_seconds"] == {("w1", "/rack1"): 1.5, ("w2", "/rack1"): 2.5}
    assert not {"node_claims", "node_counts_age_seconds"} & set(samples(four_nodes().state()))
