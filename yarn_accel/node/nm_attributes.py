#!/usr/bin/env python3
"""Prints this node's slow facts as node attributes for YARN: ``nm_attributes.py STATE_FILE``.

The NodeManager runs it (``yarn.nodemanager.node-attributes.provider.script.path`` and ``.opts``); the agent
writes the file.  It stands alone (standard library, Python 3.8), asks no driver, ends within two seconds, and
always prints a health: a NodeManager keeps the old values of a script that fails.  Numbers are coarse, for
YARN logs every change.  ``accel-as-of`` changes every ten minutes: where it does not, the values are old.
"""

import contextlib
import json
import platform
import re
import signal
import time
from shutil import which
from sys import argv, stdout, version_info

LIMIT_S, OLD_S, STEP_S, WELL = 2, 30, 600, {"ok", "hot", "none", "starting", "unwatched", "draining"}


def _collect(found: "dict[str, str]", path: str, now_s: float) -> None:
    """Add what is known: of the node always, then of its agent; the health last, when all else is there."""
    found["as-of"] = time.strftime("%Y%m%d-%H%M", time.gmtime(now_s // STEP_S * STEP_S))
    found["python"] = "_".join(f"3.{n}" for n in range(99) if n == version_info[1] or which(f"python3.{n}"))
    with open(path, errors="replace") as file:  # noqa: PTH123 -- one import less
        state = json.loads(file.read(1 << 20))
    said = [(state["server"] or {"health": "none"})["health"], *(d["health"] for d in state["devices"])]
    devices = [d for d in state["devices"] if d["health"] != "lost"]
    gib = [int(d["memory_total_bytes"]) >> 30 for d in devices if d["memory_total_bytes"]]
    found.update({"gpus": str(len(devices)), "gpu-memory-gib": str(min(gib, default="")), "server": said[0]})
    found["gpu-model"] = "_".join(sorted({d["name"] for d in devices if d["name"]}))
    found["health"] = "sick" if set(said) - WELL else "ok" if -5 < now_s - state["at"] < OLD_S else "stale"


def lines(path: str, now_s: float) -> "list[str]":
    """The lines to print, with values as YARN takes them: letters, digits and ``-_.``, 255 at most."""
    found = {"health": "none", "glibc": platform.libc_ver()[1], "machine": platform.machine()}
    with contextlib.suppress(Exception):  # whatever the file says: what was found before it counts
        _collect(found, path, now_s)
    values = {name: re.sub("[^0-9a-zA-Z_.]+", "-", str(found[name])).strip("-_.")[:255] for name in found}
    return [f"NODE_ATTRIBUTE:accel-{name},STRING,{values[name]}" for name in sorted(values) if values[name]]


if __name__ == "__main__":
    signal.alarm(LIMIT_S)  # kills this process: a file system that hangs must not hold up the NodeManager
    stdout.write("\n".join(lines(argv[-1], time.time())) + "\n")
