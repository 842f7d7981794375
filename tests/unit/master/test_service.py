"""The master against a small YARN on real sockets: what its containers, nodes and agents see of it."""

import asyncio
import contextlib
import json
import os
import signal

import pytest

from tests.unit.master.fake_yarn import SERVER, SLOTS, FakeYarn, rig
from yarn_accel.adapters.hadoop_rpc import AttemptGoneError
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState
from yarn_accel.errors import AuthenticationError, RejectedError

RACKS = {"a1": "/r1", "w1": "/r1", "a2": "/r2", "w2": "/r2", "w3": "/r2"}
BOUND = {"w1": "a1", "w2": "a2", "w3": "a2"}


@contextlib.asynccontextmanager
async def play(folder, **changes):
    """One attempt on a YARN with these changes, with its first bindings."""
    async with FakeYarn(RACKS) as yarn:
        for name, value in changes.items():
            setattr(yarn, name, value)
        async with rig(yarn, folder) as all_:
            await serving(all_)
            yield all_


async def serving(all_):
    await all_.until("the first bindings", lambda: all_.bound() == BOUND)


def slots(yarn):
    return {host: node.slots for host, node in yarn.nodes.items()}


def all_slots_are_set(all_):
    """Whether every node has the slots that the master wants, and the master knows."""
    nodes = all_.state()["nodes"]
    return all(
        nodes[host]["slots"]["is_set"] and n_slots == nodes[host]["slots"]["wanted"]
        for host, n_slots in slots(all_.yarn).items()
    )


def running(yarn):
    return {number for number, run in yarn.runs.items() if not run.is_over}


async def drained(all_, host):
    assert (await all_.control("drain", {"node": host}))["text"]
    await all_.until("the drain is stored", lambda: "accel-drained" in all_.yarn.nodes[host].attributes)
    await all_.until("drained", lambda: not all_.yarn.nodes[host].runs("serve"))


async def stopped(all_):
    assert await all_.control("stop") == {}
    await asyncio.wait_for(all_.work, 60)
    assert all_.yarn.final.final_status.name == "SUCCEEDED"
    assert set(slots(all_.yarn).values()) == {SLOTS}, "as configured"


async def test_every_node_gets_its_containers_secrets_and_binding(tmp_path):
    async with play(tmp_path) as all_:
        nodes = all_.yarn.nodes
        assert all(len(node.runs("agent")) == 1 for node in nodes.values())
        assert {host for host, node in nodes.items() if node.runs("serve")} == {"a1", "a2"}
        (server,) = nodes["a1"].runs("serve")
        assert server.secrets == {"yarn_accel.master": SERVER}
        assert [each.key for each in server.launch.files] == ["x.zip"]
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
        shares = {"a1": 4, "w1": 4, "a2": 3, "w2": 3, "w3": 2}
        await all_.until("slots", lambda: slots(all_.yarn) == shares)


async def test_stop_leaves_nothing_behind_but_an_admins_change_of_memory(tmp_path):
    async with play(tmp_path) as all_:
        node = all_.yarn.nodes["w1"]
        # An update that is under way, of the node as it was before, would undo the admin's change.
        await all_.until("slots are set", lambda: node.slots != SLOTS and all_slots_are_set(all_))
        node.capability = type(node.capability)(8192, 4, node.capability.amounts)
        await stopped(all_)
        assert not running(all_.yarn)
        assert all(node.attributes == {} for node in all_.yarn.nodes.values())
        assert node.capability.memory_mib == 8192


async def test_a_killed_server_is_unbound_and_replaced_and_its_exit_code_is_explained(tmp_path):
    async with play(tmp_path) as all_:
        node = all_.yarn.nodes["a2"]
        (old,) = node.runs("serve")
        all_.yarn.kill(old)
        await all_.until("a replacement", lambda: [run for run in node.runs("serve") if run is not old])
        port = 7000 + node.runs("serve")[0].container.id.number
        await all_.until(
            "w3 hears of it", lambda: [s["port"] for s in all_.agents.answers["w3"]["servers"]] == [port]
        )
        (new,) = node.runs("serve")
        servers = (await all_.control("server-logs"))["servers"]
        logs = {each["container"]: (each["node"], each["url"]) for each in servers}
        for each in (old, new):
            assert logs[str(each.container.id)][0] == "a2"
        assert len(logs) == 3, "of a1, too"
        all_.yarn.kill(new, 112)
        await all_.until("the reason", lambda: "its glibc is too old" in all_.master.admin.explain("a2"))


