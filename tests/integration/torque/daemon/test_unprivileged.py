"""The daemon under an ordinary user's id: what it says it cannot do, and that an operator can run it."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import torque_sched
from torque_sched.emulation import EmulatedTorque

from .conftest import NODES, free_port, starts, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(
        shutil.which("setpriv") is None or shutil.which("unshare") is None, reason="util-linux is not here"
    ),
]
USER = "nobody"


@dataclass
class Stranger:
    """Runs our program as somebody who may neither read root's files nor write anywhere but his own."""

    place: Path
    torque: EmulatedTorque

    def argv(self, *words: str) -> list[str]:
        """The interpreter may lie in a folder of root's alone: a mount of our own shows it to him, too."""
        program = Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())
        shown = {
            "python": Path(sys.base_prefix),
            "site": Path(sysconfig.get_paths()["purelib"]),
            "ours": Path(torque_sched.__file__).parents[1],
        }
        lines = []
        for name, source in shown.items():
            (self.place / name).mkdir(exist_ok=True)
            lines.append(f"mount --bind {shlex.quote(str(source))} {self.place / name} || exit 99")
        group = pwd.getpwnam(USER).pw_gid
        lines.append(f'exec setpriv --reuid={USER} --regid={group} --clear-groups "$@"')
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines), "as"]
        return [*command, str(self.place / "python" / program), "-m", "torque_sched", *words]

    @property
    def env(self) -> dict[str, str]:
        """The emulation must take him for who he is: nothing here names another user."""
        paths = f"{self.place / 'ours'}{os.pathsep}{self.place / 'site'}"
        kept = {name: text for name, text in self.torque.env.items() if not name.startswith("EMULATED_")}
        return {**kept, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words), env=self.env, cwd="/", capture_output=True, text=True, check=False, timeout=300
        )

    def log(self) -> str:
        return "".join(
            each.read_text("utf-8") for each in sorted((self.torque.home / "sched_logs").iterdir())
        )


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def stranger(port: int) -> Iterator[Stranger]:
    # Not tmp_path: it lies below a folder that only its owner may enter.
    place = Path(tempfile.mkdtemp(prefix="torque-sched-"))
    place.chmod(0o755)
    try:
        made = EmulatedTorque.create(
            place / "cluster",
            nodes=NODES,
            event_target=f"127.0.0.1:{port}",
            server={"keep_completed": "300", "scheduler_iteration": "2"},
        )
        with made:
            for name in ("sched_priv", "sched_logs"):
                shutil.chown(made.home / name, USER)
            (made.home / "server_priv").chmod(0o750)
            (made.home / "socket").chmod(0o666)
            settings = {"restricted": ["*"], "retry_s": 0.3, "timer_s": 3600}
            (made.home / "sched_priv" / "torque_sched.yaml").write_text(yaml.safe_dump(settings), "utf-8")
            found = Stranger(place, made)
            probe = found.run("--version")
            if probe.returncode == 99 or "unshare" in probe.stderr:
                pytest.skip(f"needs root that may mount: {probe.stderr.strip()}")
            assert probe.returncode == 0, probe.stderr
            yield found
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_an_operator_without_root_schedules(stranger: Stranger, port: int) -> None:
    torque = stranger.torque
    job = torque.submit("-l", "nodes=1:ppn=2", runtime_s=600)
    argv = stranger.argv("serve", "-d", str(torque.home), "-S", str(port))
    with (stranger.place / "err").open("wb") as errors:
        daemon = subprocess.Popen(argv, env=stranger.env, cwd="/", stderr=errors)
    try:
        until(lambda: f"startup pid {daemon.pid}" in stranger.log() or daemon.poll() is not None, "start-up")
        owner = (Path("/proc") / str(daemon.pid) / "status").read_text("utf-8")
        assert f"Uid:\t{pwd.getpwnam(USER).pw_uid}\t" in owner
        said = stranger.log()
        assert "not root: this user must be a Torque operator" in said
        assert "not root: the server's accounting cannot be read" in said
        assert "sched_logs is not writable" not in said
        # An ordinary user of Torque: he is not even shown the others' jobs, and says what would help.
        until(lambda: "other users' jobs are hidden from this user" in stranger.log(), "the complaint")
        torque.run("qmgr", "-c", "set server query_other_jobs = True")
        until(lambda: "Unauthorized Request" in stranger.log(), "the refusal")
        assert starts(torque) == {}
        # The right that the facts name is all it takes.
        torque.run("qmgr", "-c", "set server query_other_jobs = False")
        torque.run("qmgr", "-c", f"set server operators += {USER}@head")
        until(lambda: torque.jobs()[job]["job_state"] == "R", "the start")
        until(lambda: torque.jobs()[job].get("comment", "").startswith("Job started on"), "the comment")
        assert starts(torque) == {job: 1}
        daemon.terminate()
        assert daemon.wait(60) == 1
        assert "die;caught signal 15\n" in stranger.log()
        assert "Traceback" not in stranger.log() + (stranger.place / "err").read_text("utf-8")
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def test_what_it_cannot_do_is_said_before_it_begins(stranger: Stranger) -> None:
    home = stranger.torque.home
    shutil.chown(home / "sched_logs", "root")
    done = stranger.run("serve", "-d", str(home), "-S", str(free_port()))
    assert (done.returncode, "name a log with -L" in done.stderr) == (1, True), done.stderr
    shutil.chown(home / "sched_priv", "root")
    done = stranger.run("serve", "-d", str(home), "-S", str(free_port()), "-L", os.devnull)
    assert (done.returncode, "sched.lock: Permission denied" in done.stderr) == (1, True), done.stderr
    done = stranger.run("serve", "-d", str(home), "-S", "604", "-L", os.devnull)
    assert (done.returncode, "ports below 1024 are root's" in done.stderr) == (1, True), done.stderr
    done = stranger.run("doctor", "-d", str(home))
    assert f"is not writable for {USER}" in done.stdout
    assert f"qmgr -c 'set server operators += {USER}@" in done.stdout
