"""What the benchmarks of the Torque scheduler share: an emulated cluster, its jobs, starts, and the daemon.

The clients, the emulated server and the daemon share the cores of this machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from torque_sched.adapters.pbs import TorqueServer
from torque_sched.core.model import JobId
from torque_sched.emulation import EmulatedTorque
from torque_sched.parse.qrun import RunKind

AT_ONCE = 4
"""Starts under way, as the daemon has it."""
Say = Callable[[str], None]


def requests(n_jobs: int, seed: int = 1) -> list[dict[str, Any]]:
    """Jobs of eight users and a few shapes, as a busy site has them."""
    chance = random.Random(seed)
    shapes = ("nodes=1", "nodes=1:ppn=2", "nodes=1:ppn=4", "nodes=2:ppn=4", "nodes=1:ppn=8", "nodes=1:gpus=1")
    weights = (40, 20, 15, 10, 10, 5)
    jobs = []
    for _ in range(n_jobs):
        limits = f"walltime={chance.randint(1, 48)}:00:00,mem={chance.choice((1, 2, 4))}gb"
        words = [
            "-l",
            chance.choices(shapes, weights)[0],
            "-l",
            limits,
            "-N",
            f"task{chance.randint(1, 200)}",
        ]
        jobs.append({"arguments": words, "user": f"user{chance.randint(1, 8)}", "runtime_s": 100000})
    return jobs


@contextmanager
def cluster(**settings: Any) -> Iterator[EmulatedTorque]:
    """One that runs; settings as `EmulatedTorque.create` has them."""
    with (
        tempfile.TemporaryDirectory(prefix="torque-bench-") as folder,
        EmulatedTorque.create(Path(folder) / "cluster", **settings) as torque,
    ):
        yield torque


async def start_all(pbs: TorqueServer, starts: Sequence[tuple[JobId, str]]) -> float:
    """Start them, four at once where the daemon does that; returns the seconds it took.

    Raises:
        RuntimeError: one was refused; a figure from refused starts would be worth nothing.
    """
    left = iter(starts)

    async def work() -> None:
        for job, hosts in left:
            result = await pbs.start(job, hosts)
            if result.kind is not RunKind.STARTED:
                raise RuntimeError(f"start of {job} on {hosts}: {result.text}")

    began_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(1 if pbs.one_order_at_a_time else AT_ONCE)))
    return time.perf_counter() - began_s


class Daemon:
    """``torque-sched serve`` beside an emulated server."""

    def __init__(
        self,
        torque: EmulatedTorque,
        port: int,
        settings: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        root: Path = ROOT,
    ) -> None:
        self._torque = torque
        self._root = root
        self._env = {**torque.env, **(environment or {})}
        self._port = port
        folder = torque.home / "sched_priv"
        folder.mkdir(exist_ok=True)
        chosen = {"restricted": ["*"], "settle_s": 0.2, **settings}
        (folder / "torque_sched.yaml").write_text(json.dumps(chosen), encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is not waited for."""
        own = self._root / ".venv" / "bin" / "python"
        python = sys.executable if self._root == ROOT else str(own)
        argv = [python, "-m", "torque_sched", "serve", "-d", str(self._torque.home)]
        self.process = subprocess.Popen([*argv, "-S", str(self._port)], cwd=self._root, env=self._env)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal and wait for its end."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None


def free_port() -> int:
    """One that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_of(torque: EmulatedTorque) -> str:
    """What the daemon has logged."""
    return "".join(
        path.read_text(encoding="utf-8") for path in sorted((torque.home / "sched_logs").iterdir())
    )


def cycles(torque: EmulatedTorque) -> list[tuple[int, int, int, int]]:
    """Jobs considered, started, commented and milliseconds of each cycle in the log."""
    line = r"(\d+) jobs considered, (\d+) started, .* (\d+) commented, (\d+) ms"
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in re.findall(line, log_of(torque))]
