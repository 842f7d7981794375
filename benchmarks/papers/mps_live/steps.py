"""What every task does: it waits as long as it would compute, and notes when it began and ended.

Runs in containers and in Dask's workers with nothing but Python's standard library, as a command or as a
function. All processes of one machine share one clock and one folder of notes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def step(notes: str, dag: str, task: str, wait_s: float = 0.0) -> None:
    """Wait, and add a line to the file of notes."""
    started_s = time.monotonic()
    time.sleep(wait_s)
    note_step(notes, dag, task, started_s)


def note_step(notes: str, dag: str, task: str, started_s: float) -> None:
    """Add a line: a task that has just ended."""
    row = {
        "dag": dag,
        "task": task,
        # In a container its node, which has one worker; else the process itself is the worker.
        "machine": os.environ.get("NM_HOST") or f"process {os.getpid()}",
        "started_s": started_s,
        "ended_s": time.monotonic(),
    }
    line = f"{json.dumps(row)}\n".encode()
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, line)  # whole, as it is appended in one call
    finally:
        os.close(file)


def file_name(task: str) -> str:
    """The file that a task leaves."""
    return f"{task}.out"


def main(notes: str, dag: str, task: str, wait_s: str, file_bytes: str, *after: str) -> None:
    """The same with files in the working folder: read those of other tasks first, leave one."""
    started_s = time.monotonic()
    n_bytes = sum(len(Path(file_name(parent)).read_bytes()) for parent in after)
    time.sleep(float(wait_s))
    if n_bytes != int(file_bytes) * len(after):
        sys.exit(f"{dag}/{task}: read {n_bytes} bytes of {', '.join(after)}, not {file_bytes} of each")
    Path(file_name(task)).write_bytes(bytes(int(file_bytes)))
    note_step(notes, dag, task, started_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
