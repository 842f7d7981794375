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
from torque_sched.batch.documents import hosts_text
from torque_sched.batch.system import BatchSystem, OrderKind
from torque_sched.emulation import EmulatedCluster, EmulatedTorque
from torque_sched.model.cluster import Job, JobId, NodeName, QueueName
from torque_sched.model.decisions import NodeShare, Start
from torque_sched.model.states import JobState

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
        shape = chance.choices(shapes, weights)[0]
        words = ["-l", shape, "-l", limits, "-N", f"task{chance.randint(1, 200)}"]
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


def one_slot(job: str, node: str) -> Start:
    """A start on one slot of a node."""
    return Start(JobId(job), (NodeShare(NodeName(node), 1),))


async def start_all(pbs: BatchSystem, starts: Sequence[Start]) -> float:
    """Start them, four at once where the daemon does that; returns the seconds it took.

    Raises:
        RuntimeError: one was refused; a figure from refused starts would be worth nothing.
    """
    left = iter(starts)

    async def work() -> None:
        for start in left:
            result = await pbs.start(Job(start.job, JobState.QUEUED, QueueName("batch")), start.allocation)
            if result.kind is not OrderKind.STARTED:
                raise RuntimeError(f"start of {start.job} on {hosts_text(start.allocation)}: {result.text}")

    began_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(1 if pbs.one_order_at_a_time else AT_ONCE)))
    return time.perf_counter() - began_s


class Daemon:
    """``torque-sched serve`` beside an emulated server; as a context manager, from its start to its end.

    Args:
        settings: what differs from the defaults.
        environment: variables beside those of the server.
        root: another checkout with its `.venv`, whose daemon it is.
        words: further ones of the command.
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        torque: EmulatedCluster,
        port: int,
        settings: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        root: Path = ROOT,
        words: Sequence[str] = (),
    ) -> None:
        self._torque, self._root = torque, root
        self._env = {**torque.env, **(environment or {})}
        python = sys.executable if root == ROOT else str(root / ".venv" / "bin" / "python")
        self._argv = [python, "-m", "torque_sched", "serve", "-d", str(torque.home), "-S", str(port), *words]
        self.set(settings)

    def set(self, settings: Mapping[str, object]) -> None:
        """Write its settings; one that runs reads them at SIGHUP."""
        folder = self._torque.home / "sched_priv"
        folder.mkdir(exist_ok=True)
        chosen = {"restricted": ["*"], **settings}
        (folder / "torque_sched.yaml").write_text(json.dumps(chosen), encoding="utf-8")

    def start(self) -> None:
        """Start it; it is not waited for."""
        self.process = subprocess.Popen(self._argv, cwd=self._root, env=self._env)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal and wait for its end."""
        self.process.send_signal(number)
        self.process.wait(60)

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def free_port() -> int:
    """One that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_of(torque: EmulatedTorque) -> str:
    """What the daemon has logged."""
    logs = sorted((torque.home / "sched_logs").iterdir())
    return "".join(path.read_text(encoding="utf-8") for path in logs)


def cycles(torque: EmulatedTorque) -> list[tuple[int, int, int, int]]:
    """Jobs considered, started, commented and milliseconds of each cycle in the log."""
    line = r"(\d+) jobs considered, (\d+) started, .* (\d+) commented, (\d+) ms"
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in re.findall(line, log_of(torque))]
