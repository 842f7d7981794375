"""The launcher in loopback mode, as an ordinary user has it: several nodes on one network stack."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.testbed import Cluster, UpOptions
from yarn_accel.testbed.daemons import Pages, get_json
from yarn_accel.testbed.state import ClusterPaths

pytestmark = [pytest.mark.hadoop, pytest.mark.loopback]
Run = Callable[..., subprocess.CompletedProcess[str]]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object) -> None:
        return None


def put(base: str, path: str, data: bytes) -> str:
    """Write a file through WebHDFS and return the address of the DataNode that took it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    request = urllib.request.Request(f"{base}/webhdfs/v1{path}?op=CREATE&overwrite=true", method="PUT")
    with pytest.raises(urllib.error.HTTPError) as caught:
        opener.open(request, timeout=300)
    location = caught.value.headers["Location"]
    caught.value.close()
    with opener.open(urllib.request.Request(location, data=data, method="PUT"), timeout=300) as answer:
        assert answer.status == 201
    return str(location)


@pytest.fixture
def loop(trace: Callable[[str], set[str]]) -> Cluster:
    return Cluster.up(UpOptions(name="loop", nodes=2, racks=2, accel_nodes=1, mode="loopback"))


@pytest.mark.slow
def test_a_loopback_cluster_from_up_to_down(
    loop: Cluster, command: Run, trace: Callable[[str], set[str]]
) -> None:
    assert loop.status().is_healthy
    assert Pages(loop.plan, ClusterPaths.of("loop")).running_nodemanagers() == {"127.0.0.11", "127.0.0.12"}
    _check_data_path(loop)
    done = command("up", "loop", "--mode", "loopback")
    assert done.returncode == 0, done.stderr
    assert "loopback mode: " in done.stderr
    assert "nothing to do" in done.stderr
    _check_refusals(loop, command)
    done = command("exec", "-c", "loop", "w2", "--", "sh", "-c", "echo $YARN_ACCEL_NODE; exit 5")
    assert (done.returncode, done.stdout) == (5, "w2\n")
    loop.kill("w2", "nodemanager")
    done = command("up", "loop", "--mode", "loopback")
    assert "1 of 8 daemons do not run" in done.stderr
    assert loop.status().is_healthy
    assert not any("interface" in thing or "mount" in thing for thing in trace("loop"))
    assert command("down", "loop").returncode == 0
    assert trace("loop") == set()


def _check_data_path(loop: Cluster) -> None:
    """Replication 2 means that the DataNodes reached each other, too."""
    base = f"http://127.0.0.1:{loop.plan.ports.namenode_http}"
    assert "127.0.0.1" in put(base, "/file", b"some bytes")
    status = get_json(f"{base}/webhdfs/v1/file?op=GETFILESTATUS")["FileStatus"]
    assert (status["length"], status["replication"]) == (10, 2)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{base}/webhdfs/v1/file?op=OPEN", timeout=300) as answer:
        assert answer.read() == b"some bytes"
    blocks = get_json(f"{base}/webhdfs/v1/file?op=GETFILEBLOCKLOCATIONS")["BlockLocations"]["BlockLocation"]
    assert sorted(blocks[0]["hosts"]) == ["127.0.0.11", "127.0.0.12"]


def _check_refusals(loop: Cluster, command: Run) -> None:
    for action in (loop.cut, loop.heal):
        with pytest.raises(ConfigError, match="loopback mode"):
            action("w1")
    done = command("up", "loop", "--mode", "loopback", "--link", "1gbit")
    assert done.returncode == 2
    assert "netns" in done.stderr
