"""The tracking page: one HTML document made of the state document (`statistics`), self-contained.

Large clusters are cut: whole racks are shown, those with trouble first, and the others are links.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from yarn_accel.core.tasks.claim_counts import claims_text, results_text
from yarn_accel.core.units import format_duration_s
from yarn_accel.master.diagram import draw, standing
from yarn_accel.master.diagram_layout import natural
from yarn_accel.master.markup import Child, Markup, document, element, raw
from yarn_accel.master.page_assets import SCRIPT, STYLE
from yarn_accel.master.tables import events_table, nodes_table, servers_table
from yarn_accel.master.task_page import task_sections

MAX_DRAWN = 1000
MAX_ROWS = 200
MAX_EVENTS = 100
_MAX_LINKS = 500
_LEGEND = "Bars: how many requests are in each stage on average. A line: this node sends to that server."
_State = Mapping[str, Any]
_Nodes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """What somebody wants to see: a node, a rack, or (both empty) everything."""

    node: str = ""
    rack: str = ""


def page(state: _State, query: Query, explanation: str = "") -> str:
    """The page.

    Args:
        state: the state document; see `statistics`. One with `others` has the nodes to show only, as `choose`
            chose them.
        explanation: of the node in the query.
    """
    nodes, others = _chosen(state, query)
    body = element(
        "main",
        _header(state),
        _problems(state),
        _cards(state),
        _explanation(query, explanation),
        list(task_sections(state.get("tasks"), state["at"])),
        section(
            "Racks, nodes and bindings",
            _counted(nodes, state),
            element("p", _LEGEND, class_="soft"),
            draw(nodes),
            _links(others),
        ),
        section("Servers", "", servers_table(nodes, state["loads"], MAX_ROWS)),
        section("Nodes", _cut_note(len(nodes)), nodes_table(nodes, MAX_ROWS)),
        _events(state, query),
        _footer(state),
        class_="yarn-accel",
    )
    return html_page(f"{_about(state, 'application') or 'no application'} · yarn-accel", body, is_live=True)


def text_page(title: str, *lines: str) -> str:
    """A page that only says something."""
    words = [element("p", line) for line in lines]
    return html_page(title, element("main", element("h1", title), words), is_live=False)


def html_page(title: str, body: Markup, *, is_live: bool) -> str:
    """A self-contained page; a live one brings itself up to date every second."""
    return document(
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", title),
            element("style", raw(STYLE)),
            element("noscript", element("meta", http_equiv="refresh", content="5")) if is_live else None,
        ),
        element(
            "body",
            element("div", "The master does not answer: this is what was seen last.", id="stale"),
            body,
            element("script", raw(SCRIPT)) if is_live else None,
        ),
    )


def _chosen(state: _State, query: Query) -> tuple[_Nodes, Sequence[tuple[str, int]]]:
    """The nodes to show, and name and size of the racks that are left out."""
    nodes = state["nodes"]
    if "others" in state:
        return nodes, state["others"]
    racks: dict[str, list[str]] = {}
    for host, node in nodes.items():
        racks.setdefault(node["rack"] or "", []).append(host)
    troubled = {node["rack"] or "" for node in nodes.values() if standing(node)[0] == "bad"}
    hosts, others = choose(racks, troubled, query)
    return {host: nodes[host] for host in hosts}, others


def choose(
    racks: Mapping[str, Sequence[str]], troubled: Container[str], query: Query
) -> tuple[list[str], list[tuple[str, int]]]:
    """The nodes to show, and name and size of the racks that are left out.

    Args:
        racks: hosts by rack.
        troubled: racks to be shown first.
    """
    of_node = next((rack for rack, hosts in racks.items() if query.node in hosts), None)
    rack = of_node if of_node is not None else query.rack
    if rack in racks and (query.rack or of_node is not None):
        hosts, others = list(racks[rack][:MAX_DRAWN]), [name for name in racks if name != rack]
    else:
        hosts, others = _whole_racks(racks, troubled)
    return hosts, [(name, len(racks[name])) for name in sorted(others, key=natural)]


def _whole_racks(racks: Mapping[str, Sequence[str]], troubled: Container[str]) -> tuple[list[str], list[str]]:
    """Racks with trouble first, as many as can be shown, and the names of the others."""
    hosts: list[str] = []
    others: list[str] = []
    for rack in sorted(racks, key=lambda name: (name not in troubled, natural(name))):
        fits = len(hosts) + len(racks[rack]) <= MAX_DRAWN
        if fits or not hosts:
            hosts += racks[rack][: MAX_DRAWN - len(hosts)]
        else:
            others.append(rack)
    return hosts, others


def _header(state: _State) -> Markup:
    kind, word = _stage(state)
    words = [
        _about(state, "application"),
        _about(state, "name"),
        " in ".join(filter(None, (_about(state, "user"), _about(state, "queue")))),
        f"attempt {state['attempt']}",
        f"policy {state['policy']}",
    ]
    seen = datetime.fromtimestamp(state["at"], timezone.utc)
    return element(
        "header",
        element("h1", element("a", "yarn-accel", href="?")),
        element("span", word, class_=f"pill {kind}"),
        [element("span", each, class_="soft") for each in words if each],
        element("span", f"{seen:%H:%M:%S} UTC", class_="soft push", id="seen"),
    )


def _stage(state: _State) -> tuple[str, str]:
    if state["is_stopping"]:
        return "warn", "stopping"
    if not state["is_registered"]:
        return "bad", "not registered"
    return ("good", "running") if state["totals"]["serving"] else ("warn", "no server yet")


def _problems(state: _State) -> Markup | None:
    problems = [str(each) for each in state["service"].get("problems", ())][:20]
    if not problems:
        return None
    items = element("ul", [element("li", each) for each in problems])
    return element("section", element("h2", "Not as it should be"), items, class_="problems")


def _cards(state: _State) -> Markup:
    totals = state["totals"]
    n_plain = totals["bound"] + totals["unbound"]
    n_own = totals["unbound"]
    rest = f"{n_own} with their own CPU only" if n_own else "no node is left alone"
    rate = f"{totals['requests_per_s']:,.1f}"
    return element(
        "div",
        _card(f"{totals['serving']} / {totals['accelerators']}", "servers serve"),
        _card(f"{totals['bound']} / {n_plain}", f"nodes bound; {rest}"),
        _card(f"{totals['in_flight']:,.0f}", f"requests in flight, {totals['queued']:,.0f} queued"),
        _card(f"{totals['device_busy']:,.2f}", "devices busy on average, of all servers together"),
        element(
            "div",
            element("div", element("b", rate), element("span", "requests per second")),
            _spark(state["history"]["requests"]),
            class_="card wide",
        ),
        _claims_card(totals.get("late_binding")),
        class_="cards",
    )


def _claims_card(claims: Mapping[str, Any] | None) -> Markup | None:
    """Late binding on all nodes; None: on no node a mapper has asked."""
    if claims is None:
        return None
    note = f"{claims['nodes']:,} {_plural('node', claims['nodes'])}; {results_text(claims)}"
    return _card(claims_text(claims), f"late binding on {note}")


def _card(figure: str, words: str) -> Markup:
    return element("div", element("b", figure), element("span", words), class_="card")


def _spark(values: Sequence[float]) -> Markup | None:
    """A curve of the last steps, the highest of them at the top."""
    if len(values) < 2:
        return None
    top = max(*values, 1e-9)
    points = [f"{i:g} {30 - 28 * value / top:.2f}" for i, value in enumerate(values)]
    line = "M" + " L".join(points)
    last = len(values) - 1
    return element(
        "svg",
        element("title", f"the last {format_duration_s(2 * len(values))}"),
        element("path", d=f"{line} L{last} 31 L0 31 Z", class_="under"),
        element("path", d=line),
        viewBox=f"0 0 {last} 31",
        preserveAspectRatio="none",
        class_="spark",
    )


def _explanation(query: Query, explanation: str) -> Markup | None:
    if not query.node:
        return None
    return element(
        "section",
        element("h2", query.node, element("small", element("a", "back to all", href="?"))),
        element("pre", explanation or "nothing is known about it"),
        id="explanation",
    )


def section(title: str, note: str, *inside: Child) -> Markup:
    """A part of a page: its title, a note beside it, and what is in it."""
    heading = element("h2", title, element("small", note) if note else None)
    return element("section", heading, inside)


def _counted(nodes: _Nodes, state: _State) -> str:
    n_racks = len({node["rack"] for node in nodes.values()})
    shown = f"{len(nodes)} {_plural('node', len(nodes))} in {n_racks} {_plural('rack', n_racks)}"
    n_all = state["totals"]["nodes"]
    return shown if n_all == len(nodes) else f"{shown}, of {n_all} nodes in all"


def _plural(noun: str, n: int) -> str:
    return noun if n == 1 else f"{noun}s"


def _links(racks: Sequence[tuple[str, int]]) -> Markup | None:
    if not racks:
        return None
    links: list[Child] = ["Other racks: "]
    for rack, n_nodes in racks[:_MAX_LINKS]:
        name = rack or "not known"
        links += [element("a", f"{name} ({n_nodes})", href=f"?rack={quote(rack, safe='')}"), " "]
    if len(racks) > _MAX_LINKS:
        links.append(f"and {len(racks) - _MAX_LINKS} more")
    return element("p", links, class_="soft")


def _cut_note(n_nodes: int) -> str:
    return f"the first {MAX_ROWS} of {n_nodes}" if n_nodes > MAX_ROWS else ""


def _events(state: _State, query: Query) -> Markup:
    notes = [note for note in reversed(state["notes"]) if not query.node or note["node"] == query.node]
    note = f"the last {MAX_EVENTS} of {len(notes)}" if len(notes) > MAX_EVENTS else ""
    return section("Events", note, events_table(notes[:MAX_EVENTS], state["at"]))


def _footer(state: _State) -> Markup:
    return element(
        "footer",
        element("a", "JSON", href="v1/state"),
        element("a", "metrics", href="metrics"),
        [element("span", words) for words in _footnotes(state)],
    )


def _footnotes(state: _State) -> Iterator[str]:
    service = state["service"]
    yield f"bindings {state['version'] & 0xFFFFFFFF}"
    refusal = state["slots"]["refusal"]
    yield f"slots: {refusal or state['slots']['mode']}"
    started_at = state["about"].get("started_at")
    if isinstance(started_at, int | float) and math.isfinite(started_at):
        yield f"up {format_duration_s(max(state['at'] - started_at, 0.0))}"
    if "rm_age_s" in service:
        yield f"resource manager heard {format_duration_s(service['rm_age_s'])} ago"
    if _about(state, "version"):
        yield f"version {_about(state, 'version')}"


def _about(state: _State, key: str) -> str:
    return str(state["about"].get(key) or "")
