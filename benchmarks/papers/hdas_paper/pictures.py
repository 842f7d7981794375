"""The paper's figures 1 to 10, drawn from a report: speed-ups, times, delays, and mix P over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.papers.hdas_paper.paper import APPS, MIXES, SETS

_COLOURS = {"fifo": "#4477aa", "model": "#ccbb44", "hdas": "#228833", "hdas+": "#aa3377"}
_STATED = {"fifo": 14.3, "model": 17.9, "hdas": 21.9}
_FIGURE_OF = {"fifo": "figure 3", "model": "figure 4", "hdas": "figure 10", "hdas+": "ours"}
_DPI = 70
_TRIPLES = tuple(letter for letter, mix in MIXES.items() if len(mix) == 3)


def draw_figures(series: Mapping[str, Any], name: str, stem: str) -> list[str]:
    """Draw one parameter set: all mixes into one file, mix P into another."""
    return [_mixes(series["mixes"], name, f"{stem}-mixes.png"), _mix_p(series["P"], name, f"{stem}-P.png")]


def _mixes(table: Mapping[str, Any], name: str, file: str) -> str:
    from yarn_accel.report.figures import drawing

    with drawing(file, (12, 12.5), rows=4, dpi=_DPI) as (figure, axes):
        speed, times, delays, gains = axes[:, 0]

        def makespan(letter: str, policy: str) -> float:
            return float(table[letter][policy]["makespan_s"])

        _bars(speed, MIXES, lambda m, p: makespan(m, "hadoop") / makespan(m, p))
        for policy, stated in _STATED.items():
            speed.axhline(stated, color=_COLOURS[policy], linestyle=":", linewidth=1)
        speed.set_title(
            "figure 6: speed-up over Hadoop (CPU only); dotted: the paper's means", fontsize="medium"
        )
        _bars(times, MIXES, lambda m, p: makespan(m, p) / makespan(m, "fifo"))
        times.set_title("figure 8: time, FIFO = 1", fontsize="medium")
        _bars(delays, MIXES, lambda m, p: table[m][p]["mean_delay"])
        delays.set_ylim(bottom=0.8)
        delays.set_title("figure 9: mean delay of a task", fontsize="medium")
        _bars(gains, _TRIPLES, lambda m, p: 100 * (1 - makespan(m, p) / makespan(m, "fifo")))
        gains.set_title(
            "figure 1: time saved against FIFO, mixes of three, % (the paper: model only)", fontsize="medium"
        )
        speed.legend(fontsize="small", ncols=4)
        figure.suptitle(f"mixes A to Y, parameter set {name}, simulated")
    return file


def _bars(axes: Any, letters: Sequence[str] | Mapping[str, Any], value: Any) -> None:
    from yarn_accel.report.figures import draw_groups

    values = {policy: [value(letter, policy) for letter in letters] for policy in _COLOURS}
    draw_groups(axes, list(letters), values, _COLOURS)
    axes.margins(x=0.01)


def _mix_p(runs: Mapping[str, Any], name: str, file: str) -> str:
    from yarn_accel.report.figures import drawing

    with drawing(file, (12, 11), rows=3, columns=2, dpi=_DPI) as (figure, table):
        (delays, shares), *over_time = table
        _task_times(delays, runs)
        _base_tasks(shares, name)
        end_s = max(_numbers(run["use"]["at_s"])[-1] for run in runs.values())
        for axes, (policy, run) in zip(
            [axes for row in over_time for axes in row], runs.items(), strict=True
        ):
            at_s, gpus, mb_s = (_numbers(run["use"][key]) for key in ("at_s", "gpus_computing", "io_mb_s"))
            axes.plot(at_s, gpus, color="#222222", linewidth=0.9, label="GPUs that compute")
            axes.set_ylim(0, 4.2)
            axes.set_xlim(0, end_s)
            other = axes.twinx()
            other.plot(at_s, mb_s, color="#bb5566", linewidth=0.7, alpha=0.8, label="MB/s of the disk")
            other.set_ylim(0, 135)
            axes.set_title(
                f"{_FIGURE_OF[policy]}: {policy}, one node (black GPUs, red MB/s)", fontsize="medium"
            )
            axes.set_xlabel("s", fontsize="small")
        figure.suptitle(f"mix P = KNN, NB, BP, parameter set {name}, simulated")
    return file


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def _task_times(axes: Any, runs: Mapping[str, Any]) -> None:
    from yarn_accel.report.figures import draw_groups

    columns = [(app, form) for app in ("KNN", "NB", "BP") for form in ("cpu", "gpu")]
    delays = {
        policy: [
            delay if n else 0 for n, delay in (runs[policy]["forms"][app][form] for app, form in columns)
        ]
        for policy in _COLOURS
    }
    draw_groups(axes, [f"{app}\n{form.upper()}" for app, form in columns], delays, _COLOURS)
    axes.set_title("figure 2: time of a task, alone = 1", fontsize="medium")
    axes.legend(fontsize="small")


def _base_tasks(axes: Any, name: str) -> None:
    for place, app in enumerate(APPS):
        figures = SETS[name].apps[app]
        read, compute = figures.gpu_read_s / figures.cpu_s, figures.gpu_compute_s / figures.cpu_s
        axes.bar(place - 0.2, 1.0, 0.35, color="#bbbbbb", label="CPU" if not place else None)
        axes.bar(place + 0.2, read, 0.35, color="#bb5566", label="GPU: reads" if not place else None)
        axes.bar(
            place + 0.2,
            compute,
            0.35,
            bottom=read,
            color="#004488",
            label="GPU: computes" if not place else None,
        )
    axes.set_xticks(range(len(APPS)), APPS)
    axes.set_title("figure 7: tasks alone, CPU = 1 (fitted)", fontsize="medium")
    axes.legend(fontsize="small")
