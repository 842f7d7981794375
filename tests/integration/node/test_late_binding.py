"""Mappers of several users claim places of a real agent; they lie, hang and die, and so does the agent."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.conftest import NEEDS_ROOT
from tests.integration.node.claims import ROOT, ClaimingProcess, environ_of_mapper, token_of
from tests.integration.node.master import PATIENCE_S, Master
from yarn_accel.core.late_binding_reports import parse_claim_counts
from yarn_accel.master.agents import LateBindingReports

SECRET = b"the secret of the pipeline servers"
#: One place, so that it is plain who has it.
ONE_PLACE = {"policy": "fifo", "gpus": 1, "cores": 1, "max_wait_s": 3600.0}


@pytest.fixture
def master():
    with Master() as found:
        found.late_binding = LateBindingReports(SECRET)
        yield found


@pytest.fixture
def mapper(tmp_path):
    """Starts mappers of tenants: ``mapper(agent, "alice", 1)``."""
    started = []
    n_started = 0

    def start(agent, tenant, forms="cpu,gpu", **names):
        nonlocal n_started
        n_started += 1
        token = tmp_path / f"token-{tenant}"
        if tenant and not token.exists():
            token_of(tmp_path, SECRET, tenant)
        environ = environ_of_mapper(agent.run_dir, n_started, token_file=token if tenant else None, **names)
        started.append(ClaimingProcess(environ, forms))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def agent_of(agents, master, below=None, **late_binding):
    settings = {**ONE_PLACE, "lease_s": 2.0, **late_binding}
    return agents(below=below, master_url=master.url, late_binding=settings).start()


def asked(agent):
    """What the agent says about claims."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(str(agent.run_dir / "agent.sock"))
        sock.sendall(b'{"v": 1, "want": "claims"}\n')
        with sock.makefile("rb") as file:
            found = json.loads(file.readline())
    return found


def reported(master):
    """What the master makes of the claims in the agent's last heartbeat."""
    return parse_claim_counts(master.heard[-1][1]["late_binding"].get("claims")) or {}


def holders(agent):
    return [(each["user"], each["form"]) for each in asked(agent)["claims"]]


def test_a_killed_holder_gives_its_place_to_who_waits(agents, master, mapper):
    agent = agent_of(agents, master)
    first = mapper(agent, "alice")
    assert first.got()[:3] == ("gpu", [0], True)
    second = mapper(agent, "bob")
    agent.until(lambda: ("bob", None) in holders(agent), "bob waits")
    first.kill()
    assert second.got()[:3] == ("gpu", [0], True)
    err = second.end()
    assert "reporter:counter:yarn-accel,late_binding_gpu,1" in err
    agent.until(lambda: not holders(agent), "all places are free")
    assert asked(agent)["outcomes"] == {"gpu": 2, "lost": 1, "ended": 1}


def test_a_stopped_holder_loses_its_place_and_finds_that_out_when_it_goes_on(agents, master, mapper):
    agent = agent_of(agents, master)
    first = mapper(agent, "alice")
    first.got()
    second = mapper(agent, "bob")
    agent.until(lambda: ("bob", None) in holders(agent), "bob waits")
    first.process.send_signal(signal.SIGSTOP)
    assert second.got()[0] == "gpu"
    assert holders(agent) == [("bob", "gpu")]
    first.process.send_signal(signal.SIGCONT)
    agent.until(lambda: ("alice", "gpu") in holders(agent), "what alice still uses is counted")
    err = first.end()
    assert "reporter:counter:yarn-accel,late_binding_lost,1" in err
    agent.until(lambda: holders(agent) == [("bob", "gpu")], "alice has ended")
    second.end()


