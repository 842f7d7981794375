"""A real agent and a real server on a node of eight emulated GPUs: what is said of them, everywhere.

NVML is emulated (`tests.fixtures.fake_nvml`) below NVIDIA's own Python binding; CuPy is a stand-in that
computes nothing.
"""

import io
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from tests.fixtures import fake_nvml
from tests.integration.node.conftest import ROOT, listening_port
from tests.integration.node.master import Master
from tests.unit.launch.yarn import report
from tests.unit.master.scenes import Scene
from yarn_accel.core.binding.settings import DeviceWeights
from yarn_accel.launch.status_view import status_table
from yarn_accel.master.agents import parse_heartbeat, status_events, weight_of
from yarn_accel.master.page import page
from yarn_accel.master.status_documents import Query
from yarn_accel.operations.gpu_errors import Blame, xid_blame

ALL = "cuda:0 cuda:1 cuda:4 cuda:5:0 cuda:5:2 cuda:6 cuda:7"
"""Of the eight, 2 is lost, 3 forbidden and 5 divided in two by MIG."""
_PATIENCE_S = 240.0
_FALLEN_OFF, _OF_A_PROGRAM = 79, 31


@pytest.fixture
def node(nvml_library, tmp_path, monkeypatch):
    """Processes started from now on see eight emulated GPUs; the driver is not loaded yet."""
    node = fake_nvml.eight_gpus(tmp_path / "nvml")
    for name, value in node.environment(nvml_library).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/unit/pipeline/workers/fake_gpu"))
    node.init = 9
    node.write()
    return node


@pytest.fixture
def master():
    with Master() as master:
        master.answer = {"servers": [], "bound": [], "interval_s": 0.1}
        yield master


def until(agent, condition, what):
    agent.until(condition, what, _PATIENCE_S)


def computes_on(agent):
    return str((agent.state().get("server") or {}).get("computes_on"))


def healths(agent):
    return {each["device"]: each["health"] for each in agent.state()["devices"]}


def last_beat(master):
    return master.heard[-1][1]


def of_server(master, key):
    """What the master last heard of the server."""
    return (last_beat(master)["server"] or {}).get(key) if master.heard else None


def shown(beat):
    """What page and `status` of a master say that hears this."""
    scene = Scene([("w1", "/r1", True), ("w2", "/r1", False)])
    for _ in range(3):
        scene.heartbeat(w1={"devices": beat["devices"], "server": beat["server"]})
    console = Console(width=400, file=io.StringIO())
    state = {"attempt": 1, "node": "w9", "state": scene.state()}
    console.print(status_table(report(1), "http://page/", state))
    assert isinstance(console.file, io.StringIO)
    return page(scene.state(), Query(), ""), console.file.getvalue()


def weight_and_capacity(beat):
    """What the binding goes by."""
    weights, heard = DeviceWeights(), parse_heartbeat("agent:w1", beat, "")
    server = status_events(heard, None, 1.0, weights, 1.0)[1]
    return weight_of(heard, weights), server.gauges.capacity


def children(process):
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


@pytest.fixture
def agent(agents, master, node):
    """An agent that was started before the driver was loaded, and has found it."""
    agent = agents(master_url=master.url, http_port=0).start()
    assert agent.state()["devices"] == [], "the driver is not loaded"
    node.init = 0
    node.write()
    until(agent, lambda: len(agent.state()["devices"]) == 9, "a driver that is loaded later is found")
    return agent


@pytest.fixture
def server(agent, serve, master):
    """A server on all GPUs that can be used, of which the master knows."""
    server = serve(agent, devices=["auto"], probe_gpus=False, quarantine_s=600.0)
    until(agent, lambda: computes_on(agent) == ALL, "it computes on all that can be used")
    until(agent, lambda: of_server(master, "computes_on") == ALL, "the master hears it")
    return server


def test_agent_status_page_and_metrics_name_every_gpu(agent, server, master):
    assert healths(agent) == {
        **dict.fromkeys(ALL.split(), "ok"),
        **dict.fromkeys(("cuda:2", "cuda:3"), "failed"),
    }
    assert weight_and_capacity(last_beat(master))[1] == len(ALL.split())
    web, status = shown(last_beat(master))
    assert f"computes on {ALL}" in web
    assert "serves on cuda:0 cuda:1 cuda:4" in status
    port = listening_port(agent.state()["pid"])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
        figures = answer.read().decode()
    for device, health in healths(agent).items():
        assert f'device_health{{device="{device}",health="{health}"}} 1.0' in figures


@pytest.mark.slow
def test_memory_that_others_use_is_shown(agent, server, master, node):
    node.processes = [(7, -1, min(children(server)), 700), (7, -1, 4194303, 2048)]
    node.write()
    until(agent, lambda: of_server(master, "gpu_other_bytes") == 2048 << 20, "it says what others use")
    web, status = shown(last_beat(master))
    assert "processes of others use 2.0 GiB" in web
    assert "others use 2.0 GiB" in status


def test_a_gpu_that_fails_leaves_and_the_others_stay(agent, server, master, node):
    weight, capacity = weight_and_capacity(last_beat(master))
    workers = set(children(server))
    assert (xid_blame(_OF_A_PROGRAM), xid_blame(_FALLEN_OFF)) == (Blame.PROCESS, Blame.DEVICE)
    node.xids += [(0, _OF_A_PROGRAM, -1), (1, _FALLEN_OFF, -1)]
    node.write()
    left = ALL.replace("cuda:1 ", "")
    until(agent, lambda: of_server(master, "computes_on") == left, "the one with the Xid leaves, no other")
    beat = last_beat(master)
    assert weight_and_capacity(beat)[1] == capacity - 1, "it gets less to do"
    assert beat["server"]["health"] == "ok"
    assert beat["server"]["problems"] == ["cuda:1: quarantined: sick: Xid 79"]
    assert len(workers - set(children(server))) == 1, "no other process was touched"
    assert "cuda:1: quarantined: sick: Xid 79" in shown(beat)[0]

    node.gpus[4].state = fake_nvml.LOST
    node.write()
    left = left.replace("cuda:4 ", "")
    until(agent, lambda: of_server(master, "computes_on") == left, "one that is lost leaves, too")
    until(agent, lambda: healths(agent)["cuda:4"] == "failed", "and its agent says so")
    until(agent, lambda: weight_and_capacity(last_beat(master))[0] < weight, "the node weighs less")
    assert server.poll() is None
