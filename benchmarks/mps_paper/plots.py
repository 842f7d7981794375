"""Figures 4 to 10 of the paper, drawn from a report: means with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIGURES = {
    "same": (("mean_makespan_s", "figure 4: mean makespan, s"), ("unfairness", "figure 5: unfairness")),
    "mixed": (
        ("mean_makespan_s", "figure 6: mean makespan, s"),
        ("unfairness", "figure 7: unfairness"),
        ("utilisation", "figure 8: utilisation"),
    ),
    "preemptive": (
        ("first_makespan_s", "figure 9: makespan of the preemptive DAG, s"),
        ("first_slowdown", "figure 10: its slowdown"),
    ),
}
_X = {"same": "DAGs", "mixed": "DAGs", "preemptive": "arrival, s"}


def draw_figures(series: Mapping[str, Any], stem: str) -> list[str]:
    """One file per experiment that was run."""
    from matplotlib.figure import Figure

    files = []
    for kind, panels in _FIGURES.items():
        if kind not in series:
            continue
        figure = Figure(figsize=(5.5 * len(panels), 4.5), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            for policy, points in series[kind][name].items():
                x, mean, low, high = zip(*points, strict=True)
                axes.plot(x, mean, marker="o", markersize=3, label=policy)
                axes.fill_between(x, low, high, alpha=0.12)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel(_X[kind])
        axes.legend(fontsize=7)
        file = f"{stem}-{kind}.png"
        figure.savefig(file, dpi=110)
        files.append(file)
    return files
