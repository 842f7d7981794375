"""Torque's batch protocol on the emulated server as a process, with the emulated trqauthd."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.torque_captures import recorded
from torque_sched.batch.torque import protocol as wire
from torque_sched.emulation import EmulatedTorque, Fault
from torque_sched.errors import StartupError

ME = pwd.getpwuid(os.geteuid()).pw_name
NODES = "node1 np=4\nnode2 np=4\n"


@pytest.fixture
def torque(tmp_path: Path) -> Iterator[EmulatedTorque]:
    with EmulatedTorque.create(tmp_path / "c", nodes=NODES, clock="manual", trqauthd_tries_s=0) as made:
        yield made


@pytest.fixture
def connection(torque: EmulatedTorque) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", torque.port), timeout=300) as made:
        yield made


def tell(torque: EmulatedTorque, line: bytes) -> bytes:
    """Send trqauthd a line; its answer."""
    place = os.open(torque.home, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(f"/proc/self/fd/{place}/{torque.trqauthd.name}")
            sock.sendall(line)
            return b"".join(iter(lambda: sock.recv(4096), b""))
    finally:
        os.close(place)


def line_for(torque: EmulatedTorque, connection: socket.socket, user: str = ME, pid: int = 0) -> bytes:
    own_port = connection.getsockname()[1]
    return wire.encode_authorisation(
        wire.Authorisation("head", torque.port, user, pid or os.getpid(), own_port)
    )


def ask(connection: socket.socket, request: wire.Request) -> wire.Reply[wire.StatusObject]:
    connection.sendall(wire.encode_request(request))
    decoder = wire.ReplyDecoder(wire.as_they_are)
    while (reply := decoder.next()) is None:
        data = connection.recv(1 << 16)
        if not data:
            raise EOFError
        decoder.receive(data)
    return reply


def test_an_authorised_connection_looks_and_orders(torque: EmulatedTorque, connection: socket.socket) -> None:
    job = torque.submit("-l", "nodes=1")
    assert ask(connection, wire.Status(wire.RequestType.STATUS_JOB, ME)).code == 15021
    assert tell(torque, line_for(torque, connection)) == b"0|0||"
    assert ask(connection, wire.RunJob(ME, job, "node2:ppn=2")).code == 0
    assert torque.jobs()[job]["exec_host"] == "node2/0-1"
    torque.clock.advance(10)
    shown = ask(connection, wire.Status(wire.RequestType.STATUS_JOB, ME, job, wire.wanted(["job_state"])))
    found = [(each.name, each.value) for each in shown.objects[0].attributes]
    assert found == [("job_state", "R"), ("Walltime", "3590")]
    assert ask(connection, wire.Status(wire.RequestType.STATUS_JOB, "somebody")).code == 15021
    connection.sendall(wire.encode_request(wire.Disconnect(ME)))
    assert connection.recv(1) == b""


def test_trqauthd_refuses_who_is_not_who_he_says(torque: EmulatedTorque, connection: socket.socket) -> None:
    refused = next(part.data for part in recorded("02") if part.sender == "trqauthd")
    assert tell(torque, line_for(torque, connection, user="nobody" if ME != "nobody" else "root")) == refused
    assert tell(torque, line_for(torque, connection, pid=os.getppid())) == refused
    assert ask(connection, wire.Status(wire.RequestType.STATUS_JOB, ME)).code == 15021


def test_trqauthd_says_where_the_server_is_and_knows_what_is_none_of_its_connections(
    torque: EmulatedTorque,
) -> None:
    assert tell(torque, wire.ACTIVE_SERVER_QUESTION) == b"0|9|127.0.0.1|%d|" % torque.port
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        for line, code in ((line_for(torque, other), 15135), (b"hello\n", 15098)):
            answer = wire.decode_answer(tell(torque, line))
            assert answer is not None
            assert answer.code == code


@pytest.mark.parametrize(("version", "survives"), [("6.1.3", False), ("4.2.10", True)])
def test_a_wrong_length_ends_trqauthd(tmp_path: Path, version: str, survives: bool) -> None:
    with EmulatedTorque.create(tmp_path / "c", nodes=NODES, version=version) as torque:
        assert tell(torque, b"1|5|head|15001|1|5|alice|1|2|") == b"15013|25|PBS server internal error|"
        if survives:
            assert tell(torque, wire.ACTIVE_SERVER_QUESTION).startswith(b"0|")
            return
        with pytest.raises(ConnectionRefusedError):
            tell(torque, wire.ACTIVE_SERVER_QUESTION)
        torque.control("trqauthd", "start")
        assert tell(torque, wire.ACTIVE_SERVER_QUESTION).startswith(b"0|")


def test_a_process_started_as_another_user_comes_in_as_him(torque: EmulatedTorque) -> None:
    jobs = [torque.submit("-l", "nodes=1", user=user) for user in ("alice", "bob")]
    program = (
        "import sys; sys.path[:0] = sys.argv[1].split(':')\n"
        "from pathlib import Path\n"
        "from tests.integration.torque.emulation.test_batch_protocol import *\n"
        "torque = EmulatedTorque(Path(sys.argv[2]))\n"
        "with socket.create_connection(('127.0.0.1', torque.port), timeout=300) as connection:\n"
        "    assert tell(torque, line_for(torque, connection)) == b'0|0||'\n"
        "    shown = ask(connection, wire.Status(wire.RequestType.STATUS_JOB, ME))\n"
        "sys.stdout.write(' '.join(each.name for each in shown.objects))\n"
    )
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", program, f"{root}:{':'.join(sys.path)}", str(torque.directory)],
        env={**os.environ, "EMULATED_USER": "bob"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (jobs[1], "")


def test_the_port_outlives_a_kill(torque: EmulatedTorque, connection: socket.socket) -> None:
    port = torque.port
    assert tell(torque, line_for(torque, connection)) == b"0|0||"
    torque.kill()
    with pytest.raises((EOFError, ConnectionError)):
        ask(connection, wire.Status(wire.RequestType.STATUS_JOB, ME))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    torque.start()
    assert torque.port == port
    with socket.create_connection(("127.0.0.1", port), timeout=300) as again:
        assert ask(again, wire.Status(wire.RequestType.STATUS_JOB, ME)).code == 15021
        assert tell(torque, line_for(torque, again)) == b"0|0||"
        assert ask(again, wire.Status(wire.RequestType.STATUS_JOB, ME)).code == 0


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        torque = EmulatedTorque.create(tmp_path, nodes=NODES, port=holder.getsockname()[1])
        with pytest.raises(StartupError, match="end what listens there"):
            torque.start()
        torque.stop()


def test_faults_of_trqauthd(torque: EmulatedTorque, connection: socket.socket) -> None:
    line = line_for(torque, connection)
    torque.set_faults(Fault("trqauthd", "gone"))
    assert tell(torque, line) == b""
    torque.set_faults(Fault("trqauthd", "exit", code=15134, text="too busy"))
    assert tell(torque, line) == b"15134|8|too busy|"
    torque.set_faults(Fault("trqauthd", "cut", after=len(line) + 2))
    assert tell(torque, line) == b"0|"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_privileged_port_needs_no_trqauthd(torque: EmulatedTorque) -> None:
    request, answer = (part.data for part in recorded("15"))
    torque.run("qmgr", "-c", "set server scheduling = False", user="root")
    for _ in range(5):
        torque.submit("-l", "nodes=1")
    for port in range(1023, 600, -1):
        with socket.socket() as sock:
            sock.settimeout(60)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            sock.connect(("127.0.0.1", torque.port))
            sock.sendall(request)
            assert sock.recv(4096) == answer
            return
    pytest.fail("no port below 1024 is free")
