"""A cluster that exists already, as its clients see it: configuration, jars, and where things answer.

Everything comes from the configuration directory (HADOOP_CONF_DIR).  Beside Hadoop's own ``*-site.xml``
files it may hold ``yarn-accel-site.yaml`` with what Hadoop has no key for.  ``yarn-accel cluster up`` writes
one, and an operator may.
"""

from __future__ import annotations

import os
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from yarn_accel.adapters.hadoop_rpc.clients import ResourceManagerAddresses
from yarn_accel.adapters.hadoop_rpc.kerberos import Kerberos, Security
from yarn_accel.adapters.hadoop_rpc.transport import Address
from yarn_accel.adapters.rest import WebAccess
from yarn_accel.adapters.settings_file import read_settings
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop.java import (
    HADOOP_VERSION,
    HadoopInstall,
    cache_dir,
    fetched,
    find_java,
    from_hadoop_home,
)

SITE_FILE = "yarn-accel-site.yaml"
_YARN_SITE = "yarn-site.xml"
SLOT_RESOURCE = "acct/slot"
"""A mapper that asks for one slot is placed where slots are, so mappers spread over the nodes."""
#: Every HDFS beside ``fs.defaultFS`` that jobs get tokens for.
HDFS_SERVERS_PROPERTY = "mapreduce.job.hdfs-servers"
SITE_KEYS: Mapping[str, str] = {
    "binding_file": "which node sends to which pipeline server (JSON)",
    "master_secret_file": "the site's secret that job credentials are derived from (mode 0600)",
    "client_hosts_file": "a hosts file for clients that cannot resolve the nodes' names",
    "server_ca_file": "who signs the certificates of pipeline servers (PEM); jobs take it along",
    "web_ca_file": "who signed the certificates of Hadoop's web services (PEM); jobs take it along",
    "client_jvm_options": "further options for the JVM of job clients, as a list or one string",
    "hadoop_version": "version of the fetched jars that job clients run from, where HADOOP_HOME is not set",
}


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """How to reach one Hadoop cluster, as far as files say; neither Java nor jars are needed.

    Attributes:
        conf_dir: the configuration directory.
        properties: all properties of the ``*-site.xml`` files.
        client_jvm_options: options for the JVM of job clients, name resolution included.
        client_hosts: names that this machine cannot resolve itself -> address.
        binding_file: see :data:`SITE_KEYS`; None when not given.
        master_secret_file: likewise.
        server_ca_file, web_ca_file: likewise.
        hadoop_version: likewise.
    """

    conf_dir: Path
    properties: Mapping[str, str] = field(repr=False)
    client_jvm_options: tuple[str, ...] = ()
    client_hosts: Mapping[str, str] = field(default_factory=dict)
    binding_file: Path | None = None
    master_secret_file: Path | None = None
    web_ca_file: Path | None = None
    server_ca_file: Path | None = None
    hadoop_version: str = HADOOP_VERSION

    @staticmethod
    def read(environ: Mapping[str, str] | None = None) -> SiteSettings:
        """Read them from HADOOP_CONF_DIR (else HADOOP_HOME/etc/hadoop).

        Raises:
            StartupError: neither is set, or the directory is not there.
            ConfigError: a file in it is wrong.
        """
        environ = os.environ if environ is None else environ
        conf_dir = _conf_dir(environ.get("HADOOP_CONF_DIR", ""), environ.get("HADOOP_HOME", ""))
        settings = _read_settings(conf_dir / SITE_FILE)
        options = _jvm_options(settings, conf_dir / SITE_FILE)
        hosts_file = _path(settings, "client_hosts_file", conf_dir)
        if hosts_file is not None:
            options.insert(0, f"-Djdk.net.hosts.file={hosts_file}")
        return SiteSettings(
            conf_dir,
            read_site(conf_dir),
            tuple(options),
            _read_hosts(hosts_file) if hosts_file else {},
            _path(settings, "binding_file", conf_dir),
            _path(settings, "master_secret_file", conf_dir),
            _path(settings, "web_ca_file", conf_dir),
            _path(settings, "server_ca_file", conf_dir),
            str(settings.get("hadoop_version") or HADOOP_VERSION),
        )

    def has_slots(self) -> bool:
        """Whether the cluster knows the resource of which mappers ask for one each, to be spread."""
        types = read_properties(self.conf_dir / "resource-types.xml").get("yarn.resource-types", "")
        named = f"{types},{self.properties.get('yarn.resource-types', '')}".split(",")
        return SLOT_RESOURCE in [name.strip() for name in named]

    def resolve(self, host: str) -> str:
        """The address to connect to for a host name, through the site's hosts file."""
        return self.client_hosts.get(host, host)

    def security(self) -> Security:
        """Whether the cluster has Kerberos, and which principals its services have.

        Raises:
            ConfigError: a value that Hadoop does not know.
        """
        try:
            return Security.from_properties(self.properties, self.client_hosts)
        except ConfigError as error:
            raise ConfigError(f"{self.conf_dir}: {error.message}") from None

    def web_access(self) -> WebAccess:
        """A way to the cluster's web services; with Kerberos by the caller's ticket.

        Raises:
            ConfigError: as `security`, or `web_ca_file` cannot be read.
        """
        identity = Kerberos() if self.security().is_kerberos else None
        return WebAccess(identity, self.client_hosts, self.web_ca_file)

    def resourcemanagers(self) -> ResourceManagerAddresses:
        """Where the ResourceManagers answer, by the names of the configuration.

        Raises:
            ConfigError: an address cannot be read, or high availability is on without ids or hosts.
        """
        try:
            return ResourceManagerAddresses.from_properties(self.properties)
        except ConfigError as error:
            raise ConfigError(f"{self.conf_dir / _YARN_SITE}: {error.message}") from None

    def resourcemanager_webs(self) -> list[str]:
        """Web addresses, one per ResourceManager: ``http://host:port``, or ``https`` by ``yarn.http.policy``.

        Raises:
            ConfigError: as `resourcemanagers`.
        """
        found = self.resourcemanagers()
        return [self._web_url(each, found.is_https) for each in found.web]

    def history_web(self) -> str:
        """Web address of the JobHistoryServer, as ``mapreduce.jobhistory.http.policy`` says.

        Raises:
            ConfigError: an address cannot be read.
        """
        prefix, values = "mapreduce.jobhistory.", self.properties
        is_https = values.get(f"{prefix}http.policy", "").strip().upper() == "HTTPS_ONLY"
        key, port = ("webapp.https.address", 19890) if is_https else ("webapp.address", 19888)
        try:
            rpc = Address.parse(values.get(f"{prefix}address") or "localhost", 10020)
            web = Address.parse(values.get(prefix + key) or rpc.host, port)
        except ConfigError as error:
            raise ConfigError(f"{self.conf_dir}: {prefix}address or {prefix}{key}: {error.message}") from None
        host = next((each for each in (web.host, rpc.host) if each != "0.0.0.0"), "localhost")
        return self._web_url(Address(host, web.port), is_https)

    def _web_url(self, address: Address, is_https: bool) -> str:
        if is_https:  # A certificate is for a name.
            return f"https://{address}"
        return f"http://{Address(self.resolve(address.host), address.port)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HadoopSite(SiteSettings):
    """A cluster that jobs are submitted to: its settings, and the jars their clients run from.

    Attributes:
        install: the jars of HADOOP_HOME when that is set, else those of ``yarn-accel hadoop fetch``.
    """

    install: HadoopInstall

    @staticmethod
    def load(environ: Mapping[str, str] | None = None) -> HadoopSite:
        """Read the settings and pick the jars.

        Raises:
            StartupError: no directory of settings, or jars or Java are missing.
            ConfigError: a file is wrong.
        """
        environ = os.environ if environ is None else environ
        settings = SiteSettings.read(environ)
        read = {each.name: getattr(settings, each.name) for each in fields(settings)}
        return HadoopSite(**read, install=_find_jars(environ, settings.hadoop_version))


