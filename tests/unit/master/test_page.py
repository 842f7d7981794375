import re

import pytest

from tests.fixtures.page_reader import Reader
from tests.unit.master.scenes import Scene, claiming, four_nodes, server
from yarn_accel.core.application import events as ev
from yarn_accel.master.diagram import Box, lay_out, short_names, three_digits
from yarn_accel.master.page import MAX_EVENTS, MAX_ROWS, page
from yarn_accel.master.status_documents import MAX_DRAWN, Query, natural

EVIL = "<script>alert(1)</script>\"'&\u202e"


def read(scene, query=Query(), explanation="", **service):  # noqa: B008
    return Reader(page(scene.state(**service), query, explanation))


def rows(reader, section):
    """The cells of a section's table, row by row."""
    texts = [text for text in reader.texts("section") if text.startswith(section)]
    assert len(texts) == 1
    cells, found = [], []
    for tag, _, text in reader.elements:
        if tag == "td":
            cells.append(text.strip())
        elif tag == "tr":
            found.append(cells)
            cells = []
        elif tag == "section":
            if text.startswith(section):
                return [row for row in found if row]
            found, cells = [], []
    raise AssertionError("no such section")


def drawn(reader):
    """Names of the nodes in the picture, with their classes."""
    return {
        attributes["data-node"]: set(attributes["class"].split()) for attributes, _ in reader.all("g", "node")
    }


def big(n_racks, n_nodes):
    scene = Scene([(f"r{rack}n{i}", f"/r{rack}", i == 0) for rack in range(n_racks) for i in range(n_nodes)])
    scene.heartbeat()
    scene.heartbeat()
    return scene


# What is shown.


def test_the_picture_has_every_node_and_a_line_for_every_binding():
    reader = read(four_nodes())
    assert set(drawn(reader)) == {"w1", "w2", "w3", "w4"}
    lines = [text for _, text in reader.all("path", "binding")]
    assert lines == ["w2 is bound to w1", "w4 is bound to w3"]


def test_a_line_has_the_colour_of_its_server_and_so_has_the_node():
    reader = read(four_nodes())
    colours = {
        host: next(c for c in classes if re.fullmatch(r"c\d", c)) for host, classes in drawn(reader).items()
    }
    assert colours["w1"] == colours["w2"] != colours["w3"] == colours["w4"]
    assert [a["class"] for a, _ in reader.all("path", "binding")] == ["binding c0", "binding c1"]


def test_stages_are_bars_as_long_as_they_are_busy():
    reader = read(four_nodes())
    bars = [float(attributes["width"]) for attributes, _ in reader.all("rect", "fill")]
    whole = float(reader.all("rect", "trough")[0][0]["width"])
    # read, compute (of two workers) and write of w1 at 12/s, then those of w3 at 22/s; see `scenes.server`.
    expected = [12 * 0.011, 12 * 0.042 / 2, 12 * 0.006, 22 * 0.011, 22 * 0.042 / 2, 22 * 0.006]
    assert [bar / whole for bar in bars] == pytest.approx(expected, abs=0.001)


def test_cards_tell_the_totals():
    texts = read(four_nodes()).texts("div", "card")
    assert (texts[0], texts[1]) == ("2 / 2servers serve", "2 / 2nodes bound; no node is left alone")
    assert texts[2] == "6requests in flight, 0 queued"
    assert texts[4].startswith("34.0requests per second")


def test_the_tables_have_what_the_picture_has_no_space_for():
    reader = read(four_nodes())
    (first, second) = rows(reader, "Servers")
    assert first[:3] == ["w1", "serves", "w1:7070"]
    assert "7.0 GiB of 23.0 GiB" in first[3]
    assert first[3].endswith("; computes on cpu; processes of others use 3.0 GiB")
    assert first[4] == "lu 12.0/s, 30 ms each"
    assert first[8:] == ["48.0 MiB of 512 MiB", "144", "2, 1", "1", "1.00"]
    assert second[0] == "w3"
    nodes = rows(reader, "Nodes")
    assert [row[:5] for row in nodes] == [
        ["w1", "/rack1", "serves", "", "4"],
        ["w2", "/rack1", "bound", "w1", "4"],
        ["w3", "/rack2", "serves", "", "4"],
        ["w4", "/rack2", "bound", "w3", "4"],
    ]
    assert nodes[0][5] == "server running; agent running"
    assert nodes[1][7:11] == ["1.2 %", "11.4 MiB/s", "2.9 MiB/s", "31 %"]


