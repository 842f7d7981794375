"""The cluster: its hosts, its daemons, and what an administrator and users do at its head."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from xml.etree import ElementTree

from benchmarks.torque_site.binaries import PRIVATE, Binaries
from benchmarks.torque_site.homes import make_etc, make_home
from benchmarks.torque_site.host import Host, link

__all__ = ["NODES", "ROOT", "TorqueSite", "eventually", "torque_up"]

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
HEAD = "head"
NODES = "node1 np=2 slow\nnode2 np=4\nnode3 np=8 big\nnode4 np=4 gpus=2 gpunode\n"
"""The nodes file of most tests."""

_NETWORK = "10.78.0"
_UP_S = 60.0
_SETTINGS = """
create queue batch
set queue batch queue_type = Execution
set queue batch resources_default.nodes = 1
set queue batch resources_default.walltime = 01:00:00
set queue batch enabled = True
set queue batch started = True
set server default_queue = batch
set server keep_completed = 300
set server scheduler_iteration = 600
set server scheduling = True
"""


def eventually(what: str, probe: Callable[[], T], within_s: float = _UP_S) -> T:
    """Wait until the probe is true and return its value.

    Raises:
        AssertionError: it never was within the time.
    """
    end_s = time.monotonic() + within_s
    while not (value := probe()):
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {within_s:g} s: {what}; last: {value!r}")
        time.sleep(0.05)
    return value


class TorqueSite:
    """A real Torque; made by `torque_up`.

    Attributes:
        torque: its programs.
        home: the head's PBS home as seen from outside its namespaces.
        folder: everything of this cluster.
    """

    def __init__(self, torque: Binaries, folder: Path, nodes: str) -> None:
        self.torque = torque
        self.folder = folder
        self.nodes_text = nodes
        self.node_names = [line.split()[0] for line in nodes.splitlines() if line.strip()]
        self.home = folder / HEAD / "home"
        self.hosts: dict[str, Host] = {}

    # -- its life

    def up(self) -> None:
        """Hosts, network, daemons, one queue; nodes are up when this returns."""
        names = [HEAD, *self.node_names]
        numbers = [1, *range(11, 11 + len(self.node_names))]
        addresses = [f"{_NETWORK}.{number}" for number in numbers]
        etc = make_etc(self.folder, self.folder / "machine", zip(addresses, names, strict=True))
        for name in names:
            make_home(self.folder / name / "home", HEAD, is_head=name == HEAD)
            self.hosts[name] = Host(name, self._mounts(name, etc), self._interpreter)
        link(self.hosts[HEAD], [self.hosts[name] for name in self.node_names], _NETWORK)
        self.must("trqauthd")
        self.must("pbs_server", "-t", "create", "-f")
        eventually("pbs_server answers", lambda: self.run("qstat", "-B").returncode == 0)
        self.qmgr(_SETTINGS)
        self.stop_server()
        # Making a new server removes the nodes file.
        (self.home / "server_priv" / "nodes").write_text(self.nodes_text, encoding="ascii")
        self.start_server()
        for name in self.node_names:
            self.must("pbs_mom", host=name)
        eventually("all nodes up", lambda: set(self.node_states().values()) == {"free"})

    def _mounts(self, name: str, etc: Mapping[Path, Path]) -> dict[Path, Path]:
        """Own home, /tmp and /run; Python and this program where an ordinary user can read them."""
        own = self.folder / name
        shown = {
            "python": Path(sys.base_prefix),
            "site": Path(sysconfig.get_paths()["purelib"]),
            "ours": ROOT,
            "machine": Path("/etc"),
        }
        mounts = {self.folder / label: source for label, source in shown.items()}
        for label in shown:
            (self.folder / label).mkdir(exist_ok=True)
        for place in PRIVATE:
            (own / Path(place).name).mkdir(mode=0o755)
            mounts[Path(place)] = own / Path(place).name
        (own / "tmp").chmod(0o1777)
        return {**mounts, **etc, self.torque.home: own / "home"}

    def close(self) -> None:
        """End every process of the cluster."""
        for host in self.hosts.values():
            host.close()
        self.hosts.clear()

    # -- commands

    @property
    def env(self) -> dict[str, str]:
        """For every command in the cluster."""
        libraries = os.pathsep.join(map(str, self.torque.libraries))
        kept = {name: os.environ[name] for name in ("TZ",) if name in os.environ}
        return {**kept, "PATH": self.torque.path, "LD_LIBRARY_PATH": libraries, "LC_ALL": "C", "HOME": "/"}

    @property
    def _interpreter(self) -> Path:
        program = Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())
        return self.folder / "python" / program

    @property
    def python(self) -> list[str]:
        """The words that run this very Python in the cluster, for any user there."""
        paths = f"{self.folder / 'ours'}{os.pathsep}{self.folder / 'site'}"
        return ["env", f"PYTHONPATH={paths}", "PYTHONDONTWRITEBYTECODE=1", str(self._interpreter)]

    def argv(self, *words: str, user: str = "root", host: str = HEAD) -> list[str]:
        """The words that run a command in the cluster."""
        ids = None if user == "root" else (self.uid(user), self.uid(user))
        return self.hosts[host].inside(words, ids)

    def uid(self, user: str) -> int:
        """Number of one of the cluster's users."""
        return (self.folder / "users" / user).stat().st_uid

    def run(
        self, *words: str, user: str = "root", host: str = HEAD, text: str = "", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster, at its end or after ``timeout_s``."""
        return subprocess.run(
            self.argv(*words, user=user, host=host), env=self.env, cwd="/", input=text, capture_output=True,
            text=True, errors="replace", check=False, timeout=timeout_s,
        )  # fmt: skip

    def must(self, *words: str, user: str = "root", host: str = HEAD, text: str = "") -> str:
        """Run a command that has to work; returns what it printed."""
        done = self.run(*words, user=user, host=host, text=text)
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(words)}: exit code {done.returncode}: {done.stderr or done.stdout}"
            )
        return done.stdout

    def qmgr(self, text: str) -> None:
        """Give orders to qmgr, a line each."""
        self.must("qmgr", text="\n".join(line for line in text.splitlines() if line.strip()) + "\n")

    def submit(self, *words: str, script: str = "sleep 600", user: str = "alice") -> str:
        """Submit a job; returns its id."""
        return self.must("qsub", "-o", "/dev/null", "-e", "/dev/null", *words, user=user, text=script).strip()

    def submit_many(self, count: int, seconds: float, *words: str, user: str = "alice") -> list[str]:
        """Submit equal jobs in one go."""
        line = f'echo sleep {seconds} | qsub -o /dev/null -e /dev/null "$@"'
        loop = f"n=0; while [ $n -lt {count} ]; do {line} || exit 1; n=$((n+1)); done"
        done = self.run("sh", "-c", loop, "sh", *words, user=user, timeout_s=300.0)
        if done.returncode:
            raise RuntimeError(f"qsub: {done.stderr}")
        return done.stdout.split()

    # -- what the server has

    def jobs(self) -> dict[str, dict[str, str]]:
        """Every job's attributes, nested ones joined by a dot."""
        found: dict[str, dict[str, str]] = {}
        text = self.must("qstat", "-f", "-t", "-x")
        # 4.2 prints nothing at all where there is no job.
        for record in ElementTree.fromstring(text).iter("Job") if text.strip() else ():
            values = {}
            for entry in record:
                values[entry.tag] = entry.text or ""
                values.update({f"{entry.tag}.{each.tag}": each.text or "" for each in entry})
            found[values["Job_Id"]] = values
        return found

    def job(self, name: str) -> dict[str, str]:
        """One job's attributes; empty when the server does not know it."""
        return self.jobs().get(name, {})

    def state(self, name: str) -> str:
        """One job's state letter; ``-`` when the server does not know it."""
        return self.job(name).get("job_state", "-")

    def node_states(self) -> dict[str, str]:
        """Each node's state."""
        nodes = ElementTree.fromstring(self.must("pbsnodes", "-x")).iter("Node")
        return {node.findtext("name", ""): node.findtext("state", "") for node in nodes}

    def accounting(self) -> list[str]:
        """The server's accounting, a record each."""
        files = sorted((self.home / "server_priv" / "accounting").iterdir())
        return [line for path in files for line in path.read_text(errors="replace").splitlines()]

    def starts(self) -> Counter[str]:
        """How often each job was started, by the server's own accounting."""
        records = (line.split(";", 3) for line in self.accounting())
        return Counter(record[2] for record in records if record[1] == "S")

    def delete_all(self) -> None:
        """Every job gone, so that the next test begins with an empty cluster."""

        def left() -> list[str]:
            return [name for name, job in self.jobs().items() if job["job_state"] != "C"]

        end_s = time.monotonic() + _UP_S
        while names := left():
            how = "-p" if time.monotonic() > end_s - _UP_S / 2 else "-W0"
            for at in range(0, len(names), 50):
                self.run("qdel", how, *names[at : at + 50])
            if time.monotonic() > end_s:
                raise AssertionError(f"jobs that cannot be deleted: {names}")
            time.sleep(0.3)

    def forget_scheduler(self) -> None:
        """Remove what a scheduler left, so that the next one begins with nothing."""
        for folder in (self.home / "sched_priv", self.home / "sched_logs"):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.folder / "daemon.err").unlink(missing_ok=True)

    # -- daemons

    def signal_server(self, number: signal.Signals) -> None:
        """Send pbs_server a signal."""
        self._signal(HEAD, "server_priv/server.lock", number)

    def stop_server(self) -> None:
        """``qterm -t quick``: jobs go on."""
        self.must("qterm", "-t", "quick")
        eventually("pbs_server ends", lambda: self.run("qstat", "-B").returncode != 0)

    def start_server(self) -> None:
        """Start pbs_server with what it had."""
        eventually("pbs_server starts", lambda: self.run("pbs_server").returncode == 0)
        eventually("pbs_server answers", lambda: self.run("qstat", "-B").returncode == 0)

    def stop_mom(self, node: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a node's mom; its jobs go on. SIGSTOP makes it hang instead."""
        self._signal(node, "mom_priv/mom.lock", number)

    def restart_mom(self, node: str) -> None:
        """End a node's mom and start it with the configuration of now."""
        self.stop_mom(node)
        time.sleep(0.3)  # the kernel has to give its ports back
        self.start_mom(node)

    def start_mom(self, node: str) -> None:
        """Start a node's mom, which takes over the jobs that run there."""
        self.must("pbs_mom", "-p", host=node)

    def _signal(self, host: str, lock: str, number: signal.Signals) -> None:
        pid = (self.folder / host / "home" / lock).read_text(encoding="ascii").split("\0")[0].split()[0]
        self.must("sh", "-c", f"kill -{number.value} {pid}", host=host)


@contextmanager
def torque_up(torque: Binaries, nodes: str = NODES) -> Iterator[TorqueSite]:
    """Bring a cluster up and take it down.

    Args:
        torque: from `binaries.found`.
        nodes: text of the nodes file.

    Raises:
        RuntimeError: something did not start; its words are in the error.
    """
    # Not below /tmp: there every host has its own.
    folder = Path(tempfile.mkdtemp(prefix="torque-real-", dir="/var/tmp"))
    folder.chmod(0o755)
    site = TorqueSite(torque, folder, nodes)
    try:
        site.up()
        yield site
    finally:
        site.close()
        with suppress(OSError):
            shutil.rmtree(folder)