async def test_a_server_asks_for_the_gpus_of_its_node(tmp_path):
    async with FakeYarn(RACKS) as yarn:
        node = yarn.nodes["a1"]
        node.capability = type(node.capability).of(4096, 4, {"acct/slot": SLOTS, "yarn.io/gpu": 2})
        async with rig(yarn, tmp_path) as all_:
            await serving(all_)
            given = {host: yarn.nodes[host].runs("serve")[0].container.resource for host in ("a1", "a2")}
            assert given["a1"].other == {"yarn.io/gpu": 2}
            assert given["a2"].other == {}, "YARN gives out none there; the node's lock guards them"
            assert yarn.nodes["a1"].runs("agent")[0].container.resource.other == {}


async def test_idle_servers_give_their_containers_back_until_a_task_asks(tmp_path):
    async with FakeYarn(RACKS) as yarn, rig(yarn, tmp_path, idle_release_s=1.0) as all_:
        for _ in range(2):
            async with a_task_asks(all_):
                await serving(all_)
                assert {host for host, node in yarn.nodes.items() if node.runs("serve")} == {"a1", "a2"}
            await all_.until("no server", lambda: not any(node.runs("serve") for node in yarn.nodes.values()))
            nodes = all_.state()["nodes"]
            assert {host for host, node in nodes.items() if node["is_released"]} == {"a1", "a2"}
            assert all(len(node.runs("agent")) == 1 for node in yarn.nodes.values()), "agents hear who asks"
            # With fewer slots no task could start that asks.
            await all_.until("slots as configured", lambda: set(slots(yarn).values()) == {SLOTS})


@contextlib.asynccontextmanager
async def a_task_asks(all_):
    """A task without an agent asks for its servers again and again."""

    async def ask():
        while True:
            await all_.get("/v1/servers?node=w3")
            await asyncio.sleep(0.1)

    asking = asyncio.create_task(ask())
    yield
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_only_the_policy_container_tells_loads(tmp_path):
    settings = {"policy": "container", "policy_settings": {"max_moves": 3}}
    async with FakeYarn(RACKS) as yarn, rig(yarn, tmp_path, **settings) as all_:
        await all_.until("w3 hears of a2", lambda: "a2" in all_.agents.answers.get("w3", {}).get("loads", {}))
        answer = all_.agents.answers["w3"]
        policy = {"name": "container", "min_gain_s": 0.01, "min_gain_share": 0.1, "max_moves": 3}
        assert (answer["policy"], answer["loads"]["a2"]["accepts"]) == (policy, True)


async def test_the_next_attempt_adopts_what_runs(tmp_path):
    async with FakeYarn(RACKS) as yarn:
        async with rig(yarn, tmp_path) as first:
            await serving(first)
            await first.until("slots changed", lambda: yarn.nodes["w1"].slots != SLOTS)
            await drained(first, "a1")
        before = running(yarn)
        yarn.next_attempt()
        async with rig(yarn, tmp_path) as second:
            await second.until("answers of the second", lambda: second.agents.answers.get("w3"))
            assert second.agents.answers["w3"]["attempt"] == 2
            assert second.agents.answers["w3"]["bound"] == ["a2"], "nobody heard of no server meanwhile"
            assert running(yarn) == before
            assert "drained by an admin" in (await second.control("explain", {"node": "a1"}))["text"]
            await second.control("undrain", {"node": "a1"})
            await second.until("a1 serves again", lambda: yarn.nodes["a1"].runs("serve"))
            await stopped(second)


async def test_the_next_attempt_binds_as_was_published(tmp_path):
    """Equal servers could be bound either way: jobs that run would be sent elsewhere for nothing."""
    swapped = {"w1": "a2", "w2": "a1"}

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


async def test_a_late_agent_costs_nobody_its_server(tmp_path):
    """The next attempt has made its bindings and has not heard of the only server of the rack yet."""

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


async def test_a_restarted_resource_manager_hears_from_us_again(tmp_path):
    async with play(tmp_path) as all_:
        before = running(all_.yarn)
        await all_.yarn.rm.vanish()
        all_.yarn.forget()
        await all_.until("it is missed", lambda: "the resource manager does not answer" in all_.problems())
        await all_.yarn.rm.listen()
        await all_.until("registered again", lambda: all_.yarn.is_registered)
        all_.yarn.kill(all_.yarn.nodes["a1"].runs("serve")[0])
        await all_.until("a new server", lambda: all_.yarn.nodes["a1"].runs("serve"))
        assert len(running(all_.yarn) & before) == len(before) - 1
        assert len(running(all_.yarn)) == len(before)


