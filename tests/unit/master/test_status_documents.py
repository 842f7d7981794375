"""The state document in parts: the same as in one go, with turns of the event loop in between."""

import asyncio

import pytest

from tests.unit.master.scenes import ABOUT, Scene, four_nodes
from yarn_accel.master import status_documents
from yarn_accel.master.page import page
from yarn_accel.master.status_documents import Query, StatusDocuments


def states_of(scene):
    return StatusDocuments(scene.app, scene.figures, lambda: scene.now_s, ABOUT, lambda _: {"problems": []})


def without_time(state):
    return {**state, "at": 0.0}


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
    documents = states_of(many(4))
    assert without_time(asyncio.run(documents.whole())) == without_time(documents.now())


def test_the_totals_are_what_a_count_of_all_nodes_gives():
    for scene in (four_nodes(), many(5)):
        counted = scene.figures.state(scene.app.snapshot(scene.now_s), scene.now_s)["totals"]
        assert scene.figures.totals(scene.app.summarize(), scene.now_s) == pytest.approx(counted)


def test_the_event_loop_turns_between_the_steps(monkeypatch):
    monkeypatch.setattr(status_documents, "_N_STEP", 2)
    documents = states_of(many(5))

    async def turns():
        n_turns = 0

        async def count():
            nonlocal n_turns
            while True:
                n_turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await documents.whole()
        counting.cancel()
        return n_turns

    assert asyncio.run(turns()) >= 10


def test_a_small_cluster_is_shown_whole():
    scene = four_nodes()
    part = asyncio.run(states_of(scene).part("", ""))
    assert part["others"] == []
    assert part["nodes"] == states_of(scene).now()["nodes"]
    assert page(part, Query()) == page(states_of(scene).now() | {"at": part["at"]}, Query())


def test_of_a_large_one_only_what_is_shown_is_made_and_trouble_comes_first(monkeypatch):
    monkeypatch.setattr(status_documents, "MAX_DRAWN", 8)
    scene = many(5)
    part = asyncio.run(states_of(scene).part("", ""))
    assert {node["rack"] for node in part["nodes"].values()} == {"/r4", "/r0"}
    assert part["others"] == [("/r1", 4), ("/r2", 4), ("/r3", 4)]
    assert part["totals"]["nodes"] == 20
    text = page(part, Query())
    assert "8 nodes in 2 racks, of 20 nodes in all" in text
    assert "?rack=%2Fr3" in text
    assert text == page(states_of(scene).now() | {"at": part["at"]}, Query())


@pytest.mark.parametrize(("node", "rack"), [("r2n1", ""), ("", "/r2"), ("r2a0", "/r0")])
def test_a_node_or_a_rack_is_shown_when_asked_for(monkeypatch, node, rack):
    monkeypatch.setattr(status_documents, "MAX_DRAWN", 8)
    part = asyncio.run(states_of(many(5)).part(node, rack))
    assert {each["rack"] for each in part["nodes"].values()} == {"/r2"}
    assert len(part["others"]) == 4
