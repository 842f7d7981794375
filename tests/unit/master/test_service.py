"""The master against a small YARN on real sockets: what its containers, nodes and agents see of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.unit.master.fake_yarn import SERVER, SLOTS, FakeYarn, Rig, rig
from yarn_accel.adapters.hadoop_rpc import AttemptGoneError
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState
from yarn_accel.errors import AuthenticationError, RejectedError

RACKS = {"a1": "/r1", "w1": "/r1", "a2": "/r2", "w2": "/r2", "w3": "/r2"}
BOUND = {"w1": "a1", "w2": "a2", "w3": "a2"}


def play(folder: Path, story: Callable[[Rig], Awaitable[None]], **settings: object) -> FakeYarn:
    """A story with one attempt."""

    async def run() -> FakeYarn:
        async with FakeYarn(RACKS) as yarn, rig(yarn, folder, **settings) as all_:
            await story(all_)
            return yarn

    return asyncio.run(run())


async def serving(all_: Rig) -> None:
    await all_.until("the first bindings", lambda: all_.bound() == BOUND)


def test_every_node_gets_its_containers_secrets_and_binding(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        nodes = all_.yarn.nodes
        assert all(len(node.runs("agent")) == 1 for node in nodes.values())
        assert {host for host, node in nodes.items() if node.runs("serve")} == {"a1", "a2"}
        (server,) = nodes["a1"].runs("serve")
        assert server.secrets == {"yarn_accel.master": SERVER}
        assert server.launch is not None
        assert [each.key for each in server.launch.files] == ["x.zip"]
        assert server.launch.retry is not None
        assert 137 not in server.launch.retry.error_codes
        keys = {nodes[host].runs("agent")[0].secrets["yarn-accel.node"] for host in nodes}
        assert len(keys) == len(nodes), "each agent has its own key"
        await all_.until("the agents know", lambda: all_.agents.answers.get("w3", {}).get("bound") == ["a2"])
        answer = all_.agents.answers["w3"]
        assert [each["name"] for each in answer["servers"]] == ["a2"], "none of the other rack"
        assert answer["racks"] == {"w3": "/r2", "a2": "/r2"}
        status, text = await all_.get("/v1/servers?node=w3")
        reported = json.loads(text)
        assert (status, reported["binding"]["bound"]) == (200, {"w3": ["a2"]})
        # 2 workers of 4 mappers each: a1 with one more node, a2 with two.
        await all_.until(
            "slots",
            lambda: {h: n.slots for h, n in nodes.items()} == {"a1": 4, "w1": 4, "a2": 3, "w2": 3, "w3": 2},
        )
        assert nodes["w1"].capability.memory_mib == 4096

    play(tmp_path, story)


def test_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        nodes = all_.yarn.nodes
        await all_.until("slots changed", lambda: nodes["w1"].slots != SLOTS)
        assert await all_.control("stop") == {}
        await asyncio.wait_for(all_.work, 60)
        assert all_.yarn.final is not None
        assert all_.yarn.final.final_status.name == "SUCCEEDED"
        assert not [run for run in all_.yarn.runs.values() if not run.is_over]
        assert {node.slots for node in nodes.values()} == {SLOTS}
        assert all(node.attributes == {} for node in nodes.values())

    play(tmp_path, story)


def test_a_killed_server_is_unbound_and_replaced(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        (old,) = all_.yarn.nodes["a2"].runs("serve")
        all_.yarn.kill(old)
        await all_.until(
            "a replacement", lambda: [r for r in all_.yarn.nodes["a2"].runs("serve") if r is not old]
        )
        port = 7000 + all_.yarn.nodes["a2"].runs("serve")[0].container.id.number
        await all_.until(
            "w3 hears of it", lambda: [s["port"] for s in all_.agents.answers["w3"]["servers"]] == [port]
        )

    play(tmp_path, story)


def test_a_server_asks_for_the_gpus_of_its_node(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeYarn(RACKS) as yarn:
            node = yarn.nodes["a1"]
            node.capability = type(node.capability).of(4096, 4, {"acct/slot": SLOTS, "yarn.io/gpu": 2})
            async with rig(yarn, tmp_path) as all_:
                await serving(all_)
                given = {host: yarn.nodes[host].runs("serve")[0].container.resource for host in ("a1", "a2")}
                assert given["a1"].other == {"yarn.io/gpu": 2}
                assert given["a2"].other == {}, "YARN gives out none there; the node's lock guards them"
                assert yarn.nodes["a1"].runs("agent")[0].container.resource.other == {}

    asyncio.run(run())


def test_only_the_policy_container_tells_loads(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await all_.until("w3 hears of a2", lambda: "a2" in all_.agents.answers.get("w3", {}).get("loads", {}))
        answer = all_.agents.answers["w3"]
        assert answer["policy"] == {
            "name": "container",
            "min_gain_s": 0.01,
            "min_gain_share": 0.1,
            "max_moves": 3,
        }
        assert answer["loads"]["a2"]["accepts"] is True

    play(tmp_path, story, policy="container", policy_settings={"max_moves": 3})


def test_the_next_attempt_adopts_what_runs(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeYarn(RACKS) as yarn:
            async with rig(yarn, tmp_path) as first:
                await serving(first)
                await first.until("slots changed", lambda: yarn.nodes["w1"].slots != SLOTS)
                assert (await first.control("drain", {"node": "a1"}))["text"]
                await first.until(
                    "the drain is remembered", lambda: "accel-drained" in yarn.nodes["a1"].attributes
                )
                await first.until("drained", lambda: not yarn.nodes["a1"].runs("serve"))
            running = {number for number, run in yarn.runs.items() if not run.is_over}
            yarn.next_attempt()
            async with rig(yarn, tmp_path) as second:
                await second.until("answers of the second", lambda: second.agents.answers.get("w3"))
                assert second.agents.answers["w3"]["attempt"] == 2
                assert second.agents.answers["w3"]["bound"] == ["a2"], (
                    "nobody was informed of no server meanwhile"
                )
                assert {number for number, run in yarn.runs.items() if not run.is_over} == running
                explained = await second.control("explain", {"node": "a1"})
                assert "drained by an admin" in explained["text"]
                await second.control("undrain", {"node": "a1"})
                await second.until("a1 serves again", lambda: yarn.nodes["a1"].runs("serve"))
                await second.control("stop")
                await asyncio.wait_for(second.work, 60)
                assert {node.slots for node in yarn.nodes.values()} == {SLOTS}, (
                    "configured by whoever was first"
                )

    asyncio.run(run())


def test_the_next_attempt_binds_as_was_published(tmp_path: Path) -> None:
    """Equal servers could be bound either way: jobs that run would be sent elsewhere for nothing."""
    swapped = {"w1": "a2", "w2": "a1"}

    async def run() -> None:
        async with FakeYarn(dict.fromkeys(("a1", "a2", "w1", "w2"), "/r1")) as yarn:
            async with rig(yarn, tmp_path) as first:
                await first.until("bindings", lambda: first.bound() == {"w1": "a1", "w2": "a2"})
            for node, server in swapped.items():
                yarn.nodes[node].attributes["accel-bind"] = server
            yarn.next_attempt()
            async with rig(yarn, tmp_path) as second:
                await second.until("answers of the second", lambda: len(second.agents.answers) == 4)
                assert second.agents.answers["w1"]["bound"] == ["a2"]
                assert second.bound() == swapped

    asyncio.run(run())


def test_a_late_agent_costs_nobody_its_server(tmp_path: Path) -> None:
    """The next attempt has made its bindings and has not heard of the only server of the rack yet."""

    async def run() -> None:
        async with FakeYarn(RACKS) as yarn:
            async with rig(yarn, tmp_path) as first:
                await serving(first)
            yarn.next_attempt()
            async with rig(yarn, tmp_path) as second:
                second.agents.silent = {"a2"}
                await second.until("bindings", lambda: second.agents.answers.get("w1", {}).get("bound"))
                await second.until(
                    "w3 asks", lambda: "nothing is bound yet" in second.agents.errors.get("w3", "")
                )
                assert (await second.get("/v1/servers?node=w3"))[0] == 503
                assert "w3" not in second.agents.answers
                second.agents.silent = set()
                await second.until("a2 is heard", lambda: second.agents.answers.get("w3", {}).get("bound"))

    asyncio.run(run())


def test_a_restarted_resource_manager_hears_from_us_again(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        before = [number for number, run in all_.yarn.runs.items() if not run.is_over]
        await all_.yarn.rm.vanish()
        all_.yarn.forget()
        await all_.until("it is missed", lambda: "the resource manager does not answer" in all_.problems())
        await all_.yarn.rm.listen()
        await all_.until("registered again", lambda: all_.yarn.is_registered)
        all_.yarn.kill(all_.yarn.nodes["a1"].runs("serve")[0])
        await all_.until("a new server", lambda: all_.yarn.nodes["a1"].runs("serve"))
        alive = [number for number, run in all_.yarn.runs.items() if not run.is_over]
        assert len(alive) == len(before)
        assert len(set(before) - set(alive)) == 1

    play(tmp_path, story)


def test_nodes_come_and_go(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        all_.yarn.lose("a2")
        await all_.until("its nodes are free", lambda: all_.bound().keys() <= {"w1", "a2"})
        await all_.yarn.add("a3", "/r2")
        await all_.until("a new server", lambda: all_.bound().get("w2") == "a3")
        assert all_.bound()["w3"] == "a3"

    play(tmp_path, story)


def test_an_accelerator_that_only_the_agent_sees(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        node = all_.yarn.nodes["w1"]
        node.says = {"devices": [{"name": "NVIDIA H200", "health": "ok"}]}
        await all_.until("a server on w1", lambda: node.runs("serve"))
        node.says = {"devices": [{"name": "NVIDIA H200", "health": "lost"}]}
        await all_.until("none any more", lambda: not node.runs("serve"))

    play(tmp_path, story)


@pytest.mark.parametrize(
    "state", [ApplicationState.KILLED, ApplicationState.FAILED, ApplicationState.RUNNING]
)
def test_a_master_that_yarn_ends_restores_the_nodes_when_the_application_is_over(
    tmp_path: Path, state: ApplicationState
) -> None:
    """SIGTERM is what a NodeManager sends first; RUNNING: another attempt goes on with what is set."""

    async def run() -> None:
        async with FakeYarn(RACKS) as yarn, rig(yarn, tmp_path) as all_:
            await serving(all_)
            await all_.until("slots changed", lambda: yarn.nodes["w1"].slots != SLOTS)
            await all_.control("drain", {"node": "a2"})
            await all_.until("the drain is stored", lambda: "accel-drained" in yarn.nodes["a2"].attributes)
            yarn.state = state
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(AttemptGoneError):
                await asyncio.wait_for(asyncio.shield(all_.work), 60)
            after = {host: (node.slots, dict(node.attributes)) for host, node in yarn.nodes.items()}
            if state is ApplicationState.RUNNING:
                assert all({"accel-owner", "accel-slots"} <= set(marks) for _, marks in after.values())
            else:
                assert after == {
                    host: (SLOTS, {"accel-drained": "true"} if host == "a2" else {}) for host in RACKS
                }

    asyncio.run(run())


def test_without_rights_everything_else_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeYarn(RACKS) as yarn:
            yarn.is_operator = False
            async with rig(yarn, tmp_path) as all_:
                await all_.until("bindings", lambda: all_.agents.answers.get("w3", {}).get("bound") == ["a2"])
                await all_.until("both are said", lambda: len(all_.problems()) == 2)
                assert all("AccessControl" in text for text in all_.problems())
                explained = (await all_.control("explain", {"node": "w3"}))["text"]
                assert "Slots are not set: " in explained
                assert "Its binding is not published as a node attribute: " in explained
                n_refused = yarn.n_refused
                yarn.nodes["w3"].says = {"late_binding": {"claims": {"gpu": 1, "cpu": 2, "waiting": "x"}}}
                explain = all_.master.admin.explain
                await all_.until("its claims", lambda: "1 GPU, 2 core, - wait" in explain("w3"))
                await all_.control("rebind")
                await all_.control("drain", {"node": "a2"})
                await all_.until("drained", lambda: not yarn.nodes["a2"].runs("serve"))
                assert yarn.n_refused == n_refused == 1, "it is not tried again"
                await all_.control("stop")
                await asyncio.wait_for(all_.work, 60)
                assert yarn.final is not None

    asyncio.run(run())


def test_a_cluster_without_the_resource_type(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeYarn(RACKS) as yarn:
            yarn.resource_types = ("memory-mb", "vcores")
            async with rig(yarn, tmp_path) as all_:
                await serving(all_)
                (problem,) = all_.problems()
                assert "no resource type acct/slot" in problem
                assert {node.slots for node in yarn.nodes.values()} == {SLOTS}

    asyncio.run(run())


def test_an_admins_change_of_memory_survives(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        node = all_.yarn.nodes["w1"]
        await all_.until("slots changed", lambda: node.slots != SLOTS)
        node.capability = type(node.capability)(8192, 4, node.capability.amounts)
        await all_.control("stop")
        await asyncio.wait_for(all_.work, 60)
        assert node.capability.memory_mib == 8192
        assert node.slots == SLOTS

    play(tmp_path, story)


def test_a_refused_launch_is_tried_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeYarn(RACKS) as yarn:
            yarn.nodes["a1"].refuses = "no more of these"
            async with rig(yarn, tmp_path, timing={"first_delay_s": 0.1, "max_delay_s": 0.2}) as all_:
                await all_.until("failures", lambda: "no more of these" in all_.master.admin.explain("a1"))
                yarn.nodes["a1"].refuses = ""
                await serving(all_)

    asyncio.run(run())


def test_an_exit_code_of_ours_is_explained(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        all_.yarn.kill(all_.yarn.nodes["a1"].runs("serve")[0], 112)
        await all_.until("the reason", lambda: "its glibc is too old" in all_.master.admin.explain("a1"))

    play(tmp_path, story)


def test_an_order_that_changes_nothing_says_so(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)

        async def reported(verb: str, node: str) -> str:
            return str((await all_.control(verb, {"node": node}))["text"])

        assert "tried again" in await reported("undrain", "a1")
        assert await reported("drain", "a1") == "a1 is drained; yarn-accel undrain a1 brings it back"
        assert await reported("drain", "a1") == "a1 is drained already"
        assert await reported("undrain", "a1") == "a1 is drained no more"
        assert "no accelerator" in await reported("drain", "w1")
        with pytest.raises(RejectedError, match="'w 1' is no node's name"):
            await reported("drain", "w 1")

    play(tmp_path, story)


def test_who_may_say_what(tmp_path: Path) -> None:
    async def story(all_: Rig) -> None:
        await serving(all_)
        with pytest.raises(RejectedError, match="may not control"):
            await all_.control("stop", sender="agent:w1")
        with pytest.raises(RejectedError, match="no node nowhere"):
            await all_.control("drain", {"node": "nowhere"})
        with pytest.raises(RejectedError, match="which node"):
            await all_.control("explain", {})
        with pytest.raises(AuthenticationError):
            await all_.control("stop", sender="not a name")
        status = await all_.control("status")
        assert status["state"]["nodes"]["w1"]["bound"] == "a1"
        assert status["node"] == "127.0.0.1", "where the master runs"
        assert json.loads(json.dumps(status)) == status
        assert (await all_.get("/v1/servers?node=" + "x" * 400))[0] == 400
        assert (await all_.get("/healthz"))[0] == 200
        assert not all_.work.done()

    play(tmp_path, story)
