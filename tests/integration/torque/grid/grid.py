"""Four sites on one machine, each with a network namespace, an emulated Torque or OpenPBS and a site process.

A namespace of its own holds two bridges; every site's cable ends on one of them. Moving a cable to the other
bridge partitions the grid, unplugging it cuts a site off. Nothing outside these namespaces is touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from tests.fixtures.waiting import DEADLINE_S, until
from tests.unit.torque.grid.linked import make_certificate, make_key
from torque_sched.emulation import EmulatedOpenPbs, EmulatedTorque

T = TypeVar("T")
NAMES = ("alpha", "beta", "gamma", "delta")
WITH_GPUS = frozenset({"alpha", "delta"})
"""Their nodes have a GPU each, and the property `fast`."""
USER = "nobody"
MAPPED = "daemon"
METRICS_PORT = 9100
FIGURES = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=20).read().decode())
"""
STAGER = """#!/bin/sh
# stager in|out SITE PEER JOB BLOCK USER FOLDER TOKEN
cd "$(dirname "$0")" || exit 1
echo "$*" >> staged
while [ -e "wait-at-$2" ]; do sleep 0.1; done
if [ -e "no-space-at-$2" ]; then echo "no space at $2" >&2; exit 5; fi
file="file.$3.$4.$5"
if [ "$1" = in ]; then echo "of home" > "$file"; chmod 666 "$file"; else mv "$file" "$file.back"; fi
"""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class GridSite:
    """One site."""

    def __init__(self, grid: Grid, number: int, name: str, nodes: int) -> None:
        self.grid, self.number, self.name = grid, number, name
        self.space = f"{grid.tag}{name[0]}"
        self.port = f"s{number}"
        self.address = f"10.77.0.{number + 1}"
        self.folder = grid.folder / name
        batch = {"queue_type": "Execution", "enabled": "True", "started": "True",
                 "resources_default.walltime": "01:00:00", "resources_default.nodes": "1"}  # fmt: skip
        self.torque = self._openpbs() if name in grid.openpbs else EmulatedTorque.create(
            self.folder, shape=f"{nodes}xnp=2" + (",gpus=1,fast" if name in WITH_GPUS else ""), execute=True,
            server_name=name, event_target="127.0.0.1:15004", queues={"batch": batch},
            server={"scheduler_iteration": "5"},
        )  # fmt: skip
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._asked: set[str] = set()
        self.log = grid.folder / f"{name}.log"
        self.settings = self.folder / "site.yaml"

    def _openpbs(self) -> EmulatedTorque:
        """An OpenPBS instead, of which these tests use what is the same."""
        made = EmulatedOpenPbs.create(
            self.folder, shape="2xnp=2", execute=True, server_name=self.name,
            server={"job_history_enable": "True"},
        )  # fmt: skip
        return cast("EmulatedTorque", made)

    # -- its network

    def plug(self, bridge: str = "one") -> None:
        """Put its cable on a bridge."""
        _ip("-n", self.grid.hub, "link", "set", self.port, "master", bridge, "up")

    def unplug(self) -> None:
        """Pull its cable."""
        _ip("-n", self.grid.hub, "link", "set", self.port, "down")

    def make_network(self) -> None:
        """Namespace and cable."""
        _ip("netns", "add", self.space)
        cable = f"link add {self.port} type veth peer name eth0 netns {self.space}"
        _ip("-n", self.grid.hub, *cable.split())
        for words in ("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            _ip("-n", self.space, *words.split())
        self.plug()

    # -- its processes

    def inside(self, *argv: str) -> list[str]:
        """The words that run a command in its namespace."""
        return ["ip", "netns", "exec", self.space, *argv]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``torque-sched site WORDS`` here."""
        argv = self._ours("site", *self._of_home(self.settings), *words)
        return subprocess.run(
            argv, env=self.torque.env, capture_output=True, text=True, check=False, timeout=300
        )

    def _ours(self, *words: str) -> list[str]:
        return self.inside(sys.executable, "-m", "torque_sched", *words)

    def _of_home(self, settings: Path) -> tuple[str, ...]:
        return "-d", str(self.torque.home), "--config", str(settings)

    def _start(self, *words: str, is_own: bool = True) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._ours(*words), env=self.torque.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=is_own,
            )  # fmt: skip

    def start_torque(self) -> subprocess.Popen[bytes]:
        """The emulated server; the process ends when it is up."""
        return self._start("emulate", str(self.folder), "start", is_own=False)

    def start_scheduler(self) -> None:
        """The local scheduler."""
        settings = self.folder / "torque_sched.yaml"
        settings.write_text(yaml.safe_dump({"timer_s": 2.0, "settle_s": 0.1, "addresses": ["127.0.0.1"]}))
        self._running["scheduler"] = self._start("serve", *self._of_home(settings))

    def start_site(self) -> None:
        """The site process."""
        self._running["site"] = self._start("site", *self._of_home(self.settings), "serve")

    def play(self, program: str, *words: str) -> str:
        """Run a Python program in its namespace; what it printed."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        argv = self.inside(sys.executable, "-c", program, *words)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kill_site(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the site process, and only it."""
        self._end("site", number)

    def kill_scheduler(self) -> None:
        """End the local scheduler by SIGKILL, and only it."""
        self._end("scheduler", signal.SIGKILL)

    def freeze_site(self) -> None:
        """Its site process does nothing from now on."""
        self._running["site"].send_signal(signal.SIGSTOP)

    def thaw_site(self) -> None:
        """It goes on."""
        self._running["site"].send_signal(signal.SIGCONT)

    def _end(self, what: str, number: signal.Signals) -> None:
        child = self._running.pop(what, None)
        if child is None:
            return
        if what not in self._asked:
            child.send_signal(number)  # `ip netns exec` has become the command itself
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(timeout=300)

    def ask_to_end(self) -> None:
        """So that all processes of all sites end at the same time."""
        for what, child in self._running.items():
            child.terminate()
            self._asked.add(what)
        with suppress(Exception):
            self.clear()
        if self.torque.pid:
            os.kill(self.torque.pid, signal.SIGTERM)

    def stop(self) -> None:
        """Everything of it, its namespace too."""
        for what in list(self._running):
            self._end(what, signal.SIGTERM)
        self.torque.stop()
        subprocess.run(["ip", "netns", "delete", self.space], capture_output=True, check=False)

    # -- looking at it

    def write_settings(self) -> None:
        """Its ``site.yaml``."""
        crt, key = make_certificate(self.grid.keys, self.name)
        peers = [self._peer(other) for other in self.grid.sites.values() if other is not self]
        values: dict[str, Any] = {
            "name": self.name, "listen": self.address, "certificate": crt, "key": key, "min_uid": 1,
            "commands": str(self.torque.path), "become": ["env", "EMULATED_USER={user}"], "timeout_s": 3.0,
            "stage_in": self._stage("in"), "stage_out": self._stage("out"), "stage_out_tries": 3,
            "stage_out_pause_s": 5.0, "metrics_port": METRICS_PORT, "peers": peers,
            "gossip": {"period_s": 0.5, "down_after_s": 3.0, "retry_down_s": 0.5},
            "grid": {"poll_interval_s": 0.7, "retry_s": 0.5, "barrier_timeout_s": 40.0, "lease_s": 4.0,
                     "claim_timeout_s": 24.0},
        }  # fmt: skip
        self.settings.write_text(yaml.safe_dump(values))

    def _stage(self, way: str) -> list[str]:
        words = ("peer", "job", "block", "user", "folder", "token")
        return [str(self.grid.stager), way, self.name, *(f"{{{word}}}" for word in words)]

    def figures(self) -> dict[str, float]:
        """What its metrics say."""
        told = self.play(FIGURES, str(METRICS_PORT))
        pairs = (line.rsplit(" ", 1) for line in told.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def _peer(self, other: GridSite) -> dict[str, Any]:
        peer: dict[str, Any] = {
            "name": other.name,
            "address": other.address,
            "certificate": make_certificate(self.grid.keys, other.name)[0],
            "users": {USER: MAPPED},
            "max_slots": 64,
        }
        if {self.name, other.name} == {"alpha", "beta"}:  # one pair trusts by a shared key
            peer["shared_key"] = make_key(self.grid.keys, "alpha-beta")
        return peer

    def state(self) -> dict[str, Any]:
        """What `status --json` says."""
        path = self.torque.home / "sched_priv" / "site" / "state.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def sees(self, *names: str, as_state: str = "alive") -> bool:
        """Whether these peers stand so for it."""
        found = {peer["name"]: peer["state"] for peer in self.state().get("peers", ())}
        return all(found.get(name) == as_state for name in names)

    def audit(self) -> list[dict[str, Any]]:
        """Its audit file."""
        path = self.torque.home / "sched_priv" / "site" / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def blocks(self) -> list[dict[str, str]]:
        """Jobs of blocks here that are not over."""
        left = (job for job in self.torque.jobs().values() if job["job_state"] != "C")
        return [job for job in left if "TORQUE_GRID_BLOCK=" in job["Variable_List"]]

    @contextmanager
    def cycle_locked(self) -> Iterator[None]:
        """Nobody gets the cycle's lock here meanwhile, so no confirm is answered; offers are."""
        with (self.torque.home / "sched_priv" / "cycle.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def job(self, name: str) -> dict[str, str]:
        """A job as qstat shows it; nothing when it is gone."""
        return self.torque.jobs().get(name, {})

    def is_over(self, name: str) -> bool:
        """Whether a job has ended or is gone."""
        return self.job(name).get("job_state", "C") == "C"

    def fill(self, walltime_s: int = 600, runtime_s: float = 9999) -> list[str]:
        """Local jobs on all its nodes, started at once."""
        jobs = []
        for node in self.torque.nodes():
            asked = f"nodes={node}:ppn=2,walltime={walltime_s}"
            job = self.torque.submit("-l", asked, user="bin", runtime_s=runtime_s)
            place = f"({node}:ncpus=2)" if self.name in self.grid.openpbs else f"{node}:ppn=2"
            self.torque.run("qrun", "-H", place, job, user="root")
            jobs.append(job)
        return jobs

    def clear(self) -> None:
        """Delete every job here, and wait until the site knows of none."""
        for name, job in self.torque.jobs().items():
            if job["job_state"] != "C":
                self.torque.run("qdel", name, user="root")

    def submit(self, script: str, nodes: int = 1, ppn: int = 2, shape: str = "") -> str:
        """A job for the grid; `shape` is what else each node must have."""
        marks = f"TORQUE_GRID=yes,TORQUE_GRID_NODES={nodes}"
        words = ("-h", "-v", marks, "-l", f"nodes=1:ppn={ppn}{shape},walltime=600")
        return self.torque.submit(*words, user=USER, script=script)


class Grid:
    """All sites; a context manager."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        names: Sequence[str] = NAMES,
        openpbs: frozenset[str] = frozenset(),
        tag: str = "tsg",
    ) -> None:
        self.folder, self.openpbs = folder, openpbs
        self.keys = folder / "keys"
        self.keys.mkdir()
        self.results = folder / "results"
        self.results.mkdir()
        self.stager = self.results / "stager"
        self.stager.write_text(STAGER)
        self.stager.chmod(0o755)
        self.tag = f"{tag}{os.getpid() % 100000}"
        self.hub = f"{self.tag}hub"
        self.sites = {name: GridSite(self, number, name, nodes) for number, name in enumerate(names)}

    def __enter__(self) -> Grid:
        try:
            _ip("netns", "add", self.hub)
            for bridge in ("one", "two"):
                _ip("-n", self.hub, "link", "add", bridge, "type", "bridge", "forward_delay", "0")
                _ip("-n", self.hub, "link", "set", bridge, "up")
            for site in self.sites.values():
                site.make_network()
                site.write_settings()
            servers = [site.start_torque() for site in self.sites.values()]
            for site in self.sites.values():
                site.start_site()  # it tries until its server answers
            assert [server.wait(240) for server in servers] == [0] * len(servers)
            self.sites["beta"].start_scheduler()
            self.wait_for_peers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        for site in self.sites.values():
            site.ask_to_end()
        for site in self.sites.values():
            site.stop()
        subprocess.run(["ip", "netns", "delete", self.hub], capture_output=True, check=False)

    def __getattr__(self, name: str) -> GridSite:
        try:
            return self.__dict__["sites"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def logs(self) -> list[Path]:
        """Of all processes."""
        return [site.log for site in self.sites.values()]

    def wait_for_peers(self) -> None:
        """Until all see all."""
        names = set(self.sites)
        self.eventually(
            "all sites see each other",
            lambda: all(site.sees(*(names - {site.name})) for site in self.sites.values()),
        )

    def partition(self, *others: str) -> None:
        """Put these sites on the other bridge."""
        for name in others:
            self.sites[name].plug("two")

    def heal(self) -> None:
        """One network again."""
        for site in self.sites.values():
            site.plug()

    def quiet(self) -> None:
        """All jobs gone, all holds gone, all sites there: the next test begins afresh."""
        self.heal()
        for site in self.sites.values():
            site.clear()

        def is_quiet() -> bool:
            found = [site.state() for site in self.sites.values()]
            return not any(state["grants"] or state["blocks"] or state["jobs"] for state in found)

        self.eventually("nothing is left anywhere", is_quiet)
        self.wait_for_peers()

    # -- what jobs did

    def script(self, name: str, then: str = "") -> str:
        """A job script that notes its environment in one line, then does what is asked.

        The line is one write: blocks of several sites start within milliseconds, and append to one file.
        """
        form = "|".join(["%s"] * 7)
        grid = " ".join(f'"$TORQUE_GRID_{word}"' for word in ("SITE", "INDEX", "COUNT", "HOSTS", "SITES"))
        line = f'printf \'{form}\\n\' "$(date +%s.%N)" {grid} "$PBS_JOBID" >> {self.results / name}'
        return f"#!/bin/sh\n{line}\n{then}\n"

    def reservations(self, *sites: str) -> dict[str, list[tuple[float, float]]]:
        """Site -> start and end of each reservation of the grid there."""
        found = {}
        for name in sites or self.sites:
            path = self.sites[name].torque.home / "sched_priv" / "history.sqlite"
            db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            found[name] = list(db.execute("SELECT start_s, end_s FROM reservations WHERE token IS NOT NULL"))
            db.close()
        return found

    def staged(self, job: str) -> list[list[str]]:
        """What was staged for a job: way, site, peer, job, block, user, folder, token."""
        path = self.results / "staged"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line[3] == job]

    def waits_for(self, name: str) -> str:
        """Shell words that wait until `tell` is called with the name."""
        return f"while [ ! -e {self.results / name}.word ]; do sleep 0.1; done"

    def tell(self, name: str) -> None:
        """Let the bodies that wait for this go on."""
        (self.results / f"{name}.word").touch()

    def begun(self, name: str, n: int, within_s: float = DEADLINE_S) -> list[list[str]]:
        """The lines of a script, once there are so many."""
        return self.eventually(
            f"{n} blocks start", lambda: len(found := self.starts(name)) == n and found, within_s
        )

    def ends(self, name: str, site: GridSite, job: str) -> None:
        """Let it go on, and wait until its place-holder is over."""
        self.tell(name)
        self.eventually("it ends", lambda: site.is_over(job))

    def is_free(self, *sites: str) -> None:
        """Wait until nothing is reserved."""
        self.eventually("nothing is reserved", lambda: not any(self.reservations(*sites).values()))

    def n_starts(self, site: GridSite) -> dict[str, int]:
        """How often each job of a site began, by its accounting."""
        begun = [line.split(";")[2] for line in site.torque.accounting() if ";S;" in line]
        return {job: begun.count(job) for job in begun}

    def starts(self, name: str) -> list[list[str]]:
        """The lines of a script: time, site, index, count, hosts, sites, job."""
        path = self.results / name
        return [line.split("|") for line in path.read_text().splitlines()] if path.exists() else []

    def eventually(self, what: str, probe: Callable[[], T], within_s: float = DEADLINE_S) -> T:
        """As `until`, with all logs."""
        return until(probe, what, within_s, logs=self.logs)