def test_events_come_newest_first_with_their_reasons():
    scene = four_nodes()
    events = rows(read(scene), "Events")
    assert events[0][1:3] == ["w4", "bound to w3"]
    assert "w3 joined" in events[0][3]
    assert len(events) == len(scene.state()["notes"])


def test_events_are_cut():
    scene = four_nodes()
    for i in range(60):
        scene.tell(ev.DrainRequested, f"w{1 + 2 * (i % 2)}")
        scene.tell(ev.UndrainRequested, f"w{1 + 2 * (i % 2)}")
    assert len(scene.state()["notes"]) > MAX_EVENTS
    assert len(rows(read(scene), "Events")) == MAX_EVENTS


def test_problems_stand_at_the_top_and_only_then():
    assert not read(four_nodes()).all("section", "problems")
    assert "no right" in read(four_nodes(), problems=["no right"]).texts("section", "problems")[0]


def test_the_page_about_a_node_has_its_explanation_its_rack_and_its_events():
    scene = four_nodes()
    reader = read(scene, Query(node="w2"), scene.app.explain("w2"))
    assert "w2 is bound to w1" in reader.texts("pre")[0]
    assert set(drawn(reader)) == {"w1", "w2"}
    assert {row[1] for row in rows(reader, "Events")} == {"w2"}


def test_an_unknown_node_or_rack_shows_everything():
    for query in (Query(node="nobody"), Query(rack="/nowhere")):
        assert len(drawn(read(four_nodes(), query, "not known"))) == 4


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"is_registered": False}, "not registered"),
        ({"is_stopping": True}, "stopping"),
        ({"totals": {"serving": 0}}, "no server yet"),
        ({}, "running"),
    ],
)
def test_the_header_says_how_the_application_is(change, word):
    empty = read(Scene([]))
    assert (drawn(empty), empty.texts("span", "pill")) == ({}, ["no server yet"])
    state = four_nodes().state()
    changed = {**state, **change, "totals": {**state["totals"], **change.get("totals", {})}}
    assert Reader(page(changed, Query())).texts("span", "pill") == [word]


# How nodes stand.


def test_an_unhealthy_server_is_seen_with_its_problem_and_its_nodes_are_alone():
    scene = four_nodes()
    sick = {"server": server("w1", 1, 1, "unhealthy") | {"problems": ["cuda:0 does not answer"]}}
    scene.heartbeat(w1=sick)
    reader = read(scene)
    assert "bad" in drawn(reader)["w1"]
    assert "idle" in drawn(reader)["w2"]
    assert "cuda:0 does not answer" in rows(reader, "Nodes")[0][-1]
    assert reader.texts("div", "card")[1] == "1 / 2nodes bound; 1 with their own CPU only"


def test_a_server_that_failed_is_reported_with_the_reason():
    scene = four_nodes()
    container = next(c for c, place in scene.containers.items() if place == ("w1", "server"))
    scene.tell(ev.ContainerCompleted, container, 137, "out of memory")
    assert "server failed 1 ×: exit status 137: out of memory" in rows(read(scene), "Nodes")[0][-1]


def test_an_accelerator_node_without_a_server_is_bound_to_its_neighbour():
    scene = Scene([("a1", "/r", True), ("a2", "/r", True)])
    for _ in range(3):
        scene.heartbeat()
    for _ in range(13):
        scene.heartbeat(a2={"server": None})
    assert read(scene).texts("path", "binding") == ["a2 is bound to a1"]


