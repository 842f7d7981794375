"""The secret of a container: from the credentials YARN brought along into a file that only we can read.

It is in no command line, environment variable or resource; the file is in the container's own folder, which
goes with the container, as the credentials' file beside it does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from yarn_accel.client.token_file import read_secrets
from yarn_accel.errors import RemoteProtocolError, StartupError

__all__ = ["MASTER_ALIAS", "MASTER_SECRET_FILE", "deliver_secret"]

#: The alias of the site's master secret (raw bytes) among a container's credentials.
MASTER_ALIAS = "yarn_accel.master"
#: What `master_secret_file` of a container's settings names, relative to its folder.
MASTER_SECRET_FILE = "accel-master-secret"


def deliver_secret(environ: Mapping[str, str], folder: Path) -> bool:
    """Write the master secret in hex (0600) into the container's folder, if it was given one; whether it was.

    Raises:
        StartupError: the credentials cannot be read, or the file cannot be written.
    """
    place = environ.get("HADOOP_TOKEN_FILE_LOCATION")
    if not place or "CONTAINER_ID" not in environ:
        return False
    try:
        secret = read_secrets(Path(place).read_bytes()).get(MASTER_ALIAS)
        if secret is None:
            return False
        temporary = folder / f".{MASTER_SECRET_FILE}.{os.getpid()}"
        # A retry of the container finds the file of its predecessor: it is replaced.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(secret.hex().encode() + b"\n")
        temporary.replace(folder / MASTER_SECRET_FILE)
    except OSError as error:
        raise StartupError(f"{error.filename or place}: {error.strerror}") from None
    except RemoteProtocolError as error:
        raise StartupError(f"{place}: {error}") from None
    return True