def test_what_was_decided_and_why_is_shown_with_every_candidate(agents, master, mapper):
    agent = agent_of(agents, master, policy="hdas")
    first = mapper(agent, "alice")
    assert "measured first" in first.got()[3]
    first.say("compute")
    agent.until(lambda: not asked(agent)["claims"][0]["is_reading"], "it computes")
    shown = asked(agent)
    (decision,) = shown["decisions"]
    assert decision["job"] == "alice/job_1_0001"
    assert [each["job"] for each in decision["candidates"]["gpu"]] == ["alice/job_1_0001"]
    agent.until(lambda: asked(agent)["are_counts_used"], "the cluster's counts came with a heartbeat")
    agent.until(lambda: "counts_age_s" in reported(master), "the next heartbeat has their age")

    def counts():
        return {key: n for key, n in reported(master).items() if n and key != "counts_age_s"}

    agent.until(lambda: counts() == {"gpu": 1, "decided": 1}, "a heartbeat after the decision has come")
    first.end()
    agent.until(lambda: asked(agent)["figures"], "its figures are learned")
    (figure,) = asked(agent)["figures"]
    assert (figure["name"], figure["form"], figure["n_measured"]) == ("alice/knn", "gpu", 1)
    agent.kill(signal.SIGTERM)
    agent.start()
    again = mapper(agent, "alice")
    assert again.got()[0] == "cpu", "the form that is not measured yet"
    assert [each["n_measured"] for each in asked(agent)["figures"]] == [1]
    again.end()


def test_without_an_agent_a_mapper_goes_on_by_itself_and_says_so(agents, mapper):
    agent = agents()
    alone = mapper(agent, "alice")
    form, gpus, is_decided, reason = alone.got()
    assert (form, gpus, is_decided) == ("cpu", [], False)
    assert "no such file" in reason
    assert "reporter:counter:yarn-accel,late_binding_undecided,1" in alone.end()


def test_mappers_survive_their_agent_and_the_next_one_knows_what_they_hold(agents, master, mapper):
    agent = agent_of(agents, master)
    first = mapper(agent, "alice")
    assert first.got()[0] == "gpu"
    waiting = mapper(agent, "bob")
    agent.until(lambda: ("bob", None) in holders(agent), "bob waits")
    agent.kill()
    form, _, is_decided, _ = waiting.got()
    assert (form, is_decided) == ("cpu", False)
    waiting.end()
    agent.start()
    agent.until(lambda: holders(agent) == [("alice", "gpu")], "the new agent knows of alice's place")
    second = mapper(agent, "bob")
    agent.until(lambda: ("bob", None) in holders(agent), "bob waits")
    assert "reporter:counter:yarn-accel,late_binding_lost,1" in first.end()
    assert second.got()[0] == "gpu"
    second.end()


def test_a_stopped_agent_costs_a_mapper_some_seconds(agents, master, mapper):
    agent = agent_of(agents, master)
    first = mapper(agent, "alice")
    first.got()
    agent.process.send_signal(signal.SIGSTOP)
    try:
        alone = mapper(agent, "bob")
        assert alone.got()[:3] == ("cpu", [], False)
        assert "no answer in time" in alone.end() or "silent" in alone.end()
    finally:
        agent.process.send_signal(signal.SIGCONT)
    agent.until(lambda: holders(agent) == [("alice", "gpu")], "alice lost nothing")
    first.end()


def test_a_place_goes_by_credential_and_not_by_name(agents, master, mapper):
    """mallory names alice's job; with her own credential she is mallory, with a forged one she is nobody."""
    agent = agent_of(agents, master, cores=4)
    alice = mapper(agent, "alice")
    assert alice.got()[0] == "gpu"
    mallory = mapper(agent, "mallory", job="job_1_0001")
    assert mallory.got()[0] == "cpu"
    assert sorted(asked(agent)["jobs"]) == ["alice/job_1_0001", "mallory/job_1_0001"]
    nobody = mapper(agent, "", job="job_1_0001")
    nobody.got()
    assert f"(uid {os.geteuid()})/job_1_0001" in asked(agent)["jobs"]
    for each in (alice, mallory, nobody):
        each.end()


@pytest.mark.parametrize("fault", ["other secret", "expired", "of alice, with another key", "revoked"])
def test_a_credential_that_is_not_good_gives_no_place(agents, master, mapper, tmp_path, fault):
    if fault == "other secret":
        token_of(tmp_path, b"another secret, as long as it must be", "mallory")
    elif fault == "expired":
        token_of(tmp_path, SECRET, "mallory", lifetime_s=-10)
    elif fault == "revoked":
        revoked = tmp_path / "revoked"
        revoked.write_text("mallory\n")
        revoked.chmod(0o644)
        master.late_binding = LateBindingReports(SECRET, str(revoked))
    agent = agent_of(agents, master)
    if fault == "of alice, with another key":
        # She knows what alice's mappers show in public, and makes a token with her own key.
        alice = mapper(agent, "alice")
        alice.got()
        alice.end()
        public = _identifier_of(tmp_path / "token-alice")
        answer = converse(agent, {**QUESTION, "credential": {"identifier": public, "token": "0" * 64}})[-1]
        assert answer["refused"] == "authentication"
        return
    mallory = mapper(agent, "mallory")
    form, _, is_decided, reason = mallory.got()
    assert (form, is_decided) == ("cpu", False)
    assert "the agent refuses: authentication" in reason
    mallory.end()
    assert asked(agent)["claims"] == []


