"""The table that `status` and `top` show, made from the master's state document.

The master may be older or newer than this program, so a missing value is shown as a dash, never as an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.core.late_binding_reports import claims_text, results_text
from yarn_accel.core.units import format_bytes

_DASH = "-"
_MAX_ROWS = 200
_N_NOTES = 8
_N_NODES = 6
#: `explain NODE` has the whole text.
_MAX_REASON = 40


def status_table(report: ApplicationReport, page_url: str, answer: Mapping[str, Any]) -> RenderableType:
    """The table, with the application above it and what happened last below it.

    Args:
        report: what the ResourceManager says.
        page_url: of the tracking page.
        answer: the master's answer to `status`.
    """
    state = _mapping(answer.get("state"))
    parts: list[RenderableType] = [_head(report, page_url, answer, state), _nodes(state)]
    nodes = _mapping(state.get("nodes"))
    if len(nodes) > _MAX_ROWS:
        parts.append(Text(f"... and {len(nodes) - _MAX_ROWS} nodes more; all of them: status --json"))
    parts += [Text(line) for line in _failures(nodes)]
    parts += [Text(line) for line in _notes(_items(state.get("notes")))]
    return Group(*parts)


def n_serving(answer: Mapping[str, Any]) -> tuple[int, int]:
    """How many accelerator nodes serve, and how many there are."""
    nodes = _mapping(_mapping(answer.get("state")).get("nodes"))
    accelerators = [node for node in map(_mapping, nodes.values()) if node.get("is_accelerator")]
    return sum(bool(node.get("is_serving")) for node in accelerators), len(accelerators)


def tokens_end_s(answer: Mapping[str, Any]) -> float:
    """When the tokens end that the master renews, Unix seconds; 0: it renews none."""
    found = _mapping(_mapping(answer.get("state")).get("service")).get("tokens_end_s")
    return float(found) if isinstance(found, int | float) else 0.0


def _head(
    report: ApplicationReport, page_url: str, answer: Mapping[str, Any], state: Mapping[str, Any]
) -> Text:
    serving, there_are = n_serving(answer)
    words = [
        f"{report.id} {report.name} ({report.user}, queue {report.queue})",
        f"attempt {answer.get('attempt', _DASH)} on {_cell(answer.get('node'))}",
        f"policy {state.get('policy', _DASH)}",
        f"{serving} of {there_are} accelerator nodes serve",
    ]
    if state.get("is_stopping"):
        words.append("stopping")
    lines = [words[0], ", ".join(words[1:]), page_url or "no page yet"]
    lines += [f"note: {problem}" for problem in _items(_mapping(state.get("service")).get("problems"))]
    if claims := _mapping(_mapping(state.get("totals")).get("late_binding")):
        lines.append(f"late binding: {claims_text(claims)}; {results_text(claims)}")
    # Text, not markup: nothing that a node says is a command to the terminal.
    return Text("\n".join(plain(line) for line in lines))


def _nodes(state: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = [(name, _mapping(node)) for name, node in sorted(_mapping(state.get("nodes")).items())]
    has_claims = any(_claims(node) for _, node in rows)
    for title in ("node", "rack", "state", "server", "bound to", "serves", "open", "slots"):
        table.add_column(title, justify="right" if title in ("open", "slots") else "left")
    if has_claims:
        table.add_column("late binding")
    for name, node in rows[:_MAX_ROWS]:
        cells = [*_row(name, node), *([_claims(node) or _DASH] if has_claims else [])]
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _row(name: str, node: Mapping[str, Any]) -> Iterable[str]:
    load, slots = _mapping(node.get("load")), _mapping(node.get("slots"))
    wanted = slots.get("wanted")
    return (
        name,
        _cell(node.get("rack")),
        ", ".join([_cell(node.get("state")), *_withdrawn(node)]),
        _server(node),
        _cell(node.get("bound")),
        " ".join(str(member) for member in _items(node.get("members"))) or _DASH,
        f"{_cell(load.get('open'))}/{_cell(load.get('capacity'))}" if load else _DASH,
        _DASH if wanted is None else f"{wanted}{'' if slots.get('is_set') else ' (not set yet)'}",
    )


def _withdrawn(node: Mapping[str, Any]) -> list[str]:
    """Why the node is to have no server now, in a word."""
    return [word for word in ("drained", "released") if node.get(f"is_{word}")]


def _claims(node: Mapping[str, Any]) -> str:
    """Who holds and who waits; empty: its agent reports nothing of late binding."""
    counts = _mapping(_mapping(node.get("heard")).get("late_binding"))
    return claims_text(counts) if counts else ""


def _server(node: Mapping[str, Any]) -> str:
    """The state of an accelerator node's server in a word, or the reason why it does not serve."""
    if not node.get("is_accelerator"):
        return _DASH
    if node.get("is_serving"):
        return _serving(_mapping(node.get("heard")))
    place = _mapping(_mapping(node.get("places")).get("server"))
    held = _items(place.get("containers"))
    if held:
        phase = str(_mapping(held[0]).get("phase", _DASH))
        return _running(_mapping(node.get("load"))) if phase == "running" else phase
    retry_in_s = place.get("retry_in_s")
    if isinstance(retry_in_s, (int, float)) and retry_in_s > 0:
        why = " ".join(str(place.get("last_failure", "")).split())
        return f"failed, again in {retry_in_s:.0f} s: {why[:_MAX_REASON]}"
    return "asked for" if place.get("asked_for_s") is not None else "none"


