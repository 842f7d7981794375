import io

import pytest
from rich.console import Console

from tests.unit.launch.yarn import app, report
from yarn_accel.core import binding
from yarn_accel.core.application import (
    Application,
    ContainerRole,
    NodeSelector,
    RoleResource,
    RoleTable,
    Settings,
)
from yarn_accel.core.application import events as ev
from yarn_accel.launch.status_view import n_serving, status_table, tokens_end_s

PAGE = "http://rm:8088/proxy/x/"


def drawn(answer):
    console = Console(width=160, file=io.StringIO())
    console.print(status_table(report(1), PAGE, answer))
    return console.file.getvalue()


def node(**values):
    return {"rack": "/r1", "state": "usable", "is_accelerator": True, "is_serving": False, **values}


def answer(**nodes):
    return {"attempt": 2, "node": "w9", "state": {"policy": "paper", "nodes": nodes, "notes": []}}


def row(text, name):
    return next(line for line in text.splitlines() if line.startswith(name))


def test_who_serves_whom():
    text = drawn(
        answer(
            w1=node(is_serving=True, members=["w2", "w3"], load={"open": 3, "capacity": 8}),
            w2=node(is_accelerator=False, bound="w1", slots={"wanted": 4, "is_set": True}),
            w3=node(is_accelerator=False, bound="w1", slots={"wanted": 4, "is_set": False}),
        )
    )
    assert f"{app(1)} yarn-accel (alice" in text
    assert "attempt 2 on w9, policy paper, 1 of 1 accelerator nodes serve" in text
    assert PAGE in text
    assert row(text, "w1").split() == ["w1", "/r1", "usable", "serves", "-", "w2", "w3", "3/8", "-"]
    assert row(text, "w2").split() == ["w2", "/r1", "usable", "-", "w1", "-", "-", "4"]
    assert row(text, "w3").endswith("4 (not set yet)")


@pytest.mark.parametrize(
    ("heard", "word"),
    [
        ({"devices": [{"device": "cuda:0"}], "server": {"computes_on": "cpu"}}, "serves on cpu  "),
        (
            {"devices": [{"device": "cuda:0"}], "server": {"computes_on": "cuda:0 cuda:1"}},
            "serves on cuda:0 cuda:1  ",
        ),
        (
            {
                "devices": [{"device": "cuda:0"}],
                "server": {"computes_on": "cuda:0", "gpu_other_bytes": 2**30},
            },
            "serves on cuda:0, others use 1.0 GiB  ",
        ),
        ({"devices": [], "server": {"computes_on": "cpu"}}, "serves  "),
        ({"devices": [{"device": "cuda:0"}], "server": {}}, "serves  "),
        (None, "serves  "),
    ],
)
def test_on_a_node_with_gpus_it_says_what_computes(heard, word):
    assert word in row(drawn(answer(w1=node(is_serving=True, heard=heard))), "w1")


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ({"containers": [{"phase": "running"}]}, "starting"),
        ({"containers": [{"phase": "launching"}]}, "launching"),
        ({"containers": [], "asked_for_s": 3.0}, "asked for"),
        (
            {"containers": [], "retry_in_s": 7.4, "last_failure": "no\nspace"},
            "failed, again in 7 s: no space",
        ),
        ({"containers": [], "retry_in_s": 1, "last_failure": "x" * 999}, f"again in 1 s: {'x' * 40}  "),
        ({}, "none"),
    ],
)
def test_what_a_server_that_does_not_serve_waits_for(place, word):
    text = drawn(answer(w1=node(places={"server": place})))
    assert word in row(text, "w1")
    assert n_serving(answer(w1=node())) == (0, 1)


def test_why_containers_of_a_role_fail_is_said_in_full():
    why = "exit status 3: another agent (pid 4711) serves this node: it holds /run/yarn-accel/w1/agent.lock"
    failed = {"failures": 3, "last_failure": why, "containers": []}
    running = {"failures": 1, "last_failure": "forgiven", "containers": [{"phase": "running"}]}
    text = drawn(
        answer(
            w1=node(places={"agent": failed, "server": running}),
            w2=node(places={"agent": {**failed, "failures": 2}}),
            w3=node(places={"agent": running}),
        )
    )
    assert f"w1 w2: agent failed 3 times in a row: {why}" in text
    assert "forgiven" not in text


@pytest.mark.parametrize(
    ("load", "word"),
    [
        ({}, "starting"),
        ({"is_healthy": False, "detail": "it is starting"}, "starting"),
        ({"is_healthy": False, "detail": "it does not answer"}, "does not answer"),
        ({"is_healthy": False, "detail": "it hangs and is replaced"}, "hangs and is replaced"),
        ({"is_healthy": False, "detail": "it is unhealthy; cuda:0 fell\noff"}, "unhealthy; cuda:0 fell off"),
        ({"is_healthy": True, "detail": ""}, "no word from its agent"),
    ],
)
def test_what_a_server_does_whose_container_runs(load, word):
    containers = {"server": {"containers": [{"phase": "running"}]}}
    assert f"  {word}  " in row(drawn(answer(w1=node(places=containers, load=load))), "w1")


