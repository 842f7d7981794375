"""The pictures of a report: what benchmarks draw of their results, and ours beside the paper's figures."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.registry import load
from benchmarks.report.collecting import Figure, JudgedClaim
from benchmarks.report.experiments import Result
from benchmarks.result import Report, Row

_COLOURS = 48
_LONGEST = 88


def draw_result(stem: str, result: Result, folder: Path) -> list[Path]:
    """Have a benchmark draw its result into a folder; nothing where it draws none."""
    document = result.document
    benchmark = load(str(document["name"]))
    if not hasattr(benchmark, "draw"):
        return []
    rows = [
        Row(**{**row, "spread": tuple(row["spread"]) if row["spread"] else None}) for row in document["rows"]
    ]
    report = Report(str(document["name"]), rows=rows, series=dict(document.get("series", {})))
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(file) for file in benchmark.draw(report, str(folder / stem))]


def small_png(path: Path) -> bytes:
    """A drawing with few colours, a third as large to embed."""
    from PIL import Image

    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        stream = io.BytesIO()
        few.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def draw_beside(claims: Sequence[JudgedClaim], file: Path) -> Path | None:
    """Each figure of ours as a part of the paper's, both as numbers beside it; None: no claim has both."""
    from matplotlib.figure import Figure as Drawing

    lines = list(_comparable(claims))
    if not lines:
        return None
    drawing = Drawing(figsize=(11, 1.1 + 0.27 * len(lines)), layout="constrained")
    axes = drawing.subplots()
    places = range(len(lines))
    axes.axvline(1.0, color="#55606e", linewidth=1)
    axes.axvspan(0.95, 1.05, color="#e1e5ea", zorder=0)
    for at, (_, paper, figure) in zip(places, lines, strict=True):
        if figure.spread is not None:
            low, high = sorted(each / paper for each in figure.spread)
            axes.plot([max(low, 1e-3), high], [at, at], color="#8fb3d9", linewidth=3, solid_capstyle="butt")
        axes.plot([figure.value / paper], [at], "o", color="#0b5cad", markersize=5)
    axes.set_yticks(places, [_shortened(text) for text, _, _ in lines], fontsize=8)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    values = [figure.value / paper for _, paper, figure in lines]
    if min(values) > 0 and max(values) / min(values) > 8:
        axes.set_xscale("log")
    right = axes.secondary_yaxis("right")
    numbers = [f"paper {paper:.4g}, ours {figure.value:.4g} {figure.unit}" for _, paper, figure in lines]
    right.set_yticks(places, numbers, fontsize=8)
    axes.set_xlabel(
        "ours over the paper's figure (band: within 5 %; bar: spread of single measurements)", fontsize=8
    )
    axes.grid(axis="x", alpha=0.3)
    drawing.savefig(file, dpi=110)
    return file


def _comparable(claims: Iterable[JudgedClaim]) -> Iterable[tuple[str, float, Figure]]:
    for each in claims:
        paper = getattr(each.claim.rule, "paper", None)
        if paper:
            for figure in each.figures:
                label = f" ({figure.label})" if figure.label else ""
                yield f"{each.claim.claim}{label}", float(paper), figure


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
