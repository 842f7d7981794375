"""Users get their own credentials over a real socket, and nobody else's."""

import asyncio
import contextlib
import json
import os
import pwd
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import NEEDS_ROOT
from yarn_accel.adapters.credentials import read_credential, request_credential, trusted_users
from yarn_accel.cli import root
from yarn_accel.core.credential_grant import GrantRules
from yarn_accel.errors import ConfigError, RejectedError, UnavailableError
from yarn_accel.master.config import SOME_MANAGERS, parse_config
from yarn_accel.master.credential_endpoint import CredentialEndpoint, grant_rules, socket_path
from yarn_accel.node import local_endpoint
from yarn_accel.wire.credential import decode, derive_key

SECRET = bytes(range(32))
DAY_S = 86400.0
NOBODY_SHARES = GrantRules(frozenset(), frozenset({"operator"}), 3600.0)
ME = pwd.getpwuid(os.geteuid()).pw_name
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)
_ASK = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.settimeout(120)
s.sendall(json.dumps({"v": 1, "want": "credential", "tenant": sys.argv[2]}).encode() + b"\\n")
sys.stdout.write(s.makefile().readline() or '{"closed": 1}')
"""


class Master:
    """An endpoint in a thread."""

    def __init__(self, path, rules, revoked_file=""):
        self.path = path
        self.endpoint = CredentialEndpoint(SECRET, path, rules, revoked_file)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._call(self.endpoint.open)

    def _call(self, coroutine):
        asyncio.run_coroutine_threadsafe(coroutine(), self._loop).result(120)

    def close(self):
        self._call(self.endpoint.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    def ask(self, tenant="", lifetime_s=0.0):
        return request_credential([self.path], trusted_users([str(os.geteuid())]), tenant, lifetime_s)[0]


@pytest.fixture
def folder():
    """A short path that every user may enter."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start(folder):
    """A function that starts an endpoint; all are closed at the end."""
    with contextlib.ExitStack() as at_end:

        def start(rules=NOBODY_SHARES, revoked_file=""):
            master = Master(folder / "credential.sock", rules, revoked_file)
            at_end.callback(master.close)
            return master

        yield start


def ask_as(user, path, tenant=""):
    """What another user is answered; asked by a child process with that uid."""
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    argv = [python, "-I", "-S", "-c", _ASK, str(path), tenant]
    done = subprocess.run(argv, user=user, capture_output=True, check=True, cwd="/", text=True)
    answer = json.loads(done.stdout)
    return answer


def test_a_credential_for_who_asks(start, folder):
    master = start()
    assert stat.S_IMODE(master.path.stat().st_mode) == 0o666
    credential = master.ask()
    assert (credential.tenant, credential.key) == (ME, derive_key(SECRET, credential.identifier()))
    assert 3500 < credential.expires_s - time.time() <= 3600
    assert master.ask(ME, 60).expires_s <= time.time() + 60
    assert master.ask(ME, DAY_S).expires_s <= time.time() + 3600
    assert master.ask().key_id != credential.key_id


