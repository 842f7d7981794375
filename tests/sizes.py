"""How large each part of the tree is: lines of code, modules, classes, functions. A measurement, not a rule.

``python -m tests.sizes`` prints the table; ``--json`` prints it for comparison. A line of code holds a
token which is neither a comment nor a docstring. A module belongs to the part whose path matches it longest.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

TORQUE_PACKAGES = (
    *("model", "decide", "learn", "batch", "daemon"),
    *("report", "commands", "simulate", "grid", "emulation"),
)

PARTS = {
    "pipeline server, request machine": ("yarn_accel/pipeline", "yarn_accel/core/requests"),
    "application master, binding, agent": (
        "yarn_accel/master",
        "yarn_accel/core/application",
        "yarn_accel/core/binding",
        "yarn_accel/node",
    ),
    "client, wire": ("yarn_accel/client", "yarn_accel/wire"),
    "tasks: service, worker, policies": ("yarn_accel/core/tasks", "yarn_accel/tasks", "yarn_accel/worker"),
    "DAGs": ("yarn_accel/core/dags", "yarn_accel/dags"),
    "operations, formats": ("yarn_accel/operations", "yarn_accel/formats"),
    "CUDA": ("yarn_accel/operations/cuda",),
    "test bed": ("yarn_accel/testbed",),
    "launch, hadoop": ("yarn_accel/launch", "yarn_accel/hadoop"),
    "Hadoop RPC": ("yarn_accel/adapters/hadoop_rpc",),
    "spark": ("yarn_accel/spark",),
    "simulation": ("yarn_accel/sim",),
    "report": ("yarn_accel/report",),
    "yarn_accel: the rest": ("yarn_accel",),
    **{f"torque_sched: {package}": (f"torque_sched/{package}",) for package in TORQUE_PACKAGES},
    "torque_sched: the rest": ("torque_sched",),
    "jobs": ("jobs",),
    "benchmarks: papers": ("benchmarks/papers",),
    "benchmarks: the product": ("benchmarks",),
    "tests": ("tests",),
}
"""Name of a part -> how the paths of its modules begin."""


class Size(NamedTuple):
    """What a module or a part of the tree adds up to."""

    code: int
    modules: int
    classes: int
    functions: int

    def __add__(self, other: object) -> Size:
        assert isinstance(other, Size)
        return Size(*(mine + its for mine, its in zip(self, other, strict=True)))


def size_of(source: str) -> Size:
    """Size of a module's text."""
    tree = ast.parse(source)
    hidden: set[int] = set()
    n_classes = n_functions = 0
    for node in ast.walk(tree):
        n_classes += isinstance(node, ast.ClassDef)
        n_functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for each in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                hidden.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return Size(len(lines - hidden), 1, n_classes, n_functions)


def part_of(path: str) -> str | None:
    """The part of the tree that a module belongs to; None: it is counted nowhere."""
    fits = [
        (len(start), part)
        for part, starts in PARTS.items()
        for start in starts
        if path.startswith(start) and path[len(start) : len(start) + 1] in ("/", "_")
    ]
    return max(fits)[1] if fits else None


def measure() -> dict[str, Size]:
    """Part of the tree -> its size, of all modules that git has."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    sizes = dict.fromkeys(PARTS, Size(0, 0, 0, 0))
    for path in listed.split():
        part = part_of(path)
        if part is not None and (ROOT / path).exists():
            sizes[part] += size_of((ROOT / path).read_text(encoding="utf-8"))
    return sizes


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    sizes = measure()
    if parser.parse_args().json:
        json.dump({part: size._asdict() for part, size in sizes.items()}, sys.stdout, indent=2)
        return
    print(f"{'part':36}{'code':>8}{'modules':>9}{'classes':>9}{'functions':>11}")
    for package in ("yarn_accel", "torque_sched"):
        parts = [sizes[part] for part, starts in PARTS.items() if starts[0].startswith(package)]
        sizes[f"{package} together"] = sum(parts, Size(0, 0, 0, 0))
    for part, size in sizes.items():
        print(f"{part:36}{size.code:8,}{size.modules:9,}{size.classes:9,}{size.functions:11,}")


if __name__ == "__main__":
    main()