def test_slots_that_are_not_set_yet_have_a_question_mark():
    scene = four_nodes()
    state = scene.state()
    state["nodes"]["w2"]["slots"] = {"wanted": 1, "is_set": False}
    reader = Reader(page(state, Query()))
    assert "1 ? slot" in reader.texts("text")


def test_a_silent_agent_and_a_node_that_is_gone_without_slots_are_seen():
    scene = four_nodes()
    for _ in range(6):
        scene.heartbeat(silent=("w2",))
    assert "warn" in drawn(read(scene))["w2"]
    assert rows(read(scene), "Nodes")[1][2] == "silent"
    scene.report(w2="gone")
    reader = read(scene)
    assert drawn(reader)["w2"] >= {"bad"}
    assert len([text for text in reader.texts("text") if "slot" in text]) == 1
    assert next(row for row in rows(reader, "Nodes") if row[0] == "w2")[4] == ""


def test_a_domain_that_all_nodes_share_is_not_drawn():
    names = ["gpu1.example.org", "cpu1.example.org"]
    scene = Scene([(names[0], "/r", True), (names[1], "/r", False)])
    scene.heartbeat()
    scene.heartbeat()
    reader = read(scene)
    assert {"gpu1", "cpu1", "→ gpu1"} <= set(reader.texts("text"))
    assert drawn(reader).keys() == set(names)
    assert [text for _, text in reader.all("path", "binding")] == [f"{names[1]} is bound to {names[0]}"]


@pytest.mark.parametrize(
    ("hosts", "short"),
    [
        ([], []),
        (["w1", "w2"], ["w1", "w2"]),
        (["n1.example.org"], ["n1"]),
        (["n1.a.org", "n1.b.org"], ["n1.a", "n1.b"]),
        (["a.org", "n1.a.org"], ["a", "n1.a"]),
        (["10.0.0.1", "10.1.0.1"], ["10.0.0.1", "10.1.0.1"]),
    ],
)
def test_what_is_left_of_names_tells_them_apart(hosts, short):
    assert short_names(hosts) == dict(zip(hosts, short, strict=True))


# Safety.


def test_everything_is_escaped():
    scene = Scene([(EVIL, EVIL, True), ("w2", EVIL, False)])
    evil = server(EVIL, 5, 1, EVIL) | {"problems": [EVIL], "operations": {EVIL: {"done": 1, "compute_s": 1}}}
    for i in range(3):
        evil["operations"] = {EVIL: {"done": i, "compute_s": i}}
        scene.heartbeat(
            **{EVIL: {"server": dict(evil), "problems": [EVIL], "devices": [{"name": EVIL, "device": EVIL}]}}
        )
    state = scene.state(problems=[EVIL])
    state["about"] = dict.fromkeys(state["about"], EVIL)
    text = page(state, Query(node=EVIL), EVIL)
    assert "<script>alert" not in text
    assert "\u202e" not in text
    reader = Reader(text)
    assert len(reader.all("script")) == 1


def test_nothing_is_loaded_and_links_stay_below_the_proxy():
    reader = read(four_nodes(), Query(node="w2"))
    for tag, attributes, _ in reader.elements:
        assert "style" not in attributes
        assert "src" not in attributes
        assert tag not in ("link", "img", "iframe", "object", "image", "use")
        if "href" in attributes:
            assert re.match(r"\?|v1/state\Z|metrics\Z", attributes["href"]), attributes["href"]


def test_a_link_to_a_node_keeps_its_name():
    scene = Scene([("a&b=c d", "/r", True)])
    scene.heartbeat()
    assert {a["href"] for a, _ in read(scene).all("a") if "node=" in a["href"]} == {"?node=a%26b%3Dc%20d"}


# Large clusters.


def test_of_a_large_cluster_whole_racks_are_shown_and_the_others_are_links():
    scene = big(4, 300)
    reader = read(scene)
    shown = drawn(reader)
    assert len(shown) == 900 <= MAX_DRAWN
    assert not any(host.startswith("r3") for host in shown)
    assert [a["href"] for a, text in reader.all("a") if "rack=" in a["href"]] == ["?rack=%2Fr3"]
    assert len(rows(reader, "Nodes")) == MAX_ROWS
    assert set(drawn(read(scene, Query(rack="/r3")))) == {f"r3n{i}" for i in range(300)}


