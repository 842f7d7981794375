from __future__ import annotations

import io
import math
import time
import types

import pytest

from jobs.entry import main
from jobs.runners.spark import token_file
from yarn_accel.adapters.credentials import issue_token_file, read_master_secret
from yarn_accel.client import runners, task_servers
from yarn_accel.client.binding import Binding, Endpoint, format_binding
from yarn_accel.client.discovery import DiscoveredServers
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.client.dispatch_state import ServersFound
from yarn_accel.client.task_servers import load_credential
from yarn_accel.client.token_file import write_secrets
from yarn_accel.errors import StartupError
from yarn_accel.wire.credential import SECRET_ALIAS

MASTER = bytes(range(32))
NOBODY = Endpoint("s1", "127.0.0.1", 9, "", "w1")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start the entry point in an empty folder; returns (exit code, lines on stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*argv, stdin=b"", servers=(), binding=True, **environ):
        if binding:
            text = format_binding(Binding(tuple(servers))) if binding is True else binding
            (tmp_path / "binding.json").write_text(text)
        stderr = io.StringIO()
        code = main(argv, environ, io.BytesIO(stdin), io.BytesIO(), stderr)
        return code, stderr.getvalue().splitlines()

    return run


USE = "use one of factorize-map, images-map, images-reduce"


@pytest.mark.parametrize(
    ("argv", "given", "code", "said"),
    [
        *((argv, {}, 2, USE) for argv in ([], ["dance"], ["--by"])),
        *(
            (["factorize-map", option], {}, 2, "")
            for option in ("--frobnicate", "--by=magic", "--window=many")
        ),
        (["factorize-map", "--no-fallback"], {"binding": False, "ACCEL_AGENT": "/no/agent"}, 2, "/no/agent"),
        (["factorize-map"], {"binding": "{"}, 2, "binding: not JSON"),
        (["factorize-map"], {"servers": [NOBODY]}, 3, "HADOOP_TOKEN_FILE_LOCATION is not set"),
        (["factorize-map", "--no-fallback"], {}, 2, "names no server"),
    ],
)
def test_what_cannot_be_started_is_one_line_that_says_why(start, argv, given, code, said):
    found, (line, *more) = start(*argv, **{"NM_HOST": "w1", **given})
    assert (found, more) == (code, [])
    assert line.startswith("accel-job: ")
    assert said in line


def test_without_a_binding_and_anybody_to_ask_the_own_cpu_computes_and_says_why(start, tmp_path):
    nobody = {"ACCEL_AGENT": str(tmp_path / "nobody.sock"), "NM_HOST": "w1"}
    code, lines = start("factorize-map", binding=False, **nobody)
    assert code == 0
    assert lines[0].startswith("reporter:status:computing on this node's CPU: agent ")
    assert "nobody.sock" in lines[0]
    assert "ACCEL_MASTER is not set" in lines[0]


def test_a_server_found_here_is_no_use_without_a_credential(start, monkeypatch):
    found = DiscoveredServers(Binding((NOBODY,)), "w1", "agent")
    monkeypatch.setattr(task_servers, "ServerWatch", lambda environ: types.SimpleNamespace(now=lambda: found))
    code, lines = start("factorize-map", binding=False)
    assert code == 0
    assert lines[0].startswith("reporter:status:computing on this node's CPU: no credential")


def test_a_mapper_that_begins_without_a_server_uses_one_that_comes_later(start, monkeypatch, tmp_path):
    made = []

    class Kept(Dispatcher):
        def __init__(self, *arguments, **options):
            made.append((arguments, options))
            super().__init__(*arguments, **options)

    words = {"found": DiscoveredServers(reason="nobody yet")}
    watch = types.SimpleNamespace(now=lambda is_urgent=False: words["found"], until_s=-math.inf)
    monkeypatch.setattr(task_servers, "ServerWatch", lambda environ: watch)
    monkeypatch.setattr(runners, "Dispatcher", Kept)
    token = issue_token_file(tmp_path / "token", MASTER, 60, "alice")
    code, lines = start("factorize-map", binding=False, HADOOP_TOKEN_FILE_LOCATION=str(token))
    assert (code, lines) == (0, []), "it waits when there is something to compute"
    ((endpoints, credential), options) = made[0]
    assert (endpoints, credential.tenant) == ((), "alice")
    assert options["find_servers"](False) == ServersFound((), None, "nobody yet", True)
    words["found"] = DiscoveredServers(Binding((NOBODY,)), "w1", "agent")
    assert [each.name for each in options["find_servers"](False).endpoints] == ["s1"]


def test_no_server_needs_no_credential_and_empty_input_is_fine(start):
    why = "reporter:status:computing on this node's CPU: the binding names no server"
    assert start("factorize-map") == (0, [why])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"nonsense", "is not valid"),
        (write_secrets({"other": b"x"}), "has no secret 'yarn-accel.pipeline'"),
        (write_secrets({SECRET_ALIAS: b"not json"}), "is not valid"),
    ],
)
def test_a_bad_token_file_is_diagnosed_and_never_quoted(tmp_path, content, said):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match=said) as caught:
        load_credential({"HADOOP_TOKEN_FILE_LOCATION": str(path)}, 0)
    assert "nonsense" not in str(caught.value)
    assert "not json" not in str(caught.value)


def test_a_credential_travels_in_a_private_file_and_comes_back(tmp_path):
    path = issue_token_file(tmp_path / "token", MASTER, 60, "alice")
    assert path.stat().st_mode & 0o777 == 0o600
    found = load_credential({"HADOOP_TOKEN_FILE_LOCATION": str(path)}, time.time())
    assert (found.tenant, len(found.key)) == ("alice", 32)
    with pytest.raises(StartupError, match="expired"):
        load_credential({"HADOOP_TOKEN_FILE_LOCATION": str(path)}, time.time() + 61)


def test_the_token_file_is_gone_after_the_block(tmp_path):
    secret = tmp_path / "master"
    secret.touch(mode=0o600)
    secret.write_text(MASTER.hex() + "\n")
    assert read_master_secret(secret) == MASTER
    with token_file(secret, 60) as path:
        assert path.exists()
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert MASTER not in path.read_bytes()
    assert not path.parent.exists()
