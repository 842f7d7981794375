"""NodeManagers: a token for each, nothing started twice, connections bounded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import CLOSE, FakeHadoop
from tests.unit.adapters.hadoop_rpc.test_native import container
from tests.unit.adapters.hadoop_rpc.test_transport import QUICK, run
from yarn_accel.adapters.hadoop_rpc.backend import NodeManager
from yarn_accel.adapters.hadoop_rpc.failover import Patience
from yarn_accel.adapters.hadoop_rpc.header_messages import Token
from yarn_accel.adapters.hadoop_rpc.identifiers import NodeId
from yarn_accel.adapters.hadoop_rpc.nodes import NativeNodeManager
from yarn_accel.adapters.hadoop_rpc.records import LaunchContext, NodeToken, YarnContainer
from yarn_accel.adapters.hadoop_rpc.rpc_errors import ConnectionLostError, RemoteCallError, error_of_exception
from yarn_accel.adapters.hadoop_rpc.service_messages import (
    ContainerException,
    GetContainerStatusesResponse,
    SerializedException,
    StartContainersRequest,
    StartContainersResponse,
    StopContainersResponse,
)
from yarn_accel.errors import AuthenticationError

LAUNCH = LaunchContext.of(["sleep", "1"])


def token(name: str) -> Token:
    return Token(name.encode(), b"password", "NMToken", "")


def given(number: int) -> YarnContainer:
    plain = container(number)
    return YarnContainer(plain.id, plain.node, token=Token(b"container", b"", "ContainerToken", ""))


def handlers() -> dict[str, Any]:
    def start(request: StartContainersRequest) -> StartContainersResponse:
        assert all(each.token.kind == "ContainerToken" for each in request.requests)
        exception = SerializedException(
            "Attempt to relaunch the same container", "org.apache.hadoop.A$BException"
        )
        return StartContainersResponse(failed=(ContainerException(container(1).id, exception),))

    return {
        "startContainers": start,
        "stopContainers": lambda request: StopContainersResponse(request.ids),
        "getContainerStatuses": lambda _: GetContainerStatusesResponse(),
    }


def test_start_stop_and_status() -> None:
    async def test() -> None:
        async with FakeHadoop(handlers(), [token("one")]) as server:
            node = NodeId("127.0.0.1", server.port)
            nodes = NativeNodeManager(QUICK)
            nodes.learn([NodeToken(node, token("one"))])
            answer = await nodes.start(node, [(given(1), LAUNCH)])
            error = error_of_exception(answer.failed[0].exception, str(node))
            assert isinstance(error, RemoteCallError)
            assert (error.code, str(error)) == (
                "b",
                f"{node}: BException: Attempt to relaunch the same container",
            )
            assert (await nodes.stop(node, [given(1).id])).succeeded == (given(1).id,)
            assert (await nodes.statuses(node, [given(1).id])).statuses == ()
            assert server.methods() == ["startContainers", "stopContainers", "getContainerStatuses"]
            assert server.users == [b"one"]
            await nodes.close()

    run(test)


def test_a_start_whose_answer_is_lost_is_not_repeated() -> None:
    async def test() -> None:
        async with FakeHadoop({"startContainers": lambda _: CLOSE}, [token("one")]) as server:
            node = NodeId("127.0.0.1", server.port)
            nodes = NativeNodeManager(QUICK)
            nodes.learn([NodeToken(node, token("one"))])
            with pytest.raises(ConnectionLostError) as caught:
                await nodes.start(node, [(given(1), LAUNCH)])
            assert caught.value.was_sent
            assert len(server.seen) == 1
            await nodes.close()

    run(test)


def test_without_a_token_nothing_is_sent() -> None:
    async def test() -> None:
        async with FakeHadoop(handlers(), [token("one")]) as server:
            node = NodeId("127.0.0.1", server.port)
            nodes = NativeNodeManager(QUICK)
            with pytest.raises(AuthenticationError, match=r"no token for .*learn\(\)"):
                await nodes.stop(node, [])
            with pytest.raises(AuthenticationError, match="came without a token"):
                await nodes.start(node, [(container(1), LAUNCH)])
            assert server.seen == []

    run(test)


def test_a_newer_token_replaces_the_older() -> None:
    async def test() -> None:
        async with FakeHadoop(handlers(), [token("old"), token("new")]) as server:
            node = NodeId("127.0.0.1", server.port)
            nodes = NativeNodeManager(QUICK)
            for name in ("old", "new"):
                nodes.learn([NodeToken(node, token(name))])
                await nodes.stop(node, [])
                await nodes.close()
            assert server.users == [b"old", b"new"]

    run(test)


def test_only_so_many_connections_are_kept() -> None:
    async def test() -> None:
        servers = [FakeHadoop(handlers(), [token("one")]) for _ in range(4)]
        for server in servers:
            await server.__aenter__()
        nodes = NativeNodeManager(QUICK, max_idle=2)
        order = (0, 1, 2, 3, 3, 2, 0)
        for at in order:
            node = NodeId("127.0.0.1", servers[at].port)
            nodes.learn([NodeToken(node, token("one"))])
            await nodes.stop(node, [])
        assert [len(server.users) for server in servers] == [2, 1, 1, 1]
        await nodes.close()
        for server in servers:
            await server.vanish()

    run(test)


def test_a_node_that_is_away_is_given_up_soon() -> None:
    async def test() -> None:
        async with FakeHadoop() as server:
            node = NodeId("127.0.0.1", server.port)
        nodes: NodeManager = NativeNodeManager(QUICK, Patience(0.05, 0.01, 0.01))
        nodes.learn([NodeToken(node, token("one"))])
        with pytest.raises(ConnectionLostError) as caught:
            await nodes.stop(node, [])
        assert not caught.value.was_sent
        await nodes.close()

    run(test)
