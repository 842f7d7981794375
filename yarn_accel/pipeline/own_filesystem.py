"""The file systems of a server, by all their names: what ``hdfs:///`` means, and those of jobs' users."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from yarn_accel.hadoop.site import read_site
from yarn_accel.uris import ANY_HDFS, authority_of, normalised, normalised_prefix

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig

#: What a job's user does whose URI is in none of these file systems.
USERS_CURE = "write hdfs:///PATH; another HDFS must be in the servers' hdfs_servers"
_HOSTS = Path("/etc/hosts")
_MAX_HOSTS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OwnFilesystem:
    """The file system that ``hdfs:///`` means to a server, and the others that jobs' users may name.

    Attributes:
        default_fs: such as ``hdfs://nn:8020``; empty: nobody says.
        names: other authority of any of them -> the one of the settings, see `other_names`.
        users_roots: of the file systems that requests of jobs' users may name, as normalised URIs begin;
            none: requests run as no users.
    """

    default_fs: str
    names: Mapping[str, str] = field(default_factory=dict)
    users_roots: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, config: PipelineConfig, site: Mapping[str, str], users_hdfs: Sequence[str] = ()
    ) -> OwnFilesystem:
        """That of a server's setting, else ``fs.defaultFS`` in Hadoop's settings.

        Args:
            site: as `site_properties`.
            users_hdfs: each HDFS that jobs' users may name, as ``hdfs://AUTHORITY``; none: requests run as
                no users.
        """
        found = (config.default_fs or site.get("fs.defaultFS", "")).rstrip("/")
        if not found.startswith("hdfs://"):
            return cls("")
        roots = tuple(f"hdfs://{authority_of(each)}/" for each in users_hdfs)
        tenants = config.tenants.values()
        prefixes = {each for tenant in tenants for each in (*tenant.read_prefixes, *tenant.write_prefixes)}
        # Nobody compares where each may use all, and a name may take seconds to be found.
        is_compared = bool(roots) or any(
            each.startswith(("hdfs:", "/")) and each != ANY_HDFS for each in prefixes
        )
        names: dict[str, str] = {}
        for each in (found, *users_hdfs) if is_compared else ():
            for name in other_names(each, site):
                names.setdefault(name, authority_of(each))
        for each in users_hdfs:
            names.pop(authority_of(each), None)
        return cls(found, names, roots)

    @property
    def normalised(self) -> Callable[[str], str]:
        """Turns a URI into the form in which rights are compared, see `uris.normalised`."""
        return functools.partial(normalised, default_fs=self.default_fs, names=self.names)

    @property
    def normalised_prefix(self) -> Callable[[str], str]:
        """Does the same to a prefix of the settings, see `uris.normalised_prefix`."""
        return functools.partial(normalised_prefix, default_fs=self.default_fs, names=self.names)


def site_properties(config: PipelineConfig) -> Mapping[str, str]:
    """The properties in a server's folder of Hadoop's settings, else in ``HADOOP_CONF_DIR``.

    Raises:
        ConfigError: a file of the folder cannot be read.
    """
    folder = config.hdfs_conf_dir or os.environ.get("HADOOP_CONF_DIR", "")
    return read_site(Path(folder)) if folder else {}


def other_names(default_fs: str, site: Mapping[str, str]) -> frozenset[str]:
    """Other authorities of the same NameNode, as `uris.normalised` takes them.

    The NameNodes of a name service; the addresses of a host, and the names that they have in /etc/hosts and
    in DNS forward. Reverse DNS is not asked: others may write it, and it may answer late.

    Args:
        site: the properties of Hadoop's settings.
    """
    ours = authority_of(default_fs)
    service = default_fs.removeprefix("hdfs://")
    members = site.get(f"dfs.ha.namenodes.{service}", "").replace(",", " ").split()
    found = [authority_of(site.get(f"dfs.namenode.rpc-address.{service}.{each}", "")) for each in members]
    if not members:
        host, colon, port = ours.partition(":")
        found += [f"{name}{colon}{port}" for name in _names_of(host)]
    return frozenset(found) - {"", ours}


def _names_of(host: str) -> Iterator[str]:
    """Names and addresses of a host; each name leads to one of the addresses."""
    try:
        name, aliases, addresses = socket.gethostbyname_ex(host)
    except OSError:
        return
    short = host.partition(".")[0]
    names = {name, *aliases, *_names_in_hosts_file(addresses)} | ({short} if not short.isdigit() else set())
    for each in sorted(names - {host}):
        try:
            if set(socket.gethostbyname_ex(each)[2]) & set(addresses):
                yield each.lower()
        except OSError:
            continue
    yield from addresses


def _names_in_hosts_file(addresses: list[str]) -> Iterator[str]:
    try:
        with _HOSTS.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_HOSTS_BYTES).splitlines()
    except OSError:
        return
    for line in lines:
        address, *names = line.partition("#")[0].split() or [""]
        if address in addresses:
            yield from names
