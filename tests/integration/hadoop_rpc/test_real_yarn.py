"""The native back end against the real daemons; times are printed, not judged."""

import asyncio
import io
import json
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc import methods, records
from yarn_accel.adapters.rest import as_list, get_json
from yarn_accel.storage import Store

pytestmark = [pytest.mark.hadoop]

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = (
    "yarn_accel/__init__.py",
    "yarn_accel/errors.py",
    "yarn_accel/local_filesystem.py",
    "yarn_accel/uris.py",
    "yarn_accel/client/token_file.py",
    "yarn_accel/client/writable.py",
)
DEADLINE_S = 90.0
POLL_S = 0.05
SMALL = records.YarnResource.of(256, 1)


async def until(what, ask):
    """The first true answer."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (answer := await ask()):
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S} s: {what}"
        await asyncio.sleep(POLL_S)
    return answer


def package():
    """This package as a zip: what a master needs to run on a bare Python."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path in [*(ROOT / name for name in PACKAGE), *ROOT.glob("yarn_accel/adapters/hadoop_rpc/*.py")]:
            archive.write(path, path.relative_to(ROOT))
        for package in ("client", "adapters"):
            archive.writestr(f"yarn_accel/{package}/__init__.py", "")
    return target.getvalue()


def ship(yarn, files):
    store = Store(yarn.cluster.conf_dir)
    shipped = {}
    for name, content in files.items():
        uri = f"{yarn.site.properties['fs.defaultFS']}/rpc/{name}"
        store.write_atomic(uri, [content])
        stamp = store.stamp(uri)
        shipped[name] = records.LocalResource.of(uri, stamp.n_bytes, stamp.modified)
    return shipped


async def final(rm, submission):
    """Submit and follow to the end."""
    await rm.submit(submission)

    async def ended():
        report = await rm.report(submission.application)
        return report if report.state is not None and report.state.is_final else None

    return await until("the end", ended)


@pytest.mark.parametrize("round_", ["cold", "warm"])
async def test_a_master_in_a_container_runs_a_pinned_container(yarn, tmp_path, round_):
    files = ship(
        yarn,
        {"package.zip": package(), "tiny_master.py": Path(__file__).with_name("tiny_master.py").read_bytes()},
    )
    tmp_path.chmod(0o777)
    story_file = tmp_path / "story.json"
    worker = yarn.cluster.plan.workers[1]
    arguments = [str(yarn.addresses.scheduler[0]), worker.name, "", str(story_file)]

    rm = yarn.resource_manager()
    try:
        nodes = {report.node.host: report for report in await rm.nodes()}
        target = nodes[worker.name] if worker.name in nodes else list(nodes.values())[1]
        arguments[1:3] = [target.node.host, target.rack]
        words = ["exec", sys.executable, "tiny_master.py", *arguments]
        launch = records.LaunchContext.of(
            [*words, "1>", "<LOG_DIR>/stdout", "2>", "<LOG_DIR>/stderr"],
            {"PYTHONPATH": "package.zip"},
            files,
            hadoop_rpc.write_token_file(hadoop_rpc.TokenFile(secrets={"accel": b"\x00secret"})),
        )
        application = (await rm.new_application()).application
        submission = hadoop_rpc.ApplicationSubmission(
            application,
            "tiny master",
            launch=launch,
            resource=SMALL,
            max_attempts=1,
            type="TEST",
            tags=("Tiny",),
        )
        report = await final(rm, submission)
        found = await rm.applications(
            types=["TEST"], tags=["Tiny"], states=[records.ApplicationState.FINISHED]
        )
        assert report.id in {each.id for each in found}
        report = report
    finally:
        await rm.close()
    assert story_file.exists(), report.diagnostics
    story = json.loads(story_file.read_text(encoding="utf-8"))
    assert report.final_status is records.FinalStatus.SUCCEEDED, (story, report.diagnostics)
    assert report.diagnostics == "all done"
    assert (story["host"], story["allocation_request_id"]) == (target.node.host, 7)
    assert story["exit_status"] == records.ExitStatus.KILLED_BY_APPMASTER
    assert "Application Master is already registered" in story["registered_again"]
    assert story["secrets"] == {"accel": b"\x00secret".hex()}
    assert story["resource_types"] == ["acct/slot", "memory-mb", "vcores"]
    assert story["container"].startswith(f"container_{report.id.cluster_timestamp}_")


async def test_a_nodes_slots_change_and_nothing_else(yarn):
    """The ResourceManager answers first and changes the node a moment later."""

    rm = yarn.resource_manager()
    try:
        before = (await rm.nodes())[0]

        async def becomes(wanted):
            await rm.update_node_resource(before.node, wanted)

            async def seen():
                return wanted in [each.capability for each in await rm.nodes() if each.node == before.node]

            await until(f"the node offers {wanted}", seen)

        await becomes(before.capability.with_amount("acct/slot", 7))
        await becomes(before.capability)
        with pytest.raises(hadoop_rpc.RemoteCallError, match="nowhere"):
            await rm.update_node_resource(hadoop_rpc.NodeId("nowhere", 1), before.capability)
    finally:
        await rm.close()


async def test_a_method_that_yarn_does_not_know_is_seen_as_such(yarn, monkeypatch):
    """As an older one answers the question for node attributes."""
    rm = yarn.resource_manager()
    try:
        assert await rm.has_node_attributes()
        unknown = replace(methods.GET_CLUSTER_NODE_ATTRIBUTES, name="getClusterNodeVirtues")
        monkeypatch.setattr(methods, "GET_CLUSTER_NODE_ATTRIBUTES", unknown)
        assert not await rm.has_node_attributes()
    finally:
        await rm.close()


async def test_attributes_are_seen_by_rest(yarn):
    url = f"http://{yarn.cluster.plan.master.address}:{yarn.cluster.plan.ports.rm_http}/ws/v1/cluster/nodes"

    def bound():
        found = {}
        for node in as_list(get_json(url)["nodes"]["node"]):
            for each in as_list((node.get("nodeAttributesInfo") or {}).get("nodeAttributeInfo")):
                if (each["prefix"], each["name"]) == ("rm.yarn.io", "accel-bind"):
                    found[node["nodeHostName"]] = each["value"]
        return found

    rm = yarn.resource_manager()
    try:
        hosts = sorted(report.node.host for report in await rm.nodes())
        both = {host: {"accel-bind": "w1"} for host in hosts}
        await rm.map_attributes(hadoop_rpc.AttributeOperation.ADD, both)
        assert bound() == {host: "w1" for host in hosts}
        await rm.map_attributes(hadoop_rpc.AttributeOperation.REPLACE, {hosts[0]: {"accel-bind": "w2"}})
        assert bound()[hosts[0]] == "w2"
        await rm.map_attributes(
            hadoop_rpc.AttributeOperation.REMOVE, {host: {"accel-bind": ""} for host in hosts}
        )
        assert bound() == {}
    finally:
        await rm.close()


class Unmanaged:
    """An application master in this process, so that the test can look at every answer."""

    def __init__(self, yarn):
        self.yarn = yarn
        self.rm = yarn.resource_manager()
        self.nodes = hadoop_rpc.NodeManager(yarn.settings)

    async def begin(self):
        application = (await self.rm.new_application()).application
        submission = hadoop_rpc.ApplicationSubmission(
            application,
            "unmanaged",
            launch=records.LaunchContext(),
            resource=SMALL,
            is_unmanaged=True,
            keep_containers=True,
        )
        await self.rm.submit(submission)

        async def token():
            return (await self.rm.report(application)).am_rm_token

        patience = hadoop_rpc.Patience(60.0, 0.1, 0.5)
        found = await until("a token for the unmanaged master", token)
        self.master = hadoop_rpc.ApplicationMaster(self.yarn.addresses, found, self.yarn.settings, patience)
        await self.register()

    async def register(self):
        response = await self.master.register("test", -1, "")
        self.nodes.learn(response.node_tokens)
        return response

    async def heartbeat(self, ask=(), release=()):
        response = await self.master.allocate(ask, release)
        self.nodes.learn(response.node_tokens)
        return response

    async def container(self):
        node = (await until("a node, also after a restart", self.rm.nodes))[0]
        allocated = list(
            (await self.heartbeat(records.pinned(node.node.host, node.rack, 1, SMALL))).allocated
        )

        async def given():
            if not allocated:
                allocated.extend((await self.heartbeat()).allocated)
            return bool(allocated)

        await until("a container", given)
        return allocated[0]

    async def is_running(self, container):
        answer = await self.nodes.statuses(container.node, [container.id])
        return [status.state for status in answer.statuses] == [records.ContainerState.RUNNING]

    async def finish(self):
        await until("the end", lambda: self.master.finish(records.FinalStatus.SUCCEEDED))

    async def close(self):
        await self.nodes.close()
        await self.master.close()
        await self.rm.close()


async def test_a_master_outlives_its_resource_manager(yarn):
    """kill -9 of the ResourceManager: the token still counts, and containers are numbered in a new epoch.

    Containers of an unmanaged master, unlike those of one that runs in a container, are killed then.
    """

    app = Unmanaged(yarn)
    await app.begin()
    try:
        container = await app.container()
        assert container.id.epoch == 0
        launch = records.LaunchContext.of(["exec", "sleep", "600"])
        started = await app.nodes.start(container.node, [(container, launch)])
        assert started.succeeded == (container.id,)
        await until("the container runs", lambda: app.is_running(container))
        repeated = await app.nodes.start(container.node, [(container, launch)])
        assert [each.id for each in repeated.failed] == [container.id]

        await asyncio.to_thread(yarn.cluster.kill, "master", "resourcemanager")
        heartbeat = asyncio.create_task(app.master.allocate())
        await asyncio.to_thread(yarn.cluster.start, "master", "resourcemanager")
        with pytest.raises(hadoop_rpc.NotRegisteredError):
            await heartbeat
        await app.register()
        fresh = await app.container()
        assert str(fresh.id).startswith("container_e01_")
        assert hadoop_rpc.ContainerId.parse(str(fresh.id)) == fresh.id
        await app.heartbeat(release=[fresh.id])
        await app.finish()
    finally:
        await app.close()
