"""The places of a pool: one for each worker it should have, whoever holds it at the time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.pipeline.workers.devices import Device
from yarn_accel.pipeline.workers.process import WorkerProcess

_OUT = ("absent", "quarantined")
"""States of a place whose device cannot be used."""


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one worker: a device, and who holds it.

    Attributes:
        is_resting: its device is in quarantine.
    """

    index: int
    device: Device
    process: WorkerProcess | None = None
    n_lost: int = 0
    last_fault: str = ""
    is_resting: bool = False

    @property
    def is_free(self) -> bool:
        """Whether a process should take it."""
        return self.process is None and not self.device.fault and not self.is_resting


def slot_facts(
    slot: Slot, process: WorkerProcess | None, start_fault: str, probes_gpus: bool
) -> dict[str, Any]:
    """What there is to know about a place, for people.

    Args:
        slot: the place.
        process: who holds it.
        start_fault: why the last process that was started could not.
        probes_gpus: whether a process computes small cases on its GPU before it takes requests.
    """
    facts: dict[str, Any] = {
        "slot": slot.index,
        "device": slot.device.name,
        "device_kind": slot.device.kind,
        "affinity": list(slot.device.cores),
        "n_lost": slot.n_lost,
        "last_fault": slot.device.fault or slot.last_fault or start_fault,
    }
    if process is None:
        state = "absent" if slot.device.fault else "quarantined" if slot.is_resting else "starting"
        return {"worker": -1, "pid": 0, "state": state, "busy_s": 0.0, "n_jobs": 0, "rss_bytes": 0, **facts}
    since_s, now_s = process.busy_since_s(), time.monotonic()
    return {
        "worker": process.worker,
        "pid": process.pid,
        "state": _state(process, probes_gpus),
        "busy_s": process.tally.busy_s + (now_s - since_s if since_s else 0.0),
        "n_jobs": process.tally.n_jobs,
        "uptime_s": now_s - process.tally.started_s,
        "toolkit": process.toolkit,
        **memory_facts(process.pid),
        **facts,
    }


def _state(process: WorkerProcess, probes_gpus: bool) -> str:
    if not process.is_open:
        return "probing" if probes_gpus else "starting"
    return "busy" if process.busy_since_s() else "measuring" if process.is_measuring else "idle"


def has_places(facts: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any place can be used, of what is said of each; one lost device stops no other."""
    return any(each["state"] not in (*_OUT, "standby") for each in facts)


def problems_of(facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """What an operator should know, in one line each."""
    return [
        f"{each['device']}: {each['state']}{': ' + fault if (fault := each['last_fault']) else ''}"
        for each in facts
        if each["state"] in _OUT
    ]


def memory_facts(pid: int) -> dict[str, int]:
    """Resident bytes, and those of them that are the process's own and not shared buffers or libraries."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123 -- read often
            _, resident, shared, *_ = (int(text) for text in file.read().split())
    except (OSError, ValueError):
        return {"rss_bytes": 0, "own_bytes": 0}
    return {"rss_bytes": resident * page_bytes, "own_bytes": (resident - shared) * page_bytes}
