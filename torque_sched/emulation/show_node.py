"""Nodes as pbsnodes prints them: text, XML and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from xml.sax.saxutils import escape

from torque_sched.emulation.model import EmulatedNode, range_text
from torque_sched.emulation.mom import Report, gpu_status, report, status
from torque_sched.emulation.world import World


def node_state(world: World, node: EmulatedNode, last: Report) -> str:
    """The ``state`` list: down, offline, job-exclusive, busy; ``free`` only alone."""
    words = []
    if world.is_unlisted(node):
        return "offline" if world.settings.is_old else "down,offline,MOM-list-not-sent"
    if world.is_down(node):
        words.append("down")
    if node.offline:
        words.append("offline")
    holders = world.slots[node.name]
    exclusive = any(
        world.jobs[name].attributes.get("node_exclusive") == "True" for name in world.jobs_on(node.name)
    )
    if holders and (exclusive or None not in holders):
        words.append("job-exclusive")
    if last.busy:
        words.append("busy")
    return ",".join(words) or "free"


def node_attributes(world: World, node: EmulatedNode) -> Iterator[tuple[str, str]]:
    """Name and value of everything shown, in the order of the dialect."""
    last = report(world, node)
    yield "state", node_state(world, node, last)
    if not world.settings.is_old:
        yield "power_state", "Running"
    yield "np", str(node.np)
    if node.properties:
        yield "properties", ",".join(node.properties)
    yield "ntype", "cluster"
    jobs = _jobs_text(world, node)
    if jobs:
        yield "jobs", jobs
    if last.at_s and not world.is_unlisted(node):
        yield "status", status(world, node, last)
    note = _note(world, node)
    if note:
        yield "note", note
    yield "mom_service_port", "15002"
    yield "mom_manager_port", "15003"
    if node.gpus:
        yield "gpus", str(node.gpus)
        if node.has_nvml:
            yield "gpu_status", gpu_status(world, node, last)


Render = Callable[[str, Iterable[tuple[str, str]]], str]
_QUOTES = {'"': "&quot;", "'": "&apos;"}


def _text(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    return name + "\n" + "".join(f"     {key} = {value}\n" for key, value in pairs) + "\n"


def _xml(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    inside = "".join(f"<{key}>{escape(value, _QUOTES)}</{key}>" for key, value in pairs)
    return f"<Node><name>{escape(name)}</name>{inside}</Node>"


class NodeTexts:
    """Rendered nodes, kept until something on them changes: a thousand nodes are listed often."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Render], tuple[object, str]] = {}

    def text(self, world: World, nodes: Iterable[EmulatedNode]) -> str:
        """``pbsnodes -a``."""
        return "".join(self.one(world, node, _text) for node in nodes)

    def xml(self, world: World, nodes: Iterable[EmulatedNode]) -> str:
        """``pbsnodes -x``: no header line, one line."""
        return f"<Data>{''.join(self.one(world, node, _xml) for node in nodes)}</Data>\n"

    def one(self, world: World, node: EmulatedNode, render: Render) -> str:
        """One node in the form that ``render`` gives its name and its attributes."""
        stamp = (
            world.versions.get(node.name, 0),
            report(world, node).at_s,
            world.is_down(node),
            world.server.get("down_on_error"),
        )
        kept = self._kept.get((node.name, render))
        if kept is not None and kept[0] == stamp:
            return kept[1]
        text = render(node.name, node_attributes(world, node))
        self._kept[(node.name, render)] = (stamp, text)
        return text


STATES = frozenset(
    ("active", "all", "busy", "down", "free", "job-exclusive", "job-sharing", "offline", "reserve",
     "state-unknown", "time-shared", "up")
)  # fmt: skip
"""What ``pbsnodes -l`` takes; any other word is a node's name to it."""
_WANTED = {
    "": ("down", "offline", "state-unknown"),
    "down": ("down",),
    "offline": ("offline",),
    "busy": ("busy",),
    "job-exclusive": ("job-exclusive",),
    "active": ("job-exclusive", "job-sharing"),
}


def list_text(world: World, wanted: str, names: list[str], *, notes: bool) -> str:
    """``pbsnodes -l [state]``: by default the unusable ones only; of the nodes named, if any are."""
    lines = []
    for node in world.nodes.values():
        if names and node.name not in names:
            continue
        state = node_state(world, node, report(world, node))
        words = state.split(",")
        if wanted == "all":
            shown = True
        elif wanted == "up":
            shown = not any(word in ("down", "offline", "state-unknown") for word in words)
        elif wanted == "free":
            shown = state == "free"
        else:
            shown = any(word in _WANTED.get(wanted, (wanted,)) for word in words)
        if shown:
            note = _note(world, node)
            lines.append(
                f"{node.name:<20} {state:<26} {note}" if notes and note else f"{node.name:<20} {state}"
            )
    return "".join(line + "\n" for line in lines)


def _note(world: World, node: EmulatedNode) -> str:
    if node.message.startswith("ERROR") and world.server.get("note_append_on_error") == "True":
        return (
            f"{node.note} - {node.message}" if node.note and node.message not in node.note else node.message
        )
    return node.note


def _jobs_text(world: World, node: EmulatedNode) -> str:
    parts: list[str] = []
    for name, indices in world.standing.get(node.name, ()):
        if world.settings.is_old:
            parts.extend(f"{index}/{name}" for index in indices)
        else:
            parts.append(f"{range_text(indices)}/{name}")
    return ",".join(parts)
