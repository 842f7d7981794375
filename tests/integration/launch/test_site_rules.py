"""The application under a site's admin, its queues and its rights, while it works: on real daemons.

One cluster of two nodes in one rack; the tests follow each other on it, and each leaves it without an
application, or with the one that the next one needs.
"""

import asyncio
import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import hdfs_native
import pytest

from jobs.factorize.job import FactorizeJob, factors_of, good_entries, run_factorize
from jobs.factorize.matrices import LIMIT, balance, make_bytes, manifest_of, plan_matrices, verify
from jobs.runners.hadoop import HadoopRunner
from tests.fixtures import fake_nvml
from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.yarn_site import PREEMPTION_SETTINGS, ROOT, Hungry, SiteOptions, site_up
from tests.integration.master.hadoop_settings import (
    CAPACITY_SCHEDULER,
    change,
    restart,
    restart_node,
    rmadmin,
    write,
)
from yarn_accel.errors import StartupError
from yarn_accel.hadoop import site as hadoop_site
from yarn_accel.hadoop.rm_client import RmClient, kill
from yarn_accel.launch.device_lock import DeviceLocks
from yarn_accel.master.inventory import GPU
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]

SLOTS = 9
MAX_BYTES = 1 << 28


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    options = SiteOptions("rules", workers=2, accelerators=1, slots=SLOTS)
    try:
        with site_up(options, tmp_path_factory.mktemp("rules")) as found:
            found.start()
            yield found
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")


# ---- an admin changes a node


def test_an_admin_changes_memory_with_his_own_command(site):
    """``-updateNodeResource NODE MEMORY VCORES`` sets every other resource type to 0: slots are set again."""
    host = site.others[0]
    site.until("the share is set", lambda: site.slots()[host] not in (SLOTS, 0))
    share, node = site.slots()[host], site.nodes()[host]
    rmadmin(site, "-updateNodeResource", str(node.node), "3584", "7")
    site.until("the change", lambda: memory(site, host) == (3584, 7))
    site.until("our share again", lambda: site.slots()[host] == share)
    assert memory(site, host) == (3584, 7)
    assert site.attribute(host, "accel-slots") == str(SLOTS), "what was configured is not forgotten"


def memory(site, host):
    size = site.nodes()[host].capability
    return size.memory_mib, size.vcores


# ---- a job while the master is dead


class OurRunner(HadoopRunner):
    """Mappers find the agents where this site's settings put them."""

    def __init__(self, site):
        # The cluster's own binding names no server: jobs ask their nodes, as on a site of others.  A mapper
        # that is to compute by itself needs an interpreter with numpy.
        conf_dir = conf_without(site.cluster.conf_dir, site.folder / "conf-of-jobs", "binding_file")
        environ = {"HADOOP_CONF_DIR": str(conf_dir)}
        super().__init__(hadoop_site.SiteSettings.read(environ), sys.executable)
        # YARN puts the node's value in the place of {{NM_HOST}}.
        self._agent = f"ACCEL_AGENT={site.agent_socket('{{NM_HOST}}')}"

    def run(self, step, report):
        properties = {**step.properties, "mapreduce.map.env": self._agent}
        return super().run(replace(step, properties=properties), report)


def factorize(site, patience_s):
    """Run a job of a few matrices, check its sums, and tell its counters.

    Args:
        patience_s: after so long without an answer a mapper computes by itself.
    """
    runner, store = OurRunner(site), Store(site.cluster.conf_dir)
    matrices = balance(plan_matrices(8, 32, 96), 2)
    for matrix in matrices:
        store.write_atomic(f"{runner.home('in')}/{matrix.key}.bin", [make_bytes(matrix)])
    manifest = manifest_of(matrices, runner.home("in"), runner.home("out"))
    job = FactorizeJob(n_tasks=2, is_by_value=True, patience_s=patience_s)
    outcome = run_factorize(runner, store, manifest, job, lambda _: None)
    assert (len(outcome.results), len(outcome.rejects)) == (8, 0)
    checks = verify(lambda uri: store.read_bytes(uri, MAX_BYTES), factors_of(store, good_entries(manifest)))
    assert len(checks) == 8
    assert all(check.residual < LIMIT for check in checks)
    return dict(outcome.counters)


