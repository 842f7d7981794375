"""The cluster as an SVG diagram: racks, nodes, and a line from each node to the server it is bound to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from yarn_accel.master.diagram_layout import Box, DiagramLayout, lay_out, natural
from yarn_accel.master.markup import Markup, element, text

#: Classes c0.. of the style; servers take them in turn.
N_COLOURS = 8
#: An agent that is not heard for so long is shown as silent.
SILENT_S = 5.0
_STAGES = ("read", "compute", "write")
_LOADS = (("in_flight", "in flight"), ("queued", "queued"))
_Node = Mapping[str, Any]
_Nodes = Mapping[str, _Node]


def draw(nodes: _Nodes) -> Markup:
    """The picture.

    Args:
        nodes: the state document's, or some of them; lines to nodes that are not among them are left out.
    """
    layout = lay_out(nodes)
    colours = hue(nodes)
    names = short_names(nodes)
    parts = [
        element("title", "Racks, nodes, and who is bound to whom"),
        [_rack(rack, box) for rack, box in layout.racks.items()],
        element("g", list(_lines(nodes, layout, colours)), class_="bindings"),
        [_node(host, nodes[host], box, layout, colours, names) for host, box in layout.nodes.items()],
    ]
    return element(
        "svg",
        parts,
        viewBox=f"-1 -1 {layout.width + 2:.0f} {layout.height + 2:.0f}",
        width=f"{layout.width + 2:.0f}",
        height=f"{layout.height + 2:.0f}",
        role="img",
        class_="picture",
    )


def hue(nodes: _Nodes) -> dict[str, str]:
    """The class that colours a server and those bound to it, by its node."""
    servers = sorted((host for host, node in nodes.items() if node["is_accelerator"]), key=natural)
    return {host: f"c{i % N_COLOURS}" for i, host in enumerate(servers)}


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
    """What a server has to do, in few words."""
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
    server = (node["heard"] or {}).get("server")
    if server is not None and server["health"] not in ("ok", ""):
        return "bad", server["health"]
    phases = [each["phase"] for place in node["places"].values() for each in place["containers"]]
    return ("warn", "starting") if "launching" in phases or "granted" in phases else ("bad", "no server")


def _rack(rack: str, box: Box) -> Markup:
    return element(
        "g",
        element("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=10, class_="rack"),
        element("text", _cut(rack or "rack not known", 40), x=box.x + 14, y=box.y + 20, class_="rack-name"),
    )


def _lines(nodes: _Nodes, layout: DiagramLayout, colours: Mapping[str, str]) -> Iterator[Markup]:
    members: dict[str, list[str]] = {}
    for host, node in nodes.items():
        if node["bound"] in layout.nodes:
            members.setdefault(node["bound"], []).append(host)
    for server, bound in members.items():
        bound.sort(key=lambda host: layout.nodes[host].middle)
        end = layout.nodes[server]
        for i, host in enumerate(bound):
            at_x = end.x + end.width * (i + 1) / (len(bound) + 1)
            yield element(
                "path",
                element("title", f"{host} is bound to {server}"),
                d=_curve(layout.nodes[host], layout.lanes.get(host), end, at_x),
                class_=f"binding {colours.get(server, 'c0')}",
            )


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


def _node(
    host: str,
    node: _Node,
    box: Box,
    layout: DiagramLayout,
    colours: Mapping[str, str],
    names: Mapping[str, str],
) -> Markup:
    kind, word = standing(node)
    colour = colours.get(host if node["is_accelerator"] else node["bound"] or "", "")
    name = names[host]
    if layout.scale.is_small:
        inside = _small(name, node, box)
    elif node["is_accelerator"]:
        inside = _accelerator(name, node, box)
    else:
        bound = node["bound"] or ""
        inside = _plain(name, names.get(bound, bound), node, box)
    what = "accelerator" if node["is_accelerator"] else "plain"
    size = "small-node" if layout.scale.is_small else ""
    tooltip = " · ".join(
        filter(None, (host, word, node["bound"] and f"bound to {node['bound']}", summary(node)))
    )
    return element(
        "a",
        element(
            "g",
            element("title", tooltip),
            element("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=6, class_="body"),
            element("rect", x=box.x, y=box.y + 6, width=4, height=box.height - 12, class_="stripe"),
            inside,
            class_=" ".join(filter(None, ("node", what, size, kind, colour))),
            data_node=host,
        ),
        href=link_to(host),
    )


def _small(name: str, node: _Node, box: Box) -> list[Markup]:
    if not node["is_accelerator"]:
        return []
    parts = [_label(box.x + 12, box.y + 16, _squeezed(name, 10), "name")]
    workers, busy = _busy(node, "compute")
    return [*parts, *_bar(box.x + 12, box.y + 25, box.width - 24, busy / workers)]


def _plain(name: str, bound: str, node: _Node, box: Box) -> list[Markup]:
    kind, word = standing(node)
    slots = slots_of(node)
    second = f"→ {_squeezed(bound, 7 if slots else 15)}" if bound else word
    parts = [
        element("circle", cx=box.x + box.width - 14, cy=box.y + 16, r=4, class_=f"dot {kind}"),
        _label(box.x + 14, box.y + 20, _squeezed(name, 11), "name"),
        _label(box.x + 14, box.y + 36, second, "small"),
    ]
    if slots:
        words = f"{slots} {'slot' if node['slots']['wanted'] == 1 else 'slots'}"
        parts.append(_label(box.x + box.width - 10, box.y + 36, words, "small end"))
    return parts


def slots_of(node: _Node) -> str:
    """How many mappers may run there, with a mark until YARN has confirmed it; empty: no limit of ours."""
    slots = node["slots"]["wanted"]
    if slots is None or node["state"] == "gone":
        return ""
    return f"{slots}" if node["slots"]["is_set"] else f"{slots} ?"


def _accelerator(name: str, node: _Node, box: Box) -> list[Markup]:
    kind, word = standing(node)
    right = box.x + box.width - 12
    parts = [
        _label(box.x + 14, box.y + 20, _squeezed(name, 12), "name"),
        _label(right - 12, box.y + 20, word, "small end"),
        element("circle", cx=right - 3, cy=box.y + 16, r=4, class_=f"dot {kind}"),
        _label(box.x + 14, box.y + 36, _cut(_devices(node), 32), "small"),
    ]
    for i, stage in enumerate(_STAGES):
        y = box.y + 47 + 16 * i
        full, busy = _busy(node, stage)
        parts += [
            _label(box.x + 14, y + 8, stage, "small"),
            *_bar(box.x + 72, y, box.width - 120, busy / full),
            _label(right, y + 8, _figure(busy), "small end figure"),
        ]
    return [*parts, _label(box.x + 14, box.y + 104, summary(node), "small")]


def _busy(node: _Node, stage: str) -> tuple[float, float]:
    """What fills the bar, and how much of that is at work; of read and write one thread fills it."""
    rates = node["rates"] or {}
    server = (node["heard"] or {}).get("server") or {}
    full = max(float(server.get("workers", 1)), 1.0) if stage == "compute" else 1.0
    return full, float(rates.get(stage, 0.0))


def _figure(busy: float) -> str:
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


def _bar(x: float, y: float, width: float, share: float) -> list[Markup]:
    filled = width * min(max(share, 0.0), 1.0)
    return [
        element("rect", x=x, y=y, width=width, height=8, rx=2, class_="trough"),
        element("rect", x=x, y=y, width=filled, height=8, rx=2, class_="fill"),
    ]


def _label(x: float, y: float, words: str, class_: str) -> Markup:
    return element("text", text(words), x=x, y=y, class_=class_)


def _cut(words: str, n_characters: int) -> str:
    return words if len(words) <= n_characters else f"{words[: n_characters - 1]}…"


def _squeezed(name: str, n_characters: int) -> str:
    """A name without its middle: those of one cluster differ at their ends."""
    n_last = n_characters // 2
    return name if len(name) <= n_characters else f"{name[: n_characters - 1 - n_last]}…{name[-n_last:]}"
