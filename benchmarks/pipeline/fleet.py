"""The processes of the benchmark, seen from the parent: a server per candidate, clients that measure.

PyTriton has a virtual environment of its own: it needs numpy below 2.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.pipeline.peers.candidate import Address, Route
from yarn_accel.errors import JobError, StartupError

_INSTALL_LIMIT_S = 600
_PACKAGES = ("nvidia-pytriton==0.7.0", "numpy<2")


_START_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 120.0
_STOP_LIMIT_S = 8.0
_LEAD_S = 0.02


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the table: how much, by how many, how many under way."""

    n_bytes: int
    n_clients: int
    window: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of one candidate gave."""

    wall_s: float
    bytes_per_s: float
    """Both directions together."""
    median_s: float
    """Between two answers; with one client and a window of one, the round trip."""
    p99_s: float
    client_cpu_s: float


class Child:
    """A process that reads and writes lines of JSON; see `benchmarks.pipeline.child`."""

    def __init__(self, role: str, name: str, log: Path, environ: Mapping[str, str] | None = None) -> None:
        self.name = f"{role} {name}".strip()
        self._log = log
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                [str(_interpreter(name)), "-m", "benchmarks.pipeline.child", role, name],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,  # what it starts in turn ends with it
                env={**os.environ, **_environ(name), **(environ or {})},
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """One order and its answer; see `hear`."""
        self.tell(order)
        return self.hear(_ANSWER_LIMIT_S)

    def tell(self, order: Mapping[str, Any]) -> None:
        """Give an order; `hear` gets the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, limit_s: float) -> Mapping[str, Any]:
        """The next answer.

        Raises:
            JobError: none came in time, or it says that something failed.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            raise JobError(f"{self.name}: no answer within {limit_s:.0f} s{self._last_line()}")
        line = self._process.stdout.readline()
        if not line:
            raise JobError(f"{self.name}: ended{self._last_line()}")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise JobError(f"{self.name}: {answer['error']}")
        return answer

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"; its last line: {lines[-1]}" if lines else ""

    def stop(self) -> None:
        """End it, and all that it started."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.close()


def bare_lapack(folder: Path, at: int = 0) -> Child:
    """A process that computes without a server, in which BLAS has one thread; see `lapack`.

    Args:
        folder: for its log.
        at: which of several.
    """
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    return Child("bench", "lapack", folder / f"lapack-{at}.log", dict.fromkeys(names, "1"))


def _interpreter(name: str) -> Path:
    found = triton_python() if name == "triton" else Path(sys.executable)
    if found is None:
        raise JobError("PyTriton is not installed; `python -m benchmarks pipeline --install-triton` does it")
    return found


def _environ(name: str) -> Mapping[str, str]:
    # Triton's embedded Python must be the library of this interpreter.
    more = {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))} if name == "triton" else {}
    return {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **more}


class Runner:
    """The server of one candidate with its clients; use it through `Fleet`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._server = Child("server", name, folder / f"{name}-server.log")
        self._clients: list[Child] = []
        try:
            self.address: Address = self._server.hear(_START_LIMIT_S)["address"]
        except BaseException:
            self._server.stop()
            raise

    def prepare(self, name: str, cell: Cell, route: Route) -> str:
        """Connect the clients of a cell under a name of its own; the carrier they really use."""
        while len(self._clients) < cell.n_clients:
            at = len(self._clients)
            self._clients.append(Child("client", self.name, self._folder / f"{self.name}-{at}.log"))
        order = {
            "act": "prepare",
            "name": name,
            "address": self.address,
            "carrier": route.carrier,
            "checksum": route.checksum,
            "n_bytes": cell.n_bytes,
            "window": cell.window,
        }
        return str(self._ask(cell.n_clients, order)[0]["carrier"])

    def go(self, name: str, cell: Cell, duration_s: float) -> Measured:
        """Run all clients prepared under a name at once.

        Requests are sent for `duration_s`, and all of them are answered.
        """
        start_s = time.monotonic() + _LEAD_S
        order = {"act": "go", "name": name, "start_s": start_s, "duration_s": duration_s}
        answers = self._ask(cell.n_clients, order)
        n = sum(int(answer["n"]) for answer in answers)
        wall_s = max(float(answer["end_s"]) for answer in answers) - start_s
        return Measured(
            wall_s=wall_s,
            bytes_per_s=2 * cell.n_bytes * n / wall_s,
            median_s=float(answers[0]["median_s"]),
            p99_s=float(answers[0]["p99_s"]),
            client_cpu_s=sum(float(answer["cpu_s"]) for answer in answers),
        )

    def end(self) -> None:
        """Disconnect all clients."""
        self._ask(len(self._clients), {"act": "end"})

    def _ask(self, n: int, order: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        clients = self._clients[:n]
        for client in clients:
            client.tell(order)
        return [client.hear(_ANSWER_LIMIT_S) for client in clients]

    def stop(self) -> None:
        """End the clients, then the server."""
        for client in self._clients:
            client.stop()
        self._server.stop()


class Fleet:
    """Candidates that are up; use it as a context manager.

    Args:
        folder: for the logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runners: dict[str, Runner] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._runners):
            self.stop(name)

    def runner(self, name: str) -> Runner:
        """The candidate of that name, started if it was not."""
        if name not in self._runners:
            self._runners[name] = Runner(name, self._folder)
        return self._runners[name]

    def stop(self, name: str) -> None:
        """End a candidate's processes."""
        if name in self._runners:
            self._runners.pop(name).stop()


# ---- PyTriton


def _home() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "cluster-accel" / "triton-venv"


def triton_python() -> Path | None:
    """The interpreter of PyTriton's environment; None when it was not installed."""
    marker = _home() / "installed"
    return _home() / "bin" / "python" if marker.exists() else None


def install_triton(report: Callable[[str], None]) -> None:
    """Make PyTriton's environment, or make it anew.

    Raises:
        StartupError: pip failed; the message has its last line.
    """
    home = _home()
    report(f"installing {' '.join(_PACKAGES)} into {home}")
    venv.create(home, clear=True, with_pip=True)
    done = subprocess.run(
        [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *_PACKAGES],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_INSTALL_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise StartupError(f"PyTriton cannot be installed: {lines[-1] if lines else 'pip says nothing'}")
    (home / "installed").write_text(f"{sys.version}\n", encoding="utf-8")
