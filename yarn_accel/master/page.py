"""The tracking page: one HTML document made of the state document (`status_documents`), self-contained.

`page.html` has its markup; here its texts and tables are made. Large clusters are cut: whole racks are shown,
those with trouble first, and the others are links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from yarn_accel.core.late_binding_reports import claims_text, results_text
from yarn_accel.core.units import format_bytes, format_duration_s
from yarn_accel.master.diagram import draw, hue, link_to, slots_of, standing
from yarn_accel.master.plugin import Section
from yarn_accel.master.status_documents import Query, choose, natural
from yarn_accel.report.charts import spark
from yarn_accel.report.pages import joined, link, render, status, swatch, table

MAX_ROWS = 200
MAX_EVENTS = 100
_MAX_LINKS = 500
_MAX_PROBLEMS = 20
_NO_SERVER = (
    "No node is known to have an accelerator: it has one when YARN gives out its yarn.io/gpu, when its agent "
    "sees one, or when it is named in `accelerator_nodes` of the master's settings."
)
_SERVER_COLUMNS = (
    *("server", "state", "listens at", "devices", "operations", ">requests/s", ">in flight", ">queued"),
    *(">buffers", ">answered", ">refused, failed", ">bound", ">load"),
)
_NODE_COLUMNS = (
    *("node", "rack", "state", "bound to", ">slots", "containers", ">heard", ">waits for disks"),
    *(">net in", ">net out", ">disk busy", "late binding", "trouble"),
)
_Values = Mapping[str, Any]
_Nodes = Mapping[str, _Values]
_NOTHING: _Values = {}


def page(state: _Values, query: Query, explanation: str = "", plugin_sections: Iterable[Section] = ()) -> str:
    """The page.

    Args:
        state: the state document; see `status_documents`. One with `others` has the nodes to show only, as
            `choose` chose them.
        explanation: of the node in the query.
        plugin_sections: see `MasterPlugin.sections`.
    """
    nodes, others = _chosen(state, query)
    notes = [note for note in reversed(state["notes"]) if not query.node or note["node"] == query.node]
    totals = state["totals"]
    claims = totals.get("late_binding")
    return render(
        Path(__file__).with_name("page.html"),
        title=f"{_about(state, 'application') or 'no application'} · yarn-accel",
        is_live=True,
        stage=_stage(state),
        about=_heading(state),
        seen=f"{_utc(state['at']):%H:%M:%S}",
        problems=[str(each) for each in state["service"].get("problems", ())][:_MAX_PROBLEMS],
        cards=_cards(totals),
        requests_per_s=f"{totals['requests_per_s']:,.1f}",
        requests=_requests(state["history"]["requests"]),
        claims=None if claims is None else _claims_card(claims),
        node=query.node,
        explanation=explanation,
        tasks=list(plugin_sections),
        counted=_counted(nodes, totals["nodes"]),
        diagram=draw(nodes),
        others=[_rack_link(*each) for each in others[:_MAX_LINKS]],
        more_racks=f"and {len(others) - _MAX_LINKS} more" if len(others) > _MAX_LINKS else "",
        servers=servers_table(nodes, state["loads"]),
        nodes_note=_cut(MAX_ROWS, len(nodes), "the first"),
        nodes=nodes_table(nodes),
        events_note=_cut(MAX_EVENTS, len(notes), "the last"),
        events=events_table(notes[:MAX_EVENTS], state["at"]),
        footnotes=list(_footnotes(state)),
    )


def text_page(title: str, *lines: str) -> str:
    """A page that only says something."""
    return render(Path(__file__).with_name("notice.html"), title=title, is_live=False, lines=lines)


def _chosen(state: _Values, query: Query) -> tuple[_Nodes, Sequence[tuple[str, int]]]:
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


# Texts.


def _stage(state: _Values) -> tuple[str, str]:
    if state["is_stopping"]:
        return "warn", "stopping"
    if not state["is_registered"]:
        return "bad", "not registered"
    return ("good", "running") if state["totals"]["serving"] else ("warn", "no server yet")


def _heading(state: _Values) -> list[str]:
    return [
        _about(state, "application"),
        _about(state, "name"),
        " in ".join(filter(None, (_about(state, "user"), _about(state, "queue")))),
        f"attempt {state['attempt']}",
        f"policy {state['policy']}",
    ]


def _cards(totals: _Values) -> list[tuple[str, str]]:
    n_own = totals["unbound"]
    rest = f"{n_own} with their own CPU only" if n_own else "no node is left alone"
    return [
        (f"{totals['serving']} / {totals['accelerators']}", "servers serve"),
        (f"{totals['bound']} / {totals['bound'] + n_own}", f"nodes bound; {rest}"),
        (f"{totals['in_flight']:,.0f}", f"requests in flight, {totals['queued']:,.0f} queued"),
        (f"{totals['device_busy']:,.2f}", "devices busy on average, of all servers together"),
    ]


def _claims_card(claims: _Values) -> tuple[str, str]:
    """Late binding on all nodes."""
    where = f"{claims['nodes']:,} {_plural('node', claims['nodes'])}"
    return claims_text(claims), f"late binding on {where}; {results_text(claims)}"


def _requests(history: Sequence[float]) -> Markup | None:
    return spark(history, f"the last {format_duration_s(2 * len(history))}")


def _counted(nodes: _Nodes, n_all: int) -> str:
    n_racks = len({node["rack"] for node in nodes.values()})
    shown = f"{len(nodes)} {_plural('node', len(nodes))} in {n_racks} {_plural('rack', n_racks)}"
    return shown if n_all == len(nodes) else f"{shown}, of {n_all} nodes in all"


def _plural(noun: str, n: int) -> str:
    return noun if n == 1 else f"{noun}s"


def _rack_link(rack: str, n_nodes: int) -> tuple[str, str]:
    return f"{rack or 'not known'} ({n_nodes})", f"?rack={quote(rack, safe='')}"


def _cut(most: int, n: int, which: str) -> str:
    return f"{which} {most} of {n}" if n > most else ""


def _footnotes(state: _Values) -> Iterator[str]:
    service = state["service"]
    yield f"bindings {state['version'] & 0xFFFFFFFF}"
    yield f"slots: {state['slots']['refusal'] or state['slots']['mode']}"
    started_at = state["about"].get("started_at")
    if isinstance(started_at, int | float) and math.isfinite(started_at):
        yield f"up {format_duration_s(max(state['at'] - started_at, 0.0))}"
    if "rm_age_s" in service:
        yield f"resource manager heard {format_duration_s(service['rm_age_s'])} ago"
    if _about(state, "version"):
        yield f"version {_about(state, 'version')}"


def _about(state: _Values, key: str) -> str:
    return str(state["about"].get(key) or "")


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.utc)


# Tables.


def servers_table(nodes: _Nodes, loads: Mapping[str, float]) -> Markup:
    """One row for each of the first accelerator nodes.

    Args:
        loads: bound nodes per weight, by server, as the policy counts them.
    """
    colours = hue(nodes)
    rows = [_server_row(host, nodes[host], colours[host], loads) for host in list(colours)[:MAX_ROWS]]
    return table(_SERVER_COLUMNS, rows, _NO_SERVER)


def nodes_table(nodes: _Nodes) -> Markup:
    """One row for each node; of too many those in trouble come first."""
    colours = hue(nodes)
    hosts = sorted(nodes, key=natural)
    if len(hosts) > MAX_ROWS:
        hosts.sort(key=lambda host: standing(nodes[host])[0] != "bad")
    rows = [_node_row(host, nodes[host], colours) for host in hosts[:MAX_ROWS]]
    return table(_NODE_COLUMNS, rows, "No node is known yet.")


def events_table(notes: Sequence[_Values], at: float) -> Markup:
    """One row for each event, in the order given.

    Args:
        at: Unix time of the state document, from which ages are counted.
    """
    rows = [
        (
            f"{_utc(at - note['age_s']):%H:%M:%S}",
            link(note["node"], link_to(note["node"])) if note["node"] else "all",
            note["what"],
            note["reason"],
        )
        for note in notes
    ]
    return table(("UTC", "node", "what", "why"), rows, "Nothing has happened yet.")


def _server_row(host: str, node: _Values, colour: str, loads: Mapping[str, float]) -> list[object]:
    server = (node["heard"] or _NOTHING).get("server") or _NOTHING
    rates = node["rates"] or _NOTHING
    n_refused, n_failed = server.get("rejected", 0) + server.get("busy", 0), server.get("failed", 0)
    return [
        _named(host, colour),
        status(*standing(node)),
        server.get("address", ""),
        [*_devices(node), *_computes_on(node)],
        joined(_operations(rates), ";"),
        f"{rates['requests_per_s']:,.1f}" if rates else "",
        _figure(server, "in_flight"),
        _figure(server, "queued"),
        _queue(server),
        _figure(server, "done"),
        f"{n_refused:g}, {n_failed:g}" if server else "",
        len(node["members"]),
        f"{loads[host]:.2f}" if host in loads else "",
    ]


def _node_row(host: str, node: _Values, colours: Mapping[str, str]) -> list[object]:
    heard = node["heard"] or _NOTHING
    pressure, nic, disk = (heard.get(key) or _NOTHING for key in ("pressure", "nic", "disk"))
    claims = heard.get("late_binding")
    return [
        _named(host, colours.get(host if node["is_accelerator"] else node["bound"] or "", "")),
        node["rack"],
        status(*standing(node)),
        link(node["bound"], link_to(node["bound"])) if node["bound"] else "",
        slots_of(node),
        "; ".join(_containers(node)),
        f"{heard['age_s']:.1f} s ago" if heard else "",
        f"{pressure['io_some_avg10']:.1f} %" if "io_some_avg10" in pressure else "",
        _rate(nic, "rx_bytes_per_s"),
        _rate(nic, "tx_bytes_per_s"),
        f"{100 * disk['busy_share']:.0f} %" if "busy_share" in disk else "",
        "" if claims is None else joined([claims_text(claims), results_text(claims)], ";"),
        "; ".join(_troubles(node)),
    ]


def _named(host: str, colour: str) -> list[Markup]:
    return [swatch(colour), link(host, link_to(host))]


def _containers(node: _Values) -> Iterator[str]:
    for role, place in node["places"].items():
        for held in place["containers"]:
            yield f"{role} {held['phase']}"
        if place["asked_for_s"] is not None:
            yield f"{role} asked for since {format_duration_s(place['asked_for_s'])}"


def _troubles(node: _Values) -> Iterator[str]:
    for role, place in node["places"].items():
        if place["failures"]:
            again = f", again in {format_duration_s(place['retry_in_s'])}" if place["retry_in_s"] > 0 else ""
            yield f"{role} failed {place['failures']} ×: {place['last_failure']}{again}"
    if node["load"] is not None and not node["load"]["is_healthy"]:
        yield node["load"]["detail"] or "the server is not well"
    heard = node["heard"] or _NOTHING
    yield from heard.get("problems", ())
    yield from (heard.get("server") or _NOTHING).get("problems", ())


def _devices(node: _Values) -> Iterator[object]:
    for i, each in enumerate((node["heard"] or _NOTHING).get("devices", ())):
        words = [each["name"] or each["device"]]
        if each["health"] not in ("", "ok"):
            words.append(each["health"])
        if "utilisation" in each:
            words.append(f"{100 * each['utilisation']:.0f} %")
        if "memory_bytes" in each and "memory_total_bytes" in each:
            used, whole = format_bytes(each["memory_bytes"]), format_bytes(each["memory_total_bytes"])
            words.append(f"{used} of {whole}")
        if "temperature_c" in each:
            words.append(f"{each['temperature_c']:.0f} °C")
        yield "; " if i else None
        yield joined(words, " ·")


def _computes_on(node: _Values) -> Iterator[str]:
    """The devices that the server computes on, where the node has GPUs."""
    heard = node["heard"] or _NOTHING
    devices = (heard.get("server") or _NOTHING).get("computes_on", "")
    if heard.get("devices") and devices:
        yield f"; computes on {devices}"
        if others := heard["server"].get("gpu_other_bytes"):
            yield f"; processes of others use {format_bytes(others)}"


def _operations(rates: _Values) -> Iterable[str]:
    for name, each in rates.get("operations", {}).items():
        mean_s = each["mean_s"]
        mean = f"{1000 * mean_s:.1f} ms" if mean_s < 0.01 else format_duration_s(mean_s)
        yield f"{name} {each['per_s']:,.1f}/s, {mean} each"


def _queue(server: _Values) -> str:
    if "queue_bytes" not in server:
        return ""
    used = format_bytes(server["queue_bytes"])
    return f"{used} of {format_bytes(server['queue_bound_bytes'])}" if "queue_bound_bytes" in server else used


def _rate(values: _Values, key: str) -> str:
    return f"{format_bytes(values[key])}/s" if key in values else ""


def _figure(values: _Values, key: str) -> str:
    return f"{values[key]:,.0f}" if key in values else ""
