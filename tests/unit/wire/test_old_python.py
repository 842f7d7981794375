"""The wire and the client travel inside a mapper: standard library only, and Python 3.8 is enough."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HANDSHAKE = """
import yarn_accel.client.client, yarn_accel.client.discovery, yarn_accel.client.dispatch
from yarn_accel.wire import ClientConnection, Opened, Ping, ServerConnection
from yarn_accel.wire.credential import decode, encode, issue

master = bytes(32)
client = ClientConnection(decode(encode(issue(master, "alice", 2000, "k"))), b"c" * 32)
server = ServerConnection(master, b"s" * 32, 1000, "w1")
for sender, receiver in ((client, server), (server, client)) * 2:
    for part in sender.data_to_send():
        receiver.receive_data(part)
    event = receiver.next_event()
assert isinstance(event, Opened)
for part in client.send(Ping(5)):
    server.receive_data(part)
assert server.next_event() == Ping(5)
import sys
third = [name for name in sys.modules if name.split(".")[0] in ("numpy", "pydantic", "click", "yaml", "rich")]
assert not third, third
print("fine")
"""


def run(*argv):
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_a_handshake_with_the_standard_library_alone():
    done = run(sys.executable, "-S", "-c", HANDSHAKE)
    assert done.stdout == "fine\n", done.stderr


def test_a_handshake_on_python_3_8():
    installed = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))
    python = str(installed[0]) if installed else shutil.which("python3.8")
    if python is None or run(python, "-c", "").returncode != 0:
        pytest.skip("no python3.8 on this machine")
    done = run(python, "-S", "-c", HANDSHAKE)
    assert done.stdout == "fine\n", done.stderr
