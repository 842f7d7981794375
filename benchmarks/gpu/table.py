"""The figures of a GPU for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_NAMES = {"lu": "LU", "qr": "QR", "cholesky": "Cholesky"}
_SIZES = ("1 MB", "4 MB", "16 MB", "50 MB")
_WAYS = {
    "cuSOLVER bare, with copies": "cuSOLVER bare, with copies",
    "in the worker, one at a time": "in the worker, one at a time",
    "pipeline": "through the pipeline, six under way",
    "as many by echo": "the same, only echoed",
}
_ORDERS = (32, 128, 512)


def gpu_table(document: Mapping[str, Any]) -> list[str]:
    """The lines of the table."""
    value = {row["what"]: row["value"] for row in document["rows"]}
    lines = [_line(f"{document['machine']['gpu']}, GFLOP/s", _SIZES)]
    for operation, name in _NAMES.items():
        for way, title in _WAYS.items():
            cells = [f"{value[f'{operation}, {size}: {way}']:,.0f}" for size in _SIZES]
            lines.append(_line(f"{name}, {title}", cells))
    lines += ["", _line("small ones (bare: 64 a call), thousand a second", [f"n = {n}" for n in _ORDERS])]
    for operation, name in _NAMES.items():
        for way, title in (("bare, with copies", "bare, with copies"), ("pipeline", "through the pipeline")):
            cells = [f"{value[f'{operation}, order {n}, by 64: {way}'] / 1e3:,.1f}" for n in _ORDERS]
            lines.append(_line(f"{name}, {title}", cells))
    lines += ["", _line("workers on the GPU", ["1", "2", "4"])]
    for operation, name in _NAMES.items():
        cells = [f"{value[f'workers, {operation}, 1 MB: {n} on the GPU']:,.0f}" for n in (1, 2, 4)]
        lines.append(_line(f"{name} of 1 MB, GFLOP/s", cells))
    jpeg = "images, JPEG 256 x 256"
    cells = [f"{value[f'workers, {jpeg}: {n} on the GPU']:,.0f}" for n in (1, 2, 4)]
    cores = document["machine"]["cores"]
    return [
        *lines,
        _line("features of JPEG 256 x 256, images a second", cells),
        _line(
            f"the same on {cores} cores; nvJPEG's decoding alone",
            [f"{value[f'{jpeg}: {each}']:,.0f}" for each in ("this CPU", "nvJPEG bare, decoding only")],
        ),
        "",
        _line(f"order 10,000, the GPU over {cores} cores", _NAMES.values(), 9),
        _line(
            "with both copies",
            [f"{value[f'paper, {each}, n = 10000: over this CPU']:.1f}" for each in _NAMES],
            9,
        ),
        _line("the paper's", ["8.9", "16.6", "8.0"], 9),
    ]


def _line(title: str, cells: Iterable[str], width: int = 8) -> str:
    return f"{title:50}" + "".join(f" {cell:>{width}}" for cell in cells)
