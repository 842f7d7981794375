"""The folder of a node's agent, where mappers and the pipeline server beside it find it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from yarn_accel.errors import StartupError

__all__ = ["default_run_dir", "make_run_dir"]


def default_run_dir(node: str) -> str:
    """The folder of a node's agent where none is set: below ``/run`` as root, else below ``/tmp``."""
    # Not tempfile's folder: a container has its own TMPDIR, and mappers must find the same place.
    base = "/run/yarn-accel" if os.geteuid() == 0 else f"/tmp/yarn-accel-{os.geteuid()}"
    return f"{base}/{node}"


def make_run_dir(path: Path) -> None:
    """Make the folder so that everybody can enter it, or take the one that is there when it is ours.

    LinuxContainerExecutor starts containers with umask 027, and mappers may be of other users.

    Raises:
        StartupError: it cannot be made, or it is a link, or somebody else's, or others may write in it.
    """
    try:
        for each in reversed([each for each in (path, *path.parents) if not each.exists()]):
            with contextlib.suppress(FileExistsError):
                each.mkdir()
                each.chmod(0o755)
        for each in (path, path.parent) if path.parent.name.startswith("yarn-accel") else (path,):
            _check_ours(each, each.lstat())
    except OSError as error:
        raise StartupError(
            f"run_dir {path}: {(error.strerror or str(error)).lower()}", cure="choose another run_dir"
        ) from None


def _check_ours(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise StartupError(f"run_dir: {path} is not a folder")
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise StartupError(
            f"run_dir: {path} belongs to user {status.st_uid} with mode {status.st_mode & 0o7777:o}: "
            "others could put their own socket there",
            cure="remove it, or choose another run_dir",
        )
