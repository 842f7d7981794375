"""What pipeline servers say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.demo.cluster import server_stats
from jobs.demo.record import ServerFacts


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