def _find_jars(environ: Mapping[str, str], version: str) -> HadoopInstall:
    home, java = environ.get("HADOOP_HOME", ""), find_java(environ)
    if home:
        return from_hadoop_home(Path(home), java, cache_dir(environ))
    install = fetched(java, environ, version)
    if install is None:
        fetch = "yarn-accel hadoop fetch" + (f" --version {version}" if version != HADOOP_VERSION else "")
        raise StartupError(
            "no Hadoop jars: HADOOP_HOME is not set, and none were fetched",
            cure=f"let HADOOP_HOME name an unpacked Hadoop distribution, or run: {fetch}",
        )
    return install


def _conf_dir(conf: str, home: str) -> Path:
    if not conf and not home:
        raise StartupError(
            "HADOOP_CONF_DIR is not set",
            cure="let it name your cluster's configuration directory, or start one: yarn-accel cluster up",
        )
    conf_dir = Path(conf) if conf else Path(home) / "etc" / "hadoop"
    if not (conf_dir / "core-site.xml").is_file():
        raise StartupError(
            f"{conf_dir} has no core-site.xml",
            cure="let HADOOP_CONF_DIR name the directory with the *-site.xml files",
        )
    return conf_dir.resolve()


def _read_settings(path: Path) -> dict[str, Any]:
    """The settings in the file; none where there is no file."""
    if not path.exists():
        return {}
    settings = read_settings(path, may_be_empty=True)
    unknown = sorted(settings.keys() - SITE_KEYS.keys())
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]}; known: {', '.join(sorted(SITE_KEYS))}")
    return settings