def test_while_the_master_is_away_new_credentials_are_not_believed_and_known_ones_are(agents, mapper):
    with Master() as master:
        master.late_binding = LateBindingReports(SECRET)
        agent = agent_of(agents, master)
        known = mapper(agent, "alice")
        known.got()
        known.end()
        master.mode = "garbage"
        unknown = mapper(agent, "bob")
        form, _, is_decided, reason = unknown.got()
        assert (form, is_decided) == ("cpu", False)
        assert "did not check the credential" in reason
        again = mapper(agent, "alice")
        assert again.got()[:3] == ("gpu", [0], True)


QUESTION = {"v": 1, "job": "job_1_0001", "name": "knn", "attempt": "attempt_9", "forms": ["cpu", "gpu"]}


def _identifier_of(path):
    from yarn_accel.adapters.credentials import read_credential

    return read_credential(path).identifier().decode()


def let_in(agent, mapper, user):
    """From now on places are granted at once: no claim waits until its lease ends, unrenewed."""
    first = mapper(agent, user)
    first.got()
    first.end()


def connected(agent):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(str(agent.run_dir / "claims.sock"))
    return sock


def converse(agent, *lines):
    """Send these lines at once; every answer until the agent closes, or the first three."""
    answers = []
    with connected(agent) as sock:
        for line in lines:
            sock.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        with sock.makefile("rb") as file:
            for line in file:
                answers.append(json.loads(line))
                if "granted" in answers[-1] or "refused" in answers[-1]:
                    break
    return answers


NONSENSE = [
    ([b"x" * 10_000 + b"\n"], "oversized"),
    ([b"GET / HTTP/1.1\r\n"], "no object of JSON"),
    ([b"[" * 4000 + b"\n"], "no object of JSON"),
    ([b"{}\n"], "version 1 is expected"),
    ([{**QUESTION, "job": "../x"}], "job is not an id"),
    ([{**QUESTION, "forms": ["tpu"]}], "forms is not a list"),
    ([{**QUESTION, "gpus": 10**6}], "gpus is not a number"),
    ([{**QUESTION, "name": 7}], "name is not a text"),
    ([{**QUESTION, "credential": {"identifier": "x", "token": "y"}}], "credential identifier"),
    ([{**QUESTION, "resume": {"granted": "gpu", "gpus": [0], "proof": "0" * 64}}], "was not given"),
]


def test_nonsense_is_refused_in_one_line_and_the_rest_goes_on(agents, master, mapper):
    agent = agent_of(agents, master)
    for lines, said in NONSENSE:
        answer = converse(agent, *lines)[-1]
        assert said in f"{answer['refused']} {answer['message']}"
    good = mapper(agent, "alice")
    assert good.got()[:3] == ("gpu", [0], True)
    good.end()


def test_floods_silence_and_lines_that_never_end_cost_their_sender_the_connection(agents, master, mapper):
    agent = agent_of(agents, master)
    good = mapper(agent, "alice")
    good.got()
    silent, endless, flooding = connected(agent), connected(agent), connected(agent)
    endless.sendall(b"{")
    flooding.sendall(json.dumps(QUESTION).encode() + b"\n")
    with pytest.raises(ConnectionError):
        flooding.sendall(b'{"reading": true}\n' * 1_000_000)
    flooding.close()
    for sock in (silent, endless):
        with sock, sock.makefile("rb") as file:
            assert len(file.readlines()) == 1  # the greeting, and then the end
    counts = asked(agent)["connections"]
    assert (counts["silent"], counts["flooding"]) == (2, 1)
    assert ("alice", "gpu") in holders(agent)
    good.end()


