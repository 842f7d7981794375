"""A start by keytab: its login, what must be encrypted, and how the keytab reaches the master alone."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from yarn_accel.adapters.hadoop_rpc import Kerberos
from yarn_accel.adapters.hadoop_rpc.sasl import PROTECTION_KEY
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop.delegation import properties_of_master
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.launch.config import KerberosSettings
from yarn_accel.launch.uploads import FileResource, stored_file
from yarn_accel.storage import Store

#: The keytab's name in the application's folder, and in that of the master's container.
KEYTAB_FILE = "master.keytab"
_MAX_KEYTAB_BYTES = 1 << 20
_TRANSFER_KEY = "dfs.data.transfer.protection"
_ENCRYPT_KEY = "dfs.encrypt.data.transfer"


def log_in(settings: KerberosSettings, environ: MutableMapping[str, str]) -> None:
    """Have this process log in by the keytab, if there is one; tickets stay in its memory.

    Raises:
        KerberosError: the keytab cannot be read, or has no key of the principal.
        KdcUnavailableError: no KDC answers.
    """
    if not settings.keytab:
        return
    path, cache = str(Path(settings.keytab).absolute()), f"MEMORY:yarn-accel-{os.getpid()}"
    Kerberos(settings.principal, path, cache).ticket()
    # Our own library and the HDFS client read both.
    environ["KRB5CCNAME"] = cache
    environ["KRB5_CLIENT_KTNAME"] = f"FILE:{path}"


def check_keytab(site: SiteSettings, settings: KerberosSettings) -> None:
    """Refuse a keytab where it would be of no use, or where others could read it or the tokens.

    Raises:
        ConfigError: names the property and the cure.
    """
    if not settings.keytab:
        return
    if not site.security().is_kerberos:
        raise ConfigError(f"kerberos.keytab is set, and the cluster of {site.conf_dir} has no Kerberos")
    if settings.clear_text:
        return
    found = {PROTECTION_KEY: site.properties.get(PROTECTION_KEY, "").strip() or "authentication"}
    if site.properties.get(_ENCRYPT_KEY, "").strip().lower() != "true":
        found[_TRANSFER_KEY] = site.properties.get(_TRANSFER_KEY, "").strip() or "not set"
    for key, value in found.items():
        if {each.strip().lower() for each in value.split(",")} != {"privacy"}:
            raise ConfigError(
                f"{key} is {value}: the keytab, or the tokens that it brings, could cross the network in "
                "clear text",
                cure=f"let {key} be privacy, for servers and clients alike, or say that the network is safe: "
                "`kerberos: {clear_text: true}` in the launch settings",
            )


def is_uploaded(settings: KerberosSettings) -> bool:
    """Whether the keytab travels with the application."""
    return bool(settings.keytab) and not settings.keytab_on_nodes


def upload_keytab(store: Store, path: Path, folder_uri: str) -> FileResource:
    """Put the keytab into the application's folder (0700), readable by its owner alone (0400).

    Raises:
        StartupError: it cannot be read here.
        StorageError: it cannot be written there.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEYTAB_BYTES + 1)
    except OSError as error:
        raise StartupError(f"keytab {path}: {error.strerror}") from None
    if len(content) > _MAX_KEYTAB_BYTES:
        raise StartupError(f"keytab {path}: more than {_MAX_KEYTAB_BYTES} bytes")
    uri = f"{folder_uri}/{KEYTAB_FILE}"
    store.write_private(uri, content, 0o400)
    return stored_file(store, KEYTAB_FILE, uri, "APPLICATION")


def master_login(
    rm_client: RmClient, settings: KerberosSettings, hdfs_servers: Sequence[str]
) -> dict[str, Any]:
    """The master's settings for its own login, and what it asks tokens of."""
    return {
        "principal": settings.principal,
        "keytab": settings.keytab_on_nodes or KEYTAB_FILE,
        "hadoop": properties_of_master(rm_client.site),
        "hdfs_servers": list(hdfs_servers),
    }
