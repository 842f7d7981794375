"""The cluster as an SVG diagram: racks, nodes, and a line from each node to the server it is bound to.

In each rack the servers' nodes stand above, the other nodes below, all ordered by name and not by binding:
when a node is bound anew its line moves and the node stays. `cluster.svg` has the markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from yarn_accel.master.status_documents import natural
from yarn_accel.report.charts import colours_of
from yarn_accel.report.pages import macros

#: A node whose agent has not been heard for so long is shown as silent.
SILENT_S = 5.0
_STAGES = ("read", "compute", "write")
_LOADS = (("in_flight", "in flight"), ("queued", "queued"))
_MAX_WIDTH = 1180.0
_MARGIN = 14.0
_HEADING = 30.0
_GAP_OF_RACKS = 18.0
_Node = Mapping[str, Any]
_Nodes = Mapping[str, _Node]


def draw(nodes: _Nodes) -> Markup:
    """The picture.

    Args:
        nodes: the state document's, or some of them; lines to nodes that are not among them are left out.
    """
    layout, colours, names = lay_out(nodes), hue(nodes), short_names(nodes)
    racks = [(_cut(rack or "rack not known", 40), box) for rack, box in layout.racks.items()]
    drawn = [_drawn(host, nodes[host], layout.scale.is_small, colours, names) for host in layout.nodes]
    svg = macros(Path(__file__).with_name("cluster.svg"))
    return svg.cluster(layout, racks, list(_lines(nodes, layout, colours)), drawn)  # type: ignore[no-any-return]


def hue(nodes: _Nodes) -> dict[str, str]:
    """The class that colours a server and those bound to it, by its node."""
    return colours_of(sorted((host for host, node in nodes.items() if node["is_accelerator"]), key=natural))


def short_names(hosts: Iterable[str]) -> dict[str, str]:
    """Names without the domain that all of them share; addresses stay as they are.

    >>> short_names(["n1.a.example.org", "n2.b.example.org"])
    {'n1.a.example.org': 'n1.a', 'n2.b.example.org': 'n2.b'}
    """
    labels = {host: host.split(".") for host in hosts}
    if any(parts[-1].isdecimal() for parts in labels.values()):
        return {host: host for host in labels}
    n_shared = 0
    shortest = min(map(len, labels.values()), default=1)
    while n_shared < shortest - 1 and len({parts[-1 - n_shared] for parts in labels.values()}) == 1:
        n_shared += 1
    return {host: ".".join(parts[: len(parts) - n_shared]) for host, parts in labels.items()}


def link_to(host: str) -> str:
    """The page about one node; relative, for the page is seen through a proxy."""
    return f"?node={quote(host, safe='')}"


def standing(node: _Node) -> tuple[str, str]:
    """A class (good, warn, bad, idle) and a word for how a node is."""
    if node["state"] not in ("usable", "leaving"):
        return "bad", node["state"]
    if node["is_accelerator"]:
        return _standing_of_server(node)
    if node["heard"] is None:
        return "warn", "no agent"
    if node["heard"]["age_s"] > SILENT_S:
        return "warn", "silent"
    return ("good", "bound") if node["bound"] else ("idle", "own CPU")


def summary(node: _Node) -> str:
    """A server's load in few words: requests in flight, queued and per second."""
    server = (node["heard"] or {}).get("server") or {}
    rates = node["rates"] or {}
    words = [f"{_brief(server[key])} {words}" for key, words in _LOADS if key in server]
    if rates:
        words.append(f"{_brief(rates['requests_per_s'], 1)}/s")
    return " · ".join(words)


def _brief(number: float, n_digits: int = 0) -> str:
    """At most four characters or so, such as 7, 12.5, 980, 4k, 1200k."""
    if number >= 1000:
        return f"{number / 1000:.0f}k"
    return f"{number:.{n_digits if number < 100 else 0}f}"


def _standing_of_server(node: _Node) -> tuple[str, str]:
    if node["is_serving"]:
        return "good", "serves"
    if node["is_drained"]:
        return "warn", "drained"
    if node["is_released"]:
        return "warn", "released"
    server = (node["heard"] or {}).get("server")
    if server is not None and server["health"] not in ("ok", ""):
        return "bad", server["health"]
    phases = [each["phase"] for place in node["places"].values() for each in place["containers"]]
    return ("warn", "starting") if "launching" in phases or "granted" in phases else ("bad", "no server")


