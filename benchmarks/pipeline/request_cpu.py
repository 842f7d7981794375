"""CPU per small request of client, server and worker, of several checkouts side by side in one run.

``python -m benchmarks.pipeline.request_cpu before=FOLDER after=.`` starts one server with one worker for each
checkout, and a client beside it, all from that checkout's own source.  They take turns: in every round each
has 64 B echoed through the Unix socket, with one request in flight and then with 16, and 1 MB that lies in
memory of `Client.empty`, of which nothing is copied: what is left is the Python beside a kernel.  On a
machine that others use, CPU time says more than wall time, and the ratios within a round more than either.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pipeline.setting import OwnServer
from benchmarks.result import Report, Row, measured, ratio
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.wire import TensorSpec

_PARTS = ("client", "server", "worker")
_CASES = (("64 B", 1), ("64 B", 16), ("1 MB", 4))
"""What is echoed, and requests in flight."""
_GOAL_US = 250.0
"""For 1 MB."""
_SETTLE_S = 4.0
_QUIET_SHARE = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its child processes, one for each checkout, are the same module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkout", nargs="*", help="NAME=FOLDER; the first is what the others are divided by"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=2000, help="in each round, for each window")
    parser.add_argument("--json", type=Path, help="where the figures go, too")
    options = parser.parse_args(argv)
    if not options.checkout:
        _measure_here()
        return 0
    folders = dict(item.split("=", 1) for item in options.checkout)
    children = {name: _child(Path(folder).resolve()) for name, folder in folders.items()}
    report = Report("pipeline-request-cpu", path=options.json)
    for what, window in _CASES:
        report.add(_rows(children, what, window, options.rounds, options.requests))
    for child in children.values():
        child.communicate()
    report.end("complete")
    for row in report.rows:
        spread = f"{row.spread[0]:.3g} to {row.spread[1]:.3g}" if row.spread else ""
        print(f"{row.what:<60} {row.value:7.3g} {row.unit:<5} n = {row.n}  {spread}")
    return 0


def _child(folder: Path) -> subprocess.Popen[str]:
    """What measures one checkout: this file with that folder's modules, whatever is installed."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", __file__]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _rows(
    children: Mapping[str, subprocess.Popen[str]], what: str, window: int, n_rounds: int, n_requests: int
) -> Iterator[Row]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in children}
    names = list(children)
    for turn in range(-1, n_rounds):
        for at in range(len(names)):
            name = names[(at + turn) % len(names)]
            n = n_requests if turn >= 0 else min(500, n_requests)
            used = _ask(children[name], {"what": what, "window": window, "n_requests": n})
            if turn >= 0:
                found[name].append({**used, "sum": sum(used.values())})
    for name, rounds in found.items():
        for part in (*_PARTS, "sum"):
            is_judged = what == "1 MB" and part == "sum"
            goal = f"<= {_GOAL_US:.0f}" if is_judged else ""
            spent = [each[part] for each in rounds]
            yield measured(f"{what}, {window} in flight, {name}: {part}", spent, "us", goal=goal)
    first = [each["sum"] for each in found[names[0]]]
    for name in names[1:]:
        ours = [each["sum"] for each in found[name]]
        yield ratio(f"{what}, {window} in flight: {name} / {names[0]}", ours, first)


def _ask(child: subprocess.Popen[str], order: Mapping[str, Any]) -> dict[str, float]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(order) + "\n")
    child.stdin.flush()
    answer: dict[str, float] = json.loads(child.stdout.readline())
    return answer


def _measure_here() -> None:
    """Orders come in and answers go out as lines of JSON, until the parent closes the pipe."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="bench-") as folder, _Server(Path(folder), workers=1) as server:
        clocks = _clocks(server)
        _await_quiet(clocks["worker"])
        with server.client("unix") as unix, server.client("memory") as memory:
            small, large = Tensor.of(np.arange(64, dtype=np.uint8)), memory.empty(TensorSpec("|u1", (10**6,)))
            given = {"64 B": (unix, small), "1 MB": (memory, large)}
            for line in sys.stdin:
                order = json.loads(line)
                client, tensor = given[order["what"]]
                before = {part: read() for part, read in clocks.items()}
                for _, outcome in client.map(_calls(order["n_requests"], (tensor,)), order["window"]):
                    assert not isinstance(outcome, Exception), outcome
                used = {
                    part: (read() - before[part]) / order["n_requests"] * 1e6 for part, read in clocks.items()
                }
                print(json.dumps(used), flush=True)


class _Server(OwnServer):
    """Asked for its statistics only when all has been imported: older ones break when asked before."""

    def _settle(self) -> None:
        time.sleep(_SETTLE_S)
        super()._settle()


def _calls(n_requests: int, inputs: tuple[Tensor, ...]) -> Iterator[Call]:
    prefix = secrets.token_hex(6)
    for number in range(n_requests):
        yield Call(f"{prefix}-{number}", "echo", {}, inputs)


def _clocks(server: OwnServer) -> dict[str, Callable[[], float]]:
    """What reads the CPU seconds of each part; a process' clock counts nanoseconds, ``/proc`` ticks."""
    workers: list[Any] = [worker["pid"] for worker in server.stats()["workers"]]
    pid = server.process.pid
    return {
        "client": time.process_time,
        "server": lambda: _cpu_s(pid),
        "worker": lambda: sum(map(_cpu_s, workers)),
    }


def _await_quiet(clock: Callable[[], float]) -> None:
    """Wait until the workers have warmed up, which they do beside their first requests."""
    used_s = _SETTLE_S
    while used_s > _QUIET_SHARE * _SETTLE_S:
        before_s = clock()
        time.sleep(_SETTLE_S)
        used_s = clock() - before_s


def _cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process, see ``clock_getcpuclockid``."""
    return time.clock_gettime((~pid << 3) | 2)


if __name__ == "__main__":
    sys.exit(main())
