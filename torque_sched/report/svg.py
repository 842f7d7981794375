"""Plots as SVG text, so that a report is one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 760, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 16, 34
COLOURS = ("#1f6feb", "#d1600a", "#2b8a3e", "#9c36b5")


@dataclass(frozen=True, slots=True)
class Line:
    """One series; ``values`` belong to the same positions in every series of a plot."""

    name: str
    values: Sequence[float]


def lines(title: str, positions: Sequence[float], series: Sequence[Line], ticks: Sequence[str] = ()) -> str:
    """Series over positions that rise.

    Args:
        title: above the plot.
        positions: of the values.
        series: the lines.
        ticks: words below the axis, evenly spread.
    """
    top = _round_up(max((value for line in series for value in line.values), default=0.0))
    first, last = (positions[0], positions[-1]) if positions else (0.0, 1.0)
    width = (last - first) or 1.0
    parts = [_frame(title, top, ticks)]
    for number, line in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{_x((at - first) / width):.1f},{_y(value / top):.1f}"
            for at, value in zip(positions, line.values, strict=True)
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        parts.append(
            f'<text x="{_LEFT + 10 + 170 * number}" y="{_HEIGHT - 4}" fill="{colour}">'
            f"{escape(line.name)}</text>"
        )
    return _svg(title, parts)


def bars(title: str, values: Sequence[float], labels: Sequence[str]) -> str:
    """One bar for each value, with its label below."""
    top = _round_up(max(values, default=0.0))
    parts = [_frame(title, top, ())]
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(values))
    for at, (value, label) in enumerate(zip(values, labels, strict=True)):
        x, y = _LEFT + at * step, _y(value / top)
        parts.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" '
            f'height="{_HEIGHT - _BOTTOM - y:.1f}" fill="{COLOURS[0]}"><title>{value:g}</title></rect>'
            f'<text x="{x + step / 2:.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    return _svg(title, parts)


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        + "".join(parts)
        + "</svg>"
    )


def _frame(title: str, top: float, ticks: Sequence[str]) -> str:
    parts = [f'<text x="{_LEFT}" y="11" font-weight="bold">{escape(title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:g}</text>')
    for number, tick in enumerate(ticks):
        x = _x(number / max(1, len(ticks) - 1))
        anchor = "start" if number == 0 else "end" if number == len(ticks) - 1 else "middle"
        y = _HEIGHT - _BOTTOM + 13
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(tick)}</text>')
    return "".join(parts)


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _TOP + (1 - min(1.0, max(0.0, share))) * (_HEIGHT - _TOP - _BOTTOM)


def _round_up(value: float) -> float:
    """A round number not below the value, and above 0."""
    if value < 1e-12:
        return 1.0
    power = 10.0 ** len(f"{int(value)}") / 10 if value >= 1 else 1.0
    while value < power:
        power /= 10
    return next((step * power for step in (1, 2, 2.5, 5, 10) if value <= step * power), value)
