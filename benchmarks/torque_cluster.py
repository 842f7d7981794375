"""What the benchmarks of the Torque scheduler share: an emulated cluster, its jobs, starts, and the daemon.

The clients, the emulated server and the daemon share the cores of this machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import resource
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
from benchmarks.result import Report, Row
from torque_sched.batch.documents import hosts_text
from torque_sched.batch.system import BatchSystem, OrderKind
from torque_sched.emulation import EmulatedCluster, EmulatedTorque
from torque_sched.model.cluster import Job, JobId, NodeName, QueueName
from torque_sched.model.decisions import NodeShare, Start
from torque_sched.model.states import JobState

AT_ONCE = 4
"""Starts under way, as the daemon has it."""
Say = Callable[[str], None]
_LONGEST_S = 200.0


def note(text: str = "") -> str:
    """What is said beside a figure: that the server is emulated, and how busy the machine is."""
    load = f"emulated server, load average {os.getloadavg()[0]:.1f}"
    return f"{load}; {text}" if text else load


def cpu_s() -> float:
    """CPU time of this process, and of the commands that it ran and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


async def look_ms(server: BatchSystem, n_jobs: int) -> tuple[float, float]:
    """CPU time of a look at so many jobs: of ours alone, and with that of the commands.

    Raises:
        RuntimeError: it shows another number of jobs.
    """
    gc.collect()
    gc.disable()  # as a cycle does
    began_s, own_began_s = cpu_s(), time.process_time()
    look = await server.look()
    own_s, took_s = time.process_time() - own_began_s, cpu_s() - began_s
    gc.enable()
    if len(look.snapshot.jobs) != n_jobs:
        raise RuntimeError(f"a look at {len(look.snapshot.jobs)} jobs in place of {n_jobs}")
    return 1000 * own_s, 1000 * took_s


def until(is_so: Callable[[], bool], pause_s: float = 0.1) -> None:
    """Wait for it.

    Raises:
        RuntimeError: it takes too long.
    """
    deadline_s = time.monotonic() + _LONGEST_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not so after {_LONGEST_S:.0f} s")
        time.sleep(pause_s)


def run_sections(
    sections: Mapping[str, Callable[[bool, Say], Iterator[Row]]],
    quick: bool,
    say: Say,
    report: Report,
    only: Sequence[str] = (),
) -> None:
    """Run the sections asked for, all of them by default, and report their rows as they come."""
    loads: dict[str, object] = {}
    report.setting["load_average"] = loads
    for name, section in sections.items():
        if not only or name in only:
            before = os.getloadavg()
            for row in section(quick, say):
                loads[name] = {"before": before, "after": os.getloadavg()}
                report.add([row])


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
