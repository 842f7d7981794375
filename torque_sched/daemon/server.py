"""The server as the settings say: by Torque's own batch protocol, by its commands, or by what works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torque_sched.adapters.batch_client import DEFAULT_PORT, TRQAUTHD_SOCKET, BatchClient, ServerPlace
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.native import NativePbs
from torque_sched.adapters.pbs import Pbs, TorqueServer
from torque_sched.adapters.transport import ChosenTransport
from torque_sched.daemon.config import Config
from torque_sched.daemon.place import server_host, server_name


def torque_server(home: Path, config: Config, commands: Commands, clock: Callable[[], float]) -> TorqueServer:
    """What a daemon looks at and gives orders to.

    Args:
        home: the PBS home.
        config: ``transport`` chooses, ``trqauthd_socket`` and the time limits are used.
        commands: run where the commands are the way.
        clock: as `QueriedServer` has it.
    """
    by_commands = Pbs(
        commands, clock, query_timeout_s=config.query_timeout_s, order_timeout_s=config.order_timeout_s
    )
    if config.transport == "commands":
        return by_commands
    return ChosenTransport(native_server(home, config, by_commands, clock), by_commands, config.transport)


def native_server(
    home: Path, config: Config, by_commands: TorqueServer, clock: Callable[[], float]
) -> NativePbs:
    """The server by its batch protocol; arguments as for :func:`torque_server`."""
    return NativePbs(
        BatchClient(server_place(home, config.trqauthd_socket)), by_commands, clock,
        query_timeout_s=config.query_timeout_s, order_timeout_s=config.order_timeout_s,
    )  # fmt: skip


def server_place(home: Path, trqauthd: str = "") -> ServerPlace:
    """Where the server is reached without its commands.

    Args:
        home: the PBS home; an emulation has trqauthd's socket there.
        trqauthd: that socket, where it is named.
    """
    at_home = home / TRQAUTHD_SOCKET.name
    found = Path(trqauthd) if trqauthd else at_home if at_home.exists() else TRQAUTHD_SOCKET
    named = server_name(home).partition(":")[2]
    port = int(named) if named.isascii() and named.isdigit() and len(named) <= 5 else DEFAULT_PORT
    return ServerPlace(found, server_host(home), port)
