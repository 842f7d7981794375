"""What is free now and until when, nodes that are alike in one row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from torque_sched.policies.backfilling.show import FreeNode
from torque_sched.report.tables import clock, table
from torque_sched.report.words import size, span

_NAMED = 4


@dataclass(frozen=True, slots=True)
class Opening:
    """Nodes with the same free amounts, for the same time."""

    slots: int
    gpus: int
    until_s: float
    properties: tuple[str, ...]
    mem_bytes: float
    """Free on each of them at least."""
    nodes: tuple[str, ...]


def openings(free: Iterable[FreeNode]) -> tuple[Opening, ...]:
    """The rows: what is free longest first, then by size."""
    groups: dict[tuple[int, int, float, tuple[str, ...]], list[FreeNode]] = {}
    for each in free:
        if each.slots or each.gpus:
            groups.setdefault((each.slots, each.gpus, each.until_s, each.properties), []).append(each)
    rows = (
        Opening(*key, min(each.mem_bytes for each in nodes), tuple(str(each.node) for each in nodes))
        for key, nodes in groups.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.until_s, -row.gpus, -row.slots, row.nodes)))


def openings_table(rows: Sequence[Opening], now_s: float, *, shows_names: bool = False) -> Table:
    """For the terminal."""
    made = table(">nodes", ">slots each", ">gpus each", ">memory", ">for", "until", "properties", "which")
    for row in rows:
        is_endless = math.isinf(row.until_s)
        shown = row.nodes if shows_names or len(row.nodes) <= _NAMED else (*row.nodes[: _NAMED - 1], "...")
        made.add_row(
            str(len(row.nodes)), str(row.slots), str(row.gpus) if row.gpus else "",
            size(row.mem_bytes) if math.isfinite(row.mem_bytes) else "-",
            "no end" if is_endless else span(row.until_s - now_s), "" if is_endless else clock(row.until_s),
            ",".join(row.properties), ",".join(shown),
        )  # fmt: skip
    return made


def document(free: Iterable[FreeNode], now_s: float) -> dict[str, Any]:
    """For programs; ``until_s`` None: no end is known."""
    return {
        "now_s": now_s,
        "nodes": [
            {
                "node": str(each.node), "slots": each.slots, "gpus": each.gpus,
                "mem_bytes": each.mem_bytes if math.isfinite(each.mem_bytes) else None,
                "until_s": each.until_s if math.isfinite(each.until_s) else None,
                "properties": list(each.properties),
            }
            for each in free
        ],
    }  # fmt: skip
