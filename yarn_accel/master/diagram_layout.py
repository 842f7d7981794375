"""The layout of the cluster diagram: in each rack the servers' nodes above, the other nodes below.

Nodes are ordered by name, not by binding: when a node is bound anew its line moves and the node stays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_WIDTH = 1180.0
_MARGIN = 14.0
_HEADING = 30.0
_GAP_OF_RACKS = 18.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, in the units of the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Of its width."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Scale:
    """How large nodes are drawn: (width, height) with and without an accelerator, and the space for lines."""

    accelerator: tuple[float, float]
    plain: tuple[float, float]
    gap: float
    lines: float
    aspect: float
    is_small: bool

    @staticmethod
    def of(n_nodes: int) -> Scale:
        """The one for so many nodes."""
        if n_nodes <= 80:
            return Scale((200.0, 112.0), (132.0, 46.0), 14.0, 64.0, 1.5, is_small=False)
        return Scale((104.0, 40.0), (18.0, 18.0), 7.0, 44.0, 8.0, is_small=True)


@dataclass(frozen=True, slots=True)
class DiagramLayout:
    """Boxes by name, and the size of the whole.

    Attributes:
        lanes: for a node that has others between it and the servers: where the gap beside it begins, by
            which a line reaches it.
    """

    scale: Scale
    racks: Mapping[str, Box]
    nodes: Mapping[str, Box]
    lanes: Mapping[str, tuple[float, float]]
    width: float
    height: float


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts names as people do: w2 before w10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return tuple((int(part), part) if part.isdecimal() and len(part) <= 18 else (-1, part) for part in parts)


def lay_out(nodes: Mapping[str, Mapping[str, Any]]) -> DiagramLayout:
    """Place every node.

    Args:
        nodes: the state document's.
    """
    scale = Scale.of(len(nodes))
    racks: dict[str, Box] = {}
    placed: dict[str, Box] = {}
    lanes: dict[str, tuple[float, float]] = {}
    x = y = row_height = width = 0.0
    for rack, members in sorted(_by_rack(nodes).items(), key=lambda item: natural(item[0])):
        inside, box_width, box_height = _lay_out_rack(members, nodes, scale)
        if x > 0 and x + box_width > _MAX_WIDTH:
            x, y, row_height = 0.0, y + row_height + _GAP_OF_RACKS, 0.0
        racks[rack] = Box(x, y, box_width, box_height)
        moved = {name: Box(x + box.x, y + box.y, box.width, box.height) for name, box in inside.items()}
        placed |= moved
        lanes |= _queues([moved[host] for host in members if not nodes[host]["is_accelerator"]], moved, scale)
        x += box_width + _GAP_OF_RACKS
        row_height = max(row_height, box_height)
        width = max(width, x - _GAP_OF_RACKS)
    return DiagramLayout(scale, racks, placed, lanes, width, y + row_height)


def _by_rack(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    racks: dict[str, list[str]] = {}
    for host in sorted(nodes, key=natural):
        racks.setdefault(nodes[host]["rack"] or "", []).append(host)
    return racks


def _lay_out_rack(
    hosts: Iterable[str], nodes: Mapping[str, Mapping[str, Any]], scale: Scale
) -> tuple[dict[str, Box], float, float]:
    """The boxes of one rack's nodes from its upper left corner, its width and its height."""
    above = [host for host in hosts if nodes[host]["is_accelerator"]]
    below = [host for host in hosts if not nodes[host]["is_accelerator"]]
    most = _MAX_WIDTH - 2 * _MARGIN
    n_below = min(math.ceil(math.sqrt(len(below) * scale.aspect)), _fitting(scale.plain[0], scale.gap, most))
    n_above = min(
        max(math.ceil(math.sqrt(len(above) * 2)), 2), _fitting(scale.accelerator[0], scale.gap, most)
    )
    n_above, n_below = min(n_above, len(above)), min(n_below, len(below))
    widths = (
        n_above * (scale.accelerator[0] + scale.gap) - scale.gap,
        n_below * (scale.plain[0] + scale.gap) - scale.gap,
        scale.accelerator[0],
    )
    inner = max(widths)
    boxes, y = _rows(above, n_above, scale.accelerator, scale.gap, inner, _HEADING)
    if above and below:
        y += scale.lines - scale.gap
    more, y = _rows(below, n_below, scale.plain, scale.gap, inner, y)
    return boxes | more, inner + 2 * _MARGIN, y - scale.gap + _MARGIN


def _rows(
    hosts: list[str], n_columns: int, size: tuple[float, float], gap: float, inner: float, y: float
) -> tuple[dict[str, Box], float]:
    """Rows of equal boxes, in columns in the middle, and where the next row would begin."""
    boxes: dict[str, Box] = {}
    left = _MARGIN + (inner - n_columns * (size[0] + gap) + gap) / 2
    for first in range(0, len(hosts), max(n_columns, 1)):
        for i, host in enumerate(hosts[first : first + n_columns]):
            boxes[host] = Box(left + i * (size[0] + gap), y, *size)
        y += size[1] + gap
    return boxes, y


def _queues(below: Iterable[Box], boxes: Mapping[str, Box], scale: Scale) -> dict[str, tuple[float, float]]:
    """The gap to the left of each node that is not in the first row; rows share a gap side by side."""
    tops = sorted({box.y for box in below})
    lanes: dict[str, tuple[float, float]] = {}
    for host, box in boxes.items():
        row = tops.index(box.y) if box.y in tops else 0
        if row > 0:
            lanes[host] = (box.x - scale.gap * (0.25 + 0.25 * (row % 3)), tops[0])
    return lanes


def _fitting(width: float, gap: float, space: float) -> int:
    return int((space + gap) // (width + gap))
