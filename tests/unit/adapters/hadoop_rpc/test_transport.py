"""One connection on a real socket, and a service at several addresses that may be away."""

import asyncio
import contextlib
import re
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import CLOSE, METHODS, STANDBY, FakeHadoop, Refusal
from yarn_accel.adapters.hadoop_rpc import methods
from yarn_accel.adapters.hadoop_rpc.framing import User
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


async def connect(server, identity=None, **changes):
    settings = RpcSettings(**{"login_timeout_s": 60.0, "call_timeout_s": 60.0, **changes})
    return await RpcConnection.open(
        server.address, methods.APPLICATION_CLIENT, identity or User("ann"), settings
    )


async def test_calls_run_side_by_side():
    barriers = [asyncio.Event() for _ in range(5)]

    async def report(request):
        await barriers[request.application.number].wait()
        return GetApplicationReportResponse(ApplicationReport(request.application))

    async with FakeHadoop({"getApplicationReport": report}) as server:
        connection = await connect(server)
        requests = [GetApplicationReportRequest(ApplicationId(1, number)) for number in range(5)]
        calls = [asyncio.create_task(connection.call(methods.GET_APPLICATION_REPORT, r)) for r in requests]
        await server.until_seen(5)
        for number in reversed(range(5)):
            barriers[number].set()
            assert (await calls[number]).report.id.number == number
        await connection.close()
        assert server.users == ["ann"]


async def test_who_gives_up_leaves_the_others_alone():
    barrier = asyncio.Event()

    async def kill(_):
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


async def test_a_refused_call_leaves_the_connection_open():
    def kill(_):
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


async def test_a_silent_server_is_given_up():
    async def never(_):
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


async def test_a_connection_that_breaks_says_that_the_call_had_left():
    async with FakeHadoop({"forceKillApplication": lambda _: CLOSE}) as server:
        connection = await connect(server)
        with pytest.raises(ConnectionLostError) as caught:
            await connection.call(methods.KILL_APPLICATION, KILL)
        assert caught.value.was_sent
        assert caught.value.transient
        assert not connection.is_usable
        await connection.close()
        await connection.close()


async def test_nobody_there():
    async with FakeHadoop() as server:
        pass
    with pytest.raises(ConnectionLostError, match="no connection to 127") as caught:
        await connect(server)
    assert not caught.value.was_sent
    for name in ("nowhere.invalid", "no..name"):
        with pytest.raises(ConnectionLostError, match=re.escape(f"no connection to {name}")):
            await RpcConnection.open(Address(name, 1), methods.APPLICATION_CLIENT, User("a"), QUICK)


async def test_a_server_that_takes_connections_and_says_nothing():
    async def mute(_reader, writer):
        writers.append(writer)

    writers = []
    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    with pytest.raises(ConnectionLostError, match=r"nothing within 0\.05 s"):
        await RpcConnection.open(address, methods.APPLICATION_MASTER, TOKEN, RpcSettings(0.05))
    for writer in writers:
        writer.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("identity", "changes", "error", "text"),
    [
        (Token(b"identifier", b"wrong", "K", ""), {}, AuthenticationError, "InvalidToken: no such token"),
        (TOKEN, {"lies": True}, AuthenticationError, "could not prove"),
        (TOKEN, {"qop": "auth-other"}, UnsupportedLoginError, "no protection that is known"),
        (TOKEN, {"auths": (SaslAuth("KERBEROS", "GSSAPI"),)}, UnsupportedLoginError, "KERBEROS by GSSAPI"),
        (TOKEN, {"auths": (SaslAuth("SIMPLE", ""),)}, UnsupportedLoginError, "weaker login is never taken"),
    ],
)
async def test_logins_that_fail(identity, changes, error, text):
    async with FakeHadoop(tokens=[TOKEN], **changes) as server:
        with pytest.raises(error, match=text):
            await connect(server, identity)


async def test_a_user_on_a_secure_cluster_gets_a_clear_error():
    """The server says it only after the first frames."""
    async with FakeHadoop(tokens=[TOKEN]) as server:
        connection = await connect(server)
        cure = r"wants Kerberos: let HADOOP_CONF_DIR name its own configuration"
        with pytest.raises(UnsupportedLoginError, match=cure):
            await connection.call(methods.KILL_APPLICATION, KILL)
        await connection.close()


