"""The secret and the small files that YARN's credentials bring to a container.

The secret is in no command line, environment variable or resource.  It becomes a file in the container's own
folder, which YARN deletes with the container.

A small file of one application travels in the credentials, too, where start time matters: as a resource it
needs a localizer process on the node, which takes longer than everything else before the master starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from yarn_accel.client.token_file import read_secrets
from yarn_accel.errors import RemoteProtocolError, StartupError

#: The alias of the site's master secret (raw bytes) among a container's credentials.
MASTER_ALIAS = "yarn_accel.master"
#: What stands before the name of a file among a container's credentials.
FILE_ALIAS = "yarn-accel.file/"
#: What `master_secret_file` of a container's settings names, relative to its folder.
MASTER_SECRET_FILE = "accel-master-secret"


def deliver(environ: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    """Write the secret (in hex) and the files of the credentials into a folder; returns their names.

    Raises:
        StartupError: the credentials cannot be read, or a file cannot be written.
    """
    place = environ.get("HADOOP_TOKEN_FILE_LOCATION")
    if not place or "CONTAINER_ID" not in environ:
        return ()
    try:
        given = read_secrets(Path(place).read_bytes())
        files = {
            alias.removeprefix(FILE_ALIAS): content
            for alias, content in given.items()
            if alias.startswith(FILE_ALIAS)
        }
        if MASTER_ALIAS in given:
            files[MASTER_SECRET_FILE] = given[MASTER_ALIAS].hex().encode() + b"\n"
        for name, content in files.items():
            _write(folder, name, content)
    except OSError as error:
        raise StartupError(f"{error.filename or place}: {error.strerror}") from None
    except RemoteProtocolError as error:
        raise StartupError(f"{place}: {error}") from None
    return tuple(files)


def _write(folder: Path, name: str, content: bytes) -> None:
    if Path(name).name != name or name in ("", ".."):
        raise StartupError(f"{name!r} is not the name of a file in the container's folder")
    temporary = folder / f".{name}.{os.getpid()}"
    # A retry of the container finds the file of its predecessor: it is replaced.
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)
    temporary.replace(folder / name)