def _serving(heard: Mapping[str, Any]) -> str:
    """The devices that a node's server computes on, and how much GPU memory other processes use."""
    server = _mapping(heard.get("server"))
    devices, others = server.get("computes_on"), server.get("gpu_other_bytes")
    if not devices or not heard.get("devices"):
        return "serves"
    words = f"serves on {devices}"[:_MAX_REASON]
    return (
        f"{words}, others use {format_bytes(others)}"
        if isinstance(others, (int, float)) and others
        else words
    )


def _failures(nodes: Mapping[str, Any]) -> list[str]:
    """A line for each role that fails: the nodes on which it has no container now, and the whole reason."""
    failing: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for node, values in sorted(nodes.items()):
        for role, place in _mapping(_mapping(values).get("places")).items():
            given = _mapping(place)
            if given.get("failures") and not _items(given.get("containers")):
                failing.setdefault(str(role), []).append((node, given))
    lines = []
    for role, some in sorted(failing.items()):
        last = max((place for _, place in some), key=lambda place: int(place.get("failures", 0)))
        why = " ".join(str(last.get("last_failure", "")).split())
        n_times = f"{last['failures']} times" if last["failures"] != 1 else "once"
        lines.append(plain(f"{_named([node for node, _ in some])}{role} failed {n_times} in a row: {why}"))
    return lines


def _running(load: Mapping[str, Any]) -> str:
    """The state of a server whose container runs, and which does not serve, as its agent reports it."""
    if not load:
        return "starting"
    detail = " ".join(str(load.get("detail", "")).split())
    if load.get("is_healthy") or not detail:
        return "no word from its agent"
    return detail.removeprefix("it is ").removeprefix("it ")[:_MAX_REASON]


def _notes(notes: list[Any]) -> list[str]:
    """A line for each of the last events; consecutive equal events of several nodes share one."""
    lines: list[tuple[str, list[str], str]] = []
    for values in map(_mapping, notes):
        age_s = values.get("age_s")
        age = f"{age_s:8.1f} s ago" if isinstance(age_s, (int, float)) else ""
        reason = f" ({values['reason']})" if values.get("reason") else ""
        what, node = f"{values.get('what', '')}{reason}", str(values.get("node") or "")
        if node and lines and lines[-1][1] and lines[-1][2] == what:
            lines[-1] = (age, [*lines[-1][1], node], what)
        else:
            lines.append((age, [node] if node else [], what))
    return [plain(f"{age}  {_named(nodes)}{what}") for age, nodes, what in lines[-_N_NOTES:]]


def _named(nodes: list[str]) -> str:
    shown = " ".join(nodes[:_N_NODES])
    more = f" and {len(nodes) - _N_NODES} more" if len(nodes) > _N_NODES else ""
    return f"{shown}{more}: " if nodes else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _cell(value: object) -> str:
    return _DASH if value is None or value == "" else str(value)


def plain(text: str) -> str:
    """The text without control characters of a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
