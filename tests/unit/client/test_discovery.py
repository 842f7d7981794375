"""How a mapper finds its server: agent, master, nobody; each with its reason and never for long."""

import contextlib
import http.server
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from yarn_accel.client import agent_folders, discovery
from yarn_accel.client.agent_folders import agent_sockets
from yarn_accel.client.binding import Binding, Endpoint
from yarn_accel.client.discovery import DiscoveredServers, ServerWatch, discover_servers, parse_servers

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A busy machine keeps whoever is asked from answering for longer than a mapper waits."""
    monkeypatch.setattr(discovery, "AGENT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(discovery, "MASTER_TIMEOUT_S", 60.0)


W9 = {"name": "w9", "host": "10.0.0.9", "port": 7070, "unix_path": "", "node": "w9"}
W9 |= {"tls": False, "ca_file": ""}


def reported(servers=(W9,), node="w1", **more):
    bound = {node: [server["name"] for server in servers]}
    binding = {"version": 1, "servers": list(servers), "racks": {}, "bound": bound}
    return {"v": 1, "node": node, "binding": binding, "age_s": 0.25, "reason": "", "slots": 2, **more}


def line(document):
    return json.dumps(document).encode() + b"\n"


@contextlib.contextmanager
def agent(path, answer, pause_s=0.0):
    """Answers every question on a Unix socket with these bytes; None: never."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    held = []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            if answer is None:
                continue
            with contextlib.suppress(OSError):
                connection.recv(1024)
                time.sleep(pause_s)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(path)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in held:
            connection.close()


