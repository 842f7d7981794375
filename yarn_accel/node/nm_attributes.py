"""Prints this node's slow facts as node attributes for YARN: ``nm_attributes.py STATE_FILE``.

The NodeManager runs it (``yarn.nodemanager.node-attributes.provider.script.path``); the agent writes the
file.  It stands alone (standard library, Python 3.8), asks no driver, ends within two seconds, and always
prints a health, because a NodeManager keeps the old values of a script that fails.  Numbers are coarse: YARN
logs every change.  ``accel-as-of`` changes every ten minutes: where it does not, the values are old.
"""

import json
import re
import signal
import sys
import time

__all__ = ["lines"]

LIMIT_S, STALE_S, STEP_S, MAX_BYTES = 2, 30, 600, 1 << 20


def _value(anything: object) -> str:
    """What YARN takes as a value: a letter or digit, then those and ``-_.``, 255 at most."""
    text = re.sub(r"[^0-9a-zA-Z_.]+", "-", str(anything)).strip("-_.")
    return text[:255] or "unknown"


def lines(text: str, now_s: float) -> "list[str]":
    """The lines to print for the agent's state file; one without sense gives ``accel-health`` none."""
    facts = {"as-of": time.strftime("%Y%m%d-%H%M", time.gmtime(now_s // STEP_S * STEP_S)), "health": "none"}
    try:
        state = json.loads(text)
        devices = [each for each in state["devices"] if each["health"] != "lost"]
        sick = len(state["devices"]) - sum(each["health"] in ("ok", "hot") for each in devices)
        names = sorted({_value(each["name"]) for each in devices})
        smallest = min([int(each["memory_total_bytes"] or 0) for each in devices], default=0)
        server, is_stale = state["server"] or {"health": "none"}, not -5 < now_s - state["at"] < STALE_S
        found = {
            "epoch": state["epoch"],
            "gpus": len(devices),
            "server": server["health"],
            "slots": state["slots"],
        }
        found.update({"gpu-model": "_".join(names)} if names else {})
        found.update({"gpu-memory-gib": smallest >> 30} if smallest else {})
        found["health"] = (
            "stale" if is_stale else "sick" if sick or server["health"] in ("gone", "silent") else "ok"
        )
        facts.update({name: value for name, value in found.items() if value is not None})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        pass
    return [f"NODE_ATTRIBUTE:accel-{name},STRING,{_value(facts[name])}" for name in sorted(facts)]


if __name__ == "__main__":
    signal.alarm(LIMIT_S)  # kills this process: a file system that hangs must not hold up the NodeManager
    try:
        with open(sys.argv[1], errors="replace") as file:  # noqa: PTH123 -- shorter, and a message of its own
            content = file.read(MAX_BYTES)
    except (OSError, IndexError):
        content = ""
    sys.stdout.write("\n".join(lines(content, time.time())) + "\n")
