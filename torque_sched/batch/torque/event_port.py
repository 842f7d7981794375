"""The port pbs_server knocks at: four bytes that say what happened, and the connection is closed.

OpenPBS's server hook sends a datagram to the same port instead (`batch.openpbs.hook`); it can only wake.

Who may knock is decided as the C daemon does it: from a privileged port this host and the hosts of
``$clienthost`` lines; from any other port only the hosts of ``$restricted`` lines.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import fnmatch
import logging
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from torque_sched.adapters.waiting import within
from torque_sched.batch.openpbs.hook import EVENTS, GREETING, LONGEST_KNOCK
from torque_sched.batch.system import EventSource
from torque_sched.errors import ConfigError, StartupError

logger = logging.getLogger(__name__)

DEFAULT_PORT = 15004
_PRIVILEGED = 1024
_READ_S = 5.0
_BACKLOG = 128
_BIND_CURES = {
    errno.EADDRINUSE: "another scheduler has this port; stop pbs_sched, or choose another port with -S",
    errno.EACCES: "ports below 1024 are root's; choose another port with -S",
    errno.EADDRNOTAVAIL: "this address is not this host's; correct `addresses`",
}


class SchedCommand(enum.IntEnum):
    """What pbs_server says."""

    NULL = 0
    NEW = 1
    """A job was queued or released."""
    TERM = 2
    """A job ended or was deleted."""
    TIME = 3
    """``scheduler_iteration`` has passed."""
    RECYC = 4
    CMD = 5
    """``set server scheduling = True``."""
    CONFIGURE = 7
    QUIT = 8
    RULESET = 9
    FIRST = 10
    """The server has started."""

    @property
    def asks_for_cycle(self) -> bool:
        """Whether the C daemon runs a cycle for it."""
        return self in {
            SchedCommand.NEW, SchedCommand.TERM, SchedCommand.TIME, SchedCommand.CMD, SchedCommand.FIRST
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Callers:
    """Hosts that may knock, beside this one.

    Attributes:
        client_hosts: from privileged ports; addresses.
        restricted: from any port; host names or addresses, ``*`` stands for anything.
    """

    client_hosts: frozenset[str] = frozenset()
    restricted: tuple[str, ...] = ()

    def refusal(self, address: str, port: int, own: frozenset[str]) -> str:
        """Why this caller is not heard, in the C daemon's words; empty when it is."""
        if port >= _PRIVILEGED:
            if self._is_restricted(address):
                return ""
            return f"{address} on port {port} non-reserved port"
        if address in own or address in self.client_hosts or address.startswith("127."):
            return ""
        return f"{address} unauthorized host"

    def may_wake(self, address: str, own: frozenset[str]) -> bool:
        """Whether a datagram from there is heard: from this host, a client host or a restricted one."""
        known = address in own or address in self.client_hosts or address.startswith("127.")
        return known or self._is_restricted(address)

    def _is_restricted(self, address: str) -> bool:
        return bool(self.restricted) and any(
            fnmatch.fnmatchcase(name, each) for name in _names(address) for each in self.restricted
        )


def parse_callers(text: str, place: str) -> Callers:
    """The ``-c`` file: ``$clienthost NAME`` and ``$restricted NAME`` lines.

    Raises:
        ConfigError: another line, or a client host without an address.
    """
    hosts: set[str] = set()
    restricted: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in {"$clienthost", "$restricted"}:
            raise ConfigError(
                f"{place}, line {number}: {line.strip()[:60]!r}", cure="known are $clienthost, $restricted"
            )
        if words[0] == "$restricted":
            restricted.append(words[1])
            continue
        found = addresses_of(words[1])
        if not found:
            raise ConfigError(f"{place}, line {number}: {words[1]} has no address", cure="see /etc/hosts")
        hosts.update(found)
    return Callers(frozenset(hosts), tuple(restricted))


def addresses_of(host: str) -> tuple[str, ...]:
    """The IPv4 addresses of a host name (Torque knows no others); none when it is unknown."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _names(address: str) -> Iterable[str]:
    yield address
    with suppress(OSError):
        name, aliases, _ = socket.gethostbyaddr(address)
        yield from (name, *aliases)


def bind_all(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Listening sockets on these addresses.

    Raises:
        StartupError: one is taken, or not ours; in the C daemon's words.
    """
    made: list[socket.socket] = []
    for address in addresses:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((address, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            for each in (*made, listener):
                each.close()
            raise StartupError(
                f"bind: {error.strerror} ({address} port {port})", cure=_BIND_CURES.get(error.errno or 0, "")
            ) from error
        made.append(listener)
        port = listener.getsockname()[1]  # 0: the kernel chose one, the same for all
    return made


class _Knocks(asyncio.DatagramProtocol):
    """Hands on who sent a datagram, and what."""

    def __init__(self, heard: Callable[[bytes, str], None]) -> None:
        self._heard = heard

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._heard(data, str(addr[0]))


class EventPort(EventSource):
    """Takes calls on listening sockets and hands their commands over.

    Args:
        listeners: from `bind_all`.
        callers: who may knock.
        on_command: called with each command of a caller who may.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        callers: Callers,
        on_command: Callable[[SchedCommand], None],
    ) -> None:
        self._listeners = tuple(listeners)
        self._own = frozenset(str(each.getsockname()[0]) for each in listeners)
        self.callers = callers
        self._on_command = on_command
        self._servers: list[asyncio.AbstractServer] = []
        self._datagrams: list[asyncio.BaseTransport] = []
        self.n_events = 0
        self.n_refused = 0

    async def start(self) -> None:
        """Begin to listen."""
        for each in self._listeners:
            self._servers.append(await asyncio.start_server(self._serve, sock=each))
            address, port = each.getsockname()[:2]
            try:
                transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                    lambda: _Knocks(self._knocked), local_addr=(address, port)
                )
            except OSError as error:
                logger.warning("UDP %s port %d: %s; OpenPBS's hook is not heard", address, port, error)
                continue
            self._datagrams.append(transport)

    async def stop(self) -> None:
        """Close all sockets."""
        for transport in self._datagrams:
            transport.close()
        self._datagrams.clear()
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _knocked(self, data: bytes, address: str) -> None:
        """A datagram of the hook; whatever else arrives is dropped without a word."""
        word = data[len(GREETING) : LONGEST_KNOCK].decode("ascii", "replace")
        if (
            not data.startswith(GREETING)
            or word not in EVENTS
            or not self.callers.may_wake(address, self._own)
        ):
            self.n_refused += 1
            return
        self.n_events += 1
        self._on_command(SchedCommand.TERM if word == "jobobit" else SchedCommand.NEW)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer = writer.get_extra_info("peername") or ("", 0)
            refusal = self.callers.refusal(str(peer[0]), int(peer[1]), self._own)
            if refusal:
                self.n_refused += 1
                logger.warning("%s", refusal)
                return
            data = await within(_READ_S, reader.readexactly(4))
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.CancelledError):
            # The daemon ends: of a cancelled connection asyncio before Python 3.12 logs a traceback.
            return
        finally:
            writer.close()
        self.n_events += 1
        (code,) = struct.unpack(">I", data)
        try:
            command = SchedCommand(code)
        except ValueError:
            logger.warning("unknown command %d from the server", code)
            return
        self._on_command(command)
