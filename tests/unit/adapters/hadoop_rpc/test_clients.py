"""ResourceManager and NodeManagers: heartbeats, tokens, addresses, and what is never done twice."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import CLOSE, NOT_REGISTERED, STANDBY, FakeHadoop, Refusal
from tests.unit.adapters.hadoop_rpc.test_transport import QUICK, TOKEN
from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc import methods, records, rpc_errors
from yarn_accel.adapters.hadoop_rpc.clients import NodeManager
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.adapters.hadoop_rpc.transport import Address
from yarn_accel.errors import AuthenticationError, ConfigError, LocalProtocolError

ASK = records.pinned("w1", "/r1", 1, records.YarnResource.of(512, 1))
APPLICATION = records.ApplicationId(1, 1)


def container(number):
    return records.YarnContainer(
        records.ContainerId(records.AttemptId(APPLICATION, 1), number), records.NodeId("w1", 8041)
    )


@dataclass
class Scheduler:
    """The ResourceManager's memory of one master, as its ApplicationMasterService has it."""

    is_registered: bool = False
    last: methods.AllocateResponse = field(default_factory=methods.AllocateResponse)
    n_carried_out: int = 0
    command: methods.MasterCommand | None = None
    renewed: Token | None = None
    drops: int = 0

    def handlers(self):
        return {
            "registerApplicationMaster": self.register,
            "allocate": self.allocate,
            "finishApplicationMaster": self.finish,
        }

    def register(self, _):
        self.is_registered = True
        self.last = methods.AllocateResponse()
        return methods.RegisterResponse(queue="default")

    def allocate(self, request):
        if not self.is_registered:
            raise Refusal(NOT_REGISTERED, "AM is not registered for known application attempt")
        if request.response_id == self.last.response_id:
            self.n_carried_out += 1
            made = tuple(container(self.n_carried_out * 10 + n) for n in range(bool(request.ask)))
            self.last = methods.AllocateResponse(
                self.command, request.response_id + 1, made, am_rm_token=self.renewed, n_nodes=3
            )
        elif request.response_id + 1 != self.last.response_id:
            raise Refusal("org.apache.hadoop.yarn.exceptions.InvalidApplicationMasterRequestException")
        if self.drops:
            self.drops -= 1
            return CLOSE
        return self.last

    def finish(self, _):
        self.is_registered = False
        return methods.FinishResponse(True)


def addresses(server):
    return hadoop_rpc.ResourceManagerAddresses((server.address,), (server.address,), (server.address,))


Scene = tuple[Scheduler, FakeHadoop, hadoop_rpc.ApplicationMaster]


@contextlib.asynccontextmanager
async def serving(patience=None):
    scheduler = Scheduler()
    async with FakeHadoop(scheduler.handlers(), [TOKEN]) as server:
        master = hadoop_rpc.ApplicationMaster(
            addresses(server), TOKEN, QUICK, patience or hadoop_rpc.Patience(5.0, 0.01, 0.01)
        )
        try:
            yield scheduler, server, master
        finally:
            await master.close()


@contextlib.asynccontextmanager
async def registered(patience=None):
    async with serving(patience) as (scheduler, server, master):
        await master.register("h", 1, "")
        yield scheduler, server, master


@contextlib.asynccontextmanager
async def after_a_lost_answer():
    """A master whose first heartbeat was carried out and not answered; it does not try again by itself."""
    async with registered(hadoop_rpc.Patience(0.0)) as (scheduler, server, master):
        scheduler.drops = 1
        with pytest.raises(rpc_errors.ConnectionLostError):
            await master.allocate(ASK)
        yield scheduler, server, master


def response_ids(server):
    return [request.response_id for name, request in server.seen if name == "allocate"]


async def test_heartbeats_are_numbered():
    async with serving() as (_scheduler, server, master):
        assert (await master.register("h", 1, "http://h:1/")).queue == "default"
        assert (await master.allocate(ASK, progress=0.5)).allocated == (container(10),)
        assert (await master.allocate()).n_nodes == 3
        assert await master.finish(records.FinalStatus.SUCCEEDED)
        assert response_ids(server) == [0, 1]
        assert (server.seen[1][1].ask, server.users) == (ASK, [TOKEN.identifier])


