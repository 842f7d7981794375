"""A service at several addresses: who is passed over, what is sent again, and when it is given up."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.unit.adapters.hadoop_rpc.fake_hadoop import CLOSE, STANDBY, FakeHadoop, Refusal
from tests.unit.adapters.hadoop_rpc.test_transport import KILL, QUICK, TOKEN, run
from yarn_accel.adapters.hadoop_rpc import methods
from yarn_accel.adapters.hadoop_rpc.failover import Patience, RpcService
from yarn_accel.adapters.hadoop_rpc.framing import User
from yarn_accel.adapters.hadoop_rpc.header_messages import Token
from yarn_accel.adapters.hadoop_rpc.rpc_errors import (
    BusyError,
    ConnectionLostError,
    RemoteCallError,
    StandbyError,
)
from yarn_accel.adapters.hadoop_rpc.service_messages import (
    KillApplicationResponse,
    StartContainersRequest,
    StartContainersResponse,
)
from yarn_accel.errors import AuthenticationError, ConfigError

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


def test_a_standby_is_passed_over_at_once_and_remembered() -> None:
    async def test() -> None:
        first = FakeHadoop({"forceKillApplication": standby})
        async with first, FakeHadoop({"forceKillApplication": lambda _: DONE}) as second:
            clock = Clock()
            rm = service(first, second, clock=clock)
            assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
            assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
            assert (len(first.seen), len(second.seen)) == (1, 2)
            assert clock.pauses == []
            assert rm.address == second.address
            assert rm.n_connections == 2
            await rm.close()

    run(test)


def test_who_refuses_the_connection_is_passed_over() -> None:
    async def test() -> None:
        async with FakeHadoop() as first:
            pass
        async with FakeHadoop({"forceKillApplication": lambda _: DONE}) as second:
            rm = service(first, second)
            assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
            await rm.close()

    run(test)


def test_pauses_double_after_each_round_and_the_last_reason_is_reported() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(FakeHadoop({"forceKillApplication": standby}))
                for _ in range(2)
            ]
            clock = Clock()
            rm = service(*servers, clock=clock, patience_s=10, first_pause_s=0.5, longest_pause_s=2)
            with pytest.raises(StandbyError, match="in state standby"):
                await rm.call(methods.KILL_APPLICATION, KILL)
            assert clock.pauses == [0.5, 1, 2, 2, 2, 2]
            assert [len(each.seen) for each in servers] == [7, 7]
            with pytest.raises(StandbyError):
                await rm.call(methods.KILL_APPLICATION, KILL, patience_s=0)
            assert [len(each.seen) for each in servers] == [8, 8]
            await rm.close()

    run(test)


def test_a_restarted_server_is_found_again() -> None:
    async def test() -> None:
        async with FakeHadoop({"forceKillApplication": lambda _: DONE}) as server:
            clock = Clock()
            rm = service(server, clock=clock)
            await rm.call(methods.KILL_APPLICATION, KILL)
            await server.vanish()
            clock.when_asleep = server.listen
            assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
            assert len(clock.pauses) == 1
            assert rm.n_connections == 2
            await rm.close()

    run(test)


@pytest.mark.parametrize("is_repeatable", [True, False])
def test_only_what_may_be_repeated_is_sent_again(is_repeatable: bool) -> None:
    """The connection breaks after the request came: it may have been carried out."""

    async def test() -> None:
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

    run(test)


def test_exactly_the_start_of_containers_is_never_repeated() -> None:
    assert [each.name for each in methods.ALL_METHODS if not each.is_repeatable] == ["startContainers"]


def test_a_busy_server_is_asked_again_and_not_passed_over() -> None:
    async def test() -> None:
        def busy(_: object) -> KillApplicationResponse:
            if len(first.seen) < 3:
                raise Refusal("org.apache.hadoop.ipc.RetriableException", "later")
            return DONE

        async with FakeHadoop({"forceKillApplication": busy}) as first, FakeHadoop() as second:
            clock = Clock()
            rm = service(first, second, clock=clock)
            assert (await rm.call(methods.KILL_APPLICATION, KILL)).is_completed
            assert (len(first.seen), len(second.seen), len(clock.pauses)) == (3, 0, 2)
            assert rm.n_connections == 1
            first.seen.clear()
            with pytest.raises(BusyError, match="later"):
                await rm.call(methods.KILL_APPLICATION, KILL, patience_s=0)
            await rm.close()

    run(test)


def test_refusals_and_failed_logins_are_not_tried_again() -> None:
    async def test() -> None:
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

    run(test)


def test_no_address_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="no address"):
        RpcService([], methods.APPLICATION_CLIENT, lambda: User("a"))
