"""What every section is given, and the figures' names."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pipeline.own_server import OwnServer
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.client import Client
from yarn_accel.client.dispatch import CallSource
from yarn_accel.errors import AccelError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """How to measure.

    Attributes:
        quick: fewer sizes and rounds; the rows say so.
        report: takes progress lines.
        folder: for logs, sockets and configurations; gone afterwards.
        cores_awake: whether latency and echo are measured with the cores kept awake, see `awake`.
    """

    quick: bool
    report: Callable[[str], None]
    folder: Path
    cores_awake: bool = False

    def server(self, name: str, **settings: Any) -> OwnServer:
        """Our server with these settings."""
        return OwnServer(self.folder / name, **settings)


def calls(operation: str, params: Mapping[str, Any], inputs: Iterable[Any]) -> Iterator[Call]:
    """A call for each input, all with keys that were never used."""
    return calls_of(operation, params, ((item,) for item in inputs))


def calls_of(operation: str, params: Mapping[str, Any], inputs: Iterable[tuple[Any, ...]]) -> Iterator[Call]:
    """As `calls`, for operations of several inputs."""
    prefix = secrets.token_hex(6)
    for at, items in enumerate(inputs):
        yield Call(f"{prefix}-{at}", operation, params, items)


def replies(client: Client, work: Iterable[Call], window: int, pack: int = 1) -> Iterator[Reply]:
    """The reply to every call.

    Raises:
        AccelError: what the first failed call failed with.
    """
    for _, outcome in client.map(work, window) if pack == 1 else packed(client, work, window, pack):
        if isinstance(outcome, AccelError):
            raise outcome
        yield outcome


def packed(
    client: Client, work: Iterable[Call], window: int, pack: int
) -> Iterator[tuple[Call, Reply | AccelError]]:
    """As `Client.map`, with so many calls as one request, as a `Dispatcher` sends them."""
    source = CallSource(work, window, pack=pack, takes_stacks=client.takes_stacks)
    while True:
        while client.n_in_flight < window:
            following = source.next()
            if following is None:
                break
            client.submit(following)
        if not client.n_in_flight:
            return
        yield from source.settle(*client.next_outcome())


def size_text(n_bytes: int) -> str:
    """Such as ``64 KiB`` or ``50 MiB``."""
    for unit, scale in (("MiB", MIB), ("KiB", 1 << 10)):
        if n_bytes >= scale:
            return f"{n_bytes // scale} {unit}"
    return f"{n_bytes} B"
