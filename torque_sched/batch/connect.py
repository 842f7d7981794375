"""The batch system as the settings say, or as ``qstat --version`` answers.

OpenPBS is asked by its commands; Torque by its batch protocol, by its commands, or by what works.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torque_sched.adapters.commands import Commands
from torque_sched.batch.cluster_clock import ClusterClock
from torque_sched.batch.openpbs import pbs as openpbs
from torque_sched.batch.openpbs.pbs import OpenPbs
from torque_sched.batch.system import BatchSystem, Look
from torque_sched.batch.torque.batch_client import DEFAULT_PORT, TRQAUTHD_SOCKET, BatchClient, ServerPlace
from torque_sched.batch.torque.native import NativePbs
from torque_sched.batch.torque.pbs import Pbs, QueriedServer, read_snapshot
from torque_sched.batch.torque.transport import ChosenTransport, Transport
from torque_sched.model.snapshot import Snapshot

Dialect = Literal["torque", "openpbs"]
NAMES: dict[Dialect, str] = {"torque": "Torque", "openpbs": "OpenPBS"}
_PROBE_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server is reached.

    Attributes:
        home: the PBS home.
        transport: by which way.
        trqauthd_socket: empty: the one in the home where it is, else the product's.
        commands: the folder of Torque's commands; empty: they are on PATH.
        query_timeout_s: for each question.
        order_timeout_s: for each order.
        batch_system: whose commands they are; ``auto``: as ``qstat --version`` says.
        partition: of OpenPBS, whose queues and vnodes are ours; empty: those of none.
        loads_folder: of OpenPBS, where the nodes' samplers write their files; empty: nowhere.
        heed_scheduling: whether nothing starts while the server's ``scheduling`` is False.
    """

    home: Path
    transport: Transport
    trqauthd_socket: str
    commands: str
    query_timeout_s: float
    order_timeout_s: float
    batch_system: Literal["auto", "torque", "openpbs"] = "auto"
    partition: str = ""
    heed_scheduling: bool = True
    loads_folder: str = ""

    def new_commands(self) -> Commands:
        """Runs the batch system's commands."""
        return Commands(command_environment(self.commands))

    def dialect(self) -> Dialect:
        """Which of Torque and OpenPBS answers; where none does, Torque, whose commands say what lacks."""
        if self.batch_system != "auto":
            return self.batch_system
        return "openpbs" if "pbs_version" in version_text(self.commands) else "torque"

    def dialect_text(self) -> str:
        """Which it is and how that is known, for people: ``OpenPBS (qstat --version: ...)``."""
        if self.batch_system != "auto":
            return f"{NAMES[self.batch_system]} (setting `batch_system`)"
        version = " ".join(version_text(self.commands).split())[:80]
        return f"{NAMES[self.dialect()]} (qstat --version: {version or 'no answer'})"


