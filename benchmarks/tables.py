"""``python -m benchmarks.tables [NAME]``: the tables of docs/benchmarks.md, from the files of results.

With ``--write`` the page gets what its commands print now. A test compares the two.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["TABLES", "main", "rewritten"]

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "benchmarks.md"
_RESULTS = _ROOT / "benchmarks" / "results"
_SIZES = ("64 KiB", "1 MiB", "8 MiB", "50 MiB")
_TCP = {
    "ours tcp none": "ours",
    "ours tcp xxh3": "ours, checksum xxh3",
    "bare tcp none": "a bare socket loop",
    "zmq": "ZeroMQ",
    "flight": "Arrow Flight",
    "grpc": "gRPC",
    "ray": "Ray",
    "dask": "Dask",
    "triton": "PyTriton",
}
_SAME_NODE = {
    "ours best": "ours (shared memory)",
    **{name: _TCP[name] for name in ("zmq", "flight", "grpc", "ray", "dask")},
}
_BLOCK = re.compile(r"(^python -m benchmarks\.tables (\S+)\n```\n\n```text\n)(.*?)(^```$)", re.M | re.S)


def _rows(part: str) -> dict[str, Mapping[str, Any]]:
    rows = json.loads((_RESULTS / f"pipeline-{part}.json").read_text(encoding="utf-8"))["rows"]
    return {row["what"]: row for row in rows}


def _values(part: str) -> dict[str, float]:
    return {what: row["value"] for what, row in _rows(part).items()}


def _line(title: str, cells: Sequence[str], width: int = 8) -> str:
    return f"{title:44}" + "".join(f" {cell:>{width}}" for cell in cells)


def _echo(carrier: str, names: Mapping[str, str]) -> list[str]:
    value = _values("echo")
    lines = [_line(f"echo, {carrier}, GB/s", _SIZES)]
    for name, title in names.items():
        cells = [value.get(f"echo, {carrier}, {size}, 1 client, window 4: {name}") for size in _SIZES]
        # PyTriton is not installed everywhere.
        if any(cell is not None for cell in cells):
            lines.append(_line(title, ["-" if cell is None else f"{cell:.2g}" for cell in cells]))
    return lines


def _hdfs() -> list[str]:
    rows, sizes = _rows("hdfs"), ("8 MB", "50 MB")
    lines = [_line("LU in and out of HDFS", sizes, 12)]
    for title, what, form in (
        ("the server reads, MB/s", ": server reads", ".0f"),
        ("over the best bare read", ": server reads / best bare read", ".2f"),
        ("the server writes, MB/s", ": server writes", ".0f"),
        ("over a bare write", ": server writes / bare write(bytes)", ".2f"),
        ("slowest stage alone / wall time", ", LU in and out: slowest stage alone / wall", ".2f"),
        ("the same, at most on these cores", ": slowest stage alone / wall, at most here", ".2f"),
    ):
        lines.append(_line(title, [f"{rows[f'hdfs, {size}{what}']['value']:{form}}" for size in sizes], 12))
    notes = [rows[f"hdfs, {size}, LU in and out: slowest stage alone / wall"]["note"] for size in sizes]
    for stage in ("read", "compute", "write"):
        found = [re.search(rf"{stage} (\d+) ms", note) for note in notes]
        lines.append(_line(f"one file alone, {stage}, ms", [each[1] if each else "-" for each in found], 12))
    return lines


def _computing() -> list[str]:
    latency, small = _values("latency"), _values("small")
    tcp = {
        name: latency[f"latency, 64 B, tcp, cores may sleep: {name}"]
        for name in ("ours tcp", "flight", "grpc", "ray")
    }
    shares = [value for what, value in _values("stages").items() if what.startswith("efficiency")]
    kernels = [value for what, value in _values("kernels").items() if what.endswith("worker / bare")]
    default = (latency[f"latency, 64 B, {way}, the server's default: ours {way}"] for way in ("tcp", "unix"))
    return [
        "round trip of 64 bytes, TCP, Unix socket, us: {:.0f}, {:.0f}".format(*default),
        "the same, TCP, cores may sleep, us: ours {:.0f}, Flight {:.0f}, gRPC {:.0f}, Ray {:.0f}".format(
            *tcp.values()
        ),
        "LU, QR, Cholesky of 1 to 50 MB by value, slowest stage alone / wall time: "
        f"{min(shares):.2f} to {max(shares):.2f}",
        "LU, QR, Cholesky of order 1000 to 4000, rate in the worker / bare LAPACK: "
        f"{min(kernels):.2f} to {max(kernels):.2f}",
        "LU of order 32, one by one, window 16: "
        f"{small['LU n = 32: one frame each, window 16']:,.0f} per second",
        "the same, packed by 64 (`pack=64`): "
        f"{small['LU n = 32: packed by 64 and batched, window 16']:,.0f} per second",
    ]


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "tcp": lambda: _echo("tcp", _TCP),
    "reference": _hdfs,
    "computing": _computing,
    "same-node": lambda: _echo("same node", _SAME_NODE),
}
"""Name -> its lines."""


def rewritten(page: str) -> str:
    """The page with the tables as they are now."""
    return _BLOCK.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[4], page)


def main(words: Sequence[str]) -> int:
    """Print the tables named, all without a name, or write them into the page; the exit code."""
    if list(words) == ["--write"]:
        _PAGE.write_text(rewritten(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    unknown = [word for word in words if word not in TABLES]
    if unknown:
        sys.stderr.write(f"no table {unknown[0]}; there are {', '.join(TABLES)}, and --write\n")
        return 2
    for name in words or TABLES:
        print("\n".join(TABLES[name]()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
