"""The Unix socket: short questions, brief answers, no crowd."""

import asyncio
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
QUESTION = b'{"v": 1, "want": "servers"}\n'


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """On a busy machine a caller may be slower than any user's would; two tests take another time."""
    monkeypatch.setattr(local_endpoint, "FIRST_LINE_S", 240.0)


def at_the_endpoint(tmp_path, act, mode=0o666, users=frozenset(), answers=ANSWERS):
    async def run():
        endpoint = LocalEndpoint(tmp_path / "agent.sock", mode, users, answers)
        await endpoint.open()
        try:
            return await act(endpoint, str(tmp_path / "agent.sock"))
        finally:
            await endpoint.close()

    return asyncio.run(run())


async def ask(path, question=QUESTION):
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(question)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_questions_and_answers(tmp_path):
    async def act(endpoint, path):
        servers, status = await ask(path), await ask(path, b'{"v": 1, "want": "status"}\n')
        return json.loads(servers), json.loads(status), dict(endpoint.counts)

    servers, status, counts = at_the_endpoint(tmp_path, act)
    assert servers == {"v": 1, "node": "w1"}
    assert status == {"v": 1, "seq": 3}
    assert counts == {"answered": 2}


@pytest.mark.parametrize(
    "question",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n",
        b"[]\n",
        b'{"v": 2, "want": "servers"}\n',
        b'{"v": 1}\n',
        b"[" * 900 + b"\n",
        b"x" * 5000,
    ],
)
def test_questions_that_are_none(tmp_path, question):
    async def act(endpoint, path):
        return await ask(path, question), dict(endpoint.counts)

    raw, counts = at_the_endpoint(tmp_path, act)
    assert counts == {"bad": 1}
    if raw:
        assert "known: servers, status" in json.loads(raw)["error"]


def test_who_says_nothing_is_sent_away(tmp_path, monkeypatch):
    monkeypatch.setattr(local_endpoint, "FIRST_LINE_S", 0.05)

    async def act(endpoint, path):
        return await ask(path, b""), await ask(path, b'{"v": 1'), dict(endpoint.counts)

    assert at_the_endpoint(tmp_path, act) == (b"", b"", {"late": 2})


def test_who_does_not_read_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(local_endpoint, "FIRST_LINE_S", 0.05)
    answers = {"servers": lambda *_: {"v": 1, "long": "x" * 10_000_000}}

    async def act(endpoint, path):
        _, writer = await asyncio.open_unix_connection(path, limit=16)
        writer.write(QUESTION)
        await soon(lambda: endpoint.counts["late"])
        writer.transport.abort()
        return endpoint.counts["late"]

    assert at_the_endpoint(tmp_path, act, answers=answers) == 1


def test_one_user_cannot_take_every_place(tmp_path, monkeypatch):
    monkeypatch.setattr(local_endpoint, "MAX_PER_USER", 3)

    async def act(endpoint, path):
        held = [await asyncio.open_unix_connection(path) for _ in range(3)]
        await soon(lambda: len(endpoint._tasks) == 3)
        refused = await ask(path)
        for _, writer in held:
            writer.close()
        await soon(lambda: not endpoint._tasks)
        return refused, await ask(path)

    refused, answered = at_the_endpoint(tmp_path, act)
    assert refused == b""
    assert json.loads(answered)["node"] == "w1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize(("mode", "is_answered"), [(0o666, True), (0o600, False)])
def test_the_mode_decides_who_may_connect(tmp_path, mode, is_answered):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)

    async def act(endpoint, path):
        return await asyncio.to_thread(ask_as_nobody, path)

    assert at_the_endpoint(tmp_path, act, mode=mode) == (
        b'{"v": 1, "node": "w1"}\n' if is_answered else b"refused"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_user_who_is_not_named_gets_no_answer(tmp_path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)

    async def act(endpoint, path):
        named = await asyncio.to_thread(ask_as_nobody, path)
        endpoint._users = frozenset({12345})
        return named, await asyncio.to_thread(ask_as_nobody, path), endpoint.counts["refused"]

    assert at_the_endpoint(tmp_path, act, users=user_ids(("nobody",))) == (
        b'{"v": 1, "node": "w1"}\n',
        b"refused",
        1,
    )


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


def test_the_socket_of_a_killed_agent_is_replaced(tmp_path):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "agent.sock"))
    left.close()

    async def act(endpoint, path):
        return stat.S_IMODE(os.stat(path).st_mode), await ask(path)  # noqa: PTH116

    mode, raw = at_the_endpoint(tmp_path, act, mode=0o660)
    assert mode == 0o660
    assert json.loads(raw)["node"] == "w1"
    assert not (tmp_path / "agent.sock").exists()


def test_what_is_no_socket_is_left_alone(tmp_path):
    (tmp_path / "agent.sock").write_text("precious")

    async def act(endpoint, path):
        raise AssertionError("it opened")

    with pytest.raises(StartupError, match="already in use"):
        at_the_endpoint(tmp_path, act)
    assert (tmp_path / "agent.sock").read_text() == "precious"


def test_users():
    assert user_ids(("root", "1234")) == {0, 1234}
    assert user_ids(()) == frozenset()
    with pytest.raises(ConfigError, match="no user 'no-such-user'"):
        user_ids(("no-such-user",))