async def test_a_lost_answer_is_asked_for_again_and_carried_out_once():
    async with registered() as (scheduler, server, master):
        scheduler.drops = 2
        assert (await master.allocate(ASK)).allocated == (container(10),)
        assert scheduler.n_carried_out == 1
        assert response_ids(server) == [0, 0, 0]
        await master.allocate()
        assert response_ids(server)[-1] == 1


async def test_a_heartbeat_without_any_answer_is_kept_for_the_next():
    """Its asks were carried out; the container it brought must not be lost, and not be asked for twice."""
    async with after_a_lost_answer() as (_scheduler, server, master):
        both = await master.allocate(ASK)
        assert both.allocated == (container(10), container(20))
        assert both.response_id == 2
        assert [len(request.ask) for name, request in server.seen if name == "allocate"] == [3, 3, 3]
        assert response_ids(server) == [0, 0, 1]


async def test_the_answer_to_a_kept_heartbeat_outlives_a_line_that_breaks_again():
    """Containers and tokens of nodes come once: nobody else would tell of them."""
    async with after_a_lost_answer() as (scheduler, server, master):

        def drop_the_second(request):
            if request.response_id == 1:
                scheduler.drops = 1
            return scheduler.allocate(request)

        server.handlers["allocate"] = drop_the_second
        with pytest.raises(rpc_errors.ConnectionLostError):
            await master.allocate(ASK)
        server.handlers["allocate"] = scheduler.allocate
        reported = await master.allocate()
        assert reported.allocated == (container(10), container(20))
        assert (await master.allocate()).allocated == ()


async def test_after_registering_again_nothing_of_before_is_reported():
    """A ResourceManager that was restarted gives no such container any more."""
    async with after_a_lost_answer() as (scheduler, server, master):

        def restart(request):
            scheduler.is_registered = request.response_id == 0
            return scheduler.allocate(request)

        server.handlers["allocate"] = restart
        with pytest.raises(rpc_errors.NotRegisteredError):
            await master.allocate()
        server.handlers["allocate"] = scheduler.allocate
        await master.register("h", 1, "")
        assert (await master.allocate()).allocated == ()


async def test_a_refused_heartbeat_is_not_kept():
    async with serving() as (scheduler, server, master):

        def refuse(_):
            raise Refusal("org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException", "too large")

        await master.register("h", 1, "")
        server.handlers["allocate"] = refuse
        with pytest.raises(rpc_errors.RemoteCallError, match="too large") as caught:
            await master.allocate(ASK)
        assert caught.value.code == "invalid-resource-request"
        server.handlers["allocate"] = scheduler.allocate
        with pytest.raises(LocalProtocolError):
            await master.allocate(records.pinned("w1", "/r1", 1 << 40, records.YarnResource.of(512, 1)))
        assert (await master.allocate()).allocated == ()
        assert [len(request.ask) for name, request in server.seen if name == "allocate"] == [3, 0]
        assert response_ids(server) == [0, 0]


async def test_after_a_restart_the_master_registers_again_and_counts_from_zero():
    async with registered() as (scheduler, server, master):
        await master.allocate(ASK)
        await master.allocate()
        await server.vanish()
        scheduler.is_registered = False
        await server.listen()
        with pytest.raises(rpc_errors.NotRegisteredError):
            await master.allocate(ASK)
        await master.register("h", 1, "")
        await master.allocate(ASK)
        assert response_ids(server)[-2:] == [2, 0]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (methods.MasterCommand.RESYNC, rpc_errors.NotRegisteredError),
        (methods.MasterCommand.SHUTDOWN, rpc_errors.AttemptGoneError),
    ],
)
async def test_orders_become_errors(command, error):
    async with registered() as (scheduler, _, master):
        scheduler.command = command
        with pytest.raises(error, match="orders to"):
            await master.allocate()


async def test_an_unknown_attempt_must_end():
    async with serving() as (_, server, master):

        def gone(_):
            raise Refusal("org.apache.hadoop.yarn.exceptions.ApplicationAttemptNotFoundException", "gone")

        server.handlers["allocate"] = gone
        with pytest.raises(rpc_errors.AttemptGoneError, match="gone"):
            await master.allocate()


