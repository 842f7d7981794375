"""What every section is given: our server in a process of its own, calls and replies, cores kept awake."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from benchmarks import ROOT
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.client import Client
from yarn_accel.client.dispatch import CallSource
from yarn_accel.errors import AccelError, StartupError
from yarn_accel.pipeline.cpu_idle import DEVICE, keep_awake
from yarn_accel.wire.credential import issue

MIB = 1 << 20
_FOLDERS = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
_STOP_LIMIT_S = 15.0
_LIFETIME_S = 24 * 3600
_UP = {"idle", "standby"}
CARRIERS: Mapping[str, Sequence[str]] = {
    "tcp": ("tcp",),
    "unix": ("unix",),
    "memory": ("memfd", "unix", "tcp"),
}
"""What this benchmark calls a carrier, and what the client is allowed for it."""


def connect(
    address: Mapping[str, Any], carrier: str = "memory", checksum: str = "", tenant: str = "bench"
) -> Client:
    """A connected client.

    Args:
        address: what `OwnServer.address` says; another process may have it.
        carrier: a key of `CARRIERS`.
        checksum: the only one allowed; empty: as the client chooses.
        tenant: in whose name.
    """
    master = bytes.fromhex(Path(address["secret"]).read_text(encoding="utf-8"))
    credential = issue(master, tenant, int(time.time()) + _LIFETIME_S, secrets.token_hex(8))
    endpoint = Endpoint("bench", "127.0.0.1", int(address["port"]), str(address["unix"]))
    checksums = (checksum,) if checksum else None
    client = Client(endpoint, credential, 120.0, carriers=CARRIERS[carrier], checksums=checksums)
    client.connect()
    return client


class OwnServer:
    """``yarn-accel pipeline serve``; use it as a context manager.

    Args:
        folder: an empty folder for its secret, socket, log and state.
        start_limit_s: seconds until its workers have to be ready.
        settings: what differs from the defaults of `yarn_accel.pipeline.config.PipelineConfig`.

    Raises:
        StartupError: it does not start; the message has the last line of its log.
    """

    def __init__(self, folder: Path, start_limit_s: float = 120.0, **settings: Any) -> None:
        self._folder = folder
        self._until_s = time.monotonic() + start_limit_s
        folder.mkdir(parents=True, exist_ok=True)
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32), encoding="utf-8")
        state = folder / "state.json"
        state.unlink(missing_ok=True)
        values = {
            "name": "bench",
            "unix_path": str(folder / "s.sock"),
            "master_secret_file": str(secret),
            "state_file": str(state),
            "checksums": ["xxh3", "crc32c", "crc32", "none"],
            "extra_operations": ["benchmarks.pipeline.lapack:OPERATIONS"],
            "pool_bytes": 4096 * MIB,
            "queue_bytes": 2048 * MIB,
            "max_shared_memory_bytes": 1024 * MIB,
            "calibrate": False,  # it fills idle moments, in which somebody else is being measured
            "log_level": "WARNING",
            **settings,
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "yarn_accel", "pipeline", "serve", "--config", folder / "config.yaml"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_FOLDERS)},
            )
        self.address = {"secret": str(secret), "unix": values["unix_path"], "port": self._port(state)}
        self._settle()

    def _port(self, state: Path) -> int:
        while time.monotonic() < self._until_s and self.process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                return int(json.loads(state.read_text(encoding="utf-8"))["port"])
            time.sleep(0.02)
        self.close()
        lines = (self._folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise StartupError(f"our server did not start: {lines[-1] if lines else 'it says nothing'}")

    def _settle(self) -> None:
        """Wait for all workers and the standby: it serves before they have loaded their libraries."""
        faults: list[str] = []
        while time.monotonic() < self._until_s and not faults:
            workers = self.stats()["workers"]
            states = [worker["state"] for worker in workers]
            if "standby" in states and all(state in _UP for state in states):
                return
            faults = [worker["last_fault"] for worker in workers if worker["state"] == "quarantined"]
            time.sleep(0.05)
        self.close()
        raise StartupError(f"our server's workers did not start{': ' if faults else ''}{'; '.join(faults)}")

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def client(self, carrier: str = "memory", checksum: str = "", tenant: str = "bench") -> Client:
        """A connected client, see `connect`."""
        return connect(self.address, carrier, checksum, tenant)

    def stats(self) -> Mapping[str, Any]:
        """The server's own figures."""
        with self.client("unix", tenant="operator") as client:
            return client.stats()

    def close(self) -> None:
        """Drain and end it; kill it when that takes too long."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Setting:
    """How to measure.

    Attributes:
        quick: fewer sizes and rounds; the rows say so.
        report: takes progress lines.
        folder: for logs, sockets and configurations; gone afterwards.
        cores_awake: whether latency and echo are measured with the cores kept awake, see `kept_awake`.
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


def took_s(client: Client, work: Iterable[Call], window: int, pack: int = 1) -> float:
    """Wall seconds until every call has its reply."""
    start_s = time.perf_counter()
    for _ in replies(client, work, window, pack):
        pass
    return time.perf_counter() - start_s


def packed(
    client: Client, work: Iterable[Call], window: int, pack: int
) -> Iterator[tuple[Call, Reply | AccelError]]:
    """As `Client.map`, with so many calls as one request, as a `Dispatcher` sends them."""
    source = CallSource(work, window, False, pack, client.takes_stacks, lambda: client.pack_bytes)
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


@contextmanager
def kept_awake(is_wanted: bool) -> Iterator[None]:
    """No core sleeps inside; nothing happens where it is not wanted.

    It holds for the whole machine, so all candidates gain by it alike.
    """
    if not is_wanted:
        yield
        return
    device = keep_awake(0, DEVICE)
    try:
        yield
    finally:
        os.close(device)
