"""The demo's cluster and its servers' counters, by the commands that a user types."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.commands import run_command, start_command
from jobs.demo.record import ServerFacts

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The cluster to start; see `yarn-accel cluster up --help`."""

    name: str = "demo"
    nodes: int = 4
    racks: int = 2
    accel_nodes: int = 2
    mode: str = "auto"
    is_secure: bool = False
    hadoop_version: str = ""


def cluster_up(options: ClusterOptions, report: Report) -> dict[str, Any]:
    """Start it; what `yarn-accel cluster up --json` prints.

    Raises:
        AccelError: it did not start.
    """
    numbers = ("--nodes", options.nodes, "--racks", options.racks, "--accel-nodes", options.accel_nodes)
    words = ("cluster", "up", options.name, *map(str, numbers), "--mode", options.mode, "--json")
    words += ("--secure",) if options.is_secure else ()
    words += ("--hadoop-version", options.hadoop_version) if options.hadoop_version else ()
    text = run_command(words, report)
    return dict(json.loads(text))


def cluster_status(name: str) -> dict[str, Any] | None:
    """The output of `yarn-accel cluster status --json`, healthy or not; None: there is no such cluster."""
    out, _ = start_command(("cluster", "status", name, "--json")).communicate()
    return dict(json.loads(out)) if out.strip() else None


def cluster_down(name: str, report: Report) -> None:
    """Take it down, whatever state it is in.

    Raises:
        AccelError: something is left of it.
    """
    run_command(["cluster", "down", name], report)


def server_stats(config_files: Sequence[Path | str]) -> list[dict[str, Any]]:
    """The counters of pipeline servers, as `yarn-accel pipeline stats` prints them.

    Raises:
        AccelError: one of them does not answer.
    """
    return [json.loads(run_command(["pipeline", "stats", "--config", str(file)])) for file in config_files]


def read_servers(config_files: Sequence[Path | str]) -> tuple[ServerFacts, ...]:
    """The counters of every server, by the files that configure them.

    Raises:
        AccelError: one of them does not answer.
    """
    return tuple(
        ServerFacts(
            name=str(stats["server"]),
            requests=int(stats["requests"]),
            done=int(stats["done"]),
            rejected=int(stats["rejected"]),
            failed=int(stats["failed"]),
            bytes_in=int(stats["bytes_in"]),
            bytes_out=int(stats["bytes_out"]),
            operations={name: int(counts.get("done", 0)) for name, counts in stats["operations"].items()},
            stage_seconds={name: float(value) for name, value in stats["stage_seconds"].items()},
        )
        for stats in server_stats(config_files)
    )