@contextlib.contextmanager
def master(answer, status=200):
    """Answers every GET with these bytes; ``asked`` collects the paths."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if answer is None:
                time.sleep(1.0)
                return
            self.send_response(status)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(answer)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("scheme", ["", "unix:"])
def test_the_agent_is_asked_first(tmp_path, scheme):
    with agent(tmp_path / "a", line(reported())) as path, master(line(reported())) as (url, asked):
        found = discover_servers({"ACCEL_AGENT": scheme + path, "NM_HOST": "w1", "ACCEL_MASTER": url})
    assert (found.source, found.where, found.node, found.age_s) == ("agent", path, "w1", 0.25)
    assert ([endpoint.name for endpoint in found.endpoints()], found.reason, asked) == (["w9"], "", [])


def test_without_an_agent_the_master_is_asked_for_this_node(tmp_path):
    with master(line(reported())) as (url, asked):
        found = discover_servers(
            {"ACCEL_AGENT": str(tmp_path / "no"), "NM_HOST": "w1", "ACCEL_MASTER": url + "/"}
        )
    assert found.source == "master"
    assert found.binding.servers[0].name == "w9"
    assert asked == ["/v1/servers?node=w1"]


def test_the_second_master_is_asked_when_the_first_is_away(tmp_path):
    with master(line(reported())) as (url, _):
        masters = f"http://127.0.0.1:1, {url}"
        environ = {"ACCEL_AGENT": str(tmp_path / "no"), "NM_HOST": "w1", "ACCEL_MASTER": masters}
        assert discover_servers(environ).source == "master"


def test_nobody_gives_the_reason_for_computing_oneself(tmp_path):
    found = discover_servers({"ACCEL_AGENT": str(tmp_path / "no"), "NM_HOST": "w1"})
    assert (found.source, found.endpoints()) == ("none", ())
    assert found.reason == f"agent {tmp_path}/no: no such file or directory; ACCEL_MASTER is not set"


def test_an_empty_binding_is_an_answer_with_a_reason(tmp_path):
    with agent(tmp_path / "a", line(reported(servers=()))) as path:
        found = discover_servers({"ACCEL_AGENT": path, "NM_HOST": "w1"})
    assert (found.source, found.endpoints()) == ("agent", ())
    assert found.reason == "the agent knows no server for this node"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"hello\n", "not JSON"),
        (b"\xff\n", "not JSON"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b"[]\n", "not of version 1"),
        (b'{"v": 2}\n', "not of version 1"),
        (b'{"v": 1, "error": "known: servers"}\n', "refused: known: servers"),
        (b'{"v": 1, "node": "w1"}\n', "binding"),
        (line(reported(servers=[{**W9, "port": -1}])), "port"),
        (line(reported(node="w2")), "answers for node 'w2'"),
    ],
)
def test_answers_that_are_none(tmp_path, raw, reason):
    with agent(tmp_path / "a", raw) as path:
        found = discover_servers({"ACCEL_AGENT": path, "NM_HOST": "w1"})
    assert found.source == "none"
    assert reason in found.reason


def test_a_silent_agent_costs_its_time_out_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "AGENT_TIMEOUT_S", 0.1)
    with agent(tmp_path / "a", None) as path:
        found = discover_servers({"ACCEL_AGENT": path, "NM_HOST": "w1"})
    assert "no answer in time" in found.reason


def test_an_endless_answer_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "MAX_ANSWER_BYTES", 1000)
    with agent(tmp_path / "a", b"x" * 100_000) as path:
        assert "longer than 1000 bytes" in discover_servers({"ACCEL_AGENT": path}).reason
    with master(b"x" * 100_000) as (url, _):
        found = discover_servers({"ACCEL_AGENT": str(tmp_path / "no"), "NM_HOST": "w1", "ACCEL_MASTER": url})
        assert "longer than 1000 bytes" in found.reason


@pytest.mark.parametrize(
    ("answer", "status"), [(b"no such page", 404), (b"", 500), (None, 200), (b"<html>", 200)]
)
def test_a_master_that_gives_none(tmp_path, monkeypatch, answer, status):
    monkeypatch.setattr(discovery, "MASTER_TIMEOUT_S", 0.2)
    with master(answer, status) as (url, _):
        found = discover_servers({"ACCEL_AGENT": str(tmp_path / "no"), "NM_HOST": "w1", "ACCEL_MASTER": url})
    assert found.source == "none"
    assert f"master {url}: " in found.reason


@pytest.mark.parametrize("url", ["ftp://m/", "file:///etc/passwd", "m:1", "http://[", "http://\x00"])
def test_addresses_that_are_none(tmp_path, url):
    found = discover_servers({"ACCEL_AGENT": str(tmp_path / "no"), "NM_HOST": "w1", "ACCEL_MASTER": url})
    assert found.source == "none"


def test_the_master_cannot_be_asked_without_a_node(tmp_path):
    with master(line(reported())) as (url, asked):
        found = discover_servers({"ACCEL_AGENT": str(tmp_path / "no"), "ACCEL_MASTER": url})
    assert "NM_HOST is not set" in found.reason
    assert asked == []


def test_default_places(monkeypatch):
    monkeypatch.setattr(agent_folders.os, "scandir", lambda folder: contextlib.nullcontext([]))
    places = agent_sockets({"NM_HOST": "w1"})
    assert places == [
        ("/run/yarn-accel/agent.sock", True),
        ("/run/yarn-accel/w1/agent.sock", True),
        (f"/tmp/yarn-accel-{os.geteuid()}/w1/agent.sock", False),
    ]
    assert agent_sockets({"NM_HOST": "../evil"}) == [("/run/yarn-accel/agent.sock", True)]
    assert agent_sockets({"NM_HOST": "w1", "ACCEL_AGENT": "/x"}) == [("/x", True)]


def test_where_anybody_could_listen_the_listener_is_checked(tmp_path, monkeypatch):
    with agent(tmp_path / "a", line(reported())) as path:
        monkeypatch.setattr(discovery, "agent_sockets", lambda environ: [(path, False)])
        assert discover_servers({"NM_HOST": "w1"}).source == "agent"
        user = os.geteuid()
        monkeypatch.setattr(discovery.os, "geteuid", lambda: user + 1)
        if user != 0:  # root is trusted by everybody
            assert "neither root nor this task's" in discover_servers({"NM_HOST": "w1"}).reason
        monkeypatch.setattr(discovery, "peer_uid", lambda sock: 4242)
        assert "user 4242 listens there" in discover_servers({"NM_HOST": "w1"}).reason


def test_while_the_newest_application_of_a_user_has_no_server_an_older_ones_is_used(tmp_path, monkeypatch):
    """The newest one may be a new version that just starts; another user's servers may not know the job."""
    monkeypatch.setattr(agent_folders, "RUN_FOLDER", str(tmp_path))
    users = {"17_1": "ann", "17_2": "bob", "17_3": "ann"}
    for application, user in users.items():
        folder = tmp_path / "w1" / application
        folder.mkdir(parents=True)
        identity = {"version": 1, "id": application, "name": application, "user": user}
        (folder / agent_folders.IDENTITY_FILE).write_text(json.dumps(identity))
    for folder in (tmp_path, tmp_path / "w1", *(tmp_path / "w1").iterdir()):
        folder.chmod(0o755)

    def asked(user, **answers):
        with contextlib.ExitStack() as stack:
            for application, servers in answers.items():
                path = tmp_path / "w1" / application[1:] / "agent.sock"
                path.unlink(missing_ok=True)
                stack.enter_context(agent(path, line(reported(servers=servers))))
            found = discover_servers({"NM_HOST": "w1", "USER": user})
        return Path(found.where).parent.name, bool(found.endpoints())

    assert asked("ann", _17_1=[W9], _17_2=[W9], _17_3=[]) == ("17_1", True)
    assert asked("ann", _17_1=[W9], _17_2=[W9], _17_3=[W9]) == ("17_3", True)
    assert asked("ann", _17_1=[], _17_2=[W9], _17_3=[]) == ("17_3", False)
    assert asked("bob", _17_1=[W9], _17_2=[], _17_3=[W9]) == ("17_2", False)


