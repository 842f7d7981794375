"""The program of every task: reads its split, then waits as long as its kernel would compute.

Runs on the nodes with nothing but Python's standard library: ``mapper.py FORMS BYTES``, where FORMS is a JSON
object of ``{"cpu": [read_s, compute_s], "gpu": [...]}`` and BYTES the size of a split. It reads no faster
than BYTES / read_s, as the application that it stands for. The clock is one for all nodes of the machine.
"""

from __future__ import annotations

import json
import os
import sys
import time

_PIECE_BYTES = 256 * 1024


def main(forms: str, split_bytes: str) -> None:
    """Read, wait, and print what happened when."""
    started_s = time.monotonic()
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    form = "gpu" if device else "cpu"
    read_s, compute_s = json.loads(forms)[form]
    n_bytes = 0
    while piece := os.read(0, _PIECE_BYTES):
        n_bytes += len(piece)
        # What came late is caught up: the share of the link is what limits a reader beside others.
        early_s = started_s + read_s * n_bytes / float(split_bytes) - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)
    has_read_s = time.monotonic()
    time.sleep(compute_s)
    names = "mapreduce_job_name", "mapreduce_task_partition", "NM_HOST"
    app, task, node = (os.environ.get(name, "") for name in names)
    row = {
        "app": app,
        "task": int(task),
        "node": node,
        "form": form,
        "device": device,
        "n_bytes": n_bytes,
        "started_s": started_s,
        "has_read_s": has_read_s,
        "ended_s": time.monotonic(),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
