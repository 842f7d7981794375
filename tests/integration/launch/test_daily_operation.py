"""What operators do every day, while the application and jobs run on a real cluster.

One cluster of three nodes in one rack, of which two play accelerators; the tests follow each other on it.
"""

import subprocess
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.conftest import NEEDS_ROOT
from tests.fixtures.yarn_site import SiteOptions, site_up
from tests.fixtures.yarn_site.job import Batch
from tests.integration.master.hadoop_settings import CAPACITY_SCHEDULER, change, restart_node, rmadmin, write
from yarn_accel.errors import ClusterError, StartupError

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]

N_RECORDS = 128
#: Of a local folder that is filled; the packed environment alone has 140.
DISK_MIB = 320
#: So long a request for a container is not served while the queue is full.
WAITS_S = 5.0
QUEUES = "yarn.scheduler.capacity.root"
IN_QUEUE_ACCEL = {"app": {"queue": "accel"}, "server": {"memory_mib": 1024}}


@pytest.fixture(scope="module")
def site(tmp_path_factory, environment):
    options = SiteOptions("daily", workers=3, accelerators=2, slots=9, sections=environment, call_pause_s=0.1)
    try:
        with site_up(options, tmp_path_factory.mktemp("daily")) as found:
            found.start()
            yield found
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")


@pytest.fixture(scope="module")
def options(site):
    return site.options


def begin(site, options):
    """Start the application with these options and wait for nothing; an earlier one is stopped first."""
    if site.applications():
        site.stop()
    site.write_settings(options)
    site.run("start", "--config", str(site.settings))
    site._application = None


def node(site, host):
    return site.state()["nodes"].get(host, {})


def places(site):
    """All places for containers, by node and role."""
    nodes = site.state()["nodes"].items()
    return {(host, role): place for host, each in nodes for role, place in each["places"].items()}


# ---- nodes that leave and return


def test_a_node_with_a_server_and_mappers_is_decommissioned_and_returns(site):
    excluded, (host, other) = site.folder / "excluded", site.servers
    excluded.write_text("")
    poll = "yarn.resourcemanager.decommissioning-nodes-watcher.poll-interval-secs"
    change(site, {"yarn.resourcemanager.nodes.exclude-path": str(excluded), poll: "1"})
    site.until("all serve", site.is_whole)
    running = Batch(site, n_records=N_RECORDS, n_tasks=3).begin("decommission")
    site.until("the job is under way", lambda: running.is_under_way(8))
    excluded.write_text(f"{host}\n")
    # YARN waits at most so many seconds for what runs there.
    rmadmin(site, "-refreshNodes", "-g", "60", "-server")
    site.until("it is leaving", lambda: node(site, host).get("state") in ("leaving", "gone"))
    site.until("its server ended", lambda: not site.serves(host) and not site.container(host, "server"))
    site.until("nodes are bound to the other", lambda: site.bound(site.others[0]) == other)
    result = running.result()
    assert len({row.key for row in result.outcome.results}) == N_RECORDS
    assert result.counters.get("cpu_fallback", 0) == 0
    site.until("YARN has it no more", lambda: node(site, host).get("state") == "gone")
    assert sum(place["failures"] for place in node(site, host)["places"].values()) == 0

    excluded.write_text("")
    rmadmin(site, "-refreshNodes")
    with suppress(ClusterError):  # A NodeManager ends by itself once its node is excluded.
        site.cluster.kill(site.names[host], "nodemanager")
    site.cluster.start(site.names[host], "nodemanager")
    site.until("it serves again", site.is_whole)


# ---- idle servers


def test_idle_servers_give_their_containers_back_until_a_mapper_asks(site, options):
    begin(site, replace(options, master={"idle_release_s": 3.0}))
    former = set()
    for _ in range(2):
        with site.caller(site.others[0]) as caller:
            site.until("a mapper's answer", lambda caller=caller: caller.answers)
            server = caller.answers[0]["node"]
            container = site.container(server, "server")
            assert container not in former
        former.add(container)
        site.until(
            "all are given back",
            lambda: (
                all(node(site, host).get("is_released") for host in site.servers)
                and not any(site.container(host, "server") for host in site.servers)
            ),
        )
        site.until("no process is left", lambda held=container: not site.processes(held))
        assert "nobody needed it for" in site.run("explain", server)
        assert all(site.container(host, "agent") for host in site.names)


# ---- queues and partitions


