"""The state document: rates and totals of heartbeats, whatever these hold, made in steps or of a part."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.page_reader import Reader
from tests.unit.master.scenes import ABOUT, AT, CLAIMS, Scene, claiming, four_nodes, heartbeat, server
from yarn_accel.master import status_documents
from yarn_accel.master.page import page
from yarn_accel.master.status_documents import RATE_WINDOW_S, AgentStatistics, Query


def rates_of(bodies, now_s=None):
    """The rates of a node after these (time, server part) heartbeats."""
    figures = AgentStatistics()
    for at_s, part in bodies:
        figures.heard("a", {"server": part}, at_s)
    now_s = bodies[-1][0] if now_s is None else now_s
    return figures.joined({"a": {}}, now_s)["a"]["rates"]


def test_the_document_is_the_snapshot_and_more():
    scene = four_nodes()
    snapshot = scene.app.snapshot(scene.now_s)
    state = scene.state(problems=["one"])
    assert {key: state[key] for key in snapshot if key != "nodes"} == {
        key: value for key, value in snapshot.items() if key != "nodes"
    }
    for host, seen in snapshot["nodes"].items():
        assert {key: state["nodes"][host][key] for key in seen} == seen
    assert (state["format"], state["at"], state["about"]) == (1, AT, ABOUT)
    assert state["service"]["problems"] == ["one"]
    json.dumps(state, allow_nan=False)


def test_totals():
    scene = four_nodes()
    totals = scene.state()["totals"]
    assert (totals["nodes"], totals["usable"], totals["accelerators"]) == (4, 4, 2)
    assert (totals["serving"], totals["bound"], totals["unbound"], totals["failures"]) == (2, 2, 0, 0)
    assert (totals["in_flight"], totals["queued"]) == (2 + 4, 0)
    assert totals["requests_per_s"] == pytest.approx(12 + 22)
    assert totals["device_busy"] == pytest.approx(0.03 * (12 + 22))


def test_a_node_without_a_server_in_its_rack_counts_as_unbound_and_one_that_is_gone_does_not():
    scene = Scene([("w1", "/r1", True), ("w2", "/r2", False), ("w3", "/r2", False)])
    scene.heartbeat()
    scene.report(w3="gone")
    totals = scene.state()["totals"]
    assert (totals["nodes"], totals["usable"], totals["bound"], totals["unbound"]) == (3, 2, 0, 1)


def test_rates_are_differences_of_counters():
    rates = rates_of([(10.0, server("a", 100, 0)), (12.0, server("a", 150, 0))])
    assert (rates["requests_per_s"], rates["device_busy"]) == (25, pytest.approx(25 * 0.03))
    assert rates["compute"] == pytest.approx(25 * 0.042)
    assert rates["operations"] == {"lu": {"per_s": 25, "mean_s": pytest.approx(0.03)}}


def test_an_operation_that_was_not_done_has_no_rate():
    assert rates_of([(10.0, server("a", 9, 0)), (12.0, server("a", 9, 0))])["operations"] == {}


def test_one_heartbeat_gives_no_rate():
    assert rates_of([(10.0, server("a", 100, 0))]) is None
    assert rates_of([(10.0, server("a", 100, 0)), (10.1, server("a", 101, 0))]) is None


@pytest.mark.parametrize("change", [{"pid": 901}, {"started_at": "later"}, {"done": 5.0}])
def test_counters_of_another_process_are_not_compared(change):
    after = server("a", 200, 0) | change
    assert rates_of([(10.0, server("a", 100, 0)), (12.0, after)]) is None


def test_rates_forget_what_was_long_ago_and_end_with_the_heartbeats():
    burst = [(0.0, server("a", 0, 0)), (1.0, server("a", 1000, 0))]
    quiet = [(1.0 + i, server("a", 1000, 0)) for i in range(1, 13)]
    assert rates_of(burst + quiet)["requests_per_s"] == 0
    assert rates_of(burst)["requests_per_s"] == 1000
    assert rates_of(burst, now_s=1.0 + RATE_WINDOW_S) is None


def test_a_server_that_is_gone_has_no_rates():
    assert rates_of([(0.0, server("a", 0, 0)), (1.0, server("a", 10, 0)), (2.0, None)]) is None


def test_the_history_counts_whole_steps_of_all_servers():
    figures = AgentStatistics()
    for second in range(6):
        for host, rate in (("a", 10), ("b", 1)):
            figures.heard(host, {"server": server(host, second * rate, 0)}, 100.0 + second)
    history = figures.history(106.0)
    assert history["step_s"] == 2.0
    assert len(history["requests"]) == len(history["device_s"]) == 60
    assert history["requests"][-4:] == [0, 11, 22, 22]
    assert figures.history(105.9)["requests"][-3:] == [0, 11, 22]


def test_the_history_does_not_grow():
    figures = AgentStatistics()
    for second in range(1000):
        figures.heard("a", {"server": server("a", second, 0)}, float(second))
    assert len(figures._steps) <= 62


def test_nodes_that_are_gone_are_forgotten():
    figures = AgentStatistics()
    figures.heard("a", heartbeat("a", 0, 0, True), 0.0)
    figures.heard("b", heartbeat("b", 0, 0, True), 0.0)
    figures.forget({"b"}, 599.0)
    assert set(figures._heard) == {"a", "b"}
    figures.forget({"b"}, 601.0)
    assert set(figures._heard) == {"b"}


def test_only_known_keys_with_fitting_values_are_kept():
    scene = four_nodes(1)
    body = heartbeat("w1", 5, 1, True)
    body |= {"more": "x", "problems": ["p" * 1000, 7], "nic": {"rx_bytes_per_s": float("nan")}}
    body["devices"][0] |= {"temperature_c": "hot", "utilisation": True, "memory_bytes": -1, "more": 1}
    body["server"] |= {"in_flight": float("inf"), "queued": 10**30, "more": 1, "operations": ["lu"]}
    scene.figures.heard("w1", body, scene.now_s)
    heard = scene.state()["nodes"]["w1"]["heard"]
    assert set(heard) == {
        *("seq", "address", "devices", "server", "pressure", "nic", "disk", "agent", "problems", "age_s"),
        "late_binding",
    }
    assert (heard["problems"], heard["nic"]) == (["p" * 200, ""], {})
    assert set(heard["devices"][0]) == {"device", "name", "health", "index", "memory_total_bytes"}
    assert heard["server"]["operations"] == {}
    assert not {"in_flight", "queued", "more"} & set(heard["server"])
    assert heard["server"]["address"] == "w1:7070"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = list(heartbeat("w1", 1.0, 1.0, True))
SERVER_KEYS = list(server("w1", 1.0, 1.0))


@given(
    st.dictionaries(st.sampled_from(KEYS), JSON),
    st.dictionaries(st.sampled_from(SERVER_KEYS), JSON),
    st.lists(st.dictionaries(st.sampled_from(["name", "health", "utilisation", "device"]), JSON), max_size=2),
)
def test_whatever_an_agent_says_the_page_is_drawn(body, part, devices):
    scene = four_nodes(1)
    usual = heartbeat("w1", 5.0, 1.0, True)
    for changed in (
        {**usual, **body},
        {**usual, "server": {**usual["server"], **part}},
        {**usual, "devices": devices},
    ):
        scene.figures.heard("w1", changed, scene.now_s)
        state = scene.state()
        json.dumps(state, allow_nan=False)
        page(state, Query()).encode()


def test_the_fuzzed_page_is_well_formed():
    scene = four_nodes(1)
    scene.figures.heard("w1", heartbeat("w1", 5, 1, True) | {"problems": ["</main><b>"]}, scene.now_s)
    assert any("</main><b>" in text for text in Reader(page(scene.state(), Query())).texts("td"))


def test_late_binding_is_that_of_the_last_heartbeat_and_old_agents_have_none():
    scene = claiming(gpu="<b>", user="ada")
    state = scene.state()
    found = {host: node["heard"]["late_binding"] for host, node in state["nodes"].items()}
    rest = {key: value for key, value in CLAIMS.items() if key != "gpu"}
    assert found == {"w1": CLAIMS, "w2": {**rest, "counts_age_s": 2.5}, "w3": None, "w4": None}
    sums = {key: 2 * value for key, value in rest.items()}
    assert state["totals"]["late_binding"] == {**sums, "gpu": 3, "nodes": 2, "counts_age_s": 2.5}
    assert four_nodes().state()["totals"]["late_binding"] is None


@pytest.mark.parametrize("part", [None, [], "x", {"claims": []}, {"claims": {"gpu": -1}}, {"apps": {}}])
def test_a_malformed_late_binding_is_nothing(part):
    scene = four_nodes()
    scene.heartbeat(w1={"late_binding": part})
    assert scene.state()["nodes"]["w1"]["heard"]["late_binding"] is None
    assert scene.figures.explain_claims("w1", scene.now_s) == ""


def test_claims_of_a_silent_agent_are_not_known():
    scene = claiming()
    for _ in range(int(RATE_WINDOW_S)):
        scene.heartbeat(silent=("w1", "w2"))
    state = scene.state()
    assert state["nodes"]["w1"]["heard"]["late_binding"] is None
    assert state["totals"]["late_binding"] is None
    assert scene.figures.explain_claims("w1", scene.now_s) == ""


def test_late_binding_is_explained():
    scene = claiming()
    assert scene.figures.explain_claims("w1", scene.now_s) == (
        "Late binding: 3 GPU, 2 core, 1 wait; "
        "40 decided, 5 undecided, 6 lost; counts of the cluster 1.5 s old."
    )
    assert scene.figures.explain_claims("w3", scene.now_s) == ""
    assert scene.figures.explain_claims("w9", scene.now_s) == ""


def many(n_racks, n_nodes=4):
    """Racks of one accelerator node and some others; nobody serves in the last rack."""
    nodes = [
        (f"r{rack}{'n' if node else 'a'}{node}", f"/r{rack}", node == 0)
        for rack in range(n_racks)
        for node in range(n_nodes)
    ]
    scene = Scene(nodes)
    for _ in range(8):
        scene.heartbeat(silent=(f"r{n_racks - 1}a0",))
    return scene


def test_the_whole_is_the_same_in_steps(monkeypatch):
    monkeypatch.setattr(status_documents, "_N_STEP", 3)
    scene = many(4)
    in_steps = scene.state()
    monkeypatch.setattr(status_documents, "_N_STEP", 1000)
    assert in_steps == scene.state()


async def test_the_event_loop_turns_between_the_steps(monkeypatch):
    monkeypatch.setattr(status_documents, "_N_STEP", 2)
    documents = many(5).documents()

    n_turns = 0

    async def count():
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await documents.whole()
    counting.cancel()
    assert n_turns >= 10


def test_a_small_cluster_is_shown_whole():
    scene = four_nodes()
    part = asyncio.run(scene.documents().part("", ""))
    assert (part["others"], part["nodes"]) == ([], scene.state()["nodes"])
    assert page(part, Query()) == page(scene.state(), Query())


def test_of_a_large_one_only_what_is_shown_is_made_and_trouble_comes_first(monkeypatch):
    monkeypatch.setattr(status_documents, "MAX_DRAWN", 8)
    scene = many(5)
    part = asyncio.run(scene.documents().part("", ""))
    assert {node["rack"] for node in part["nodes"].values()} == {"/r4", "/r0"}
    assert (part["others"], part["totals"]["nodes"]) == ([("/r1", 4), ("/r2", 4), ("/r3", 4)], 20)
    text = page(part, Query())
    assert "8 nodes in 2 racks, of 20 nodes in all" in text
    assert "?rack=%2Fr3" in text
    assert text == page(scene.state(), Query())


@pytest.mark.parametrize(("node", "rack"), [("r2n1", ""), ("", "/r2"), ("r2a0", "/r0")])
def test_a_node_or_a_rack_is_shown_when_asked_for(monkeypatch, node, rack):
    monkeypatch.setattr(status_documents, "MAX_DRAWN", 8)
    part = asyncio.run(many(5).documents().part(node, rack))
    assert {each["rack"] for each in part["nodes"].values()} == {"/r2"}
    assert len(part["others"]) == 4
