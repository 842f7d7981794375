"""Who may knock, and what a knock means."""

from __future__ import annotations

import asyncio
import socket

import pytest

from torque_sched.daemon.event_port import Callers, EventPort, SchedCommand, bind_all, parse_callers
from torque_sched.errors import ConfigError, StartupError

OWN = frozenset({"10.0.0.1"})


@pytest.mark.parametrize(
    ("address", "port", "words"),
    [
        ("127.0.0.1", 618, ""),
        ("10.0.0.1", 1023, ""),
        ("10.0.0.2", 700, ""),
        ("10.0.0.3", 700, "10.0.0.3 unauthorized host"),
        ("127.0.0.1", 1024, "127.0.0.1 on port 1024 non-reserved port"),
        ("10.0.0.2", 40000, "10.0.0.2 on port 40000 non-reserved port"),
        ("10.9.0.7", 40000, ""),
    ],
)
def test_callers_as_the_c_daemon_takes_them(address: str, port: int, words: str) -> None:
    callers = Callers(frozenset({"10.0.0.2"}), ("10.9.*",))
    assert callers.refusal(address, port, OWN) == words


def test_the_file_of_callers() -> None:
    assert parse_callers("# x\n$clienthost 127.0.0.1\n$restricted *.site\n", "f") == Callers(
        frozenset({"127.0.0.1"}), ("*.site",)
    )
    with pytest.raises(ConfigError, match="f, line 1"):
        parse_callers("$logevent 3\n", "f")


def test_which_commands_ask_for_a_cycle() -> None:
    assert {each.value for each in SchedCommand if each.asks_for_cycle} == {1, 2, 3, 5, 10}


def test_four_bytes_are_heard_and_anything_else_is_not() -> None:
    heard: list[SchedCommand] = []

    async def play() -> None:
        [listener] = bind_all(["127.0.0.1"], 0)
        address = listener.getsockname()
        port = EventPort([listener], Callers(restricted=("127.0.0.1",)), heard.append)
        await port.start()
        for data in (b"\0\0\0\x01", b"\0\0\0\x0a", b"\0\0", b"", b"\0\0\0\x63", b"\0\0\0\0rest"):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == b""  # closed, nothing said
            writer.close()
        await port.stop()

    asyncio.run(play())
    assert heard == [SchedCommand.NEW, SchedCommand.FIRST, SchedCommand.NULL]


def test_a_taken_port_is_said_in_the_c_daemons_words() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(StartupError, match="bind: Address already in use"):
            bind_all(["127.0.0.1"], holder.getsockname()[1])
