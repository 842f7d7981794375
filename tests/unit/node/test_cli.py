"""The commands of a node, and what they print."""

import configparser
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from yarn_accel.adapters.signed_http import sender_key
from yarn_accel.errors import ConfigError, UnavailableError
from yarn_accel.node.cli import claims_text, group, request_claims


def run(*arguments, **environ):
    result = CliRunner().invoke(group, [str(each) for each in arguments], env=environ, catch_exceptions=False)
    return result.exit_code, result.output


def test_help_names_every_command():
    code, output = run("--help")
    assert code == 0
    for command in (
        *("agent", "check-config", "make-key", "make-secret", "print-unit", "print-attribute-script"),
    ):
        assert command in output


def test_check_config(tmp_path):
    path = tmp_path / "node.yaml"
    path.write_text("node: w1\n")
    code, output = run("check-config", "--config", path)
    assert code == 0
    assert 'node: "w1"  # this node\'s name' in output
    path.write_text("nodes: w1\n")
    with pytest.raises(ConfigError, match="unknown key"):
        run("check-config", "--config", path)


def test_a_key_for_each_node(tmp_path):
    run("make-secret", tmp_path / "secret")
    secret = bytes.fromhex((tmp_path / "secret").read_text())
    assert len(secret) == 32
    run("make-key", "--secret-file", tmp_path / "secret", "w1", tmp_path / "w1.key")
    assert bytes.fromhex((tmp_path / "w1.key").read_text()) == sender_key(secret, "agent:w1")
    assert (tmp_path / "w1.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="File exists"):
        run("make-secret", tmp_path / "secret")
    with pytest.raises(ConfigError, match="No such file"):
        run("make-key", "--secret-file", tmp_path / "no", "w1", tmp_path / "x")
    (tmp_path / "bad").write_text("xyz")
    with pytest.raises(ConfigError, match="not hexadecimal"):
        run("make-key", "--secret-file", tmp_path / "bad", "w1", tmp_path / "x")


def test_the_agent_wants_a_key(tmp_path):
    with pytest.raises(ConfigError, match="key_file is not set"):
        run("agent", "--node", "w1", "--run-dir", tmp_path, HADOOP_TOKEN_FILE_LOCATION="")


def test_the_attribute_script_stands_alone(tmp_path):
    _, output = run("print-attribute-script")
    path = tmp_path / "script.py"
    path.write_text(output)
    completed = subprocess.run([sys.executable, "-I", "-S", path], capture_output=True, text=True, check=True)
    assert "NODE_ATTRIBUTE:accel-health,STRING,none" in completed.stdout


def test_the_unit_is_one():
    _, output = run("print-unit")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(output)
    assert unit["Service"]["ExecStart"].split()[1:4] == ["-m", "yarn_accel.node", "agent"]
    assert (unit["Service"]["Restart"], unit["Service"]["RuntimeDirectory"]) == ("always", "yarn-accel")


def test_a_dry_run_sends_nothing_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("yarn_accel.node.agent._PREVIEW_S", 0.05)
    run_dir = tmp_path / "run"
    code, output = run("agent", "--dry-run", "--node", "w1", "--run-dir", run_dir)
    found = json.loads(output)
    assert code == 0
    assert found["master"] == {"urls": [], "why": "no master is configured: set rm_urls or master_url"}
    assert found["heartbeat"]["node"] == "w1"
    assert found["heartbeat"]["nic"]
    assert not run_dir.exists()


def test_errors_become_a_line_and_an_exit_code():
    completed = subprocess.run(
        [sys.executable, "-m", "yarn_accel.node", "check-config", "--config", "/no/such/file"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr == "yarn-accel: /no/such/file: No such file or directory\n"


CLAIM = {"attempt": "attempt_1", "user": "alice", "name": "k\x1b[31mnn", "form": "gpu", "gpus": [0]}
CLAIM |= {"age_s": 3.0, "renewed_s_ago": 0.4, "is_reading": True}
DECISION = {"age_s": 3.0, "attempt": "attempt_1", "job": "alice/job_1", "form": "gpu", "waited_s": 1.5}
DECISION["reason"] = "(a) least delay 1.2"
DECISION["candidates"] = {
    "gpu": [
        {"job": "alice/job_1", "predicted_delay": 1.2, "excluded": ""},
        {"job": "bob/job_2", "predicted_delay": None, "excluded": "its form gpu was not measured yet"},
    ],
    "cpu": [],
}
FOUND = {"node": "w1", "policy": "hdas", "cores": 4, "gpus": [0, 1], "counts_age_s": 12.0}
FOUND |= {"are_counts_used": False, "claims": [CLAIM], "decisions": [DECISION]}


def test_holders_decisions_and_all_candidates_are_shown_without_commands_to_the_terminal():
    text = claims_text(FOUND)
    assert "counts of the cluster: 12.0 s old, too old to be used" in text
    assert "attempt_1 of alice (k?[31mnn): gpu [0] since 3.0 s, reads" in text
    assert "gpu after 1.5 s: (a) least delay 1.2" in text
    assert "gpu alice/job_1: delay 1.2" in text
    assert "gpu bob/job_2: not measured; its form gpu was not measured yet" in text


def test_a_node_that_nobody_asked_says_so():
    assert "no mapper has asked yet" in claims_text({"node": "w1", "policy": "hdas", "claims": []})


def test_where_no_agent_listens_the_socket_is_named(tmp_path):
    with pytest.raises(UnavailableError, match=r"agent\.sock: no such file.*--run-dir"):
        request_claims(tmp_path / "agent.sock")
