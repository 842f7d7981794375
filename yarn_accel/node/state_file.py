"""The agent's state file: for the NodeManager's script, for people, and for the next agent on this node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from yarn_accel.errors import AccelError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.node.heartbeat_response import HeartbeatResponse, parse_response

VERSION = 1
_MAX_BYTES = 1024 * 1024


def write_state(path: Path, document: dict[str, Any]) -> None:
    """Replace the state file; the NodeManager's user reads it, too, whatever the umask.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps({"version": VERSION, **document}, allow_nan=False) + "\n"
    write_atomic(path, text, is_for_all=True)


def read_last_response(path: Path, node: str) -> tuple[HeartbeatResponse, float] | None:
    """The master's last word to the agent before, and when that was (Unix time); None: nothing usable."""
    try:
        if path.lstat().st_uid not in (os.geteuid(), 0):
            return None
        with path.open("rb") as file:
            document = json.loads(file.read(_MAX_BYTES))
        if document["version"] != VERSION or document["node"] != node or document["answer"] is None:
            return None
        return parse_response(document["answer"], node), float(document["answered_at"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AccelError):
        return None