def version_text(commands: str) -> str:
    """What ``qstat --version`` prints; empty: it is not there, or does not end.

    OpenPBS prints ``pbs_version = 23.06.06``, Torque ``Version: 6.1.3``. It asks no server.
    """
    env = command_environment(commands)
    found = shutil.which("qstat", path=env.get("PATH"))
    if found is None:
        return ""
    try:
        done = subprocess.run(
            [found, "--version"], env=env, capture_output=True, timeout=_PROBE_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def new_server(settings: ServerSettings, commands: Commands, clock: Callable[[], float]) -> BatchSystem:
    """The server that a daemon looks at and gives orders to.

    Args:
        settings: say the way and the time limits.
        commands: run where the commands are the way.
        clock: as `QueriedServer` has it.
    """
    by_commands = server_by_commands(settings, commands, clock)
    if settings.transport == "commands" or isinstance(by_commands, OpenPbs):
        return by_commands
    native = server_by_protocol(settings, by_commands, clock)
    return ChosenTransport(native, by_commands, settings.transport)


def server_by_commands(
    settings: ServerSettings,
    commands: Commands,
    clock: Callable[[], float],
    note: Callable[[str], None] | None = None,
) -> QueriedServer:
    """The server by its commands; as for :func:`new_server`, ``note`` as `QueriedServer` has it."""
    if settings.dialect() == "openpbs":
        return OpenPbs(
            commands, clock,
            query_timeout_s=settings.query_timeout_s, order_timeout_s=settings.order_timeout_s, note=note,
            partition=settings.partition, loads_folder=settings.loads_folder,
            heed_scheduling=settings.heed_scheduling,
        )  # fmt: skip
    return Pbs(
        commands, clock,
        query_timeout_s=settings.query_timeout_s, order_timeout_s=settings.order_timeout_s, note=note,
    )  # fmt: skip


def server_by_protocol(
    settings: ServerSettings, by_commands: BatchSystem, clock: Callable[[], float]
) -> NativePbs:
    """A Torque server by its batch protocol; arguments as for :func:`new_server`."""
    return NativePbs(
        BatchClient(_place(settings)), by_commands, clock,
        query_timeout_s=settings.query_timeout_s, order_timeout_s=settings.order_timeout_s,
    )  # fmt: skip


def look_once(settings: ServerSettings, note: Callable[[str], None] | None = None) -> Look:
    """One look by the commands, from code that has no event loop; it only reads.

    Args:
        settings: where the commands are, and how long they may take.
        note: called with what the look waits for when that takes long.

    Raises:
        SnapshotError: there is none to be had now.
    """
    server = server_by_commands(settings, settings.new_commands(), ClusterClock(), note)
    return asyncio.run(server.look())


def snapshot_in(outputs: Mapping[str, bytes], now_s: float, silent_s: float = 0.0) -> Snapshot:
    """The snapshot in the outputs of a look, as a journal keeps them (`Look.outputs`).

    Args:
        outputs: the answers as they came.
        now_s: when they were asked for, seconds since the epoch.
        silent_s: as `Snapshot` has it.

    Raises:
        SnapshotError: an output is unusable, or does not list the jobs that the server counts.
    """
    if openpbs.is_look(outputs):
        return openpbs.read_snapshot(outputs, now_s, silent_s)[0]
    return read_snapshot(outputs, now_s, silent_s=silent_s)[0]


def command_environment(commands: str) -> dict[str, str]:
    """The commands' environment: ``commands`` first on PATH, plain C words and numbers, times of UTC."""
    env = dict(os.environ)
    if commands:
        env["PATH"] = f"{commands}{os.pathsep}{env.get('PATH', '')}"
    # OpenPBS prints times of the client's zone without naming it; Torque's are of the server, or of none.
    env["LC_ALL"], env["TZ"] = "C", "UTC"
    return env


def server_host(home: Path) -> str:
    """The host name of the server of this home: as ``server_name`` there says, else this host's."""
    return _server_name(home).partition(":")[0].strip() or socket.gethostname()


def _server_name(home: Path) -> str:
    """``HOST`` or ``HOST:PORT`` of the first server; empty where none is named."""
    named = os.environ.get("PBS_DEFAULT", "")
    if not named:
        with suppress(OSError):
            named = (home / "server_name").read_text(encoding="ascii", errors="replace")
    return named.split(",")[0].strip()


def _place(settings: ServerSettings) -> ServerPlace:
    """Where the server is reached without its commands; an emulation has trqauthd's socket in its home."""
    at_home = settings.home / TRQAUTHD_SOCKET.name
    product = at_home if at_home.exists() else TRQAUTHD_SOCKET
    found = Path(settings.trqauthd_socket) if settings.trqauthd_socket else product
    named = _server_name(settings.home).partition(":")[2]
    port = int(named) if named.isascii() and named.isdigit() and len(named) <= 5 else DEFAULT_PORT
    return ServerPlace(found, server_host(settings.home), port)
