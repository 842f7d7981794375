"""Where a cluster's ResourceManagers answer, one or several, read from Hadoop's own properties.

This module alone reads the settings of high availability and of ``yarn.http.policy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from yarn_accel.errors import ConfigError

_PREFIX = "yarn.resourcemanager."
_KEYS = {
    "client": ("address", 8032),
    "scheduler": ("scheduler.address", 8030),
    "admin": ("admin.address", 8033),
}
_WEB = ("webapp.address", 8088)
_HTTPS_WEB = ("webapp.https.address", 8090)
#: A daemon's own address for "every interface of mine"; a client reaches the ResourceManager by its host.
_ANY = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str, default_port: int = 0) -> Address:
        """Read ``host:port``, ``[v6]:port``, or a host alone when there is a default port.

        Raises:
            ConfigError: something else.
        """
        host, colon, port = text.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = text.strip(), str(default_port)
        host = host.removeprefix("[").removesuffix("]")
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:8]) < 65536
        if not is_port or not _is_host(host):
            raise ConfigError(f"{text[:200]!r} is no host:port")
        return Address(host, int(port))


@dataclass(frozen=True, slots=True)
class ResourceManagerAddresses:
    """The services of every ResourceManager of one cluster, the configured order kept.

    Attributes:
        client: submit, report, kill.
        scheduler: for application masters.
        admin: for operators.
        web: pages and REST.
        is_https: the same over TLS alone (``yarn.http.policy``).
    """

    client: tuple[Address, ...]
    scheduler: tuple[Address, ...]
    admin: tuple[Address, ...]
    web: tuple[Address, ...] = ()
    is_https: bool = False

    @staticmethod
    def from_properties(properties: Mapping[str, str]) -> ResourceManagerAddresses:
        """Read ``yarn.resourcemanager.*`` as Hadoop does: ``.address`` of an id wins over ``.hostname``.

        Ids count where ``ha.enabled`` is true. Without any host it is ``localhost``, as Hadoop's default.

        Raises:
            ConfigError: an address cannot be read, or high availability is on without ids or hosts.
        """
        ids = [""]
        if properties.get(f"{_PREFIX}ha.enabled", "false").strip().lower() == "true":
            ids = [
                each.strip() for each in properties.get(f"{_PREFIX}ha.rm-ids", "").split(",") if each.strip()
            ]
            if not ids:
                raise ConfigError(f"{_PREFIX}ha.enabled is true, yet {_PREFIX}ha.rm-ids names none")
        # Hadoop reads any other value as HTTP_ONLY.
        is_https = properties.get("yarn.http.policy", "").strip().upper() == "HTTPS_ONLY"
        keys = {**_KEYS, "web": _HTTPS_WEB if is_https else _WEB}
        found = {
            service: tuple(_address(properties, key, port, each) for each in ids)
            for service, (key, port) in keys.items()
        }
        return ResourceManagerAddresses(**found, is_https=is_https)


def _is_host(text: str) -> bool:
    """Whether a resolver would take the text: not a URL, and no label of it empty or too long."""
    try:
        return bool(text.encode("idna")) and not set(text) & set("/ \t\r\n")
    except UnicodeError:
        return False


def _address(properties: Mapping[str, str], key: str, port: int, rm_id: str) -> Address:
    suffix = f".{rm_id}" if rm_id else ""
    host = properties.get(f"{_PREFIX}hostname{suffix}", "" if rm_id else "localhost").strip()
    if host in _ANY:
        host = "localhost"
    written = properties.get(f"{_PREFIX}{key}{suffix}", "").strip()
    if "${" in written:  # the default is written with the host's key as a variable
        written = written.replace("${yarn.resourcemanager.hostname}", host)
    if not written and not host:
        raise ConfigError(f"{_PREFIX}{key}{suffix} and {_PREFIX}hostname{suffix} are not set")
    try:
        found = Address.parse(written or host, port)
    except ConfigError as error:
        raise ConfigError(f"{_PREFIX}{key if written else 'hostname'}{suffix}: {error.message}") from None
    return Address(host or "localhost", found.port) if found.host in _ANY else found