async def test_what_cannot_be_written_is_not_sent():
    async with FakeHadoop() as server:
        connection = await connect(server)
        with pytest.raises(LocalProtocolError, match="no int32"):
            await connection.call(methods.KILL_APPLICATION, KillApplicationRequest(ApplicationId(1, 1 << 40)))
        assert server.seen == []
        await connection.close()


async def test_a_long_answer_closes_the_connection():
    def report(request):
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

    def __init__(self):
        self.now_s = 0.0
        self.pauses = []
        self.when_asleep = None

    def __call__(self):
        return self.now_s

    async def sleep(self, seconds):
        self.pauses.append(round(seconds, 3))
        self.now_s += seconds
        if self.when_asleep is not None:
            await self.when_asleep()


def standby(_):
    raise Refusal(STANDBY, "Operation category READ is not supported in state standby")


def service(*servers, clock=None, **patience):
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


async def test_a_standby_is_passed_over_at_once_and_remembered():
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


async def test_who_refuses_the_connection_is_passed_over():
    async with FakeHadoop() as first:
        pass
    async with FakeHadoop({"forceKillApplication": lambda _: DONE}) as second:
        rm = service(first, second)
        assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
        await rm.close()


async def test_pauses_double_after_each_round_and_the_last_reason_is_reported():
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


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_only_what_may_be_repeated_is_sent_again(is_repeatable):
    """The connection breaks after the request came: it may have been carried out."""

    def handler(_):
        return CLOSE if len(server.seen) == 1 else answer

    method = methods.KILL_APPLICATION if is_repeatable else methods.START_CONTAINERS
    request = KILL if is_repeatable else StartContainersRequest()
    answer = DONE if is_repeatable else StartContainersResponse()
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


@contextlib.asynccontextmanager
async def beside_a_silent_server(answer):
    """A service whose first server answers only once its event is set, and the second one at once."""
    awake = asyncio.Event()

    async def late(_):
        await awake.wait()
        return DONE

    first = FakeHadoop({"forceKillApplication": late})
    async with first, FakeHadoop({"forceKillApplication": answer}) as second:
        settings = replace(QUICK, ask_others_after_s=0.05)
        addresses = [first.address, second.address]
        rm = RpcService(addresses, methods.APPLICATION_CLIENT, lambda: User("ann"), settings)
        yield rm, first, second, awake
        awake.set()
        await rm.close()


async def test_another_server_takes_the_place_of_a_silent_one():
    async with beside_a_silent_server(lambda _: DONE) as (rm, _, second, _):
        calls = [rm.call(methods.KILL_APPLICATION, KILL) for _ in range(3)]
        assert await asyncio.gather(*calls) == [DONE] * 3
        assert rm.address == second.address
        assert await rm.call(methods.KILL_APPLICATION, KILL) == DONE
        assert len(second.seen) >= 4


async def test_an_active_server_that_refuses_has_answered():
    def refused(_):
        raise Refusal("org.apache.hadoop.yarn.exceptions.YarnException", "no")

    async with beside_a_silent_server(refused) as (rm, _, second, _):
        with pytest.raises(RemoteCallError, match="no"):
            await rm.call(methods.KILL_APPLICATION, KILL)
        assert rm.address == second.address


async def test_a_slow_server_is_waited_for_while_the_other_is_on_standby():
    async with beside_a_silent_server(standby) as (rm, first, second, awake):
        call = asyncio.create_task(rm.call(methods.KILL_APPLICATION, KILL))
        await second.until_seen(2)
        awake.set()
        assert await call == DONE
        assert rm.address == first.address
        assert len(first.seen) == 1


def test_exactly_the_start_of_containers_is_never_repeated():
    assert [each.name for each in METHODS.values() if not each.is_repeatable] == ["startContainers"]


async def test_a_busy_server_is_asked_again_and_not_passed_over():
    def busy(_):
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


async def test_refusals_and_failed_logins_are_not_tried_again():
    def refuse(_):
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


def test_no_address_is_a_mistake():
    with pytest.raises(ConfigError, match="no address"):
        RpcService([], methods.APPLICATION_CLIENT, lambda: User("a"))
