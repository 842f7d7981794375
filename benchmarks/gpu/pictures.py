"""Two pictures of a report: the time line of the trace, and the speed-ups beside the paper's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.papers.yarn_paper.cells import KERNELS
from benchmarks.result import Report, draw_all

_SPEEDUP = re.compile(r"paper, (\w+), n = (\d+): over this CPU$")
_TITLES = {"h2d": "copy in", "kernel": "kernel", "d2h": "copy out"}
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
_SHOWN = 12
"""Requests of a time line."""


def draw(report: Report, stem: str) -> list[str]:
    """Draw what the report has figures for; ``STEM-timeline.png`` and ``STEM-speedup.png``.

    Returns:
        The files.
    """
    return draw_all(report, stem, {"timeline": _timeline, "speedup": _speedup})


def _title(report: Report) -> str:
    return "EMULATED, no GPU" if report.setting.get("emulated") else str(report.setting.get("gpu", ""))


def _timeline(report: Report, file: str) -> bool:
    from benchmarks.gpu.overlap import STAGES
    from yarn_accel.report.figures import drawing

    traces: Mapping[str, Sequence[Mapping[str, Any]]] = report.series.get("trace", {})
    if not traces:
        return False
    with drawing(file, (11, 1.2 + 1.5 * len(traces)), rows=len(traces)) as (_, table):
        axes = table[:, 0]
        for axis, (what, trace) in zip(axes, traces.items(), strict=True):
            shown = trace[-_SHOWN:]
            begin_ms = min(span[0] for request in shown for stage in STAGES for span in request[stage])
            for number, request in enumerate(shown):
                for row, stage in enumerate(reversed(STAGES)):
                    bars = [(begin - begin_ms, end - begin) for begin, end in request[stage]]
                    axis.broken_barh(
                        bars, (row + 0.1, 0.8), color=_COLOURS[number % len(_COLOURS)], alpha=0.8
                    )
            rows = [_TITLES[stage] for stage in reversed(STAGES)]
            axis.set(title=f"{what} - {_title(report)}", yticks=[0.5, 1.5, 2.5], yticklabels=rows)
            axis.grid(visible=True, axis="x", alpha=0.3)
        axes[-1].set_xlabel(f"ms; the last {_SHOWN} requests, a colour each")
    return True


def _speedup(report: Report, file: str) -> bool:
    from yarn_accel.report.figures import drawing

    found: dict[str, list[tuple[int, float]]] = {}
    for row in report.rows:
        match = _SPEEDUP.search(row.what)
        if match is not None:
            found.setdefault(match[1], []).append((int(match[2]), row.value))
    if not found:
        return False
    with drawing(file, (7, 4.6)) as (_, table):
        axis = table[0, 0]
        for (operation, points), colour in zip(found.items(), _COLOURS, strict=False):
            axis.plot(*zip(*sorted(points), strict=True), marker="o", color=colour, label=operation)
            paper = KERNELS[operation].speedup
            axis.axhline(paper, color=colour, linestyle=":", label=f"{operation}, the paper: {paper:.1f}")
        axis.set(
            title=f"GPU over this CPU - {_title(report)}", xlabel="order", ylabel="times faster", xscale="log"
        )
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize="small")
    return True
