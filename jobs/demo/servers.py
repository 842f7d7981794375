"""Ask pipeline servers for their own counters."""

from __future__ import annotations

import getpass
import secrets
import time

from jobs.demo.record import ServerFacts
from yarn_accel.client import Binding
from yarn_accel.client.client import Client
from yarn_accel.wire.credential import issue

__all__ = ["read_servers"]

LIFETIME_S = 300


def read_servers(binding: Binding, master: bytes) -> tuple[ServerFacts, ...]:
    """The counters of every server of a binding.

    Raises:
        UnavailableError: one of them does not answer.
    """
    expires_s = int(time.time()) + LIFETIME_S
    credential = issue(master, getpass.getuser(), expires_s, secrets.token_hex(8))
    found = []
    for endpoint in binding.servers:
        with Client(endpoint, credential, node="") as client:
            stats = client.stats()
        operations = {name: int(counts.get("done", 0)) for name, counts in stats["operations"].items()}
        found.append(
            ServerFacts(
                name=endpoint.name,
                requests=int(stats["requests"]),
                done=int(stats["done"]),
                rejected=int(stats["rejected"]),
                failed=int(stats["failed"]),
                bytes_in=int(stats["bytes_in"]),
                bytes_out=int(stats["bytes_out"]),
                operations=operations,
                stage_seconds={name: float(value) for name, value in stats["stage_seconds"].items()},
            )
        )
    return tuple(found)
