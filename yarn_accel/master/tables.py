"""The tables of the tracking page: servers, nodes, events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from yarn_accel.core.tasks.claim_counts import claims_text, results_text
from yarn_accel.core.units import format_bytes, format_duration_s
from yarn_accel.master.diagram import hue, link_to, slots_of, standing
from yarn_accel.master.diagram_layout import natural
from yarn_accel.master.markup import Child, Markup, element

_Node = Mapping[str, Any]
_Nodes = Mapping[str, _Node]
_NOTHING: Mapping[str, Any] = {}
_NO_SERVER = (
    "No node is known to have an accelerator: it has one when YARN gives out its yarn.io/gpu, when its agent "
    "sees one, or when it is named in `accelerator_nodes` of the master's settings."
)


def servers_table(nodes: _Nodes, loads: Mapping[str, float], n_rows: int) -> Markup:
    """One row for each of the first accelerator nodes.

    Args:
        loads: bound nodes per weight, by server, as the policy counts them.
    """
    columns = (
        *("server", "state", "listens at", "devices", "operations", ">requests/s", ">in flight", ">queued"),
        *(">buffers", ">answered", ">refused, failed", ">bound", ">load"),
    )
    colours = hue(nodes)
    rows = [_server_row(host, nodes[host], colours[host], loads) for host in list(colours)[:n_rows]]
    return table(columns, rows, _NO_SERVER)


def nodes_table(nodes: _Nodes, n_rows: int) -> Markup:
    """One row for each node; of too many those in trouble come first."""
    columns = (
        *("node", "rack", "state", "bound to", ">slots", "containers", ">heard", ">waits for disks"),
        *(">net in", ">net out", ">disk busy", "late binding", "trouble"),
    )
    colours = hue(nodes)
    hosts = sorted(nodes, key=natural)
    if len(hosts) > n_rows:
        hosts.sort(key=lambda host: standing(nodes[host])[0] != "bad")
    return table(
        columns, [_node_row(host, nodes[host], colours) for host in hosts[:n_rows]], "No node is known yet."
    )


def events_table(notes: Sequence[Mapping[str, Any]], at: float) -> Markup:
    """One row for each event, in the order given.

    Args:
        at: Unix time of the state document, from which ages are counted.
    """
    rows: list[list[Child]] = []
    for note in notes:
        happened = datetime.fromtimestamp(at - note["age_s"], timezone.utc)
        node = element("a", note["node"], href=link_to(note["node"])) if note["node"] else "all"
        rows.append([f"{happened:%H:%M:%S}", node, note["what"], note["reason"]])
    return table(("UTC", "node", "what", "why"), rows, "Nothing has happened yet.")


def _server_row(host: str, node: _Node, colour: str, loads: Mapping[str, float]) -> list[Child]:
    server = (node["heard"] or _NOTHING).get("server") or _NOTHING
    rates = node["rates"] or _NOTHING
    kind, word = standing(node)
    n_refused, n_failed = server.get("rejected", 0) + server.get("busy", 0), server.get("failed", 0)
    return [
        _named(host, colour),
        element("span", word, class_=f"keep {kind}"),
        server.get("address", ""),
        [*_devices(node), *_computes_on(node)],
        _operations(rates),
        f"{rates['requests_per_s']:,.1f}" if rates else "",
        _figure(server, "in_flight"),
        _figure(server, "queued"),
        _queue(server),
        _figure(server, "done"),
        f"{n_refused:g}, {n_failed:g}" if server else "",
        str(len(node["members"])),
        f"{loads[host]:.2f}" if host in loads else "",
    ]


def _node_row(host: str, node: _Node, colours: Mapping[str, str]) -> list[Child]:
    heard = node["heard"] or _NOTHING
    kind, word = standing(node)
    pressure, nic, disk = (heard.get(key) or _NOTHING for key in ("pressure", "nic", "disk"))
    return [
        _named(host, colours.get(host if node["is_accelerator"] else node["bound"] or "", "")),
        node["rack"] or "",
        element("span", word, class_=f"keep {kind}"),
        element("a", node["bound"], href=link_to(node["bound"])) if node["bound"] else "",
        slots_of(node),
        "; ".join(_containers(node)),
        f"{heard['age_s']:.1f} s ago" if heard else "",
        f"{pressure['io_some_avg10']:.1f} %" if "io_some_avg10" in pressure else "",
        _rate(nic, "rx_bytes_per_s"),
        _rate(nic, "tx_bytes_per_s"),
        f"{100 * disk['busy_share']:.0f} %" if "busy_share" in disk else "",
        _claims(heard.get("late_binding")),
        "; ".join(_troubles(node)),
    ]


def _claims(counts: Mapping[str, Any] | None) -> list[Child]:
    return _spaced([claims_text(counts), results_text(counts)], ";") if counts is not None else []


def _containers(node: _Node) -> Iterator[str]:
    for role, place in node["places"].items():
        for held in place["containers"]:
            yield f"{role} {held['phase']}"
        if place["asked_for_s"] is not None:
            yield f"{role} asked for since {format_duration_s(place['asked_for_s'])}"


def _troubles(node: _Node) -> Iterator[str]:
    for role, place in node["places"].items():
        if place["failures"]:
            again = f", again in {format_duration_s(place['retry_in_s'])}" if place["retry_in_s"] > 0 else ""
            yield f"{role} failed {place['failures']} ×: {place['last_failure']}{again}"
    if node["load"] is not None and not node["load"]["is_healthy"]:
        yield node["load"]["detail"] or "the server is not well"
    heard = node["heard"] or _NOTHING
    yield from heard.get("problems", ())
    yield from (heard.get("server") or _NOTHING).get("problems", ())


def _devices(node: _Node) -> Iterator[Child]:
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
        yield _spaced(words, " ·")


def _computes_on(node: _Node) -> Iterator[Child]:
    """What the server computes on, where the node has GPUs."""
    heard = node["heard"] or _NOTHING
    devices = (heard.get("server") or _NOTHING).get("computes_on", "")
    if heard.get("devices") and devices:
        yield f"; computes on {devices}"
        if others := heard["server"].get("gpu_other_bytes"):
            yield f"; processes of others use {format_bytes(others)}"


def _operations(rates: Mapping[str, Any]) -> list[Child]:
    words = [
        f"{name} {each['per_s']:,.1f}/s, {_mean(each['mean_s'])} each"
        for name, each in rates.get("operations", {}).items()
    ]
    return _spaced(words, ";")


def _mean(duration_s: float) -> str:
    return f"{1000 * duration_s:.1f} ms" if duration_s < 0.01 else format_duration_s(duration_s)


def _spaced(words: Sequence[str], mark: str) -> list[Child]:
    """Words with a mark after each but the last; lines break between them only."""
    marked = [*(f"{word}{mark}" for word in words[:-1]), *words[-1:]]
    return [[element("span", word, class_="keep"), " "] for word in marked]


def _queue(server: Mapping[str, Any]) -> str:
    if "queue_bytes" not in server:
        return ""
    used = format_bytes(server["queue_bytes"])
    return f"{used} of {format_bytes(server['queue_bound_bytes'])}" if "queue_bound_bytes" in server else used


def _rate(values: Mapping[str, Any], key: str) -> str:
    return f"{format_bytes(values[key])}/s" if key in values else ""


def _figure(values: Mapping[str, Any], key: str) -> str:
    return f"{values[key]:,.0f}" if key in values else ""


def _named(host: str, colour: str) -> list[Child]:
    swatch = element("span", class_=f"swatch {colour}".strip())
    return [swatch, element("a", host, href=link_to(host))]


def table(columns: Sequence[str], rows: Iterable[Sequence[Child]], otherwise: str) -> Markup:
    """A table; columns that begin with > are numbers; without rows the text `otherwise`."""
    classes = ["number" if name.startswith(">") else None for name in columns]
    filled = [
        element("tr", [element("td", cell, class_=kind) for cell, kind in zip(row, classes, strict=True)])
        for row in rows
    ]
    if not filled:
        return element("p", otherwise, class_="soft")
    heads = [
        element("th", name.lstrip(">"), class_=kind) for name, kind in zip(columns, classes, strict=True)
    ]
    return element("table", element("thead", element("tr", heads)), element("tbody", filled))
