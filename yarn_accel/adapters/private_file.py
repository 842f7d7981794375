"""Writes a file that one user alone can read into a folder that the user may change at any time.

Root may do this in a user's folder: the folder is opened component by component, no symbolic link is
followed, and everything after that happens relative to the open folder. What is there already under the name
is replaced only if it is the user's own regular file with no other name; anything else is an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from yarn_accel.errors import ConfigError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


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
    """What has the name already must be the owner's own file, under this name alone."""
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