@contextmanager
def master_away(site):
    """It does not answer, and hears of nothing; the agents have heard of the servers before."""
    for host in site.names:
        with site.caller(host) as caller:
            site.until("a first answer", lambda caller=caller: caller.answers)
    pids = [pid for pid, command in site.processes().items() if "container_entry master run" in command]
    os.kill(min(pids), signal.SIGSTOP)
    try:
        yield
    finally:
        # After some silence the RM kills it, and the next attempt is there already.
        with suppress(ProcessLookupError):
            os.kill(min(pids), signal.SIGCONT)


def test_a_job_submitted_while_the_master_is_dead_is_served(site):
    """The agents know the servers, and those work."""
    with master_away(site):
        counters = factorize(site, patience_s=60.0)
    assert counters.get("cpu_fallback", 0) == 0
    site.until("the master is back, this attempt or the next", site.is_whole)


def test_a_server_that_crashes_while_the_master_is_away_is_started_in_place(site):
    """By its NodeManager, a second later, in the same container: nobody else could."""
    host = site.servers[0]
    container = site.container(host, "server")
    before = set(site.processes(container))
    with master_away(site):
        site.kill(container, signum=signal.SIGSEGV)
        site.until("another process in the same container", lambda: set(site.processes(container)) - before)
        counters = factorize(site, patience_s=240.0)
    assert counters.get("cpu_fallback", 0) == 0
    site.until("the master is back, this attempt or the next", site.is_whole)
    assert site.container(host, "server") == container, "the master saw no reason to replace it"


def test_a_job_submitted_when_there_is_no_application_uses_its_cpus(site):
    """Killed the YARN way, nobody restores the nodes: the shares stay, jobs run, and an admin cleans up."""
    host, application = site.others[0], site.application
    report = site.nodes()[host]
    changed = (report.capability.memory_mib + 256, 7)
    size = type(report.capability)(*changed, report.capability.amounts)
    site.ask(lambda manager: manager.update_node_resource(report.node, size))
    site.until("an admin's change", lambda: memory(site, host) == changed)
    site.ask(lambda manager: kill(manager, application, "the test"))
    site.until("nothing runs", lambda: not site.processes())
    assert SLOTS not in site.slots().values()
    counters = factorize(site, patience_s=3.0)
    assert counters["cpu_fallback"] == 8
    assert "nothing runs" in site.run("stop")
    assert "the nodes are as configured" in site.run("stop", "--force")
    site.until("slots as configured", lambda: set(site.slots().values()) == {SLOTS})
    assert memory(site, host) == changed, "the admin's change survives"
    assert not site.attributes()
    site._application = None


# ---- GPUs that YARN gives out


GPU_XML = """<gpu><product_name>emulated</product_name><uuid>{uuid}</uuid><minor_number>{index}</minor_number>
<fb_memory_usage><used>1024 MiB</used><free>80535 MiB</free></fb_memory_usage>
<utilization><gpu_util>0 %</gpu_util></utilization><temperature><gpu_temp>40 C</gpu_temp></temperature></gpu>
"""


@pytest.fixture
def eight(tmp_path):
    """Emulated GPUs, as NVML shows them to processes that are given its environment."""
    return fake_nvml.eight_gpus(tmp_path / "nvml-state")


def write_nvidia_smi(path, node):
    """A program that says of these GPUs what YARN reads of ``nvidia-smi -x -q``."""
    gpus = "".join(GPU_XML.format(uuid=gpu.uuid, index=gpu.index) for gpu in node.gpus)
    driver = f"<driver_version>{node.driver}</driver_version>"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n<nvidia_smi_log>{driver}{gpus}</nvidia_smi_log>\nEND\n")
    path.chmod(0o755)


