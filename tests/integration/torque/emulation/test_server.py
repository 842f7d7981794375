"""The emulated server as a process: its programs on PATH, events, faults, SIGKILL, scripts that really
run."""

from __future__ import annotations

import os
import random
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.examples import ALL
from tests.fixtures.waiting import until
from torque_sched.cli import main
from torque_sched.emulation import EmulatedTorque, Fault
from torque_sched.errors import ConfigError, StartupError

CAPTURES = Path(__file__).resolve().parents[3] / "golden" / "torque"
NODES = "node1 np=2 slow\nnode2 np=4\nnode3 np=8 big\nnode4 np=4 gpus=2 gpunode\n"


@pytest.fixture
def torque(tmp_path: Path) -> Iterator[EmulatedTorque]:
    with EmulatedTorque.create(tmp_path / "cluster", nodes=NODES, clock="manual", next_job=44) as made:
        yield made


@pytest.fixture
def submitted_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that is not told a place goes to where qsub was called."""
    monkeypatch.chdir(tmp_path)


def test_one_job_from_qsub_to_accounting(torque: EmulatedTorque) -> None:
    job = torque.submit("-l", "nodes=1:ppn=2", "-N", "one", runtime_s=30, exit_status=4, cpu=0.5, mem="1gb")
    assert torque.run("qrun", "-a", "-H", "node3:ppn=2", job).returncode == 0
    assert torque.jobs()[job]["exec_host"] == "node3/0-1"
    assert torque.nodes()["node3"]["jobs"] == f"0-1/{job}"
    torque.clock.advance(31)
    assert torque.jobs()[job]["exit_status"] == "4"
    assert [line.split(";")[1] for line in torque.accounting()] == ["Q", "S", "E"]
    assert torque.run("qmgr", "-c", "print server").stdout.startswith("#\n# Create queues")
    assert "pbs_version = 6.1.3.h5-emulated" in torque.run("qstat", "-B", "-f").stdout


@pytest.mark.parametrize(
    ("command", "code"), [("qstat -f -x", 111), ("pbsnodes -x", 1), ("qrun -H node3 1", 2), ("qmgr -c x", 3)]
)
def test_without_a_server(tmp_path: Path, command: str, code: int) -> None:
    torque = EmulatedTorque.create(tmp_path, nodes=NODES)
    words = command.split()
    done = torque.run(*words)
    real = (CAPTURES / f"serverdown-{words[0]}.stderr.txt").read_text(encoding="utf-8")
    assert (done.stdout, done.stderr.replace("127.0.0.1", "10.77.0.1"), done.returncode) == ("", real, code)


def test_unknown_server_name(torque: EmulatedTorque) -> None:
    done = torque.run("qstat", environment={"PBS_DEFAULT": "nosuchhost"})
    real = (CAPTURES / "qmgr-not-connected.stderr.txt").read_text(encoding="utf-8")
    assert (done.stderr, done.returncode) == (real, 162)


def test_the_python_client_says_the_same_as_the_compiled_one(
    torque: EmulatedTorque, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torque_sched.emulation import install

    if shutil.which("cc"):
        assert (torque.path / "qstat").read_bytes().startswith(b"\x7fELF")
    monkeypatch.setattr(install, "_compiled_client", lambda: None)
    # Not qstat -B: each connection moves the server's net_counter.
    asked = (("qstat", "-Q", "-f"), ("qrun",), ("pbsnodes", "nosuch"))
    before = {words: torque.run(*words) for words in asked}
    names = [path.name for path in torque.path.iterdir()]
    for name in names:
        (torque.path / name).unlink()
    install._write_programs(torque.path, [name for name in names if name != "pbs_server"])
    for words, done in before.items():
        again = torque.run(*words)
        assert (again.stdout, again.stderr, again.returncode) == (done.stdout, done.stderr, done.returncode)
    assert torque.submit("-N", "piped") == "44.head"
    torque.stop()
    assert torque.run("qstat").returncode == 111


@pytest.mark.parametrize("by", ["scheduler", "listener"])
def test_events_arrive(tmp_path: Path, by: str) -> None:
    got: list[tuple[int, int]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(120)
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        scheduler = target if by == "scheduler" else ""
        torque = EmulatedTorque.create(tmp_path, nodes=NODES, event_target=scheduler, event_gap_s=0.1)
        torque.listeners = () if scheduler else (target,)

        def listen() -> None:
            while len(got) < 3:
                connection, peer = listener.accept()
                with connection:
                    data = connection.recv(5)
                    got.append((struct.unpack(">I", data)[0], peer[1]))
                    assert connection.recv(1) == b""

        thread = threading.Thread(target=listen)
        thread.start()
        with torque:
            until(lambda: len(got) == 1)
            job = torque.submit()
            until(lambda: len(got) == 2)
            # The end of a job that never ran is told only when the server forgets it.
            torque.run("qrun", job)
            torque.run("qdel", job)
            thread.join()
    assert [code for code, _ in got] == [10, 1, 2]
    if os.geteuid() == 0:
        assert all(port < 1024 for _, port in got)


def test_a_restart_with_jobs_is_followed_by_empty_events(tmp_path: Path) -> None:
    torque = EmulatedTorque.create(tmp_path, nodes=NODES, event_target="127.0.0.1:9", event_gap_s=0)
    with torque:
        torque.submit()
        until(lambda: [event.code for event in torque.events()] == [10, 1])
        torque.kill()
        torque.start()
        until(lambda: [event.code for event in torque.events()] == [10, 1, 10, 0, 0, 0])


@pytest.mark.parametrize(("version", "second"), [("6.1.3", "node4-gpu/1"), ("4.2.10", "node4-gpu/0")])
def test_4_2_10_gives_gpus_away_again_after_its_restart(tmp_path: Path, version: str, second: str) -> None:
    """Seen on both after SIGKILL and after `qterm -t quick`."""
    with EmulatedTorque.create(tmp_path, nodes=NODES, clock="manual", version=version) as torque:
        jobs = [torque.submit("-l", "nodes=1:gpus=1", runtime_s=600) for _ in range(2)]
        torque.run("qrun", "-H", "node4:gpus=1", jobs[0])
        torque.kill()
        torque.start()
        assert torque.run("qrun", "-H", "node4:gpus=1", jobs[1]).returncode == 0
        assert [torque.jobs()[job]["exec_gpus"] for job in jobs] == ["node4-gpu/0", second]


def test_faults(torque: EmulatedTorque) -> None:
    job = torque.submit()
    whole = torque.run("qstat", "-f", "-t", "-x").stdout
    torque.set_faults(
        Fault("qstat", "partial", fraction=0.5, times=1),
        Fault("pbsnodes", "exit", code=7, text="strange\n"),
        Fault("qrun", "exit", code=2, text="lost\n", performs=True),
        Fault("qdel", "gone"),
    )
    assert torque.run("qstat", "-f", "-t", "-x").stdout == whole[: len(whole.encode()) // 2]
    assert torque.run("qstat", "-f", "-t", "-x").stdout == whole
    done = torque.run("pbsnodes", "-x")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "strange\n")
    assert torque.run("qrun", "-H", "node1", job).returncode == 2
    assert torque.jobs()[job]["job_state"] == "R"
    assert torque.run("qdel", job).returncode == 111
    torque.set_faults(Fault("qstat", "hang"), Fault("pbsnodes", "slow", seconds=0.6, skip=1))
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([str(torque.path / "qstat")], timeout=0.5, check=False)
    for least_s in (0.0, 0.6):
        before_s = time.monotonic()
        assert torque.run("pbsnodes", "-x").returncode == 0
        assert time.monotonic() - before_s >= least_s
    torque.set_faults()
    assert torque.run("qstat").returncode == 0
    with pytest.raises(ConfigError, match="known are"):
        Fault("qstat", "odd")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_servers_lose_nothing_they_told(tmp_path: Path, seed: int) -> None:
    """Jobs are submitted and started from four threads while the server dies again and again."""
    chance = random.Random(seed)
    torque = EmulatedTorque.create(tmp_path, shape="8xnp=8", clock="manual")
    torque.start()
    told: dict[str, str] = {}
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            done = torque.run("qsub", "-l", "nodes=1", user="alice", stdin="sleep 1\n")
            job = done.stdout.strip()
            if done.returncode == 0 and job:
                told[job] = "Q"
                if torque.run("qrun", "-H", f"node{number + 1}", job).returncode == 0:
                    told[job] = "R"

    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(work, number)
        try:
            for _ in range(4 if ALL else 2):
                time.sleep(chance.uniform(0.05, 0.25))
                torque.kill()
                torque.start()
            until(lambda: told)
        finally:
            stop.set()
    try:
        known = torque.jobs()
        assert told
        for job, state in told.items():
            assert known[job]["job_state"] in ("R" if state == "R" else "QR")
        running = [job for job in known if known[job]["job_state"] == "R"]
        records = [line.split(";")[1:3] for line in torque.accounting()]
        for kind, wanted in (("Q", known), ("S", running)):
            assert sorted(job for of, job in records if of == kind) == sorted(wanted)
    finally:
        torque.stop()


def test_scripts_really_run(tmp_path: Path, submitted_there: None) -> None:
    out = tmp_path / "out"
    out.mkdir()
    torque = EmulatedTorque.create(tmp_path / "cluster", nodes=NODES, execute=True)
    script = 'cat "$PBS_NODEFILE" "$PBS_GPUFILE"\necho $PBS_JOBID $PBS_NP $CUDA_VISIBLE_DEVICES $WHAT >&2\n'
    script += "exit 5\n"
    with torque:
        words = ("-l", "nodes=1:ppn=2:gpus=1", "-j", "oe", "-v", "WHAT=ever")
        job = torque.submit(*words, "-o", str(out / "text"), script=script)
        torque.run("qrun", "-H", "node4:ppn=2:gpus=1", job)
        until(lambda: torque.jobs()[job]["job_state"] == "C")
        assert torque.jobs()[job]["exit_status"] == "5"
        text = (out / "text").read_text(encoding="utf-8")
        assert text == f"node4\nnode4\nnode4-gpu0\n{job} 2 0 ever\n"
        long = "echo begun\nexec sleep 600\n"
        killed = torque.submit("-l", "nodes=1", "-o", str(out / "long"), script=long)
        torque.run("qrun", "-H", "node1", killed)
        until(lambda: (out / "long").exists() and (out / "long").read_text(encoding="utf-8"))
        torque.run("qdel", killed)
        assert torque.jobs()[killed]["exit_status"] == "271"


def test_a_killed_server_takes_up_its_scripts_again(tmp_path: Path, submitted_there: None) -> None:
    out = tmp_path / "out"
    out.mkdir()
    torque = EmulatedTorque.create(tmp_path / "cluster", nodes=NODES, execute=True)
    torque.start()
    try:
        jobs = []
        for number in range(4):
            job = torque.submit("-l", "nodes=1", script=f"echo x >> {out}/{number}\nsleep 0.4\n")
            torque.run("qrun", "-H", "node2", job)
            jobs.append(job)
        torque.kill()
        torque.start()
        until(lambda: all(torque.jobs()[job]["job_state"] == "C" for job in jobs))
        assert [torque.jobs()[job]["exit_status"] for job in jobs] == ["0"] * 4
        assert [(out / str(number)).read_text(encoding="utf-8") for number in range(4)] == ["x\n"] * 4
    finally:
        torque.stop()


def test_stopping_ends_the_scripts_and_nothing_else(tmp_path: Path, submitted_there: None) -> None:
    """Also one that ignores SIGTERM; a process that has got a number of before is left alone."""
    torque = EmulatedTorque.create(tmp_path / "cluster", nodes=NODES, execute=True)
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        torque.start()
        folders = []
        for number, script in enumerate(["sleep 600 & wait\n", "trap '' TERM\nsleep 600\nsleep 600\n"]):
            job = torque.submit("-l", "nodes=1", script=f"echo > {tmp_path}/{number}\n{script}")
            torque.run("qrun", "-H", "node2", job)
            folders.append(torque.home / "run" / f"{job}.1")
        until(lambda: all((tmp_path / str(number)).exists() for number in range(2)))
        pids = [int((folder / "pid").read_text().split()[0]) for folder in folders]
        forged = torque.home / "run" / "77.head.1"
        forged.mkdir()
        (forged / "pid").write_text(f"{other.pid} 1\n")
        torque.stop()
        until(lambda: not _alive(pids))
        assert other.poll() is None
        torque.start()
        until(lambda: {each["job_state"] for each in torque.jobs().values()} == {"C"})
    finally:
        torque.stop()
        other.kill()
        other.wait()


def _alive(groups: list[int]) -> set[int]:
    """Those of which a process is no zombie."""
    found = set()
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = each.read_text().rpartition(")")[2].split()
            found |= {int(fields[2])} if fields[0] != "Z" else set()
    return found & set(groups)


def test_the_command_line(tmp_path: Path) -> None:
    folder = str(tmp_path / "cluster")
    runner = CliRunner()

    def call(*words: str, code: int = 0) -> str:
        result = runner.invoke(main, ["emulate", folder, *words])
        assert result.exit_code == code, result.output
        return result.output

    call("init", "--shape", "2xnp=4,gpus=1", "--clock", "manual", "--scheduler", "127.0.0.1:9")
    assert "already" in call("init", "--shape", "1xnp=1", code=1)
    call("start")
    with pytest.raises(StartupError, match="owns it"):
        EmulatedTorque(Path(folder)).start()
    try:
        call("node", "node1", "mom=stopped")
        assert "known keys" in call("node", "node1", "colour=red", code=1)
        call("advance", "200")
        torque = EmulatedTorque(Path(folder))
        assert torque.nodes()["node1"]["state"] == "down"
        call("fault", "qstat", "exit", "--code", "9")
        assert torque.run("qstat").returncode == 9
        call("fault")
        assert torque.run("qstat").returncode == 0
    finally:
        call("stop")
    assert torque.pid == 0


def test_qterm_ends_the_server_and_leaves_the_jobs(tmp_path: Path) -> None:
    with EmulatedTorque.create(tmp_path / "cluster", nodes="node1 np=2\n") as torque:
        job = torque.submit("-l", "nodes=1", runtime_s=600)
        assert torque.run("qrun", "-H", "node1", job).returncode == 0
        refused = torque.run("qterm", user="alice")
        assert (refused.returncode, "Unauthorized Request" in refused.stderr) == (2, True)
        done = torque.run("qterm", "-t", "quick")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        until(lambda: torque.run("qstat").returncode == 111)
        assert "could not connect to server" in torque.run("qterm").stderr
        torque.stop()
        torque.start()
        assert torque.jobs()[job]["job_state"] == "R"
