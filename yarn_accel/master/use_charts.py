"""A worker's GPUs, cores and I/O over time as one small picture, as figures 3, 4 and 10 of the HDAS paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.units import format_bytes
from yarn_accel.master.markup import Markup, element

_WIDTH, _LEFT, _RIGHT = 372.0, 54.0, 276.0
_TOP, _HEIGHT, _GAP = 26.0, 30.0, 8.0
_FOOT = 14.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One value over time, in equal steps.

    Attributes:
        values: of each step; None: a gap.
        top: what fills the height.
        words: what is written beside it.
        colour: a class of the style sheet, c0 to c7.
    """

    label: str
    values: Sequence[float | None]
    top: float
    words: str
    colour: str


def use_chart(title: str, curves: Sequence[Curve], begin: str, end: str) -> Markup:
    """The picture: a row for each curve.

    Args:
        begin: what is written below the first step.
        end: below the last one.
    """
    height = _TOP + len(curves) * (_HEIGHT + _GAP) + _FOOT
    rows = [_row(curve, _TOP + i * (_HEIGHT + _GAP)) for i, curve in enumerate(curves)]
    return element(
        "svg",
        element("title", f"{title}: {begin} to {end}"),
        element("text", title, x=0, y=14, class_="name"),
        rows,
        element("text", begin, x=_LEFT, y=height - 4),
        element("text", end, x=_RIGHT, y=height - 4, class_="end"),
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        class_="use",
    )


def use_curves(use: Mapping[str, Any]) -> list[Curve]:
    """The curves of a worker, or of all together, as `UseSamples.document` has them."""
    curves = []
    for label, key, colour in (("GPUs", "gpus", "c0"), ("cores", "cores", "c2")):
        values = use[key]
        there = use.get(f"n_{key}") or 0
        if there or key == "cores" or any(values):
            top = max(there, *_known(values), 1)
            last = _last(values)
            words = f"{last:.1f} of {there}" if there else f"{last:.1f}"
            curves.append(Curve(label, values, top, words, colour))
    values = use["bytes_per_s"]
    top = max(use.get("bandwidth_bytes_per_s") or 0, *_known(values), 1)
    words = f"{format_bytes(_last(values))}/s" if any(values) else "none seen"
    curves.append(Curve("I/O", values, top, words, "c1"))
    return curves


def _row(curve: Curve, y: float) -> Iterator[Markup]:
    middle = y + _HEIGHT / 2 + 4
    yield element("rect", x=_LEFT, y=y, width=_RIGHT - _LEFT, height=_HEIGHT, rx=2, class_="trough")
    yield element("text", curve.label, x=_LEFT - 6, y=middle, class_="end")
    yield element("path", d=" ".join(_steps(curve, y)), class_=f"curve {curve.colour}")
    yield element("text", curve.words, x=_RIGHT + 6, y=middle)


def _steps(curve: Curve, y: float) -> Iterator[str]:
    """A line that is level in each step, and ends at gaps."""
    width = (_RIGHT - _LEFT) / max(len(curve.values), 1)
    is_drawing = False
    for i, value in enumerate(curve.values):
        if value is None:
            is_drawing = False
            continue
        at = y + _HEIGHT - 1 - (_HEIGHT - 2) * min(max(value / curve.top, 0.0), 1.0)
        yield f"{'L' if is_drawing else 'M'}{_LEFT + i * width:.1f} {at:.1f}H{_LEFT + (i + 1) * width:.1f}"
        is_drawing = True


def _known(values: Iterable[float | None]) -> list[float]:
    return [0.0, *(value for value in values if value is not None)]


def _last(values: Sequence[float | None]) -> float:
    return next((value for value in reversed(values) if value is not None), 0.0)