@pytest.fixture
def gpu_node(site, eight, tmp_path):
    """A node whose NodeManager finds GPUs by YARN's plug-in and an emulated nvidia-smi; later as before."""
    if site.applications():
        site.stop()
    node = site.cluster.plan.workers[1]
    folder = site.cluster.node_conf_dir
    kept = {path: path.read_text() for path in (folder / "resource-types.xml", folder / "yarn-site.xml")}
    types = folder / "resource-types.xml"
    types.write_text(kept[types].replace(">acct/slot<", ">acct/slot,yarn.io/gpu<"))
    write_nvidia_smi(tmp_path / "nvidia-smi", eight)
    plugin = "yarn.nodemanager.resource-plugins"
    discovery = {"path-to-discovery-executables": str(tmp_path / "nvidia-smi"), "allowed-gpu-devices": "auto"}
    write(site, {plugin: GPU, **{f"{plugin}.gpu.{name}": value for name, value in discovery.items()}})
    try:
        restart(site)
        restart_node(site, node.name)
        site.until("its GPUs are known", lambda: site.nodes()[node.host].capability.other.get(GPU) == 8)
        yield node.host
    finally:
        for path, text in kept.items():
            path.write_text(text)
        restart(site)
        restart_node(site, node.name)


def test_a_server_gets_the_gpus_that_yarn_gives_out(site, gpu_node):
    """Nobody names an accelerator: the node is one because it has them, and the server asks for them all."""
    site.servers = [gpu_node]
    site.others = [host for host in site.names if host != gpu_node]
    unnamed = {"master": {"settings": {"accelerator_nodes": []}}}
    site.start(SiteOptions("rules", workers=2, slots=SLOTS, sections=unnamed))
    used = {host: report.used.other.get(GPU, 0) for host, report in site.nodes().items()}
    assert used == {gpu_node: 8, site.others[0]: 0}
    assert site.bound(site.others[0]) == gpu_node
    site.stop()
    site.until("they are free again", lambda: site.nodes()[gpu_node].used.other.get(GPU, 0) == 0)


@pytest.fixture
def emulated_cupy(site, tmp_path):
    """Name of an installed distribution for `start` to pack: as much of CuPy as a worker touches."""
    source, folder = ROOT / "tests/unit/pipeline/workers/fake_gpu", tmp_path / "site-packages"
    names = ("cupy/__init__.py", "cupy/cuda.py", "cupyx.py")
    about = folder / "cupy_emulated-1.dist-info"
    about.mkdir(parents=True)
    (folder / "cupy").mkdir()
    for name in names:
        shutil.copy(source / name, folder / name)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cupy-emulated\nVersion: 1\n")
    (about / "RECORD").write_text("".join(f"{name},,\n" for name in (*names, f"{about.name}/METADATA")))
    before = site.environ
    site.environ = {**before, "PYTHONPATH": str(folder)}
    yield "cupy-emulated"
    site.environ = before


def test_a_server_uses_as_many_gpus_as_yarn_counts_for_it_and_no_other(
    site, gpu_node, eight, emulated_cupy, nvml_library, tmp_path
):
    """Stock YARN says to no container which GPUs it has: our locks choose among those that work."""
    others = DeviceLocks(tmp_path / "locks", "somebody else")
    assert others.take(eight.gpus[0].uuid) is None
    server = {
        "gpus": 2,
        "devices": "all",
        "devices_dir": str(tmp_path / "locks"),
        "environment": dict(eight.environment(nvml_library)),
    }
    sections = {
        "server": server,
        "environment": {"packages": [emulated_cupy]},
        "master": {"settings": {"accelerator_nodes": []}},
    }
    site.servers = [gpu_node]
    site.others = [host for host in site.names if host != gpu_node]
    devices = {"devices": ["auto"], "probe_gpus": False}  # The stand-in for CuPy computes nothing.
    site.start(SiteOptions("rules", workers=2, slots=SLOTS, pipeline=devices, sections=sections))

    def computes_on():
        heard = site.state()["nodes"].get(gpu_node, {}).get("heard") or {}
        return str((heard.get("server") or {}).get("computes_on"))

    site.until("it computes on the free ones that work", lambda: computes_on() == "cuda:1 cuda:4")
    assert site.nodes()[gpu_node].used.other.get(GPU) == 2
    eight.gpus[1].state = fake_nvml.LOST
    eight.write()
    site.until("the lost one rests, the other goes on", lambda: computes_on() == "cuda:4")
    assert site.serves(gpu_node)
    site.stop()
    others.release()


# ---- preemption


