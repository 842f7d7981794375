"""When each task ran, by machine: a live run above, the simulated one below."""

from __future__ import annotations

from typing import Any

from benchmarks.mps_live.runs import DagRun, spans_by_machine


def draw_pair(live: DagRun, simulated: DagRun, file: str) -> str:
    """Draw one run; returns the file."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    colours = {name: colormaps["tab10"](number % 10) for number, name in enumerate(live.dags)}
    panels = figure.subplots(2, 1, sharex=True)
    for axes, run, name in ((panels[0], live, "live"), (panels[1], simulated, "simulated")):
        _draw(axes, run, colours)
        axes.set_title(f"{name}: makespan {run.makespan_s:.1f} s, unfairness {run.unfairness:.2f}")
    panels[1].set_xlabel("s")
    handles = [panels[0].barh([0], [0], color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize="small")
    figure.suptitle(f"{live.key.world}: tasks by machine; computing is emulated")
    figure.savefig(file, dpi=80)
    return file


def _draw(axes: Any, run: DagRun, colours: Any) -> None:
    by_machine = sorted(spans_by_machine(run.tasks).items())
    for number, (_, spans) in enumerate(by_machine):
        axes.broken_barh(
            [(each.start_s, each.end_s - each.start_s) for each in spans],
            (number - 0.4, 0.8),
            facecolors=[colours[each.dag] for each in spans],
            edgecolor="white",
            linewidth=0.5,
        )
        for each in spans:
            middle_s = (each.start_s + each.end_s) / 2
            axes.text(middle_s, number, each.task, ha="center", va="center", fontsize=5, clip_on=True)
    axes.set_yticks(range(len(by_machine)), [name for name, _ in by_machine])
    axes.set_ylim(len(by_machine) - 0.5, -0.5)
