"""A node that is cut off is found lost in seconds; one that is only busy, stopped or full is not.

Times are printed, not judged: without the look at acknowledgements the first test would take the client's
whole patience for silence, and say so.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.conftest import NEEDS_ROOT
from tests.integration.pipeline.conftest import MASTER, ROOT
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client

NUMBERS = itertools.count()
PLACE = "tests.integration.pipeline.timed_operations:SPEED_1"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=300)


@pytest.fixture
def two_nodes():
    """Two network namespaces at one bridge; their names, the address of the second, and what cuts it off."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip(f"{NEEDS_ROOT}, and the ip command, for network namespaces")
    # What was deleted is gone a moment later: names are not used twice.
    tag = f"l{os.getpid() % 1_000_000}{next(NUMBERS)}"
    names = [f"{tag}a", f"{tag}b"]
    try:
        ip("link", "add", f"{tag}br", "type", "bridge")
        ip("link", "set", f"{tag}br", "up")
        for number, name in enumerate(names, 1):
            ip("netns", "add", name)
            ip("link", "add", f"{name}p", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{name}p", "master", f"{tag}br", "up")
            ip("-n", name, "addr", "add", f"10.231.7.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield *names, "10.231.7.2", lambda: ip("link", "set", f"{names[1]}p", "down")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr}")
    finally:
        links = [("link", "del", name) for name in (f"{tag}br", *(f"{name}p" for name in names))]
        for words in [*links, *(("netns", "del", name) for name in names)]:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(*words)


@pytest.fixture
def server_there(tmp_path, two_nodes):
    """A server on the second node; its port."""
    (tmp_path / "secret").write_text(MASTER.hex())
    (tmp_path / "secret").chmod(0o600)
    values = {"name": "w1", "listen_host": "0.0.0.0", "listen_port": 7070, "extra_operations": [PLACE]}
    values |= {"master_secret_file": str(tmp_path / "secret"), "state_file": str(tmp_path / "state.json")}
    values |= {"workers": 1, "standby_workers": 0, "calibrate": False, "devices": ["cpu"]}
    (tmp_path / "config.yaml").write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in values.items()))
    serve = [sys.executable, "-m", "yarn_accel", "pipeline", "serve", "--config", tmp_path / "config.yaml"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", two_nodes[1], *serve], cwd=ROOT, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert b"ready" in process.stdout.readline(), (tmp_path / "log").read_text()
        yield 7070
    finally:
        process.kill()
        process.wait(300)
        process.stdout.close()


@pytest.mark.root
@pytest.mark.parametrize("seconds", [60.0, 0.0001], ids=["waiting", "talking"])
def test_a_node_that_is_cut_off_is_lost_soon(two_nodes, server_there, seconds):
    """``waiting``: nothing is under way; ``talking``: requests go out when the link goes."""
    here, _, address, cut = two_nodes
    argv = ["ip", "netns", "exec", here, sys.executable, "-m", "tests.integration.pipeline.calls_without_end"]
    argv += [address, str(server_there), MASTER.hex(), "timed", str(seconds)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline()) == {"ready": True}
        at = time.time()
        cut()
        lost = json.loads(process.stdout.readline())
        process.wait(300)
    print(f"\nlost after {lost['at'] - at:.2f} s: {lost['why']}")
    assert "is lost: its node acknowledge" in lost["why"]


@pytest.mark.parametrize("n_bytes", [8, 64 << 20], ids=["waiting", "no-space"])
def test_a_stopped_server_whose_node_is_there_is_waited_for(spawn_server, credential, n_bytes):
    """Its kernel acknowledges, also while there is no space for what is being sent."""
    server = spawn_server("w1", extra_operations=[PLACE], devices=["cpu"]).wait_ready()
    tensor = Tensor.of(np.zeros(n_bytes, "u1"))
    options = {"lost_after_s": 1.0, "carriers": ("tcp",)}
    with Client(server.endpoint, credential, **options) as client:
        assert client.call(Call("before", "echo", {}, (tensor,))).bytes_in == n_bytes
        server.process.send_signal(signal.SIGSTOP)
        # Long enough to be found lost several times over.
        going_on = threading.Timer(4.0, server.process.send_signal, (signal.SIGCONT,))
        going_on.start()
        try:
            assert client.call(Call("after", "echo", {}, (tensor,))).bytes_in == n_bytes
        finally:
            going_on.join()
