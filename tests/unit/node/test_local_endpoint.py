"""The Unix socket: short questions, brief answers, no crowd."""

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.node import local_endpoint
from yarn_accel.node.local_endpoint import LocalEndpoint, user_ids

ANSWERS = {"servers": lambda *_: {"v": 1, "node": "w1"}, "status": lambda *_: {"v": 1, "seq": 3}}
QUESTION, ANSWER = b'{"v": 1, "want": "servers"}\n', b'{"v": 1, "node": "w1"}\n'
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """On a busy machine a caller may be slower than any user's would; two tests take another time."""
    monkeypatch.setattr(local_endpoint, "FIRST_LINE_S", 240.0)


@contextlib.asynccontextmanager
async def at_the_endpoint(tmp_path, mode=0o666, users=frozenset(), answers=ANSWERS):
    endpoint = LocalEndpoint(tmp_path / "agent.sock", mode, users, answers)
    await endpoint.open()
    try:
        yield endpoint, str(tmp_path / "agent.sock")
    finally:
        await endpoint.close()


async def ask(path, question=QUESTION):
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(question)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_questions_and_answers(tmp_path):
    async with at_the_endpoint(tmp_path) as (endpoint, path):
        assert await ask(path) == ANSWER
        assert json.loads(await ask(path, b'{"v": 1, "want": "status"}\n')) == {"v": 1, "seq": 3}
        assert endpoint.counts == {"answered": 2}


@pytest.mark.parametrize(
    "question",
    [
        *(b"\n", b"GET / HTTP/1.1\r\n", b"[]\n", b'{"v": 2, "want": "servers"}\n', b'{"v": 1}\n'),
        *(b"[" * 900 + b"\n", b"x" * 5000),
    ],
)
async def test_questions_that_are_none(tmp_path, question):
    async with at_the_endpoint(tmp_path) as (endpoint, path):
        raw = await ask(path, question)
        assert endpoint.counts == {"bad": 1}
        assert not raw or "known: servers, status" in json.loads(raw)["error"]


async def test_who_says_nothing_is_sent_away(tmp_path, monkeypatch):
    monkeypatch.setattr(local_endpoint, "FIRST_LINE_S", 0.05)
    async with at_the_endpoint(tmp_path) as (endpoint, path):
        assert (await ask(path, b""), await ask(path, b'{"v": 1')) == (b"", b"")
        assert endpoint.counts == {"late": 2}


async def test_who_does_not_read_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(local_endpoint, "FIRST_LINE_S", 0.05)
    answers = {"servers": lambda *_: {"v": 1, "long": "x" * 10_000_000}}

    async with at_the_endpoint(tmp_path, answers=answers) as (endpoint, path):
        _, writer = await asyncio.open_unix_connection(path, limit=16)
        writer.write(QUESTION)
        await soon(lambda: endpoint.counts["late"])
        writer.transport.abort()
        assert endpoint.counts["late"] == 1


async def test_one_user_cannot_take_every_place(tmp_path, monkeypatch):
    monkeypatch.setattr(local_endpoint, "MAX_PER_USER", 3)
    async with at_the_endpoint(tmp_path) as (endpoint, path):
        held = [await asyncio.open_unix_connection(path) for _ in range(3)]
        await soon(lambda: len(endpoint._tasks) == 3)
        assert await ask(path) == b""
        for _, writer in held:
            writer.close()
        await soon(lambda: not endpoint._tasks)
        assert await ask(path) == ANSWER


@needs_root
@pytest.mark.parametrize(("mode", "answer"), [(0o666, ANSWER), (0o600, b"refused")])
async def test_the_mode_decides_who_may_connect(open_path, mode, answer):
    async with at_the_endpoint(open_path, mode=mode) as (_, path):
        assert await asyncio.to_thread(ask_as_nobody, path) == answer


@needs_root
@pytest.mark.parametrize(("users", "answer"), [(("nobody",), ANSWER), (("12345",), b"refused")])
async def test_a_user_who_is_not_named_gets_no_answer(open_path, users, answer):
    async with at_the_endpoint(open_path, users=user_ids(users)) as (endpoint, path):
        assert await asyncio.to_thread(ask_as_nobody, path) == answer
        assert endpoint.counts["refused"] == (answer != ANSWER)


def ask_as_nobody(path):
    """Ask in a child that is nobody; the thread's own identity would be the process's."""
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try:\n"
        "    s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode()); raw = s.recv(65536)\n"
        "except OSError:\n"
        "    raw = b''\n"
        "sys.stdout.buffer.write(raw or b'refused')\n"
    )
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable  # noqa: PTH110
    completed = subprocess.run(
        [python, "-I", "-S", "-c", program, path, QUESTION.decode()],
        user="nobody",
        capture_output=True,
        check=True,
        cwd="/",
    )
    return completed.stdout


async def test_the_socket_of_a_killed_agent_is_replaced(tmp_path):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "agent.sock"))
    left.close()
    async with at_the_endpoint(tmp_path, mode=0o660) as (_, path):
        assert stat.S_IMODE((tmp_path / "agent.sock").stat().st_mode) == 0o660
        assert await ask(path) == ANSWER
    assert not (tmp_path / "agent.sock").exists()


async def test_what_is_no_socket_is_left_alone(tmp_path):
    (tmp_path / "agent.sock").write_text("precious")
    with pytest.raises(StartupError, match="already in use"):
        async with at_the_endpoint(tmp_path):
            raise AssertionError("it opened")
    assert (tmp_path / "agent.sock").read_text() == "precious"


def test_users():
    assert user_ids(("root", "1234")) == {0, 1234}
    assert user_ids(()) == frozenset()
    with pytest.raises(ConfigError, match="no user 'no-such-user'"):
        user_ids(("no-such-user",))
