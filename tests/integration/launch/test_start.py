"""The verbs on a real cluster of four nodes, from a start to a stop that leaves nothing behind.

One cluster and one application for all tests here, in the order of an admin's day; times are printed.
"""

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from tests.fixtures.yarn_site import DEADLINE_S
from tests.integration.conftest import SLOTS
from yarn_accel.errors import ClusterError
from yarn_accel.hadoop.java import java_argv
from yarn_accel.hadoop.site import HadoopSite

pytestmark = [pytest.mark.hadoop]


@pytest.fixture(scope="module")
def site(two_racks):
    return two_racks


def mapper(site, node):
    """Run a mapper's way to its server on a node."""
    argv = site.mapper_argv(host(site, node), Path(__file__).with_name("mapper_of_w2.py"))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def host(site, name):
    return site.cluster.plan.node(name).host


def safe_mode(site, word):
    """An administrator's ``hdfs dfsadmin -safemode``."""
    hadoop = HadoopSite.load(site.environ)
    argv = java_argv(
        hadoop.install,
        "org.apache.hadoop.hdfs.tools.DFSAdmin",
        hadoop.conf_dir,
        jvm_options=hadoop.client_jvm_options,
        arguments=["-safemode", word],
    )
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr


def test_without_an_application_the_verbs_say_so(site):
    assert "yarn-accel start" in site.run("status", code=1)
    assert "yarn-accel start" in site.run("drain", "w1", code=1)
    assert "nothing runs" in site.run("stop")


def test_a_rehearsal_changes_nothing(site):
    reported = site.run("start", "--config", str(site.settings), "--dry-run")
    assert "role server on each accelerator node" in reported
    assert not site.applications()
    assert not site.rm_client.store().exists(site.rm_client.staging_uri())


def test_settings_are_checked_before_anything_is_done(site):
    wrong = site.folder / "wrong.yaml"
    wrong.write_text(yaml.safe_dump({"master": {"settings": {"policies": "paper"}}}))
    assert "policies" in site.run("start", "--config", str(wrong), code=2)
    wrong.write_text(yaml.safe_dump({"server": {"memory_mib": 10**6}}))
    assert "largest container" in site.run("start", "--config", str(wrong), code=2)
    assert not site.applications()
    assert not list((site.folder / "state").glob("cluster-accel/applications/*"))


def test_a_start_in_safe_mode_says_so_and_what_to_do(site):
    safe_mode(site, "enter")
    try:
        reported = site.run("start", "--config", str(site.settings), code=1)
    finally:
        safe_mode(site, "leave")
    assert "HDFS is in safe mode" in reported
    assert "hdfs dfsadmin -safemode get" in reported
    assert "packing" not in reported, "it is reported before what takes long"
    assert not site.applications()
    assert not list((site.folder / "state").glob("cluster-accel/applications/*"))


