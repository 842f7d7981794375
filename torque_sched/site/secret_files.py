"""Keys in files: read only when nobody else could have read or changed them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torque_sched.errors import ConfigError

KEY_BYTES = 32
"""A shared key has at least so many bytes: no less than the digest it goes into."""
_LARGEST_BYTES = 4096


def check_private(path: Path) -> None:
    """Refuse a file that others may read or that is not ours.

    Raises:
        ConfigError: names the file and the cure.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", cure="name the file of the key") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is no file", cure="name the file of the key")
    if status.st_uid not in {0, os.geteuid()}:
        raise ConfigError(f"{path} belongs to uid {status.st_uid}", cure=f"chown {os.geteuid()} {path}")
    if status.st_mode & 0o077:
        raise ConfigError(
            f"{path} can be read or changed by others (mode {status.st_mode & 0o777:04o})",
            cure=f"chmod 0600 {path}",
        )


def read_shared_key(path: Path) -> bytes:
    """The key in a file: 64 or more hexadecimal digits, as ``openssl rand -hex 32`` writes them.

    Raises:
        ConfigError: no such key; the key itself is in no message.
    """
    check_private(path)
    cure = f"openssl rand -hex {KEY_BYTES} > {path}; chmod 0600 {path}"
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES)
        key = bytes.fromhex(text.decode("ascii").strip())
    except (OSError, ValueError):
        raise ConfigError(f"{path}: not a key in hexadecimal digits", cure=cure) from None
    if len(key) < KEY_BYTES:
        raise ConfigError(f"{path}: a key of {len(key)} bytes is too short", cure=cure)
    return key
