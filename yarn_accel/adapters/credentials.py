"""The site's master secret and the credentials made from it: as files, from the master's socket, revoked.

Files are readable by their owner alone.  Hadoop gets a credential by the name of its file
(``mapreduce.job.credentials.binary``).  Neither a credential nor the master secret travels through a
property, an environment variable or a command line.

`write_private_file` may run as root in a user's folder, which the user may change at any time.  The folder is
opened component by component, no symbolic link is followed, and everything after that happens relative to the
open folder.  A file that has the name already is replaced only if it is the user's own regular file with no
other name; anything else is an error.

`request_credential` asks a master over its Unix socket on this node.  One line of JSON goes each way:
``{"v": 1, "want": "credential", "tenant": "", "lifetime_s": 0}``, and ``{"v": 1, "credential": ...}`` or
``{"v": 1, "refused": {"code", "message", "cure"}}``.  Whoever made up a credential could act as the servers
towards us, so the answer counts only from the socket of root, of the owner of ``/run/yarn-accel`` (which root
alone can make), of ``yarn``, or of a named user.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import pwd
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from yarn_accel.client.token_file import read_secrets, write_secrets
from yarn_accel.core.credential_grant import Revocations, parse_revocations
from yarn_accel.errors import AccelError, AuthenticationError, ConfigError, RejectedError, UnavailableError
from yarn_accel.users import login_name, peer_uid
from yarn_accel.wire.credential import SECRET_ALIAS, Credential, decode, encode, issue

logger = logging.getLogger(__name__)

MIN_SECRET_BYTES = 32
#: The command that makes the secret of the agents' keys.
MAKE_AGENTS_SECRET = "yarn-accel node make-secret"
CREDENTIAL_SOCKET = "credential.sock"
#: Where masters listen; root alone can make it.
_RUN = Path("/run/yarn-accel")
_PATIENCE_S = 15.0
_PAUSE_S = 0.2
_MAX_ANSWER_BYTES = 65536
#: Seconds between two looks at the list of revoked credentials.
_LOOK_S = 1.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


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
    """Write a token file for the current user, as `issue_token_file`, from the file with the site's secret.

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


def write_private_file(folder: Path, name: str, content: bytes, owner: pwd.struct_passwd) -> None:
    """Write ``folder/name`` with mode 0600, owned by `owner`: at once and completely, or not at all.

    Args:
        folder: absolute, without symbolic links; only root, the owner or we may write in it.
        name: of the file, without a folder.

    Raises:
        ConfigError: the folder or what has this name already is not safe, or the file cannot be written.
    """
    path = folder / name
    with _opened(folder) as fd:
        _check_folder(folder, os.fstat(fd), owner)
        _check_former(fd, path, owner)
        temporary = f".{name}.{secrets.token_hex(8)}.tmp"
        try:
            with os.fdopen(os.open(temporary, _CREATE, 0o600, dir_fd=fd), "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fchmod(stream.fileno(), 0o600)
                os.fsync(stream.fileno())
                if owner.pw_uid != os.geteuid():
                    # Last, for from here on the owner may change it.
                    os.fchown(stream.fileno(), owner.pw_uid, owner.pw_gid)
            # A rename replaces the name and follows nothing, whatever was put there meanwhile.
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=fd)
            cure = f"only root writes files of {owner.pw_name}" if error.errno == errno.EPERM else ""
            raise ConfigError(f"{path}: {error.strerror}", cure=cure) from None


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The folder, reached without any symbolic link."""
    fd = os.open("/", _FOLDER)
    try:
        for part in folder.parts[1:]:
            try:
                below = os.open(part, _FOLDER, dir_fd=fd)
            except OSError as error:
                reason = (
                    "is a symbolic link, or no folder" if error.errno == errno.ENOTDIR else error.strerror
                )
                raise ConfigError(
                    f"{folder}: {part}: {reason}", cure="name the folder itself: `realpath` finds it"
                ) from None
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _check_folder(folder: Path, found: os.stat_result, owner: pwd.struct_passwd) -> None:
    """Others who may write there could put a credential of theirs in the place of this one."""
    is_sticky = bool(found.st_mode & stat.S_ISVTX)
    others = stat.S_IWOTH if found.st_gid == owner.pw_gid else stat.S_IWOTH | stat.S_IWGRP
    if found.st_uid not in (0, owner.pw_uid, os.geteuid()) or (found.st_mode & others and not is_sticky):
        raise ConfigError(
            f"{folder}: users other than {owner.pw_name} may write there "
            f"(owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o})",
            cure=f"name a folder of {owner.pw_name} or of root",
        )


def _check_former(folder: int, path: Path, owner: pwd.struct_passwd) -> None:
    """Refuse a name that is taken, unless by the owner's own file under this name alone."""
    try:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        reason = "is a symbolic link"
    elif not stat.S_ISREG(found.st_mode):
        reason = "is no regular file"
    elif found.st_nlink > 1:
        reason = f"is a hard link: the file has {found.st_nlink} names"
    elif found.st_uid != owner.pw_uid:
        reason = f"belongs to user {found.st_uid}, not to {owner.pw_name}"
    else:
        return
    raise ConfigError(f"{path} {reason}", cure="look who put it there, and remove it")