def test_two_starts_at_once_bring_up_one_application_that_serves(site):
    processes = [site.begin("start", "--config", str(site.settings), "--wait") for _ in range(2)]
    reported = [process.communicate(timeout=2 * DEADLINE_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], (reported, site.logs())
    (application,) = site.applications()
    assert all(str(application.id) in out for out, _ in reported)
    assert sum("runs already" in out or "was submitted already" in out for out, _ in reported) == 1
    assert "runs already" in site.run("start")
    (kept,) = (site.folder / "state" / "cluster-accel" / "applications").iterdir()
    assert kept.name == str(application.id)
    assert (kept / "control-secret").stat().st_mode & 0o777 == 0o600
    nodes = site.state()["nodes"]
    assert {name for name, node in nodes.items() if node["is_serving"]} == {
        host(site, "w1"),
        host(site, "w3"),
    }
    assert nodes[host(site, "w2")]["bound"] == host(site, "w1")
    assert nodes[host(site, "w4")]["bound"] == host(site, "w3")
    assert "2 of 2 accelerator nodes serve" in site.run("status")


def test_a_mapper_finds_its_server_by_itself_and_uses_it(site):
    def served():
        reported = mapper(site, "w2")
        return reported if reported["servers"] else None

    reported = site.until("the agent of w2 knows a server", served)
    assert reported["source"] == "agent"
    assert reported["servers"][0] == reported["server"] == host(site, "w1")
    assert reported["error"] < 1e-10


def test_what_servers_say_of_a_request_is_found_by_its_key(site):
    head, *lines = site.run("logs", "refused-of-w2").splitlines()
    assert head.startswith("==> container_")
    assert head.endswith(f" on {host(site, 'w1')} <==")
    assert all(" request refused-of-w2 (cholesky, tenant " in line for line in lines)
    assert "failed: not-positive-definite: the leading minor" in lines[0]
    assert "name no request of this key" in site.run("logs", "from-w2", code=2)


def test_slots_follow_what_the_servers_can_feed(site):
    site.until("the share is set", lambda: SLOTS not in site.slots().values())
    site.until("the binding is published", lambda: "accel-bind" in site.attributes())


def test_a_node_is_explained_drained_and_taken_back(site):
    first, second, third = (host(site, name) for name in ("w1", "w2", "w3"))
    assert f"bound to {first}" in site.run("explain", second)
    assert "nowhere" in site.run("explain", "nowhere", code=1)
    site.run("drain", first)
    site.until("the other rack serves w2", lambda: site.state()["nodes"][second]["bound"] == third)
    site.until("its server ends", lambda: not site.state()["nodes"][first]["places"]["server"]["containers"])
    assert "drained" in site.run("status")
    site.run("undrain", first)
    site.until("w1 serves again", lambda: site.state()["nodes"][second]["bound"] == first)
    site.run("rebind")
    site.until("w2 is bound again", lambda: site.state()["nodes"][second]["bound"] == first)


def test_a_rack_whose_only_server_hangs_uses_the_other_rack_until_it_is_replaced(site):
    first, second, third = (host(site, name) for name in ("w1", "w2", "w3"))
    site.until("w1 serves w2", lambda: site.bound(second) == first)
    old = site.container(first, "server")
    with site.caller(second) as caller:
        site.until("a first answer", lambda: caller.answers)
        at = site.kill(old, signum=signal.SIGSTOP)
        site.until("a server of the other rack answers", lambda: caller.after(at, node=third))
        since = time.time()
        site.until("the replacement answers", lambda: caller.after(since, node=first))
    assert site.bound(second) == first
    assert site.container(first, "server") != old
    notes = [note["what"] for note in site.state()["notes"] if note["node"] == second]
    assert notes[-2:] == [f"bound to {third}", f"bound to {first}"]


def test_somebody_without_the_secret_is_refused(site):
    site.environ["XDG_STATE_HOME"] = str(site.folder / "elsewhere")
    try:
        assert "control secret" in site.run("stop", code=1)
        (application,) = site.applications()
        other = site.folder / "elsewhere" / "cluster-accel" / "applications" / str(application.id)
        other.mkdir(parents=True)
        (other / "control-secret").write_text("00" * 32)
        (other / "control-secret").chmod(0o600)
        assert "signature" in site.run("stop", code=1)
    finally:
        site.environ["XDG_STATE_HOME"] = str(site.folder / "state")
    assert site.applications()


def test_an_environment_in_use_is_not_cleaned_away(site):
    store, shared = site.rm_client.store(), f"{site.rm_client.staging_uri()}/environments"
    there = store.list(shared)
    stale = f"{shared}/accel-environment-{'0' * 32}.zip"
    store.write_atomic(stale, [b"of an older version"])
    (application,) = site.applications()
    reported = site.run("launch", "clean", "--keep", "0")
    assert f"{stale} (0.0 MB): unused" in reported
    assert reported.count(f"used by {application.id}") == len(there) == 2
    assert "removed 1 " in site.run("launch", "clean", "--keep", "0", "--apply")
    assert store.list(shared) == there


def test_stop_leaves_nothing_behind(site):
    (application,) = site.applications()
    folder = f"{site.rm_client.staging_uri()}/applications"
    assert site.rm_client.store().list(folder)
    assert site.processes()
    reported = site.run("stop")
    assert f"{application.id} has ended: FINISHED (SUCCEEDED)" in reported
    assert not site.applications()
    site.until("no process of a container is left", lambda: not site.processes())
    assert set(site.slots().values()) == {SLOTS}
    assert not site.attributes()
    assert not site.rm_client.store().list(folder)
    assert not list((site.folder / "state").glob("cluster-accel/applications/*"))
    assert "nothing runs" in site.run("stop")


def test_what_servers_said_of_a_request_is_found_when_their_application_has_ended(site):
    """YARN aggregates the logs of an application some seconds after its end."""

    def found():
        with contextlib.suppress(ClusterError):
            return site.run("logs", "refused-of-w2", "--config", str(site.settings))
        return None

    reported = site.until("the logs are aggregated", found)
    assert f" on {host(site, 'w1')} <==" in reported
    assert " request refused-of-w2 (cholesky, tenant " in reported


@pytest.mark.slow
def test_force_needs_no_master_and_restores_the_nodes(site):
    site.run("start", "--config", str(site.settings), "--wait")
    site.until("the share is set", lambda: SLOTS not in site.slots().values())
    (application,) = site.applications()
    (
        site.folder / "state" / "cluster-accel" / "applications" / str(application.id) / "control-secret"
    ).unlink()
    assert "control secret" in site.run("stop", code=1)
    assert "KILLED" in site.run("stop", "--force")
    site.until("no process of a container is left", lambda: not site.processes())
    site.until("the slots are restored", lambda: set(site.slots().values()) == {SLOTS})
    assert not site.attributes()
    assert not list((site.folder / "state").glob("cluster-accel/applications/*"))