def _lines(
    nodes: _Nodes, layout: DiagramLayout, colours: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    members: dict[str, list[str]] = {}
    for host, node in nodes.items():
        if node["bound"] in layout.nodes:
            members.setdefault(node["bound"], []).append(host)
    for server, bound in members.items():
        bound.sort(key=lambda host: layout.nodes[host].middle)
        end = layout.nodes[server]
        for i, host in enumerate(bound):
            at_x = end.x + end.width * (i + 1) / (len(bound) + 1)
            path = _curve(layout.nodes[host], layout.lanes.get(host), end, at_x)
            yield f"{host} is bound to {server}", path, colours.get(server, "c0")


def _curve(start: Box, queue: tuple[float, float] | None, end: Box, at_x: float) -> str:
    """From a node up to its server; a node beside or above its server is left from below."""
    is_below = start.y > end.bottom
    x, y, begin = start.middle, start.y if is_below else start.bottom, ""
    if is_below and queue is not None:
        half = start.y + start.height / 2
        begin = f"M{start.x:.1f} {half:.1f} Q{queue[0]:.1f} {half:.1f} {queue[0]:.1f} {half - 8:.1f} L"
        x, y = queue
    pull = max(abs(y - end.bottom) / 2, 26.0)
    first_y = y - pull if is_below else y + pull
    return (
        f"{begin or 'M'}{x:.1f} {y:.1f} C{x:.1f} {first_y:.1f} "
        f"{at_x:.1f} {end.bottom + pull:.1f} {at_x:.1f} {end.bottom:.1f}"
    )


def _drawn(
    host: str, node: _Node, is_small: bool, colours: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, object]:
    """The texts of a node in the diagram; `bars` are a server's stages: name, share that is filled, words."""
    (kind, word), bound = standing(node), node["bound"] or ""
    is_server = node["is_accelerator"]
    style = ("node", "accelerator" if is_server else "plain", "small-node" if is_small else "", kind)
    texts: dict[str, object] = {
        "host": host,
        "url": link_to(host),
        "style": " ".join(filter(None, (*style, colours.get(host if is_server else bound, "")))),
        "kind": kind,
        "tooltip": " · ".join(filter(None, (host, word, bound and f"bound to {bound}", summary(node)))),
    }
    if is_server:
        bars = [_stage_bar(node, stage) for stage in _STAGES]
        name, second = _squeezed(names[host], 10 if is_small else 12), _cut(_devices(node), 32)
        return {**texts, "name": name, "corner": word, "second": second, "third": summary(node), "bars": bars}
    slots = slots_of(node)
    second = f"→ {_squeezed(names.get(bound, bound), 7 if slots else 15)}" if bound else word
    corner = slots and f"{slots} {'slot' if node['slots']['wanted'] == 1 else 'slots'}"
    return {**texts, "name": _squeezed(names[host], 11), "corner": corner, "second": second, "bars": ()}


def slots_of(node: _Node) -> str:
    """How many mappers may run there, with a mark until YARN has confirmed it; empty: no limit of ours."""
    slots = node["slots"]["wanted"]
    if slots is None or node["state"] == "gone":
        return ""
    return f"{slots}" if node["slots"]["is_set"] else f"{slots} ?"


def _stage_bar(node: _Node, stage: str) -> tuple[str, float, str]:
    """All workers fill the bar of computing, one thread those of reading and writing."""
    server = (node["heard"] or {}).get("server") or {}
    full = max(float(server.get("workers", 1)), 1.0) if stage == "compute" else 1.0
    busy = float((node["rates"] or {}).get(stage, 0.0))
    return stage, min(max(busy / full, 0.0), 1.0), three_digits(busy)


def three_digits(busy: float) -> str:
    """Three significant digits; what does not fit is cut: 0.13, 1.24, 44.0, 168, 1200."""
    return f"{busy:.{2 if busy < 9.995 else 1 if busy < 99.95 else 0}f}"


def _devices(node: _Node) -> str:
    devices: Sequence[_Node] = (node["heard"] or {}).get("devices") or ()
    if not devices:
        return "no device, its CPU serves" if node["is_serving"] else "no device reported"
    first = devices[0]
    count = f"{len(devices)} × " if len(devices) > 1 else ""
    name = first["name"] or first["device"] or "device"
    heat = max((each["temperature_c"] for each in devices if "temperature_c" in each), default=None)
    return f"{count}{name}" + (f" · {heat:.0f} °C" if heat is not None else "")


def _cut(words: str, n_characters: int) -> str:
    return words if len(words) <= n_characters else f"{words[: n_characters - 1]}…"


def _squeezed(name: str, n_characters: int) -> str:
    """A name without its middle: those of one cluster differ at their ends."""
    n_last = n_characters // 2
    return name if len(name) <= n_characters else f"{name[: n_characters - 1 - n_last]}…{name[-n_last:]}"


# The layout.


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
