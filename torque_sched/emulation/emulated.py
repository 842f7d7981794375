"""An emulated Torque or OpenPBS as one Python object: make it, start it, use it, break it, throw it away."""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from torque_sched.emulation.execute import end_left
from torque_sched.emulation.faults import Fault
from torque_sched.emulation.install import install, nodes_of_shape, read_nodes
from torque_sched.emulation.world import Settings
from torque_sched.errors import StartupError

Kind = TypeVar("Kind", bound="EmulatedCluster")
_START_S = 120.0
_STOP_S = 60.0
FIRST_SECOND_S = 1795195600.0
"""Where a manual clock starts: Fri Nov 20 17:26:40 2026 UTC."""


@dataclass(frozen=True, slots=True)
class SentEvent:
    """One event the server sent, or tried to."""

    at_s: float
    code: int
    target: str
    outcome: str


class ManualClock:
    """The clock of an emulation with ``clock="manual"``: only `advance` moves it."""

    def __init__(self, cluster: EmulatedCluster) -> None:
        self._cluster = cluster
        self._path = cluster.home / "clock"

    @property
    def now_s(self) -> float:
        """Emulated epoch seconds."""
        return float(self._path.read_text(encoding="ascii"))

    def advance(self, seconds: float) -> float:
        """Let ``seconds`` pass; everything that falls due has happened when this returns."""
        now_s = self.now_s + seconds
        temporary = self._path.with_suffix(".new")
        temporary.write_text(f"{now_s:.6f}\n", encoding="ascii")
        temporary.replace(self._path)
        self._cluster.control("tick")
        return now_s