async def test_a_renewed_token_is_used_at_the_next_connection():
    async with registered() as (scheduler, server, master):
        fresh = [Token(b"renewed-%d" % n, b"fresh", TOKEN.kind, "") for n in range(3)]
        for token in fresh:
            server.tokens.append(token)
            scheduler.renewed = token
            await master.allocate()
            await master.allocate()
            assert master.token == token
            scheduler.renewed = None
            server.tokens.remove(server.tokens[0])
            await server.vanish()
            await server.listen()
            await master.allocate()
        assert server.users == [TOKEN.identifier, *(token.identifier for token in fresh)]
        assert response_ids(server) == list(range(9))


async def test_what_clients_and_operators_send():
    handlers = {
        "submitApplication": lambda _: methods.SubmitApplicationResponse(),
        "forceKillApplication": lambda _: methods.KillApplicationResponse(False),
        "getApplications": lambda _: methods.GetApplicationsResponse(),
        "getClusterNodes": lambda _: methods.GetClusterNodesResponse(),
        "updateNodeResource": lambda _: methods.UpdateNodeResourceResponse(),
        "mapAttributesToNodes": lambda _: methods.MapAttributesResponse(),
    }
    async with FakeHadoop(handlers) as server:
        rm = hadoop_rpc.ResourceManager(addresses(server), hadoop_rpc.User("ann"), QUICK)
        launch = records.LaunchContext.of(["true"])
        resource = records.YarnResource.of(1024, 1, {"acct/slot": 3})
        await rm.submit(
            hadoop_rpc.ApplicationSubmission(APPLICATION, launch=launch, resource=resource, tags=("Accel",))
        )
        assert not await rm.kill(APPLICATION, "enough")
        assert await rm.applications(types=["ACCEL"], tags=["Accel"]) == ()
        assert await rm.nodes([records.NodeState.RUNNING]) == ()
        await rm.update_node_resource(records.NodeId("w1", 8041), resource)
        await rm.map_attributes(hadoop_rpc.AttributeOperation.ADD, {"w1": {"accel-bind": "w2"}})
        await rm.close()
    sent = dict(server.seen)
    assert sent["submitApplication"].submission.tags == sent["getApplications"].tags == ("accel",)
    assert sent["forceKillApplication"].diagnostics == "enough"
    assert sent["getClusterNodes"].states == (records.NodeState.RUNNING,)
    (update,) = sent["updateNodeResource"].nodes
    assert (update.option.resource.other, update.option.over_commit_timeout_ms) == ({"acct/slot": 3}, -1)
    (mapped,) = sent["mapAttributesToNodes"].nodes
    attribute = mapped.attributes[0]
    assert (mapped.host, attribute.key.prefix, attribute.key.name, attribute.value) == (
        "w1",
        "rm.yarn.io",
        "accel-bind",
        "w2",
    )
    assert sent["mapAttributesToNodes"].operation is hadoop_rpc.AttributeOperation.ADD
    assert server.users == ["ann", "ann"]


async def test_operators_calls_go_to_the_active_resource_manager_before_and_after_a_failover():
    answers = {
        "updateNodeResource": methods.UpdateNodeResourceResponse(),
        "mapAttributesToNodes": methods.MapAttributesResponse(),
    }

    def standby(_):
        raise Refusal(STANDBY, "ResourceManager rm1 is not Active!")

    first = FakeHadoop(dict.fromkeys(answers, standby))
    second = FakeHadoop({name: lambda _, answer=answer: answer for name, answer in answers.items()})
    async with first, second:
        both = (first.address, second.address)
        rm = hadoop_rpc.ResourceManager(
            hadoop_rpc.ResourceManagerAddresses(both, both, both), hadoop_rpc.User("ann"), QUICK
        )
        node, resource = records.NodeId("w1", 8041), records.YarnResource.of(1024, 1, {"acct/slot": 3})
        bound = {"w1": {"accel-bind": "w2"}}
        await rm.update_node_resource(node, resource)
        await rm.map_attributes(hadoop_rpc.AttributeOperation.ADD, bound)
        first.handlers, second.handlers = second.handlers, first.handlers
        await rm.map_attributes(hadoop_rpc.AttributeOperation.ADD, bound)
        await rm.update_node_resource(node, resource)
        await rm.close()
    update, publish = answers
    assert first.methods() == [update, publish, update]
    assert second.methods() == [update, publish, publish]


