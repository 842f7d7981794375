"""URIs, and the prefixes that say who may use which, written in one way so that they can be compared."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from yarn_accel.adapters.hdfs import split_uri
from yarn_accel.errors import RejectedError, StorageError

__all__ = ["default_filesystem", "normalised", "normalised_prefix"]

#: What ``hdfs://host`` means where no port is given.
_NAMENODE_PORT = ":8020"


def normalised(uri: str, default_fs: str = "") -> str:
    """A URI as ``scheme://authority/path``, without what a path may be written with twice.

    Args:
        default_fs: what ``hdfs:///`` means, such as ``hdfs://nn:8020``; empty: not known.

    Raises:
        RejectedError: ``forbidden-uri``: this is none that could be allowed.
    """
    try:
        scheme, authority, path = split_uri(uri)
    except StorageError as error:
        raise RejectedError("forbidden-uri", error.message) from None
    if scheme == "hdfs":
        authority = (authority or default_fs.removeprefix("hdfs://")).removesuffix(_NAMENODE_PORT)
    return f"{scheme}://{authority}{path}"


def normalised_prefix(prefix: str, default_fs: str = "") -> str:
    """A prefix of the settings as `normalised` URIs begin; one without a host means `default_fs`.

    Raises:
        RejectedError: it is none, see `normalised`.
    """
    uri = f"hdfs://{prefix}" if prefix.startswith("/") else prefix
    return normalised(uri if urlsplit(uri).path else f"{uri}/", default_fs)


def default_filesystem(setting: str, conf_dir: str) -> str:
    """What ``hdfs:///`` means to a server: its setting, else ``fs.defaultFS``; empty: nobody says.

    Args:
        conf_dir: folder with core-site.xml; empty: ``HADOOP_CONF_DIR``.

    Raises:
        ConfigError: core-site.xml cannot be read.
    """
    from yarn_accel.hadoop.properties import read_site

    folder = conf_dir or os.environ.get("HADOOP_CONF_DIR", "")
    found = setting or (read_site(Path(folder)).get("fs.defaultFS", "") if folder else "")
    return found.rstrip("/") if found.startswith("hdfs://") else ""