def test_the_command_writes_it_and_replaces_it(start, tmp_path):
    path, file = start().path, tmp_path / "mine"
    argv = ["credential", "request", "--socket", str(path), "--master-user", ME, str(file)]
    results = [CliRunner().invoke(root, argv) for _ in range(2)]
    assert [result.exit_code for result in results] == [0, 0], results
    credential = read_credential(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert f"{file}: tenant {ME}, key {credential.key_id}, until 2" in results[1].output
    shown = CliRunner().invoke(root, ["credential", "show", str(file)])
    assert shown.output == results[1].output
    other = CliRunner().invoke(root, [*argv[:-1], "--tenant", "somebody", str(file)])
    assert isinstance(other.exception, RejectedError)
    assert other.exception.code == "other-tenant"
    assert read_credential(file) == credential


@needs_root
def test_the_kernel_says_who_asks(start):
    path = start(GrantRules(frozenset({pwd.getpwnam("nobody").pw_uid}), frozenset(), 3600.0)).path
    given = decode(ask_as("daemon", path)["credential"].encode())
    assert given.tenant == "daemon"
    assert decode(ask_as("daemon", path, "daemon")["credential"].encode()).tenant == "daemon"
    refusals = {
        "other-tenant": ask_as("daemon", path, "root"),
        "shared-user": ask_as("nobody", path),
        "unknown-user": ask_as(54321, path),
    }
    assert {code: answer["refused"]["code"] for code, answer in refusals.items()} == {
        code: code for code in refusals
    }
    assert not [answer for answer in refusals.values() if "credential" in answer]


@needs_root
def test_the_user_of_all_containers_is_refused_with_the_reason(start):
    config = parse_config({**SOME_MANAGERS, "shared_users": ["daemon", "no-such-user", "54321"]})
    rules = grant_rules(config)
    assert rules.shared_uids >= {os.geteuid(), pwd.getpwnam("daemon").pw_uid, 54321, 65534}
    master = start(rules)
    with pytest.raises(RejectedError, match="containers and services of several users run as root") as caught:
        master.ask()
    assert caught.value.code == "shared-user"
    for user in ("daemon", 54321):
        assert ask_as(user, master.path)["refused"]["code"] == "shared-user"


def test_a_revoked_user_gets_none(start, tmp_path):
    (tmp_path / "revoked").write_text(f"{ME}\n")
    with pytest.raises(RejectedError, match="revoked"):
        start(revoked_file=str(tmp_path / "revoked")).ask()


@pytest.mark.parametrize(
    "question",
    [
        {"tenant": 7},
        {"lifetime_s": "1"},
        {"lifetime_s": True},
        {"lifetime_s": float("nan")},
        {"lifetime_s": -1},
        {"lifetime_s": None},
    ],
)
def test_questions_that_are_none(start, question):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(120)
        sock.connect(str(start().path))
        sock.sendall(json.dumps({"v": 1, "want": "credential", **question}).encode() + b"\n")
        answer = json.loads(sock.makefile().readline())
    assert answer["refused"]["code"] in ("bad-request", "bad-lifetime")


@needs_root
def test_a_thousand_idle_connections_stop_nobody(start):
    master = start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    idle = []
    try:
        for _ in range(1000):
            idle.append(socket.socket(socket.AF_UNIX))
            idle[-1].connect(str(master.path))
        assert decode(ask_as("daemon", master.path)["credential"].encode()).tenant == "daemon"
        # Who fills the user's own places waits until they time out.
        assert master.ask().tenant == ME
    finally:
        for sock in idle:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@needs_root
def test_when_all_places_are_taken_who_has_most_loses_one(start, monkeypatch):
    monkeypatch.setattr(local_endpoint, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(local_endpoint, "FIRST_LINE_S", 120.0)
    master = start()
    idle = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for sock in idle:
        sock.connect(str(master.path))
        sock.settimeout(120)
    assert "credential" in ask_as("daemon", master.path)
    assert idle[0].recv(1) == b"", "the oldest is closed"
    for sock in idle:
        sock.close()


def test_the_socket_of_a_killed_master_is_replaced_and_that_of_a_successor_left(
    folder,
):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(folder / "credential.sock"))
    left.close()
    with pytest.raises(UnavailableError, match="connection refused"):
        request_credential([folder / "credential.sock"], trusted_users())
    first = Master(folder / "credential.sock", NOBODY_SHARES)
    assert first.ask().tenant == ME
    second = Master(first.path, NOBODY_SHARES)
    first.close()
    assert second.ask().tenant == ME
    second.close()
    assert not first.path.exists()


@needs_root
def test_whose_socket_nobody_trusts_is_not_asked(start):
    master = start()
    with pytest.raises(UnavailableError, match=f"user {os.geteuid()}, whom nobody named"):
        request_credential([master.path], frozenset({12345}))
    # The connection before this one was accepted before; asyncio leaks what it accepts while it closes.
    assert master.ask().tenant == ME
    assert trusted_users() >= {0}


@pytest.mark.parametrize(
    ("mode", "reason"), [(0o777, "others could put their own socket there"), (0o755, "")]
)
def test_a_folder_where_others_may_write_is_not_used(folder, mode, reason):
    folder.chmod(mode)
    master = Master(folder / "credential.sock", NOBODY_SHARES)
    try:
        assert reason in master.endpoint.problem
        assert bool(master.endpoint.problem) is bool(reason)
        assert master.path.exists() is not bool(reason)
    finally:
        master.close()


def test_a_path_that_is_too_long(folder):
    master = Master(folder / ("x" * 120) / "credential.sock", NOBODY_SHARES)
    master.close()
    assert "too long" in master.endpoint.problem
    with pytest.raises(ConfigError, match="too long for a Unix socket"):
        parse_config({**SOME_MANAGERS, "credential_socket": f"/run/{'x' * 120}"})
    with pytest.raises(ConfigError, match="neither an absolute path nor off"):
        parse_config({**SOME_MANAGERS, "credential_socket": "run/x"})


def test_where_it_listens():
    given = parse_config({**SOME_MANAGERS, "credential_socket": "/run/x/{node}/{application}/c.sock"})
    assert socket_path(given, "w1", "application_17_0001") == Path("/run/x/w1/17_0001/c.sock")
    default = socket_path(parse_config(SOME_MANAGERS), "w1", "application_17_0001")
    assert default.parts[-3:] == ("w1", "17_0001", "credential.sock")