def _jvm_options(settings: Mapping[str, Any], path: Path) -> list[str]:
    options = settings.get("client_jvm_options") or []
    try:
        if isinstance(options, str):
            return shlex.split(options)
        if isinstance(options, list):
            return [str(option) for option in options]
        raise ValueError(f"{type(options).__name__} found")
    except ValueError as error:
        raise ConfigError(f"{path}: client_jvm_options: a list or one string is expected ({error})") from None


def _path(settings: Mapping[str, Any], key: str, base: Path) -> Path | None:
    value = settings.get(key)
    return base / str(value) if value else None


def _read_hosts(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"client_hosts_file {path} cannot be read: {reason}") from error
    hosts: dict[str, str] = {}
    for line in lines:
        words = line.split("#")[0].split()
        for name in words[1:]:
            hosts.setdefault(name, words[0])
    return hosts


# ---- Hadoop's XML


def read_properties(path: Path) -> dict[str, str]:
    """Properties of one Hadoop XML file; no file, no properties.

    Raises:
        ConfigError: it is not Hadoop XML.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except FileNotFoundError:
        return {}
    except (ElementTree.ParseError, OSError, ValueError, LookupError) as error:  # the last two: its encoding
        raise ConfigError(f"{path} cannot be read as Hadoop configuration: {error}") from error
    found = {}
    for node in root.iter("property"):
        name = (node.findtext("name") or "").strip()
        if name:
            found[name] = (node.findtext("value") or "").strip()
    return found


def read_site(conf_dir: Path) -> dict[str, str]:
    """Properties of core-, hdfs-, yarn- and mapred-site.xml together, with ``${other.key}`` expanded."""
    merged: dict[str, str] = {}
    for name in ("core", "hdfs", "yarn", "mapred"):
        merged.update(read_properties(conf_dir / f"{name}-site.xml"))
    return {name: _expand(value, merged) for name, value in merged.items()}


def _expand(value: str, properties: Mapping[str, str]) -> str:
    for _ in range(20):
        expanded = re.sub(r"\$\{([^}$\s]+)\}", lambda match: properties.get(match[1], match[0]), value)
        if expanded == value:
            break
        value = expanded
    return value