def test_racks_in_trouble_are_shown_first_and_their_nodes_are_the_first_rows():
    scene = big(4, 300)
    scene.report(r3n7="gone")
    reader = read(scene)
    assert "bad" in drawn(reader)["r3n7"]
    assert rows(reader, "Nodes")[0][0] == "r3n7"


def test_a_rack_that_is_too_large_is_cut():
    scene = big(1, MAX_DRAWN + 5)
    assert len(drawn(read(scene))) == MAX_DRAWN


# Layout.


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 2), (3, 9), (5, 30), (12, 80), (2, 400)])
def test_boxes_lie_apart_and_inside_their_racks(shape):
    n_racks, n_nodes = shape
    nodes = {
        f"r{rack}n{i}": {"rack": f"/r{rack}", "is_accelerator": i % 7 == 0}
        for rack in range(n_racks)
        for i in range(n_nodes)
    }
    layout = lay_out(nodes)
    assert set(layout.nodes) == set(nodes)
    for host, box in layout.nodes.items():
        assert is_inside(box, layout.racks[nodes[host]["rack"]])
    assert_apart(list(layout.racks.values()))
    for rack in layout.racks:
        assert_apart([layout.nodes[host] for host in nodes if nodes[host]["rack"] == rack])
    assert all(is_inside(box, Box(0, 0, layout.width, layout.height)) for box in layout.racks.values())


def is_inside(box, outer):
    is_wide = outer.x <= box.x and box.x + box.width <= outer.x + outer.width
    return is_wide and outer.y <= box.y and box.bottom <= outer.bottom


def assert_apart(boxes):
    for i, one in enumerate(boxes):
        for two in boxes[i + 1 :]:
            is_beside = one.x + one.width <= two.x or two.x + two.width <= one.x
            assert is_beside or one.bottom <= two.y or two.bottom <= one.y


def test_a_new_binding_moves_no_node():
    nodes = four_nodes().state()["nodes"]
    rebound = {host: {**node, "bound": "w3" if node["bound"] else None} for host, node in nodes.items()}
    assert lay_out(nodes) == lay_out(rebound)


def test_names_are_sorted_as_people_do():
    names = ["w10", "w2", "w1", "9" * 30, "a", "", "w2b", "²"]
    assert sorted(names, key=natural) == sorted(reversed(names), key=natural)
    assert sorted(["w10", "w2", "w1"], key=natural) == ["w1", "w2", "w10"]


@pytest.mark.parametrize(
    ("busy", "words"),
    [(0.126, "0.13"), (1.24, "1.24"), (9.996, "10.0"), (44.04, "44.0"), (99.96, "100"), (168.0, "168")],
)
def test_a_figure_beside_a_bar_has_three_digits(busy, words):
    assert three_digits(busy) == words


# Late binding.


def test_late_binding_of_each_node_and_of_all():
    reader = read(claiming())
    shown = [row[-2] for row in rows(reader, "Nodes")]
    words = "3 GPU, 2 core, 1 wait; 40 decided, 5 undecided, 6 lost; counts of the cluster 1.5 s old"
    assert " ".join(shown[0].split()) == words
    assert shown[2:] == ["", ""]
    card = next(text for text in reader.texts("div") if text.startswith("6 GPU, 4 core, 2 wait"))
    assert "late binding on 2 nodes; 80 decided, 10 undecided, 12 lost" in card


def test_late_binding_that_nobody_uses_is_not_shown():
    reader = read(four_nodes())
    assert not any("late binding" in text for text in reader.texts("div"))
    assert {row[-2] for row in rows(reader, "Nodes")} == {""}


def test_markup_in_place_of_a_count_is_not_shown():
    html = page(claiming(gpu=EVIL, counts_age_s=EVIL, **{EVIL: 1}).state(), Query())
    assert "alert(1)" not in html
    assert "- GPU, 2 core, 1 wait" in html