def test_a_preempted_server_is_asked_for_again(site):
    change(site, PREEMPTION_SETTINGS)
    node = site.nodes()[site.others[0]]
    rmadmin(site, "-updateNodeResource", str(node.node), "4096", "8")
    # 40 % of 8 GiB are this queue's, the servers alone take half of everything.
    large = SiteOptions(
        "rules",
        workers=2,
        accelerators=("w1", "w2"),
        slots=SLOTS,
        sections={"app": {"queue": "accel"}, "server": {"memory_mib": 2048}},
    )
    site.servers, site.others = list(site.names), []
    site.start(large)
    before = {host: site.container(host, "server") for host in site.servers}

    async def story(manager):
        hungry = Hungry(site, manager)
        await hungry.begin()
        await hungry.beat(n_wanted=5)
        at, lost = time.monotonic(), ""
        while not lost and time.monotonic() < at + 60:
            await hungry.beat()
            await asyncio.sleep(0.2)
            lost = await asyncio.to_thread(_changed, site, before)
        await hungry.finish()
        return lost

    lost = site.ask(story)
    assert lost, (site.state()["notes"], site.logs())
    site.until("both serve again", site.is_whole)
    notes = [f"{each['what']} {each.get('reason', '')}" for each in site.state()["notes"]]
    assert any("preempted" in each for each in notes), notes
    assert site.container(lost, "server") != before[lost]
    assert site.state()["attempt"] == 1
    site.stop()


def test_in_a_queue_that_is_too_small_a_server_has_its_agent(site):
    """The queue holds the master and both servers, or the master, both agents and one server."""
    total_mib = sum(memory(site, host)[0] for host in site.names)
    limit = {"yarn.scheduler.capacity.root.accel.maximum-capacity": f"{100 * 4360 / total_mib:.3f}"}
    write(site, limit, CAPACITY_SCHEDULER)
    restart(site)
    site.servers, site.others = list(site.names), []
    sections = {"app": {"queue": "accel"}, "server": {"memory_mib": 2048}}
    site.write_settings(
        SiteOptions("rules", workers=2, accelerators=("w1", "w2"), slots=SLOTS, sections=sections)
    )
    site.run("start", "--config", str(site.settings))
    (server,) = site.until("one serves", lambda: [host for host in site.servers if site.serves(host)])
    (other,) = set(site.names) - {server}
    site.until("the other node is bound to it", lambda: site.bound(other) == server)
    assert site.container(other, "agent")
    assert not site.container(other, "server")
    site.stop()


def _changed(site, before):
    """The first node whose server's container is not what it was; empty: none."""
    nodes = site.state()["nodes"]
    for host, container in before.items() if nodes else ():
        place = nodes.get(host, {}).get("places", {}).get("server", {})
        if container not in [each["id"] for each in place.get("containers", ())]:
            return host
    return ""


# ---- rights


def test_without_an_operators_rights_it_says_so_and_serves(site):
    """``yarn.admin.acl`` names somebody else, and the application runs as a user of no rank."""
    change(site, {"yarn.admin.acl": "operator", "yarn.resourcemanager.scheduler.monitor.enable": "false"})
    root = site.rm_client.site.properties["fs.defaultFS"]
    hdfs_native.Client(root).mkdirs("/user/alice", permission=0o777, create_parent=True)
    site.environ["HADOOP_USER_NAME"] = "alice"
    site.rm_client = RmClient.load(site.environ)
    plan = site.cluster.plan
    site.servers, site.others = [plan.workers[0].host], [plan.workers[1].host]
    # Not what is configured everywhere: `rmadmin -updateNodeResource` of another test sets slots to 0.
    configured = site.slots()
    try:
        site.start(SiteOptions("rules", workers=2, accelerators=("w1",), slots=SLOTS))
        host = site.others[0]
        reported = site.until(
            "both refusals are known",
            lambda: [p for p in [site.state().get("service", {}).get("problems", ())] if len(p) == 2],
        )[0]
        assert "slots are not set: " in reported[0] + reported[1]
        assert "bindings are not published as attributes: " in reported[0] + reported[1]
        assert all("alice" in each for each in reported)
        shown = site.run("status")
        assert shown.count("note: ") == 2
        explained = site.run("explain", host)
        assert "Slots are not set: " in explained
        assert "Its binding is not published as a node attribute: " in explained
        assert site.slots() == configured
        assert not site.attributes()
        with site.caller(host) as caller:
            site.until("it serves all the same", lambda: caller.answers)
        site.stop()
        assert site.slots() == configured
    finally:
        del site.environ["HADOOP_USER_NAME"]