@pytest.mark.parametrize(
    ("exception", "has_them"),
    [(None, True), ("org.apache.hadoop.ipc.RpcNoSuchMethodException", False), ("java.io.IOException", None)],
)
async def test_whether_yarn_knows_node_attributes(exception, has_them):
    def answered(_):
        if exception is not None:
            raise Refusal(exception, "Unknown method getClusterNodeAttributes called on ...")
        return methods.GetClusterNodeAttributesResponse()

    async with FakeHadoop({"getClusterNodeAttributes": answered}) as server:
        rm = hadoop_rpc.ResourceManager(addresses(server), hadoop_rpc.User("ann"), QUICK)
        if has_them is None:
            with pytest.raises(rpc_errors.RemoteCallError, match="Unknown method"):
                await rm.has_node_attributes()
        else:
            assert await rm.has_node_attributes() == has_them
        await rm.close()


LAUNCH = records.LaunchContext.of(["sleep", "1"])


def token(name):
    return Token(name.encode(), b"password", "NMToken", "")


def given(number):
    plain = container(number)
    return records.YarnContainer(plain.id, plain.node, token=Token(b"container", b"", "ContainerToken", ""))


def handlers():
    def start(request):
        assert all(each.token.kind == "ContainerToken" for each in request.requests)
        exception = methods.SerializedException(
            "Attempt to relaunch the same container", "org.apache.hadoop.A$BException"
        )
        return methods.StartContainersResponse(
            failed=(methods.ContainerException(container(1).id, exception),)
        )

    return {
        "startContainers": start,
        "stopContainers": lambda request: methods.StopContainersResponse(request.ids),
        "getContainerStatuses": lambda _: methods.GetContainerStatusesResponse(),
    }


async def test_start_stop_and_status():
    async with FakeHadoop(handlers(), [token("one")]) as server:
        node = records.NodeId("127.0.0.1", server.port)
        nodes = NodeManager(QUICK)
        nodes.learn([records.NodeToken(node, token("one"))])
        answer = await nodes.start(node, [(given(1), LAUNCH)])
        error = rpc_errors.error_of_exception(answer.failed[0].exception, str(node))
        assert isinstance(error, rpc_errors.RemoteCallError)
        assert (error.code, str(error)) == (
            "b",
            f"{node}: BException: Attempt to relaunch the same container",
        )
        assert (await nodes.stop(node, [given(1).id])).succeeded == (given(1).id,)
        assert (await nodes.statuses(node, [given(1).id])).statuses == ()
        assert server.methods() == ["startContainers", "stopContainers", "getContainerStatuses"]
        assert server.users == [b"one"]
        await nodes.close()


async def test_a_start_whose_answer_is_lost_is_not_repeated():
    async with FakeHadoop({"startContainers": lambda _: CLOSE}, [token("one")]) as server:
        node = records.NodeId("127.0.0.1", server.port)
        nodes = NodeManager(QUICK)
        nodes.learn([records.NodeToken(node, token("one"))])
        with pytest.raises(rpc_errors.ConnectionLostError) as caught:
            await nodes.start(node, [(given(1), LAUNCH)])
        assert caught.value.was_sent
        assert len(server.seen) == 1
        await nodes.close()


async def test_without_a_token_nothing_is_sent():
    async with FakeHadoop(handlers(), [token("one")]) as server:
        node = records.NodeId("127.0.0.1", server.port)
        nodes = NodeManager(QUICK)
        with pytest.raises(AuthenticationError, match=r"no token for .*learn\(\)"):
            await nodes.stop(node, [])
        with pytest.raises(AuthenticationError, match="came without a token"):
            await nodes.start(node, [(container(1), LAUNCH)])
        assert server.seen == []


async def test_a_newer_token_replaces_the_older():
    async with FakeHadoop(handlers(), [token("old"), token("new")]) as server:
        node = records.NodeId("127.0.0.1", server.port)
        nodes = NodeManager(QUICK)
        for name in ("old", "new"):
            nodes.learn([records.NodeToken(node, token(name))])
            await nodes.stop(node, [])
            await nodes.close()
        assert server.users == [b"old", b"new"]