def give_queue(site, percent, most):
    """Give queue `accel` a part of the cluster."""
    shares = {"accel.capacity": percent, "accel.maximum-capacity": most, "default.capacity": 100 - percent}
    write(site, {f"{QUEUES}.{name}": str(value) for name, value in shares.items()}, CAPACITY_SCHEDULER)
    rmadmin(site, "-refreshQueues")


def waiting(site):
    """Where a container has been asked for a while."""
    return {where for where, place in places(site).items() if (place.get("asked_for_s") or 0.0) > WAITS_S}


def test_a_queue_that_is_too_small_shows_what_waits_until_it_grows(site, options):
    """A fifth of 24 cores: four containers of six."""
    give_queue(site, 20, 20)
    begin(site, replace(options, sections={**options.sections, **IN_QUEUE_ACCEL}))
    (host, role), *_ = site.until("something waits", lambda: sorted(waiting(site)))
    assert not site.is_whole()
    (line,) = (line for line in site.run("explain", host).splitlines() if line.startswith(f"{role}: "))
    assert "asked for since" in line
    give_queue(site, 40, 100)
    site.until("all serve", site.is_whole)


@pytest.fixture(scope="module")
def partition(site):
    """The servers' nodes are in partition `gpu`, which queue `default` may use, and queue `accel` may not."""
    if site.applications():
        site.stop()
    store = site.folder / "labels"
    store.mkdir()
    enabled = {"enabled": "true", "fs-store.root-dir": store.as_uri()}
    change(site, {f"yarn.node-labels.{name}": value for name, value in enabled.items()})
    rmadmin(site, "-addToClusterNodeLabels", "gpu(exclusive=true)")
    rmadmin(site, "-replaceLabelsOnNode", " ".join(f"{host}=gpu" for host in site.servers))
    labels = "accessible-node-labels"
    rights = {
        f"{QUEUES}.{labels}": "*",
        f"{QUEUES}.{labels}.gpu.capacity": "100",
        f"{QUEUES}.default.{labels}": "gpu",
        f"{QUEUES}.default.{labels}.gpu.capacity": "100",
        f"{QUEUES}.accel.{labels}": " ",
    }
    write(site, rights, CAPACITY_SCHEDULER)
    rmadmin(site, "-refreshQueues")


@pytest.mark.usefixtures("partition")
def test_nodes_in_a_partition_get_their_containers(site, options):
    site.start(options)
    assert all(site.container(host, "server") for host in site.servers)
    assert all(site.container(host, "agent") for host in site.names)


@pytest.mark.usefixtures("partition")
def test_a_queue_without_access_to_the_partition_says_what_it_waits_for(site, options):
    begin(site, replace(options, sections={**options.sections, **IN_QUEUE_ACCEL}))
    wanted = {(host, role) for host in site.servers for role in ("agent", "server")}
    site.until("the partition's containers wait", lambda: waiting(site) == wanted)
    assert site.container(site.others[0], "agent")
    assert site.state()["attempt"] == 1


# ---- a full disk


@pytest.fixture
def small_disks(site, options):
    """Every node that has a server keeps its local folder in a small file system."""
    folders = {
        host: site.cluster.conf_dir.parent / "nodes" / site.names[host] / "small" for host in site.servers
    }
    mounted = []
    if site.applications():
        site.stop()
    try:
        for folder in folders.values():
            folder.mkdir()
            words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{NEEDS_ROOT}, and mounts: {done.stderr}")
            mounted.append(folder)
        looks = {"yarn.nodemanager.disk-health-checker.interval-ms": "1000"}
        write(site, {**looks, "yarn.nodemanager.local-dirs": "${accel.node.dir}/small"})
        for name in site.names.values():
            restart_node(site, name)
        site.start(options)
        yield folders
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_local_disk_costs_its_node_alone_and_the_node_returns(site, small_disks):
    host = site.bound(site.others[0])
    (other,) = {*site.servers} - {host}
    with site.caller(site.others[0]) as caller:
        site.until("its server answers", lambda: any(each["node"] == host for each in caller.answers))
        filler = small_disks[host] / "filler"
        with suppress(OSError):
            filler.write_bytes(bytes(DISK_MIB << 20))
        site.until("YARN gives the node up", lambda: node(site, host).get("state") == "gone")
        site.until("the mapper has the other", lambda: caller.answers[-1]["node"] == other)
        assert site.bound(site.others[0]) == other
        filler.unlink()
        site.until("all as before", site.is_whole)