def socket_paths() -> list[Path]:
    """The sockets at which masters of this node listen by default, and those that killed ones left."""
    others = Path("/tmp")
    places = [_RUN, *_RUN.glob("*"), *_RUN.glob("*/*")]
    places += [*others.glob("yarn-accel-*/*"), *others.glob("yarn-accel-*/*/*")]
    return [place / CREDENTIAL_SOCKET for place in places if (place / CREDENTIAL_SOCKET).is_socket()]


def trusted_users(names: Iterable[str] = ()) -> frozenset[int]:
    """The users whose sockets are trusted: those named at the top of this module, and `names`.

    Raises:
        UnavailableError: there is no such user.
    """
    found = {0}
    with contextlib.suppress(OSError):
        found.add(_RUN.lstat().st_uid)
    with contextlib.suppress(KeyError):
        found.add(pwd.getpwnam("yarn").pw_uid)
    for name in names:
        try:
            found.add(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise UnavailableError(f"this node has no user {name!r}") from None
    return frozenset(found)


def request_credential(
    paths: Iterable[Path], trusted: frozenset[int], tenant: str = "", lifetime_s: float = 0.0
) -> tuple[Credential, Path]:
    """Ask at the first socket where a trusted master listens.

    Args:
        tenant: whom it is for; empty: this user. A master gives no other.
        lifetime_s: its life; 0: as long as the site allows.

    Raises:
        RejectedError: the master refuses, with its reason.
        UnavailableError: no master answers here.
        AuthenticationError: the answer holds no credential.
    """
    question = {"v": 1, "want": "credential", "tenant": tenant, "lifetime_s": lifetime_s}
    failures = []
    for path in paths:
        try:
            return _credential_in(_ask(path, trusted, question)), path
        except OSError as error:
            failures.append(f"{path}: {(error.strerror or str(error)).lower()}")
        except UnavailableError as error:
            failures.append(f"{path}: {error.message}")
    why = f" ({'; '.join(failures)})" if failures else ""
    raise UnavailableError(
        f"no master gives out credentials on this node{why}",
        cure="run this on the master's node (AM Host in `yarn application -status`), or ask the "
        "administrator for one: yarn-accel credential issue",
    )


def _ask(path: Path, trusted: frozenset[int], question: dict[str, Any]) -> dict[str, Any]:
    """One question, asked again while the master has no place for it."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        with _connected(path, until_s) as sock:
            user = peer_uid(sock)
            if user not in trusted:
                raise UnavailableError(f"who listens there is user {user}, whom nobody named (--master-user)")
            line = _exchange(sock, question)
        if line.endswith(b"\n"):
            break
        if time.monotonic() >= until_s:
            raise UnavailableError("the master ended the connection: it has too many")
        time.sleep(_PAUSE_S)
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("v") != 1:
        raise UnavailableError("what came back is no answer of a master")
    return answer


@contextlib.contextmanager
def _connected(path: Path, until_s: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_PATIENCE_S)
        while True:
            try:
                sock.connect(os.fspath(path))
                break
            except BlockingIOError:  # its queue is full
                if time.monotonic() >= until_s:
                    raise
                time.sleep(_PAUSE_S)
        yield sock


def _exchange(sock: socket.socket, question: dict[str, Any]) -> bytes:
    """The answer; empty when the master had no place for us."""
    received = b""
    try:
        sock.sendall(json.dumps(question).encode() + b"\n")
        while not received.endswith(b"\n") and len(received) < _MAX_ANSWER_BYTES:
            part = sock.recv(_MAX_ANSWER_BYTES)
            if not part:
                break
            received += part
    except (ConnectionError, TimeoutError):
        return b""
    return received


def _credential_in(answer: dict[str, Any]) -> Credential:
    refused = answer.get("refused")
    if isinstance(refused, dict):
        code, message, cure = (str(refused.get(name, "")) for name in ("code", "message", "cure"))
        raise RejectedError(code or "refused", message, cure=cure)
    try:
        return decode(str(answer.get("credential", "")).encode("utf-8"))
    except AccelError as error:
        raise AuthenticationError(f"the master's answer: {error.message}") from None


class RevocationList:
    """The list in a file, read again when the file changes; it is looked at once a second at most.

    A list that becomes unreadable stays as it was, with an error in the log, until it can be read again.

    Args:
        path: the file; empty: nothing is revoked.

    Raises:
        ConfigError: it is not there, it is no such list, or others may write it.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._stamp: object = None
        self._list = Revocations()
        self._problem = ""
        self._look_s = 0.0
        if self._path is not None:
            self._read(self._path)

    def now(self) -> Revocations:
        """The list."""
        if self._path is not None and self._clock() >= self._look_s:
            try:
                self._read(self._path)
                self._problem = ""
            except ConfigError as error:
                if error.message != self._problem:
                    self._problem = error.message
                    logger.error("the list of revoked credentials stays as it was: %s", error)
        return self._list

    def _read(self, path: Path) -> None:
        self._look_s = self._clock() + _LOOK_S
        try:
            found = path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)
            if stamp == self._stamp:
                return
            if found.st_mode & 0o022:
                raise ConfigError(f"revoked_file {path}: others may write it", cure=f"chmod go-w {path}")
            self._list = parse_revocations(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"revoked_file {path}: {error.strerror}", cure="an empty file will do"
            ) from None
        except ValueError as error:
            raise ConfigError(f"revoked_file {path}: {error}") from None
        self._stamp = stamp