def test_what_one_process_was_given_is_worth_nothing_to_another_nor_after_its_end(
    agents, master, mapper, tmp_path
):
    agent = agent_of(agents, master)
    let_in(agent, mapper, "bob")
    token = token_of(tmp_path, SECRET, "alice")
    from yarn_accel.adapters.credentials import read_credential
    from yarn_accel.wire.credential import claim_token

    credential = read_credential(token)
    shown = {"identifier": credential.identifier().decode(), "token": claim_token(credential, "w1")}
    question = {**QUESTION, "credential": shown}
    with connected(agent) as sock, sock.makefile("rwb", buffering=0) as file:
        file.readline()
        file.write(json.dumps(question).encode() + b"\n")
        granted = json.loads(file.readline())
        program = (
            "import json,socket,sys\n"
            "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f=s.makefile('rwb',buffering=0)\n"
            "f.readline(); f.write(sys.argv[2].encode()+b'\\n'); print(f.readline().decode())"
        )
        stolen = json.dumps({**question, "resume": granted})
        words = ["python3", "-c", program, str(agent.run_dir / "claims.sock"), stolen]
        other = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
        assert json.loads(other.stdout)["refused"] == "authentication"
    agent.until(lambda: not holders(agent), "its connection is closed, so its place is free")
    with connected(agent) as sock, sock.makefile("rwb", buffering=0) as file:
        file.readline()
        file.write(json.dumps(question).encode() + b"\n")
        granted = json.loads(file.readline())
        file.write(b'{"end": "done"}\n')
        assert json.loads(file.readline()) == {"ended": True}
    assert converse(agent, {**question, "resume": granted})[-1]["refused"] == "authentication"


def test_a_thousand_claims_of_one_user_leave_another_user_a_place(agents, master, mapper):
    lease_s = 4.0
    agent = agent_of(agents, master, cores=200, gpus=2, max_claims_per_user=8, lease_s=lease_s)
    let_in(agent, mapper, "alice")
    held = []
    outcomes = []
    started_s = time.monotonic()
    try:
        for i in range(1000):
            question = {**QUESTION, "attempt": f"attempt_{i}", "job": f"job_{i}"}
            sock = connected(agent)
            held.append(sock)
            sock.sendall(json.dumps(question).encode() + b"\n")
            with sock.makefile("rb") as file:
                file.readline()
                outcomes.append(json.loads(file.readline()))
        assert len(holders(agent)) <= 8
        refused = [each["refused"] for each in outcomes if "refused" in each]
        assert set(refused) == {"too-many-claims"}
        n_leases = 1 + (time.monotonic() - started_s) / lease_s
        assert len(refused) >= 1000 - 8 * n_leases, "when leases end some more get a place"
        alice = mapper(agent, "alice")
        assert alice.got()[2]
        assert any(user == "alice" for user, _ in holders(agent))
        alice.end()
    finally:
        for sock in held:
            sock.close()


@pytest.mark.parametrize("choose", ["agent", "first", "cpu"])
def test_the_mapper_for_trying_out_says_what_it_did(agents, master, choose):
    """`tests/fixtures/late_binding/timed_mapper.py`, as a benchmark runs it; docs/hdas.md shows how."""
    agent = agent_of(agents, master)
    script = ROOT / "tests/fixtures/late_binding/timed_mapper.py"
    words = [sys.executable, str(script), "--gpu-s", "0.1", "--cpu-s", "0.1", "--choose", choose]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ_of_mapper(agent.run_dir, 1)}
    done = subprocess.run(
        words, input=b"one\ntwo\n", capture_output=True, env=environ, cwd="/", timeout=300, check=True
    )
    facts = json.loads(done.stdout)
    assert (facts["form"], facts["is_decided"]) == ("cpu" if choose == "cpu" else "gpu", choose == "agent")
    assert (facts["bytes"], facts["node"], facts["job"]) == (8, "w1", "knn")
    assert facts["start_s"] < facts["end_s"]


@pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)
def test_a_user_of_the_node_needs_no_credential(open_path, agents, master):
    """Where containers run under their users' names the kernel says whose a mapper is."""
    agent = agent_of(agents, master, below=open_path)
    program = (
        "import json,os,socket,sys\n"
        "os.setgroups([]); os.setgid(1); os.setuid(1)\n"
        "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f=s.makefile('rwb',buffering=0)\n"
        "f.readline(); f.write(sys.argv[2].encode()+b'\\n'); f.readline(); print('got', flush=True)\n"
        "sys.stdin.read()"
    )
    words = ["python3", "-c", program, str(agent.run_dir / "claims.sock"), json.dumps(QUESTION)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout.readline() == "got\n"
        assert holders(agent) == [("daemon", "gpu")]
        daemon.communicate("")