def test_short_and_long_names_of_a_node_are_one(tmp_path):
    own = {**W9, "name": "own", "node": "w1.example.org"}
    with agent(tmp_path / "a", line(reported(servers=[W9, own], node="w1.example.org"))) as path:
        found = discover_servers({"ACCEL_AGENT": path, "NM_HOST": "w1"})
    assert found.node == "w1.example.org"
    assert found.endpoints()[0].name == "own"


@pytest.mark.parametrize("age_s", [None, "x", float("inf"), float("nan"), [], True])
def test_an_age_that_is_none_is_not_believed(age_s):
    assert parse_servers(json.dumps(reported(age_s=age_s)).encode(), "w1").age_s in (0.0, 1.0)


# ---- over time


class Asked:
    """Gives these answers, one after the other, the last one for ever; counts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.n = 0

    def __call__(self, environ):
        self.n += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def found(name):
    return DiscoveredServers(Binding((Endpoint(name, "h", 1),)), "w1", "agent", "/a")


def test_answers_are_kept_for_a_while_and_a_failure_asks_at_once():
    now_s = [0.0]
    asked = Asked(found("w1"), found("w2"), found("w3"))
    watch = ServerWatch({}, 2.0, asked, lambda: now_s[0])
    names = []
    for at_s, is_urgent in ((0.0, False), (1.9, False), (2.0, False), (2.1, True), (2.2, False)):
        now_s[0] = at_s
        names.append(watch.now(is_urgent).binding.servers[0].name)
    assert names == ["w1", "w1", "w2", "w3", "w3"]
    assert asked.n == 3


def test_where_nobody_answers_a_mapper_does_not_spend_its_time_on_asking():
    now_s, n_asked, worked_s = [0.0], [0], 0.0

    def ask(environ):
        n_asked[0] += 1
        now_s[0] += 1.5
        return DiscoveredServers(reason="nobody")

    watch = ServerWatch({}, 2.0, ask, lambda: now_s[0])
    while worked_s < 570.0:
        watch.now()
        now_s[0] += 1.0
        worked_s += 1.0
    assert n_asked[0] <= 21


def test_the_last_servers_are_kept_when_nobody_answers_any_more():
    watch = ServerWatch({}, 0.0, Asked(found("w1"), DiscoveredServers(reason="nobody")))
    watch.now()
    kept = watch.now()
    assert kept.binding.servers[0].name == "w1"
    assert kept.reason == "nobody"


def test_an_empty_answer_is_no_silence():
    """The master takes a server away: then it is away."""
    empty = DiscoveredServers(Binding(), "w1", "agent", "/a", 0.0, "drained")
    watch = ServerWatch({}, 0.0, Asked(found("w1"), empty))
    watch.now()
    assert watch.now() == empty