async def test_only_so_many_connections_are_kept():
    servers = [FakeHadoop(handlers(), [token("one")]) for _ in range(4)]
    for server in servers:
        await server.__aenter__()
    nodes = NodeManager(QUICK, max_idle=2)
    order = (0, 1, 2, 3, 3, 2, 0)
    for at in order:
        node = records.NodeId("127.0.0.1", servers[at].port)
        nodes.learn([records.NodeToken(node, token("one"))])
        await nodes.stop(node, [])
    assert [len(server.users) for server in servers] == [2, 1, 1, 1]
    await nodes.close()
    for server in servers:
        await server.vanish()


async def test_a_node_that_is_away_is_given_up_soon():
    async with FakeHadoop() as server:
        node = records.NodeId("127.0.0.1", server.port)
    nodes = NodeManager(QUICK, hadoop_rpc.Patience(0.05, 0.01, 0.01))
    nodes.learn([records.NodeToken(node, token("one"))])
    with pytest.raises(rpc_errors.ConnectionLostError) as caught:
        await nodes.stop(node, [])
    assert not caught.value.was_sent
    await nodes.close()


RM = "yarn.resourcemanager."


def test_the_host_alone_gives_the_usual_ports():
    found = hadoop_rpc.ResourceManagerAddresses.from_properties({f"{RM}hostname": "rm"})
    assert found.client == (Address("rm", 8032),)
    assert found.scheduler == (Address("rm", 8030),)
    assert found.admin == (Address("rm", 8033),)


def test_an_address_wins_over_the_host():
    found = hadoop_rpc.ResourceManagerAddresses.from_properties(
        {
            f"{RM}hostname": "rm",
            f"{RM}address": "other:1",
            f"{RM}scheduler.address": "${yarn.resourcemanager.hostname}:2",
            f"{RM}admin.address": "bare",
        }
    )
    assert (str(found.client[0]), str(found.scheduler[0]), str(found.admin[0])) == (
        "other:1",
        "rm:2",
        "bare:8033",
    )


def test_several_resource_managers_keep_their_order():
    found = hadoop_rpc.ResourceManagerAddresses.from_properties(
        {
            f"{RM}ha.enabled": "true",
            f"{RM}ha.rm-ids": "rm2, rm1",
            f"{RM}hostname.rm1": "a",
            f"{RM}hostname.rm2": "b",
            f"{RM}scheduler.address.rm1": "a:99",
        }
    )
    assert [str(each) for each in found.client] == ["b:8032", "a:8032"]
    assert [str(each) for each in found.scheduler] == ["b:8030", "a:99"]


@pytest.mark.parametrize(
    "properties",
    [
        {f"{RM}ha.enabled": "true"},
        {f"{RM}ha.enabled": "true", f"{RM}ha.rm-ids": "rm1", f"{RM}hostname": "a"},
        {f"{RM}hostname": "rm", f"{RM}address": "rm:port"},
        {f"{RM}hostname": "rm", f"{RM}address": "rm:0"},
        {f"{RM}hostname": "rm", f"{RM}address": "rm:65536"},
        {f"{RM}hostname": "rm", f"{RM}address": ":80"},
        {f"{RM}hostname": "rm..example.org"},
        {f"{RM}hostname": "r" * 64},
        {f"{RM}hostname": "rm", f"{RM}address": "http://rm:8032"},
        {f"{RM}hostname": "rm", f"{RM}scheduler.address": "rm example:8030"},
    ],
)
def test_half_a_configuration_is_refused(properties):
    with pytest.raises(ConfigError):
        hadoop_rpc.ResourceManagerAddresses.from_properties(properties)


@pytest.mark.parametrize("properties", [{}, {f"{RM}hostname": "0.0.0.0"}, {f"{RM}address": "0.0.0.0:8032"}])
def test_hadoops_default_is_this_machine(properties):
    found = hadoop_rpc.ResourceManagerAddresses.from_properties(properties)
    assert (str(found.client[0]), str(found.admin[0])) == ("localhost:8032", "localhost:8033")


def test_version_6_addresses():
    assert Address.parse("[::1]:8032") == Address("::1", 8032)
    assert Address.parse("[::1]", 8032) == Address("::1", 8032)
    assert str(Address("::1", 8032)) == "[::1]:8032"
