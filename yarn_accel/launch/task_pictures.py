"""The pictures of a report, in the manner of figures 2, 3, 4 and 10 of the HDAS paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from yarn_accel.core.tasks.outcome import FormSummary
from yarn_accel.core.tasks.use_over_time import NodePlace, UseSteps

_MAX_BARS = 60
#: A name is a name, whatever signs it has.
AS_TEXT: Any = {"text.parse_math": False, "text.usetex": False}


def draw_delays(summaries: Sequence[FormSummary], path: Path) -> None:
    """Bars by application and form: mean delay, beside the predicted one."""
    shown = summaries[:_MAX_BARS]
    with matplotlib.rc_context(AS_TEXT):
        figure = Figure(figsize=(max(6.0, 0.7 * len(shown)), 4.0), layout="constrained")
        axes = figure.subplots()
        for offset, label, colour, values in (
            (-0.2, "happened", "#4477aa", [each.delay for each in shown]),
            (0.2, "predicted", "#ccbb44", [each.predicted_delay for each in shown]),
        ):
            at = [place + offset for place in range(len(shown))]
            axes.bar(
                at, [0.0 if math.isnan(value) else value for value in values], 0.38, color=colour, label=label
            )
        axes.axhline(1.0, color="#666666", linewidth=0.8)
        names = [f"{cut_name(each.app)}\n{each.form.value}, {each.n_tasks}" for each in shown]
        axes.set_xticks(range(len(shown)), names, fontsize="small")
        axes.set_ylabel("time of a task, alone = 1")
        axes.legend(fontsize="small")
        figure.savefig(path, format="png", dpi=90)


def draw_use(use: Mapping[str, UseSteps], places: Mapping[str, NodePlace], path: Path) -> None:
    """A row for each node: GPUs that tasks hold, those that compute, and the I/O."""
    with matplotlib.rc_context(AS_TEXT):
        figure = Figure(figsize=(11.0, 0.8 + 1.9 * max(1, len(use))), layout="constrained")
        rows = figure.subplots(max(1, len(use)), 1, squeeze=False, sharex=True)[:, 0]
        for axes, (node, steps) in zip(rows, use.items(), strict=False):
            at_s = [number * steps.step_s for number in range(len(steps.gpus))]
            place = places.get(node)
            has_gpus = any(steps.gpus) or (place is not None and place.gpus > 0)
            held, word = (steps.gpus, "GPUs") if has_gpus else (steps.cores, "cores")
            axes.plot(at_s, held, color="#4477aa", linewidth=0.9, label=f"{word} held")
            if has_gpus:
                axes.plot(
                    at_s, steps.gpus_computing, color="#222222", linewidth=0.9, label="GPUs that compute"
                )
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
            axes.set_ylabel(word)
            axes.set_title(cut_name(node), fontsize="small", loc="left")
            other = axes.twinx()
            mb_s = [math.nan if value is None else value / 1e6 for value in steps.io_bytes_per_s]
            other.plot(at_s, mb_s, color="#bb5566", linewidth=0.8, label="I/O, MB/s")
            other.set_ylim(bottom=0)
            other.set_ylabel("MB/s")
            # Below the curves, which are at the top most of the time.
            axes.legend(fontsize="x-small", loc="lower left", ncols=2)
            other.legend(fontsize="x-small", loc="lower right")
        rows[-1].set_xlabel("s")
        figure.savefig(path, format="png", dpi=80)


def cut_name(name: str) -> str:
    """A name that fits beside an axis."""
    return name if len(name) <= 24 else f"{name[:11]}…{name[-12:]}"
