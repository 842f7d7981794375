"""The commands around the daemon: cycle, check-config, doctor, install, and pbs_sched's own habits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.command_server import run_command
from tests.fixtures.waiting import until
from torque_sched.emulation import EmulatedTorque

from .conftest import NODES, Daemon, Serve, complaints, free_port, spy, starts


def ours(torque: EmulatedTorque, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**torque.env, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    if words[0] not in {"serve", "install"} and "PYTHONUTF8" not in environment:
        return run_command("torque_sched", words, env=env)
    argv = [sys.executable, "-m", "torque_sched", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def home(torque: EmulatedTorque) -> str:
    (torque.home / "sched_priv").mkdir(exist_ok=True)
    return str(torque.home)


def test_a_dry_cycle_decides_and_changes_nothing(torque: EmulatedTorque, home: str) -> None:
    job = torque.submit("-l", "nodes=1:ppn=2", runtime_s=60)
    calls = spy(torque, "qrun", "qalter")
    before = sorted(Path(home, "sched_priv").iterdir())
    done = ours(torque, "cycle", "--dry-run", "--json", "-d", home)
    assert done.returncode == 0, done.stderr
    [decision] = json.loads(done.stdout)["decisions"]
    assert (decision["job"], decision["is"]) == (job, "start")
    assert calls.read_text(encoding="utf-8") == ""
    assert sorted(Path(home, "sched_priv").iterdir()) == before


def test_hidden_jobs_are_no_snapshot(torque: EmulatedTorque, home: str) -> None:
    for _ in range(3):
        torque.submit("-l", "nodes=1", runtime_s=60, user="bob")
    torque.run("qmgr", "-c", "set server query_other_jobs = False")
    assert ours(torque, "cycle", "--dry-run", "-d", home).returncode == 0
    done = ours(torque, "cycle", "--dry-run", "-d", home, EMULATED_USER="alice")
    assert (done.returncode, "qstat shows 0 of the 3 jobs" in done.stderr) == (1, True), done.stderr
    assert "operators +=" in done.stderr


def test_doctor_finds_all_well_and_a_dead_server(torque: EmulatedTorque, home: str) -> None:
    done = ours(torque, "doctor", "-d", home)
    assert done.returncode == 0, done.stdout
    assert "ok      snapshot: 4 nodes" in done.stdout
    assert "emulated" in done.stdout
    assert "nodes file" not in done.stdout
    # As real servers do with a name that has no address: the node is left out.
    names = Path(home, "server_priv", "nodes")
    names.write_text(f"# all of them\n{NODES}\nnode5 np=2\n", encoding="utf-8")
    lacks = f"warning nodes file: the server does not have node5, which {names}"
    assert lacks in ours(torque, "doctor", "-d", home).stdout
    torque.kill()
    done = ours(torque, "doctor", "-d", home)
    assert done.returncode == 1
    assert "WRONG   snapshot: " in done.stdout
    assert "cure: is pbs_server running" in done.stdout


def test_a_server_whose_clock_is_behind_is_scheduled_by_its_own_time(tmp_path: Path) -> None:
    """Doctor and status say how far the clocks differ, and the jobs start all the same."""
    server = EmulatedTorque.create(tmp_path / "cluster", nodes="n1 np=2\nn2 np=2\n", clock="manual")
    with server:
        (server.home / "sched_priv").mkdir(exist_ok=True)
        done = ours(server, "doctor", "-d", str(server.home))
        assert re.search(r"warning clock: this host's clock is \d+ s ahead of the server's", done.stdout)
        job = server.submit("-l", "nodes=1")
        daemon = Daemon(server, free_port())
        daemon.start()
        try:
            until(lambda: starts(server) == {job: 1}, "the start")
            [trouble] = until(lambda: daemon.state().get("trouble"), "the trouble")
            assert re.match(r"clock: this host's clock is \d+ s ahead of the server's", trouble)
            shown = ours(server, "status", "-d", str(server.home)).stdout
            assert "clock: this host's clock is" in shown
            assert "no word of the daemon" not in shown
        finally:
            daemon.kill()


def test_doctor_tells_what_the_daemon_lacks(torque: EmulatedTorque, home: str, serve: Serve) -> None:
    daemon = serve(timer_s=1)
    broken = Path(torque.path, "qstat.new")
    broken.write_text("#!/bin/sh\necho no licence >&2; exit 7\n")
    broken.chmod(0o755)
    broken.replace(broken.with_name("qstat"))  # the daemon runs it at any moment
    until(lambda: "no licence" in str(daemon.state().get("trouble")), "trouble")
    done = ours(torque, "doctor", "-d", home)
    assert done.returncode == 1
    assert re.search("^warning daemon: qstat .*no licence", done.stdout, re.MULTILINE), done.stdout
    assert "MiB free for" in done.stdout


def test_names_that_a_terminal_cannot_show(torque: EmulatedTorque, home: str) -> None:
    job = torque.submit("-N", "Größe", "-l", "nodes=1")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (("explain", job), ("showstart", job), ("status",), ("cycle", "--dry-run")):
        done = ours(torque, *words, "-d", home, **locale)
        assert (done.returncode in {0, 1}, complaints(done)) == (True, "")
    assert "Gr??e" in ours(torque, "explain", job, "-d", home, **locale).stdout


def test_check_config_names_unknown_keys(torque: EmulatedTorque, home: str) -> None:
    done = ours(torque, "check-config", "-d", home)
    assert (done.returncode, "timer_s: 30.0" in done.stdout) == (0, True), done.stderr
    Path(home, "sched_priv", "sched_config").write_text("round_robbin: true\nstrict_fifo: true\n")
    done = ours(torque, "check-config", "-d", home)
    assert (done.returncode, done.stderr.count("warning:")) == (0, 1), done.stderr
    bare = ours(torque, "check-config", "-d", home, PATH="/nowhere")
    assert (bare.returncode, bare.stderr.count("is not on PATH: set `commands`")) == (0, 4), bare.stderr
    assert "strict: true" in done.stdout
    assert "order: {name: c_order" in done.stdout
    assert "strict_fifo: true" in done.stdout
    Path(home, "sched_priv", "torque_sched.yaml").write_text("nodes: {avoid_bussy: true}\n")
    done = ours(torque, "check-config", "-d", home)
    assert done.returncode == 2
    assert "nodes.avoid_bussy: unknown key; known: avoid_busy" in done.stderr


def test_a_home_that_is_none_is_named(torque: EmulatedTorque, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, place in ((("status",), "file"), (("cycle", "--dry-run"), "nowhere")):
        done = ours(torque, *words, "-d", str(tmp_path / place))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(f"'-d' or PBS_HOME: {tmp_path / place} is no folder\n")


def test_version_and_usage_as_pbs_sched(torque: EmulatedTorque, home: str) -> None:
    done = ours(torque, "serve", "--version")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("version: ")
    done = ours(torque, "serve", "-x")
    assert (done.returncode, done.stderr.startswith("Usage:")) == (1, True)
    done = ours(torque, "serve", "-d", f"{home}/nowhere")
    assert (done.returncode, "is no folder" in done.stderr) == (1, True)
    Path(home, "sched_priv").chmod(0o777)
    done = ours(torque, "serve", "-d", home)
    assert (done.returncode, "Security violation" in done.stderr) == (1, True)


def test_installed_shim_goes_into_the_background_and_back(
    torque: EmulatedTorque, home: str, port: int, tmp_path: Path, serve: Serve
) -> None:
    sbin, units = tmp_path / "sbin", tmp_path / "units"
    sbin.mkdir()
    units.mkdir()
    original = "#!/bin/sh\necho the original\n"
    (sbin / "pbs_sched").write_text(original)
    words = ("install", "-d", home, "--sbin", str(sbin), "--units", str(units))
    words = (*words, "--records", str(tmp_path / "records"))
    done = ours(torque, *words)
    assert (done.returncode, (sbin / "pbs_sched").read_text()) == (0, original)
    assert "would write" in done.stdout
    for _ in range(2):
        assert ours(torque, *words, "--apply").returncode == 0
    assert (sbin / "pbs_sched.torque-original").read_text() == original
    assert "ExecStart=" in (units / "torque-sched.service").read_text()

    # As an init script calls it: no home, no commands on PATH, and a word that the C daemon does not mind.
    env = {**torque.env, "PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/usr/bin:/bin"}
    argv = [str(sbin / "pbs_sched"), "start", "-S", str(port)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "pbs_sched: ignored, as by the C daemon: start\n")
    pid = int(Path(home, "sched_priv", "sched.lock").read_text().strip("\0\n"))
    try:
        # What `start-stop-daemon --name` and `pidof` look for.
        assert Path(f"/proc/{pid}/comm").read_text() == "pbs_sched\n"
        assert Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0] == str(sbin / "pbs_sched")
        shown = lambda: json.loads(ours(torque, "status", "-d", home, "--json").stdout)["daemon"]  # noqa: E731
        assert until(lambda: shown()["last_cycle"], "the first cycle")["n_jobs"] == 0
        other = [*argv[:-1], str(free_port())]
        again = subprocess.run(other, env=env, capture_output=True, text=True, check=False)
        assert (again.returncode, "another scheduler running" in again.stderr) == (1, True), again.stderr
        assert "pbs_sched: pbs_sched:" not in again.stderr
        logs = Path(home, "sched_logs")
        until(lambda: any(f"startup pid {pid}" in path.read_text() for path in logs.iterdir()))
    finally:
        os.kill(pid, signal.SIGTERM)

    assert ours(torque, *words, "--undo").returncode == 0
    assert ours(torque, "install", "-d", home, "--sbin", f"{sbin}/nowhere").returncode == 2
    assert (sbin / "pbs_sched").read_text() == original
    assert [path.name for path in (*sbin.iterdir(), *units.iterdir())] == ["pbs_sched"]
    assert ours(torque, *words, "--undo").returncode == 3

    done = ours(torque, *words, "--no-shim", "--user", "sched", "--apply")
    assert "it is ours now" not in done.stdout
    assert f"chown -R sched {home}/sched_priv" in done.stdout
    assert "User=sched" in (units / "torque-sched.service").read_text()
    assert ours(torque, *words, "--undo").returncode == 0