def test_what_an_admin_should_know_is_said():
    reported = answer(w1=node(is_drained=True), w2=node(is_released=True))
    reported["state"]["service"] = {"problems": ["slots are not set: no right"]}
    reported["state"]["is_stopping"] = True
    reported["state"]["notes"] = [
        {"what": f"event {n}", "reason": "why", "age_s": 20.0 - n} for n in range(12)
    ]
    text = drawn(reported)
    assert "note: slots are not set: no right" in text
    assert "usable, drained" in text
    assert "usable, released" in text
    assert "stopping" in text
    assert "9.0 s ago  event 11 (why)" in text
    assert "event 3 " not in text, "only the last ones"


def test_the_picture_of_the_real_core_is_understood():
    """The form is agreed nowhere else."""
    roles = RoleTable(
        [ContainerRole("server", NodeSelector.ACCELERATOR, RoleResource(512), priority=10, is_server=True)]
    )
    core = Application(Settings(), roles, make_policy=lambda: binding.make("paper"))
    core.apply(ev.TimerFired(0.0))
    core.apply(ev.Registered((), 1, 0.1))
    nodes = (ev.NodeView("w1", 1, "/r1", is_accelerator=True), ev.NodeView("w2", 1, "/r1"))
    core.apply(ev.NodesReported(nodes, is_complete=True, now_s=0.2))
    reported = {"attempt": 1, "state": core.snapshot(1.0)}
    assert n_serving(reported) == (0, 1)
    text = drawn(reported)
    assert "policy paper" in text
    assert "asked for" in row(text, "w1")
    assert "node joined" in text


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"state": None},
        {"state": {"nodes": [], "notes": {}, "service": 3}},
        {"state": {"nodes": {"w1": 4, "w2": {"places": [], "load": "x", "members": 5, "slots": 1}}}},
        {"state": {"notes": [None, 3, {"age_s": "old"}]}},
    ],
)
def test_a_master_of_another_version_is_shown_as_far_as_it_goes(strange):
    assert str(app(1)) in drawn(strange)
    n_serving(strange)


def test_nothing_steers_the_terminal():
    hostile = "w1\x1b]0;title\x07\x1b[31m[bold]red[/bold]"
    reported = answer(**{hostile: node(rack=hostile, bound=hostile)})
    reported["state"]["notes"] = [{"what": hostile, "reason": hostile, "age_s": 1.0}]
    text = drawn(reported)
    assert "\x1b" not in text
    assert "[bold]red[/bold]" in text


def test_a_large_cluster_is_cut_and_says_so():
    text = drawn(answer(**{f"w{n:04d}": node() for n in range(250)}))
    assert "w0199" in text
    assert "w0200" not in text
    assert "50 nodes more" in text


def test_what_happened_names_its_nodes_and_folds_what_is_the_same():
    reported = answer()
    reported["state"]["notes"] = [
        *({"what": "node joined", "node": f"w{n}", "age_s": 9.0} for n in range(1, 9)),
        {"what": "bound to w1", "node": "w2", "reason": "smallest", "age_s": 3.0},
        {"what": "registered", "node": "", "reason": "attempt 1", "age_s": 2.0},
    ]
    lines = [" ".join(line.split()) for line in drawn(reported).splitlines()[-3:]]
    assert lines == [
        "9.0 s ago w1 w2 w3 w4 w5 w6 and 2 more: node joined",
        "3.0 s ago w2: bound to w1 (smallest)",
        "2.0 s ago registered (attempt 1)",
    ]


def test_late_binding_of_each_node_and_of_all():
    counts = {"gpu": 1, "cpu": 2, "waiting": 3, "decided": 9, "undecided": 1, "lost": 0, "counts_age_s": 0.5}
    found = answer(w1=node(heard={"late_binding": counts}), w2=node(heard={"late_binding": None}))
    found["state"]["totals"] = {"late_binding": {**counts, "nodes": 1}}
    text = drawn(found)
    assert "late binding: 1 GPU, 2 core, 3 wait; 9 decided, 1 undecided, 0 lost; counts of the" in text
    assert row(text, "w1").rstrip().endswith("1 GPU, 2 core, 3 wait")
    assert row(text, "w2").rstrip().endswith(" -")


@pytest.mark.parametrize("late_binding", [None, "x", [], {"gpu": "\x1b[31m"}])
def test_late_binding_that_a_master_does_not_report_is_left_out(late_binding):
    found = answer(w1=node(heard={"late_binding": late_binding}))
    found["state"]["totals"] = {"late_binding": late_binding}
    text = drawn(found)
    assert "\x1b" not in text
    assert ("late binding" in text) == isinstance(late_binding, dict)


@pytest.mark.parametrize(("said", "ends_s"), [(1_800_000_000.5, 1_800_000_000.5), (None, 0.0), ("soon", 0.0)])
def test_when_tokens_end_is_known_where_a_master_renews_them(said, ends_s):
    found = answer(w1=node())
    found["state"]["service"] = {"tokens_end_s": said}
    assert tokens_end_s(found) == ends_s
    assert tokens_end_s({}) == 0.0
