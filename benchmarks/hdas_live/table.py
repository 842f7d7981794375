"""The table of docs/benchmarks.md, from a report's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.hdas_live.late import MODES

_Rows = Mapping[str, Mapping[str, Any]]
_SHARES = (("mean delay", "mean_delay"), ("GPUs computing", "gpu_computing"), ("link used", "link_used"))


def live_table(document: Mapping[str, Any]) -> list[str]:
    """Its lines: live beside simulated, the verdicts, and late binding where it was run."""
    rows = {row["what"]: row for row in document["rows"]}
    lines = [
        _line("", ("time, s", "", "", "delay", "", "GPUs", "", "link", "")),
        _line("mix, policy", ("live", "sim.", "diff.", *("live", "sim.") * 3)),
    ]
    simulated = document["series"]["simulated"]
    lines += [_line(*_cells(rows, name.replace(" ", ", "), each)) for name, each in simulated.items()]
    return [*lines, "", *_verdicts(rows), *_late(rows), *_alone(rows, document["machine"])]


def _line(title: str, cells: Sequence[str]) -> str:
    return (f"{title:16}" + "".join(f" {cell:>7}" for cell in cells)).rstrip()


def _cells(rows: _Rows, name: str, simulated: Mapping[str, Any]) -> tuple[str, list[str]]:
    live_s, simulated_s = rows[f"{name}: makespan"]["value"], simulated["makespan_s"]
    cells = [f"{live_s:.1f}", f"{simulated_s:.1f}", f"{simulated_s / live_s - 1:+.0%}"]
    for what, key in _SHARES:
        cells += [f"{rows[f'{name}: {what}']['value']:.2f}", f"{simulated[key]:.2f}"]
    return name, cells


def _verdicts(rows: _Rows) -> Iterator[str]:
    for what in ("mean error of makespan, simulated against live", "mean error of mean delay"):
        if what in rows:
            yield f"{what}: {rows[what]['value']:.3f}"
    for what, row in rows.items():
        if what.startswith("pairs of policies"):
            yield f"{what}: {row['value']:.0%} of {row['note']}"


def _late(rows: _Rows) -> Iterator[str]:
    for name in MODES.values():
        time, *others = (
            rows.get(f"late binding, {name}: {what}") for what in ("time", "mean delay", "mean wait")
        )
        if time is not None:
            delay, wait = (row["value"] for row in others if row is not None)
            figures = f"{time['value']:.0f} s, mean delay {delay:.2f}, mean wait {wait:.1f} s"
            how, _, rest = name.partition(", ")
            what = f"two streaming jobs {how} late binding{', ' if rest else ''}{rest}"
            yield f"{what}: {figures}; {time['note']}"


def _alone(rows: _Rows, machine: Mapping[str, Any]) -> Iterator[str]:
    overhead_s, link = (
        rows[what]["value"] for what in ("overhead of one task alone", "one reader on an idle link")
    )
    yield (
        f"a task alone, beside its own time: {overhead_s:.3f} s; a link: {link:.1f} MB/s; "
        f"load average when runs began: {machine['load_average']}"
    )