async def test_nodes_come_and_go(tmp_path):
    async with play(tmp_path) as all_:
        all_.yarn.lose("a2")
        await all_.until("its nodes are free", lambda: all_.bound().keys() <= {"w1", "a2"})
        await all_.yarn.add("a3", "/r2")
        await all_.until("a new server", lambda: all_.bound().get("w2") == "a3")
        assert all_.bound()["w3"] == "a3"


async def test_an_accelerator_that_only_the_agent_sees(tmp_path):
    async with play(tmp_path) as all_:
        node = all_.yarn.nodes["w1"]
        node.says = {"devices": [{"name": "NVIDIA H200", "health": "ok"}]}
        await all_.until("a server on w1", lambda: node.runs("serve"))
        node.says = {"devices": [{"name": "NVIDIA H200", "health": "lost"}]}
        await all_.until("none any more", lambda: not node.runs("serve"))


@pytest.mark.parametrize("state", ["KILLED", "FAILED", "RUNNING"])
async def test_a_master_that_yarn_ends_restores_the_nodes_when_the_application_is_over(tmp_path, state):
    """SIGTERM is what a NodeManager sends first; RUNNING: another attempt goes on with what is set."""
    async with play(tmp_path) as all_:
        nodes = all_.yarn.nodes
        await all_.until("slots changed", lambda: nodes["w1"].slots != SLOTS)
        await drained(all_, "a2")
        all_.yarn.state = ApplicationState[state]
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(AttemptGoneError):
            await asyncio.wait_for(asyncio.shield(all_.work), 60)
        if state == "RUNNING":
            assert all({"accel-owner", "accel-slots"} <= set(node.attributes) for node in nodes.values())
        else:
            drains = {host: {"accel-drained": "true"} if host == "a2" else {} for host in RACKS}
            assert {host: node.attributes for host, node in nodes.items()} == drains
            assert set(slots(all_.yarn).values()) == {SLOTS}


async def test_without_rights_everything_else_goes_on(tmp_path):
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
            await stopped(all_)


async def test_a_cluster_without_the_resource_type(tmp_path):
    async with play(tmp_path, resource_types=("memory-mb", "vcores")) as all_:
        (problem,) = all_.problems()
        assert "no resource type acct/slot" in problem
        assert set(slots(all_.yarn).values()) == {SLOTS}


async def test_a_refused_launch_is_tried_again(tmp_path):
    async with FakeYarn(RACKS) as yarn:
        yarn.nodes["a1"].refuses = "no more of these"
        async with rig(yarn, tmp_path, timing={"first_delay_s": 0.1, "max_delay_s": 0.2}) as all_:
            await all_.until("failures", lambda: "no more of these" in all_.master.admin.explain("a1"))
            yarn.nodes["a1"].refuses = ""
            await serving(all_)


async def test_an_order_that_changes_nothing_says_so(tmp_path):
    async with play(tmp_path) as all_:

        async def reported(verb, node):
            return str((await all_.control(verb, {"node": node}))["text"])

        assert "tried again" in await reported("undrain", "a1")
        assert await reported("drain", "a1") == "a1 is drained; yarn-accel undrain a1 brings it back"
        assert await reported("drain", "a1") == "a1 is drained already"
        assert await reported("undrain", "a1") == "a1 is drained no more"
        assert "no accelerator" in await reported("drain", "w1")
        with pytest.raises(RejectedError, match="'w 1' is no node's name"):
            await reported("drain", "w 1")


async def test_who_may_say_what(tmp_path):
    async with play(tmp_path) as all_:
        for words, verb, document, sender in (
            ("may not control", "stop", {}, "agent:w1"),
            ("no node nowhere", "drain", {"node": "nowhere"}, "control:test"),
            ("which node", "explain", {}, "control:test"),
        ):
            with pytest.raises(RejectedError, match=words):
                await all_.control(verb, document, sender)
        with pytest.raises(AuthenticationError):
            await all_.control("stop", sender="not a name")
        status = await all_.control("status")
        assert status["state"]["nodes"]["w1"]["bound"] == "a1"
        assert status["node"] == "127.0.0.1", "where the master runs"
        assert (await all_.get("/v1/servers?node=" + "x" * 400))[0] == 400
        assert (await all_.get("/healthz"))[0] == 200
        assert not all_.work.done()
