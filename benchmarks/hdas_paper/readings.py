"""Which reading of the paper matters: `hdas` under S2, one option changed at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.hdas_paper.paper import MIXES, SETS, mix_world
from benchmarks.hdas_paper.runs import Job, Run
from benchmarks.result import Row

_BANDWIDTH_MB_S = 128.0


def _declared(mb_s: float) -> dict[str, Any]:
    disk = {"bandwidth_mb_s": _BANDWIDTH_MB_S, "gamma": SETS["S2"].gamma, "declared_mb_s": mb_s}
    return {"disks": {"sata": disk}}


#: What is changed of the world.
READINGS: Mapping[str, Mapping[str, Any]] = {
    "as it is (threshold, equal share)": {},
    "eq (3) proportional above B": {"settings": {"above_saturation": "proportional"}},
    "eq (3) max-min above B": {"settings": {"above_saturation": "max-min"}},
    "eq (6) as virtual time": {"settings": {"progress": "virtual-time"}},
    "delays within 0.05 are equal": {"settings": {"tie_tolerance": 0.05}},
    "TotalIO as the disk gives it": {"options": {"samples": "given"}},
    "heartbeat of 1 s": {"options": {"heartbeat_s": 1.0}},
    "heartbeat of 1 s, one task each": {
        "options": {"heartbeat_s": 1.0},
        "settings": {"tasks_per_heartbeat": "one"},
    },
    **{f"B declared as {mb_s:g} MB/s": _declared(mb_s) for mb_s in (96.0, 110.0, 140.0, 160.0)},
}
_BASE = ("hadoop", "fifo")


def reading_jobs(letters: Sequence[str] = tuple(MIXES)) -> Iterator[Job]:
    """Each reading, and what it is compared with."""
    for letter in letters:
        for policy in _BASE:
            yield Job((policy, letter), mix_world(MIXES[letter], SETS["S2"], policy))
        for reading, changes in READINGS.items():
            yield Job((reading, letter), mix_world(MIXES[letter], SETS["S2"], "hdas", **changes))


def reading_rows(runs: Mapping[tuple[str, ...], Run]) -> list[Row]:
    """Mean speed-up of each reading over the mixes, with the time saved and the delay."""
    letters = sorted({letter for _, letter in runs})
    rows = []
    for reading in READINGS:
        speedups = [
            runs["hadoop", letter].makespan_s / runs[reading, letter].makespan_s for letter in letters
        ]
        saved = [1 - runs[reading, letter].makespan_s / runs["fifo", letter].makespan_s for letter in letters]
        delay = fmean(runs[reading, letter].mean_delay for letter in letters)
        note = f"time saved against fifo {fmean(saved):.3f}, most {max(saved):.3f}; mean delay {delay:.2f}"
        spread = (min(speedups), max(speedups))
        what = f"hdas, {reading}: mean speed-up"
        rows.append(Row(what, fmean(speedups), "x", len(letters), spread, note=note))
    return rows
