"""The site's master secret and the credentials derived from it, as files that only their owner can read.

Hadoop gets a credential by the name of its file (``mapreduce.job.credentials.binary``). Neither a credential
nor the master secret travels through a property, an environment variable or a command line.
"""

from __future__ import annotations

import os
import pwd
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from yarn_accel.adapters.private_file import write_private_file
from yarn_accel.client.local_server import login_name
from yarn_accel.client.token_file import read_secrets, write_secrets
from yarn_accel.errors import ConfigError
from yarn_accel.wire.credential import SECRET_ALIAS, Credential, decode, encode, issue

MIN_SECRET_BYTES = 32
#: What makes the secret of the agents' keys.
MAKE_AGENTS_SECRET = "yarn-accel node make-secret"


def create_master_secret(path: Path) -> None:
    """Write a fresh master secret in hex (0600).

    Raises:
        ConfigError: the file exists already; a running site must not lose its secret.
    """
    write_secret(path, secrets.token_bytes(MIN_SECRET_BYTES))


def write_secret(path: Path, secret: bytes) -> None:
    """Write a secret in hex (0600), as `read_master_secret` reads it.

    Raises:
        ConfigError: the file exists already, or cannot be written.
    """
    _write_private(path, secret.hex().encode("ascii") + b"\n")


def read_master_secret(
    path: Path, key: str = "master_secret_file", made_by: str = "yarn-accel credential new-secret"
) -> bytes:
    """A secret of the site, such as its master secret.

    Args:
        key: the setting that names the file, for errors.
        made_by: the command that makes such a file; empty: nobody makes it by hand.

    Raises:
        ConfigError: not there, not hex, too short, or readable by others.
    """
    try:
        mode = path.stat().st_mode & 0o777
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except OSError as error:
        raise ConfigError(f"{key} {path}: {error.strerror}", cure=_cure(path, error, made_by)) from None
    except ValueError:
        raise ConfigError(f"{key} {path}: not hexadecimal") from None
    if mode & 0o077:
        raise ConfigError(f"{key} {path}: others may read it", cure=f"chmod 600 {path}")
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(f"{key} {path}: {len(secret)} bytes, at least {MIN_SECRET_BYTES} are needed")
    return secret


def _cure(path: Path, error: OSError, made_by: str) -> str:
    if isinstance(error, PermissionError):
        return "run as the user who owns it"
    if isinstance(error, FileNotFoundError) and made_by:
        return f"make it once with `{made_by} {path}`, or name the place where it was made"
    return ""


def issue_for_user(
    user: str, folder: Path, master: bytes, lifetime_s: float, clock: Callable[[], float] = time.time
) -> tuple[Path, Credential]:
    """Write a user's credential to ``folder/USER.credential`` (0600), the user's own.

    It replaces the one before.

    Raises:
        ConfigError: there is no such user, or the file cannot be written safely; see `write_private_file`.
        AuthenticationError: the user's name cannot be a tenant's.
    """
    try:
        owner = pwd.getpwnam(user)
    except KeyError:
        raise ConfigError(f"this machine has no user {user!r}", cure="issue to --tenant and a FILE") from None
    credential = issue(master, owner.pw_name, int(clock() + lifetime_s), secrets.token_hex(8))
    path = folder.absolute() / f"{owner.pw_name}.credential"
    write_private_file(path.parent, path.name, token_file_content(credential), owner)
    return path, credential


def store_own_credential(path: Path, credential: Credential) -> None:
    """Write our own credential to a file (0600); replaces the one before.

    Raises:
        ConfigError: see `write_private_file`.
    """
    folder = path.parent.resolve()
    write_private_file(folder, path.name, token_file_content(credential), pwd.getpwuid(os.geteuid()))


def read_credential(path: Path) -> Credential:
    """The credential in a token file.

    Raises:
        ConfigError: the file cannot be read, or has none.
        RemoteProtocolError, AuthenticationError: it is damaged.
    """
    try:
        found = read_secrets(path.read_bytes()).get(SECRET_ALIAS)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if found is None:
        raise ConfigError(f"{path}: no credential of this project in this token file")
    return decode(found)


def token_file_content(credential: Credential) -> bytes:
    """A Hadoop token file that holds this credential alone."""
    return write_secrets({SECRET_ALIAS: encode(credential)})


def issue_token_file(path: Path, master: bytes, lifetime_s: float, tenant: str = "") -> Path:
    """Write a Hadoop token file (0600) with a fresh credential for ``tenant`` (default: the current user).

    Raises:
        ConfigError: the file exists already.
    """
    expires_s = int(time.time() + lifetime_s)
    credential = issue(master, tenant or login_name(), expires_s, secrets.token_hex(8))
    _write_private(path, token_file_content(credential))
    return path


def issue_job_credential(path: Path, master_secret_file: Path, lifetime_s: float) -> Path:
    """As `issue_token_file`, for the current user, from the file with the site's secret.

    Raises:
        ConfigError: this user cannot read the secret; or the file exists already.
    """
    try:
        master = read_master_secret(master_secret_file)
    except ConfigError as error:
        ask = (
            "ask the administrator for a credential (yarn-accel credential issue), give it with --credential"
        )
        raise ConfigError(error.message, cure=f"{error.cure}, or {ask}" if error.cure else ask) from None
    return issue_token_file(path, master, lifetime_s)


def _write_private(path: Path, content: bytes) -> None:
    """Create a file that nobody else can read and that is never there in part; an existing one stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.link(temporary, path)  # unlike a rename, this fails where there is a file already
        finally:
            temporary.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
