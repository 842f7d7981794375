"""One connection on a real socket, and a service at several addresses that may be away."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import CLOSE, METHODS, STANDBY, FakeHadoop, Refusal
from yarn_accel.adapters.hadoop_rpc import methods
from yarn_accel.adapters.hadoop_rpc.framing import Identity, User
from yarn_accel.adapters.hadoop_rpc.methods import (
    GetApplicationReportRequest,
    GetApplicationReportResponse,
    KillApplicationRequest,
    KillApplicationResponse,
    StartContainersRequest,
    StartContainersResponse,
)
from yarn_accel.adapters.hadoop_rpc.records import ApplicationId, ApplicationReport
from yarn_accel.adapters.hadoop_rpc.rpc_errors import (
    BusyError,
    ConnectionLostError,
    RemoteCallError,
    StandbyError,
    UnsupportedLoginError,
)
from yarn_accel.adapters.hadoop_rpc.sasl import SaslAuth
from yarn_accel.adapters.hadoop_rpc.tokens import Token
from yarn_accel.adapters.hadoop_rpc.transport import Address, Patience, RpcConnection, RpcService, RpcSettings
from yarn_accel.errors import AuthenticationError, ConfigError, LocalProtocolError, RemoteProtocolError

TOKEN = Token(b"identifier", b"password", "YARN_AM_RM_TOKEN", "")
QUICK = RpcSettings(login_timeout_s=60.0, call_timeout_s=60.0)
KILL = KillApplicationRequest(ApplicationId(1, 1))


async def connect(server: FakeHadoop, identity: Identity | None = None, **changes: Any) -> RpcConnection:
    settings = RpcSettings(**{"login_timeout_s": 60.0, "call_timeout_s": 60.0, **changes})
    return await RpcConnection.open(
        server.address, methods.APPLICATION_CLIENT, identity or User("ann"), settings
    )


async def test_calls_run_side_by_side() -> None:
    barriers = {number: asyncio.Event() for number in range(1, 6)}

    async def report(request: GetApplicationReportRequest) -> GetApplicationReportResponse:
        await barriers[request.application.number].wait()
        return GetApplicationReportResponse(ApplicationReport(request.application))

    async with FakeHadoop({"getApplicationReport": report}) as server:
        connection = await connect(server)
        calls = [
            asyncio.create_task(
                connection.call(
                    methods.GET_APPLICATION_REPORT, GetApplicationReportRequest(ApplicationId(1, number))
                )
            )
            for number in barriers
        ]
        await server.until_seen(len(barriers))
        for number in reversed(barriers):
            barriers[number].set()
            answer = await calls[number - 1]
            assert answer.report.id.number == number
        await connection.close()
        assert server.users == ["ann"]


async def test_who_gives_up_leaves_the_others_alone() -> None:
    barrier = asyncio.Event()

    async def kill(_: object) -> KillApplicationResponse:
        await barrier.wait()
        return KillApplicationResponse(True)

    async with FakeHadoop({"forceKillApplication": kill}) as server:
        connection = await connect(server)
        first, second = (
            asyncio.create_task(connection.call(methods.KILL_APPLICATION, KILL)) for _ in range(2)
        )
        await server.until_seen(2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        barrier.set()
        assert (await second).is_completed
        assert connection.is_usable
        await connection.close()


async def test_a_refused_call_leaves_the_connection_open() -> None:
    def kill(_: object) -> KillApplicationResponse:
        if len(server.seen) == 1:
            raise Refusal("org.apache.hadoop.yarn.exceptions.YarnException", "not yours")
        return KillApplicationResponse(True)

    async with FakeHadoop({"forceKillApplication": kill}) as server:
        connection = await connect(server)
        with pytest.raises(RemoteCallError, match=r"YarnException: not yours$") as caught:
            await connection.call(methods.KILL_APPLICATION, KILL)
        assert (caught.value.code, caught.value.transient) == ("yarn", False)
        assert (await connection.call(methods.KILL_APPLICATION, KILL)).is_completed
        await connection.close()


async def test_a_silent_server_is_given_up() -> None:
    async def never(_: object) -> KillApplicationResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with FakeHadoop({"forceKillApplication": never}) as server:
        connection = await connect(server, call_timeout_s=0.05)
        other = asyncio.create_task(connection.call(methods.KILL_APPLICATION, KILL, timeout_s=60.0))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionLostError, match=r"did not answer .* within 0\.05 s") as caught:
            await connection.call(methods.KILL_APPLICATION, KILL)
        assert caught.value.was_sent
        with pytest.raises(ConnectionLostError, match="silent for"):
            await other
        with pytest.raises(ConnectionLostError) as late:
            await connection.call(methods.KILL_APPLICATION, KILL)
        assert not late.value.was_sent
        await connection.close()


async def test_a_connection_that_breaks_says_that_the_call_had_left() -> None:
    async with FakeHadoop({"forceKillApplication": lambda _: CLOSE}) as server:
        connection = await connect(server)
        with pytest.raises(ConnectionLostError) as caught:
            await connection.call(methods.KILL_APPLICATION, KILL)
        assert caught.value.was_sent
        assert caught.value.transient
        assert not connection.is_usable
        await connection.close()
        await connection.close()


async def test_nobody_there() -> None:
    async with FakeHadoop() as server:
        pass
    with pytest.raises(ConnectionLostError, match="no connection to 127") as caught:
        await connect(server)
    assert not caught.value.was_sent
    for name in ("nowhere.invalid", "no..name"):
        with pytest.raises(ConnectionLostError, match=re.escape(f"no connection to {name}")):
            await RpcConnection.open(Address(name, 1), methods.APPLICATION_CLIENT, User("a"), QUICK)


async def test_names_may_be_given() -> None:
    async with FakeHadoop({"forceKillApplication": lambda _: KillApplicationResponse(True)}) as server:
        settings = RpcSettings(hosts={"rm.invalid": "127.0.0.1"})
        address = Address("rm.invalid", server.port)
        connection = await RpcConnection.open(address, methods.APPLICATION_CLIENT, User("ann"), settings)
        assert (await connection.call(methods.KILL_APPLICATION, KILL)).is_completed
        await connection.close()


async def test_a_server_that_takes_connections_and_says_nothing() -> None:
    async def mute(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    with pytest.raises(ConnectionLostError, match=r"nothing within 0\.05 s"):
        await RpcConnection.open(address, methods.APPLICATION_MASTER, TOKEN, RpcSettings(0.05))
    for writer in writers:
        writer.close()
    server.close()
    await server.wait_closed()


async def test_another_kind_of_server() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(web, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    with pytest.raises(RemoteProtocolError, match="port of a Hadoop RPC service"):
        await RpcConnection.open(address, methods.APPLICATION_MASTER, TOKEN, QUICK)
    server.close()
    await server.wait_closed()


async def test_a_token_logs_in() -> None:
    handlers = {"forceKillApplication": lambda _: KillApplicationResponse(True)}
    async with FakeHadoop(handlers, [TOKEN]) as server:
        connection = await connect(server, TOKEN)
        assert (await connection.call(methods.KILL_APPLICATION, KILL)).is_completed
        assert server.users == [TOKEN.identifier]
        await connection.close()


@pytest.mark.parametrize(
    ("identity", "changes", "error", "text"),
    [
        (Token(b"identifier", b"wrong", "K", ""), {}, AuthenticationError, "InvalidToken: no such token"),
        (TOKEN, {"lies": True}, AuthenticationError, "could not prove"),
        (TOKEN, {"qop": "auth-conf"}, UnsupportedLoginError, "not supported"),
        (TOKEN, {"auths": (SaslAuth("KERBEROS", "GSSAPI"),)}, UnsupportedLoginError, "not supported"),
    ],
)
async def test_logins_that_fail(
    identity: Identity, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    async with FakeHadoop(tokens=[TOKEN], **changes) as server:
        with pytest.raises(error, match=text):
            await connect(server, identity)


async def test_a_user_on_a_secure_cluster_gets_a_clear_error() -> None:
    """The server says it only after the first frames."""
    async with FakeHadoop(tokens=[TOKEN]) as server:
        connection = await connect(server)
        with pytest.raises(UnsupportedLoginError, match="not supported"):
            await connection.call(methods.KILL_APPLICATION, KILL)
        await connection.close()


async def test_what_cannot_be_written_is_not_sent() -> None:
    async with FakeHadoop() as server:
        connection = await connect(server)
        with pytest.raises(LocalProtocolError, match="no int32"):
            await connection.call(methods.KILL_APPLICATION, KillApplicationRequest(ApplicationId(1, 1 << 40)))
        assert server.seen == []
        await connection.close()


async def test_a_long_answer_closes_the_connection() -> None:
    def report(request: GetApplicationReportRequest) -> GetApplicationReportResponse:
        return GetApplicationReportResponse(ApplicationReport(request.application, diagnostics="x" * 5000))

    async with FakeHadoop({"getApplicationReport": report}) as server:
        connection = await connect(server, max_frame_bytes=1000)
        with pytest.raises(RemoteProtocolError, match="the limit is 1000"):
            await connection.call(
                methods.GET_APPLICATION_REPORT, GetApplicationReportRequest(ApplicationId(1, 1))
            )
        assert not connection.is_usable
        await connection.close()


DONE = KillApplicationResponse(True)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.when_asleep: Any = None

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 3))
        self.now_s += seconds
        if self.when_asleep is not None:
            await self.when_asleep()


def standby(_: object) -> KillApplicationResponse:
    raise Refusal(STANDBY, "Operation category READ is not supported in state standby")


def service(*servers: FakeHadoop, clock: Clock | None = None, **patience: float) -> RpcService:
    clock = Clock() if clock is None else clock
    return RpcService(
        [each.address for each in servers],
        methods.APPLICATION_CLIENT,
        lambda: User("ann"),
        QUICK,
        Patience(**patience),
        clock=clock,
        sleep=clock.sleep,
    )


async def test_a_standby_is_passed_over_at_once_and_remembered() -> None:
    first = FakeHadoop({"forceKillApplication": standby})
    async with first, FakeHadoop({"forceKillApplication": lambda _: DONE}) as second:
        clock = Clock()
        rm = service(first, second, clock=clock)
        assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
        assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
        assert (len(first.seen), len(second.seen)) == (1, 2)
        assert clock.pauses == []
        assert rm.address == second.address
        assert (len(first.users), len(second.users)) == (1, 1)
        await rm.close()


async def test_who_refuses_the_connection_is_passed_over() -> None:
    async with FakeHadoop() as first:
        pass
    async with FakeHadoop({"forceKillApplication": lambda _: DONE}) as second:
        rm = service(first, second)
        assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
        await rm.close()


async def test_pauses_double_after_each_round_and_the_last_reason_is_reported() -> None:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(FakeHadoop({"forceKillApplication": standby})) for _ in range(2)
        ]
        clock = Clock()
        rm = service(*servers, clock=clock, total_s=10, initial_backoff_s=0.5, max_backoff_s=2)
        with pytest.raises(StandbyError, match="in state standby"):
            await rm.call(methods.KILL_APPLICATION, KILL)
        assert clock.pauses == [0.5, 1, 2, 2, 2, 2]
        assert [len(each.seen) for each in servers] == [7, 7]
        with pytest.raises(StandbyError):
            await rm.call(methods.KILL_APPLICATION, KILL, patience_s=0)
        assert [len(each.seen) for each in servers] == [8, 8]
        await rm.close()


async def test_a_restarted_server_is_found_again() -> None:
    async with FakeHadoop({"forceKillApplication": lambda _: DONE}) as server:
        clock = Clock()
        rm = service(server, clock=clock)
        await rm.call(methods.KILL_APPLICATION, KILL)
        await server.vanish()
        clock.when_asleep = server.listen
        assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
        assert len(clock.pauses) == 1
        assert len(server.users) == 2
        await rm.close()


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_only_what_may_be_repeated_is_sent_again(is_repeatable: bool) -> None:
    """The connection breaks after the request came: it may have been carried out."""

    def handler(_: object) -> object:
        return CLOSE if len(server.seen) == 1 else answer

    method: Any = methods.KILL_APPLICATION if is_repeatable else methods.START_CONTAINERS
    request: Any = KILL if is_repeatable else StartContainersRequest()
    answer: Any = DONE if is_repeatable else StartContainersResponse()
    async with FakeHadoop({method.name: handler}) as server:
        clock = Clock()
        rm = RpcService(
            [server.address], method.protocol, lambda: User("a"), QUICK, clock=clock, sleep=clock.sleep
        )
        if is_repeatable:
            assert await rm.call(method, request) == answer
            assert len(server.seen) == 2
        else:
            with pytest.raises(ConnectionLostError):
                await rm.call(method, request)
            assert len(server.seen) == 1
            assert await rm.call(method, request) == answer
        await rm.close()


def test_exactly_the_start_of_containers_is_never_repeated() -> None:
    assert [each.name for each in METHODS.values() if not each.is_repeatable] == ["startContainers"]


async def test_a_busy_server_is_asked_again_and_not_passed_over() -> None:
    def busy(_: object) -> KillApplicationResponse:
        if len(first.seen) < 3:
            raise Refusal("org.apache.hadoop.ipc.RetriableException", "later")
        return DONE

    async with FakeHadoop({"forceKillApplication": busy}) as first, FakeHadoop() as second:
        clock = Clock()
        rm = service(first, second, clock=clock)
        assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
        assert (len(first.seen), len(second.seen), len(clock.pauses)) == (3, 0, 2)
        assert len(first.users) == 1
        first.seen.clear()
        with pytest.raises(BusyError, match="later"):
            await rm.call(methods.KILL_APPLICATION, KILL, patience_s=0)
        await rm.close()


async def test_refusals_and_failed_logins_are_not_tried_again() -> None:
    def refuse(_: object) -> KillApplicationResponse:
        raise Refusal("org.apache.hadoop.security.AccessControlException", "not yours")

    async with FakeHadoop({"forceKillApplication": refuse}, [TOKEN]) as server:
        clock = Clock()
        tokens = [Token(b"identifier", b"old", "K", ""), TOKEN]
        rm = RpcService(
            [server.address],
            methods.APPLICATION_CLIENT,
            lambda: tokens.pop(0),
            QUICK,
            clock=clock,
            sleep=clock.sleep,
        )
        with pytest.raises(AuthenticationError, match="InvalidToken"):
            await rm.call(methods.KILL_APPLICATION, KILL)
        with pytest.raises(RemoteCallError, match="not yours") as caught:
            await rm.call(methods.KILL_APPLICATION, KILL)
        assert caught.value.code == "access-control"
        assert tokens == []
        assert clock.pauses == []
        await rm.close()


def test_no_address_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="no address"):
        RpcService([], methods.APPLICATION_CLIENT, lambda: User("a"))