class EmulatedCluster:
    """One emulated cluster under ``directory``.

    Use :meth:`create` for a new one; the constructor opens what is there. As a context manager it is started
    and stopped. ``path`` goes in front of PATH; :attr:`env` is the environment for a scheduler under test.
    """

    version = "6.1.3"
    """What `create` makes unless told otherwise."""
    first_job = 1

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory).resolve()
        self.path = self.directory / "bin"
        self.home = self.directory / "state"
        self.clock = ManualClock(self)
        self.listeners: tuple[str, ...] = ()
        self._server: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(
        cls: type[Kind],
        directory: Path,
        *,
        nodes: str = "",
        shape: str = "",
        clock: str = "real",
        execute: bool = False,
        version: str = "",
        server_name: str = "head",
        event_target: str = "",
        queues: dict[str, dict[str, str]] | None = None,
        server: dict[str, str] | None = None,
        next_job: int | None = None,
        **settings: Any,
    ) -> Kind:
        """Make a new emulation; it is not started.

        Args:
            directory: its folder.
            nodes: a nodes file as text; see :func:`~torque_sched.emulation.install.read_nodes`.
            shape: instead of ``nodes``; see :func:`~torque_sched.emulation.install.nodes_of_shape`.
            clock: ``real``, or ``manual`` for one that only :attr:`clock` moves.
            execute: really run the jobs' scripts (unless a job declares EMULATED_RUNTIME).
            version: of Torque 6.1.3 (unless named) or 4.2.10, of OpenPBS 23.06.06.
            server_name: the server's host name, as in ``44.head``.
            event_target: ``host:port`` of the scheduler; empty: events go nowhere.
            queues: name -> attributes.
            server: server attributes that differ from the defaults.
            next_job: number of the first job; None: what is the first one of a new server.
            settings: further fields of :class:`~torque_sched.emulation.world.Settings`.
        """
        me = pwd.getpwuid(os.geteuid()).pw_name
        admins = tuple(dict.fromkeys(("root", *settings.pop("admins", (me,)))))
        chosen = Settings(
            server=server_name, version=version or cls.version, clock=clock, executes=execute,
            scheduler=event_target, admins=admins, **settings,
        )  # fmt: skip
        listed = read_nodes(nodes) if nodes else nodes_of_shape(shape or "4xnp=4")
        now_s = FIRST_SECOND_S if clock == "manual" else time.time()
        first = cls.first_job if next_job is None else next_job
        install(Path(directory), listed, chosen, now_s=now_s, queues=queues, server=server, next_job=first)
        return cls(Path(directory))

    def __enter__(self: Kind) -> Kind:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- the server's life

    @property
    def pid(self) -> int:
        """Process id of the running server; 0 when none runs."""
        try:
            pid = int((self.home / "server.pid").read_text(encoding="ascii"))
            os.kill(pid, 0)
            return pid
        except (OSError, ValueError):
            return 0

    def start(self, *, detached: bool = False) -> None:
        """Start the server and wait until it takes commands.

        Args:
            detached: it is to live on when this process ends.

        Raises:
            StartupError: it did not start; the message has its own words.
        """
        reader, writer = os.pipe()
        listeners = [word for target in self.listeners for word in ("-l", target)]
        detach = ["--detach"] if detached else []
        argv = [str(self.path / "pbs_server"), *detach, "--ready", str(writer), *listeners]
        log = self.home / "server_logs" / "stderr"
        with log.open("ab") as errors:
            self._server = subprocess.Popen(
                argv, pass_fds=(writer,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        os.close(writer)
        try:
            # Not select(): it knows no descriptor beyond 1023, and a process with many may start us.
            poll = select.poll()
            poll.register(reader, select.POLLIN)
            if not poll.poll(1000 * _START_S) or os.read(reader, 1) != b"1":
                self.kill()
                raise StartupError(
                    f"{self.directory}: the emulated server did not start",
                    cure=log.read_text(encoding="utf-8")[-2000:],
                )
            if detached:
                self._server.wait()
                self._server = None
        finally:
            os.close(reader)

    def stop(self) -> None:
        """End the server in good order, and the scripts that run, as if the nodes were switched off.

        The state stays; a server that is started again finds those jobs ended by a signal.
        """
        self._end(signal.SIGTERM)
        end_left(self.home / "run")

    def kill(self) -> None:
        """SIGKILL, as a power cut for the server alone; :meth:`start` goes on from its journal."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        pid = self._server.pid if self._server is not None else self.pid
        if not pid:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if self._server is not None:
            self._server.wait(timeout=_STOP_S)
            self._server = None
            return
        deadline = time.monotonic() + _STOP_S
        while self.pid == pid and time.monotonic() < deadline:
            time.sleep(0.02)

    # -- commands

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with the emulated programs first on PATH, and where the home is."""
        return {
            **os.environ,
            "PATH": f"{self.path}{os.pathsep}{os.environ.get('PATH', '')}",
            "PBS_HOME": str(self.home),
        }

    def run(
        self,
        *argv: str,
        user: str = "",
        stdin: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one emulated program, as ``user``; output is decoded leniently."""
        env = {**self.env, **(environment or {})}
        if user:
            env["EMULATED_USER"] = user
        return subprocess.run(
            [str(self.path / argv[0]), *argv[1:]], env=env, input=stdin if stdin is not None else "",
            capture_output=True, text=True, encoding="utf-8", errors="replace", check=False,
        )  # fmt: skip

    def control(self, *words: str, stdin: str | None = None) -> str:
        """Run ``emulated WORDS``.

        Raises:
            StartupError: it failed; the message has its own words.
        """
        done = self.run("emulated", *words, stdin=stdin)
        if done.returncode:
            raise StartupError(f"emulated {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def submit(
        self,
        *arguments: str,
        user: str = "alice",
        script: str = "sleep 60\n",
        runtime_s: float | None = None,
        exit_status: int = 0,
        cpu: float | None = None,
        mem: str = "",
        gpu: float | None = None,
    ) -> str:
        """qsub; the profile (what the job will do to its nodes) travels as EMULATED_ variables.

        Raises:
            StartupError: refused; the message has qsub's words.
        """
        line = self._line(arguments, user, script, runtime_s, exit_status, cpu, mem, gpu)
        done = self.run("qsub", *line["arguments"], user=user, stdin=script)
        if done.returncode:
            raise StartupError(done.stderr.strip())
        return done.stdout.strip()

    def submit_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
        """Many jobs in one go; each mapping has the keywords of :meth:`submit` and ``arguments``."""
        lines = []
        for job in jobs:
            known = dict(job)
            lines.append(
                self._line(
                    known.pop("arguments", ()), known.pop("user", "alice"), known.pop("script", "sleep 60\n"),
                    known.pop("runtime_s", None), known.pop("exit_status", 0), known.pop("cpu", None),
                    known.pop("mem", ""), known.pop("gpu", None),
                )
            )  # fmt: skip
        return self.control("submit-many", stdin="".join(json.dumps(line) + "\n" for line in lines)).split()

    def _line(
        self, arguments: Iterable[str], user: str, script: str, runtime_s: float | None, exit_status: int,
        cpu: float | None, mem: str, gpu: float | None,
    ) -> dict[str, Any]:  # fmt: skip
        declared = {
            "RUNTIME": runtime_s,
            "EXIT": exit_status or None,
            "CPU": cpu,
            "MEM": mem or None,
            "GPU": gpu,
        }
        pairs = [f"EMULATED_{key}={value}" for key, value in declared.items() if value is not None]
        words = [*arguments, *(["-v", ",".join(pairs)] if pairs else [])]
        return {"arguments": words, "user": user, "script": script}

    # -- looking at it

    def accounting(self) -> list[str]:
        """All accounting lines so far, oldest day first."""
        files = sorted((self.home / "server_priv" / "accounting").iterdir())
        return [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]

    # -- breaking it

    def set_faults(self, *faults: Fault) -> None:
        """Order these faults instead of the present ones; none: all is well again."""
        path = self.home / "faults.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps([asdict(fault) for fault in faults]), encoding="utf-8")
        temporary.replace(path)

    def set_node(self, name: str, **changes: object) -> None:
        """Change a node or its mom: ``mom="stopped"``, ``fixed_load=3.5``, ``is_failing=True`` ..."""
        self.control("node", name, *[f"{key}={value}" for key, value in changes.items()])

    def finish(self, job: str, status: int = 0) -> None:
        """End a running job now."""
        self.control("finish", job, str(status))


class EmulatedTorque(EmulatedCluster):
    """An emulated Torque."""

    @property
    def port(self) -> int:
        """The server's port for it, on 127.0.0.1; the same after a restart, 0 before the first start."""
        path = self.home / "port"
        return int(path.read_text(encoding="ascii")) if path.exists() else 0

    @property
    def trqauthd(self) -> Path:
        """The local socket of the emulated trqauthd, which vouches for connections to that port."""
        return self.home / "trqauthd-unix"

    # -- looking at it

    def nodes(self) -> dict[str, dict[str, str]]:
        """Name -> attributes, from ``pbsnodes -x``."""
        root = ElementTree.fromstring(self.run("pbsnodes", "-x").stdout)
        return {node.findtext("name", ""): {leaf.tag: leaf.text or "" for leaf in node} for node in root}

    def jobs(self) -> dict[str, dict[str, str]]:
        """Id -> attributes (``Resource_List.nodes`` ...), from ``qstat -f -t -x`` as an operator."""
        root = ElementTree.fromstring(self.run("qstat", "-f", "-t", "-x", user="root").stdout)
        found = {}
        for job in root:
            flat: dict[str, str] = {}
            for leaf in job:
                flat.update({f"{leaf.tag}.{each.tag}": each.text or "" for each in leaf})
                if not len(leaf):
                    flat[leaf.tag] = leaf.text or ""
            found[flat["Job_Id"]] = flat
        return found

    def events(self) -> list[SentEvent]:
        """What was sent to the scheduler port and the listeners."""
        path = self.home / "events.log"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        parts = [line.split(" ", 3) for line in lines]
        return [SentEvent(float(at), int(code), target, outcome) for at, code, target, outcome in parts]


class EmulatedOpenPbs(EmulatedCluster):
    """An emulated OpenPBS."""

    version = "23.06.06"
    first_job = 0

    def nodes(self) -> dict[str, dict[str, str]]:
        """Vnode -> attributes, from ``pbsnodes -av``."""
        return {
            lines[0]: dict(_pair(line) for line in lines[1:])
            for block in self.run("pbsnodes", "-av").stdout.split("\n\n")
            if (lines := block.strip("\n").split("\n"))[0]
        }

    def jobs(self, *options: str) -> dict[str, dict[str, str]]:
        """Id -> attributes (``Resource_List.select`` ...), from ``qstat -f -t -w`` as a manager."""
        out = self.run("qstat", "-f", "-t", "-w", *options, user="root").stdout
        return {
            lines[0].removeprefix("Job Id: "): dict(_pair(line) for line in lines[1:])
            for block in out.split("\n\n")
            if (lines := block.strip("\n").split("\n"))[0]
        }


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.strip().partition(" = ")
    return name, value
