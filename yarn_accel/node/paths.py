"""The folder of a node's agent, where mappers and the pipeline server beside it find it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import time
from pathlib import Path

from yarn_accel.client.agent_folders import application_folder, is_of_application, run_folder
from yarn_accel.errors import StartupError


def default_run_dir(node: str, application: str = "") -> str:
    """The folder of a node's agent where none is set: below ``/run`` as root, else below ``/tmp``.

    Args:
        application: whose container this is: two of them on a node have two agents; empty: this is none.
    """
    # Not tempfile's folder: a container has its own TMPDIR, and mappers must find the same place.
    return run_folder(os.geteuid(), node, application)


def make_run_dir(path: Path) -> None:
    """Make the folder so that everybody can enter it, or use ours that is there.

    LinuxContainerExecutor starts containers with umask 027, and mappers may be of other users.

    Raises:
        StartupError: it cannot be made, or it is a link, or somebody else's, or others may write in it.
    """
    try:
        for each in reversed([each for each in (path, *path.parents) if not each.exists()]):
            with contextlib.suppress(FileExistsError):
                each.mkdir()
                each.chmod(0o755)
        levels = [path, path.parent, path.parent.parent]
        named = [at for at, each in enumerate(levels) if each.name.startswith("yarn-accel")]
        for each in levels[: named[0] + 1 if named else 1]:
            _check_ours(each, each.lstat())
    except OSError as error:
        raise StartupError(
            f"run_dir {path}: {(error.strerror or str(error)).lower()}", cure="choose another run_dir"
        ) from None


def filled(template: str, node: str, application: str) -> str:
    """A path of the settings, with the node and the application in the places of their names."""
    folder = application_folder(application) or "none"
    return template.replace("{node}", node).replace("{application}", folder)


def remove_abandoned(path: Path, older_than_s: float) -> None:
    """Remove the folder of an application that no process uses any more; files that cannot be removed stay.

    Args:
        path: another folder than an application's, or one of another user, is left alone.
        older_than_s: a folder in which something was written since is kept: a server may be about to start.
    """
    with contextlib.suppress(OSError):
        status, now_s = path.lstat(), time.time()
        if not (
            is_of_application(str(path)) and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        ):
            return
        files = list(path.iterdir())
        if any(now_s - each.lstat().st_mtime < older_than_s for each in (path, *files)):
            return
        if not any(each.is_socket() and _is_listened_on(each) for each in files):
            shutil.rmtree(path, ignore_errors=True)


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            pass
    return True


def _check_ours(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise StartupError(f"run_dir: {path} is not a folder")
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise StartupError(
            f"run_dir: {path} belongs to user {status.st_uid} with mode {status.st_mode & 0o7777:o}: "
            "others could put their own socket there",
            cure="remove it, or choose another run_dir",
        )
