"""The demo's cluster, by the commands that a user types: started, asked, and taken down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yarn_accel.errors import AccelError, ConfigError, JobError, StartupError

__all__ = [
    "ClusterOptions",
    "cluster_down",
    "cluster_status",
    "cluster_up",
    "server_stats",
]

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What cluster to start; see `yarn-accel cluster up --help`."""

    name: str = "demo"
    nodes: int = 4
    racks: int = 2
    accel_nodes: int = 2
    mode: str = "auto"


def cluster_up(options: ClusterOptions, report: Report) -> dict[str, Any]:
    """Start it; what `yarn-accel cluster up --json` prints.

    Raises:
        AccelError: it did not start.
    """
    numbers = ("--nodes", options.nodes, "--racks", options.racks, "--accel-nodes", options.accel_nodes)
    words = ("cluster", "up", options.name, *map(str, numbers), "--mode", options.mode, "--json")
    text = _run(words, report)
    return dict(json.loads(text))


def cluster_status(name: str) -> dict[str, Any] | None:
    """What `yarn-accel cluster status --json` prints, healthy or not; None: there is no such cluster."""
    out, _ = _start(("cluster", "status", name, "--json")).communicate()
    return dict(json.loads(out)) if out.strip() else None


def cluster_down(name: str, report: Report) -> None:
    """Take it down, whatever state it is in.

    Raises:
        AccelError: something is left of it.
    """
    _run(["cluster", "down", name], report)


def server_stats(config_files: Sequence[Path | str]) -> list[dict[str, Any]]:
    """The counters of pipeline servers, as `yarn-accel pipeline stats` prints them.

    Raises:
        AccelError: one of them does not answer.
    """
    return [json.loads(_run(["pipeline", "stats", "--config", str(file)])) for file in config_files]


def _run(words: Sequence[str], report: Report = lambda _: None) -> str:
    """Standard output of a command; each line of its standard error is reported."""
    process = _start(words)
    assert process.stderr is not None
    assert process.stdout is not None
    last = ""
    try:
        for line in process.stderr:
            last = line.strip() or last
            report(line.strip())
        out = process.stdout.read()
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        process.stderr.close()
        process.stdout.close()
    if status != 0:
        raise _error(status, last.removeprefix("yarn-accel: ") or f"yarn-accel {' '.join(words)} failed")
    return out


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "yarn_accel", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _error(status: int, message: str) -> AccelError:
    kinds: dict[int, type[AccelError]] = {kind.exit_code: kind for kind in (ConfigError, StartupError)}
    return kinds.get(status, JobError)(message)
