"""The process whose time and memory ``benchmarks.torque`` measures: looks once, then parses and decides."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from typing import Any

from torque_sched.adapters.commands import Commands
from torque_sched.batch.torque.pbs import Pbs, read_snapshot
from torque_sched.decide.backfill import ConservativeBackfill
from torque_sched.decide.context import Context
from torque_sched.decide.decide import decide
from torque_sched.decide.settings import Settings
from torque_sched.model.cluster import Job, JobId
from torque_sched.model.decisions import GuaranteedStart, Reserve, Start


def main(what: str, rounds: int) -> dict[str, Any]:
    """Figures of ``cycle``: seconds with and without unchanged jobs, and the peak of memory in bytes."""
    if what == "backfill":
        return _backfill(rounds)
    assert what == "cycle"
    look = asyncio.run(Pbs(Commands(), time.time).look())
    settings = Settings()
    cold: list[float] = []
    warm: list[float] = []
    decide_s = 0.0
    n_started = 0
    seen: dict[str, Job] = {}
    for _ in range(rounds):
        for times, known in ((cold, {}), (warm, seen)):
            gc.collect()
            gc.disable()  # as a cycle does
            began_s = time.perf_counter()
            snapshot, _ = read_snapshot(look.outputs, look.snapshot.now_s, known)
            parsed_s = time.perf_counter()
            decisions = decide(snapshot, settings, Context())
            ended_s = time.perf_counter()
            gc.enable()
            times.append(ended_s - began_s)
            decide_s = ended_s - parsed_s
            n_started = sum(isinstance(each, Start) for each in decisions)
            seen = known if times is warm else seen
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "cold_s": cold, "warm_s": warm[1:] or warm, "decide_s": decide_s, "n_started": n_started,
        "peak_bytes": peak_bytes,
    }  # fmt: skip


def _backfill(rounds: int) -> dict[str, Any]:
    """Decisions under conservative backfilling: with nothing promised yet, and with all promises carried."""
    look = asyncio.run(Pbs(Commands(), time.time).look())
    settings = Settings(backfill=ConservativeBackfill())
    first_s: list[float] = []
    carried_s: list[float] = []
    promises: dict[JobId, GuaranteedStart] = {}
    n_started = 0
    for _ in range(rounds):
        promises = {}
        for times in (first_s, carried_s):
            snapshot, _ = read_snapshot(look.outputs, look.snapshot.now_s, {})
            gc.collect()
            gc.disable()
            began_s = time.perf_counter()
            decisions = decide(snapshot, settings, Context(promises=promises))
            times.append(time.perf_counter() - began_s)
            gc.enable()
            reserved = [each for each in decisions if isinstance(each, Reserve)]
            promises = {each.job: each.promise for each in reserved if each.promise is not None}
            n_started = sum(isinstance(each, Start) for each in decisions)
    return {
        "first_s": first_s,
        "carried_s": carried_s,
        "n_promises": len(promises),
        "n_started": n_started,
    }


if __name__ == "__main__":
    json.dump(main(sys.argv[1], int(sys.argv[2])), sys.stdout)
