"""What the agent leaves on disk: for the NodeManager's script, for people, and for the next agent here."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from yarn_accel.adapters.local_files import write_atomic
from yarn_accel.errors import AccelError, StartupError
from yarn_accel.node.answer import Answer, parse_answer

__all__ = ["VERSION", "make_run_dir", "read_last_answer", "write_state"]

VERSION = 1
_MAX_BYTES = 1024 * 1024


def make_run_dir(path: Path) -> None:
    """Make the folder, or take the one that is there when it is ours.

    Raises:
        StartupError: it cannot be made, or it is a link, or somebody else's, or others may write in it.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.mkdir(mode=0o755, exist_ok=True)
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


def write_state(path: Path, document: dict[str, Any]) -> None:
    """Replace the state file.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(path, json.dumps({"version": VERSION, **document}, allow_nan=False) + "\n")


def read_last_answer(path: Path, node: str) -> tuple[Answer, float] | None:
    """The master's last word to the agent before, and when that was (Unix time); None: nothing usable."""
    try:
        if path.lstat().st_uid not in (os.geteuid(), 0):
            return None
        with path.open("rb") as file:
            document = json.loads(file.read(_MAX_BYTES))
        if document["version"] != VERSION or document["node"] != node or document["answer"] is None:
            return None
        return parse_answer(document["answer"], node), float(document["answered_at"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AccelError):
        return None
