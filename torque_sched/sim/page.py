"""The report of an experiment as one HTML page: no script, nothing from anywhere else, every text escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape

from torque_sched.sim.plots import gantt, load, waits
from torque_sched.sim.results import Experiment, class_rows, rows, summary

_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#1c1c1c}"
    "table{border-collapse:collapse;margin:.6em 0 1.4em}"
    "td,th{border-bottom:1px solid #ddd;padding:.2em .9em .2em 0;text-align:right}"
    "td:first-child,th:first-child{text-align:left}img{width:100%;margin:.4em 0 1em}"
)
_RULE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(experiment: Experiment) -> str:
    """The whole page."""
    title = f"{experiment.trace}: {', '.join(each.schedule.name for each in experiment.results)}"
    body = "".join(_body(experiment, title))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_RULE}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _body(experiment: Experiment, title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1><p>{escape(summary(experiment.workload))}.</p>"
    settings = ", ".join(f"{name} {value}" for name, value in experiment.settings.items())
    yield f"<p>{escape(settings)}</p>"
    yield _table(rows(experiment.results))
    limits = experiment.limits
    yield (
        f"<p>Floor of bounded slowdown {limits.floor_s:g} s. Short: runs at most {limits.short_s:g} s; "
        f"narrow: at most {limits.narrow_procs} processors.</p>"
    )
    yield _table(class_rows(experiment.results))
    for result in experiment.results:
        for problem in result.problems or ():
            yield f"<p><b>{escape(result.schedule.name)}: {escape(problem)}</b></p>"
    schedules = [each.schedule for each in experiment.results]
    if not experiment.workload.jobs:
        return
    yield f"<h2>Utilisation and queue</h2>{_picture(load(schedules), 'utilisation and queue over time')}"
    yield f"<h2>Waits</h2>{_picture(waits(schedules), 'share of jobs by wait')}"
    for schedule in schedules:
        name = f"Gantt, {schedule.name}"
        yield f"<h2>{escape(name)}</h2>{_picture(gantt(schedule), name)}"


def _picture(png: bytes, what: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<img alt="{escape(what, quote=True)}" src="data:image/png;base64,{data}">'


def _table(lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in lines[0])
    rest = ("".join(f"<td>{escape(each)}</td>" for each in line) for line in lines[1:])
    body = "".join(f"<tr>{cells}</tr>" for cells in rest)
    return f"<table><tr>{head}</tr>{body}</table>"
