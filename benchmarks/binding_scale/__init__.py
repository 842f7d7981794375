"""The master at scale: 10,000 nodes in 250 racks under SimPy, with the very objects that run live.

Every node sends a heartbeat a second; 1 % of the nodes per minute fall silent for 5 to 30 s and come back,
and every second of them the RM takes for lost meanwhile. What is timed is the master only, in CPU time of its
thread, for each binding policy: once the policy behind the least there must be around it (who was heard
when), once the whole core of the ApplicationMaster. RM and NMs are simulated: they grant, start and stop
whatever is asked, after a delay, and report all nodes every 10 s. At the end nobody
flaps any more, and the next attempt takes over.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from benchmarks.binding_scale.world import (
    CALM_S,
    WARM_UP_S,
    ApplicationMaster,
    Node,
    PolicyMaster,
    Timed,
    World,
    added,
    cluster,
    simulate,
)
from benchmarks.result import Report, Row, measured, not_measured, observed
from yarn_accel.core.binding import (
    POLICIES,
    ANodeAdded,
    ANodeLost,
    BindingEvent,
    BindingPolicy,
    Move,
    NNodeLost,
    WeightChanged,
    WeightedBinding,
    make,
)
from yarn_accel.master.page import page
from yarn_accel.master.status_documents import AgentStatistics, Query, StatusDocuments
from yarn_accel.master.tracking_page import as_json

# ---- How far `paper` strays from what `weighted` keeps: stacks of equal size, reached with the fewest moves.


def misplaced(sizes: Sequence[int]) -> int:
    """How many NNodes of a rack would have to move for its stacks to differ by at most one.

    >>> misplaced([3, 2, 2]), misplaced([5, 1, 0]), misplaced([])
    (0, 3, 0)
    """
    if not sizes:
        return 0
    least, n_larger = divmod(sum(sizes), len(sizes))
    falling = sorted(sizes, reverse=True)
    return sum(max(size - least - (number < n_larger), 0) for number, size in enumerate(falling))


@dataclass(frozen=True, slots=True)
class Deviation:
    """A policy beside a balanced one over the same events.

    Attributes:
        n_moves: NNodes that were given an ANode, newcomers included.
        n_moves_balanced: the same under `weighted` with equal weights, the fewest for its balance.
        misplaced_mean: NNodes of all racks that would have to move for balance, after an event.
        misplaced_max: the most there ever were.
        excess_max: the most NNodes any ANode ever had above the most loaded one of its rack when balanced.
    """

    n_events: int
    n_moves: int
    n_moves_balanced: int
    misplaced_mean: float
    misplaced_max: int
    excess_max: int


def deviation(policy: BindingPolicy, events: Iterable[BindingEvent]) -> Deviation:
    """Drive a policy without nodes, and a balanced one beside it, through events; all weights count as 1."""
    balanced = WeightedBinding()
    rack_of: dict[str, str] = {}
    n_moves = n_moves_balanced = excess_max = 0
    stray: list[int] = []
    for event in events:
        if isinstance(event, WeightChanged):
            continue
        if isinstance(event, ANodeAdded):
            event = ANodeAdded(event.node, event.rack)
            rack_of[event.node] = event.rack
        n_moves += _n_bound(policy.apply(event))
        n_moves_balanced += _n_bound(balanced.apply(event))
        sizes = _sizes(policy, rack_of)
        stray.append(sum(map(misplaced, sizes)))
        excess_max = max([excess_max, *(max(rack) - math.ceil(sum(rack) / len(rack)) for rack in sizes)])
    mean = sum(stray) / len(stray) if stray else 0.0
    return Deviation(len(stray), n_moves, n_moves_balanced, mean, max(stray, default=0), excess_max)


def _n_bound(moves: Iterable[Move]) -> int:
    return sum(move.new is not None for move in moves)


def _sizes(policy: BindingPolicy, rack_of: Mapping[str, str]) -> list[list[int]]:
    """The sizes of the stacks, by rack."""
    racks: dict[str, list[int]] = {}
    for anode, load in policy.loads().items():
        racks.setdefault(rack_of[anode], []).append(round(load))
    return list(racks.values())


# ---- What it costs the master when somebody looks: the state document, the page, the JSON of all nodes.

_N_LOOKS = 7
_N_BEATS = 5


def page_rows(master: ApplicationMaster, nodes: Sequence[Node], now_s: float, note: str) -> list[Row]:
    """Time the looks; milliseconds on the wall, and the longest the event loop could not do anything else."""
    states = StatusDocuments(master.core, _figures(nodes, now_s), lambda: now_s, {}, lambda _: {})
    query = Query()

    async def looked() -> None:
        state = await states.part(query.node, query.rack)
        await asyncio.to_thread(page, state, query)

    async def written() -> None:
        await asyncio.to_thread(as_json, await states.whole())

    rows: list[Row] = []
    for what, look, goal in (
        ("state of the page's nodes", lambda: states.part("", ""), "<= 200"),
        ("page, with its state", looked, ""),
        ("JSON of all nodes", written, ""),
    ):
        took_ms, blocked_ms = zip(*(asyncio.run(_watched(look)) for _ in range(_N_LOOKS)), strict=True)
        rows.append(measured(f"looking: {what}", took_ms, "ms", goal=goal, note=note))
        rows.append(measured(f"looking: {what}, loop held up", blocked_ms, "ms", goal="<= 50", note=note))
    return rows


def _figures(nodes: Sequence[Node], now_s: float) -> AgentStatistics:
    """Heartbeats of some seconds from all agents."""
    figures = AgentStatistics()
    for beat in range(_N_BEATS):
        at_s = now_s - _N_BEATS + 1 + beat
        for node in nodes:
            figures.heard(node.name, _heartbeat(node, beat), at_s)
    return figures


def _heartbeat(node: Node, beat: int) -> dict[str, Any]:
    device = {"device": "0", "name": "NVIDIA H200", "health": "ok", "index": 0, "temperature_c": 50}
    device |= {"memory_bytes": 2**35, "memory_total_bytes": 2**37, "utilisation": 0.5}
    server = {
        "endpoint": {"name": node.name, "host": node.name, "port": 7070},
        **{"health": "ok", "started_at": "then", "pid": 5, "workers": 2, "in_flight": 3, "queued": 1},
        **{"requests": 10 * beat, "done": 9 * beat, "device_s": 0.5 * beat, "read_busy_s": 0.1 * beat},
        **{"compute_busy_s": 0.5 * beat, "write_busy_s": 0.1 * beat},
        "operations": {"lu": {"done": 9 * beat, "compute_s": 0.5 * beat}},
    }
    return {
        **{"version": 1, "node": node.name, "seq": beat, "address": "10.0.0.1", "problems": []},
        "devices": [device] * 4 if node.is_accelerator else [],
        "server": server if node.is_accelerator else None,
        "pressure": {"io_some_avg10": 1.0, "io_full_avg10": 0.5},
        "nic": {"rx_bytes_per_s": 1e6, "tx_bytes_per_s": 1e6, "errors_per_s": 0},
        "disk": {"read_bytes_per_s": 1e6, "write_bytes_per_s": 1e6, "busy_share": 0.1},
        "agent": {"pid": 3, "rss_bytes": 5e7, "cpu_share": 0.01},
    }


async def _watched(make: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """How long it took, and the longest gap between two turns of the event loop meanwhile; both in ms."""
    gaps_s: list[float] = []

    async def watch() -> None:
        last_s = time.perf_counter()
        while True:
            await asyncio.sleep(0.0005)
            now_s = time.perf_counter()
            gaps_s.append(now_s - last_s)
            last_s = now_s

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    gaps_s.clear()
    gc.disable()  # as the pages do
    began_s = time.perf_counter()
    try:
        await make()
    finally:
        gc.enable()
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(0.001)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return 1000 * took_s, 1000 * max(gaps_s)


__all__ = [
    "SECTIONS",
    "ApplicationMaster",
    "Node",
    "PolicyMaster",
    "World",
    "cluster",
    "draw",
    "run",
    "simulate",
]

SECTIONS = ("policies", "application", "page", "deviation")
_GOALS = ("<= 50", "<= 1000")
#: Points of a curve in the picture.
_N_POINTS = 400


def run(quick: bool, say: Callable[[str], None], report: Report, only: Sequence[str] = SECTIONS) -> None:
    """Measure the sections."""
    nodes = cluster(1_000, 25) if quick else cluster(10_000, 250)
    suffix = "; quick" if quick else ""
    if "policies" in only:
        duration_s = 60.0 if quick else 600.0
        for name in POLICIES:
            say(f"policy {name}: simulating {duration_s:.0f} s")
            timed = simulate(PolicyMaster(name), nodes, duration_s, seed=1)
            _report(report, f"policy {name}", timed, duration_s, _note(nodes, duration_s, suffix))
    if "application" in only or "page" in only:
        duration_s = 60.0 if quick else 300.0
        for name in POLICIES if "application" in only else ("weighted",):
            say(f"application with {name}: simulating {duration_s:.0f} s")
            _application(name, nodes, duration_s, suffix, report, only)
    if "deviation" in only:
        say("paper beside a balanced policy")
        report.add(_deviation_rows(nodes, 300 if quick else 2_000))


def _note(nodes: Sequence[Node], duration_s: float, suffix: str) -> str:
    return f"{len(nodes)} nodes, a tenth with accelerators, {duration_s:.0f} s{suffix}"


def _application(
    policy: str, nodes: Sequence[Node], duration_s: float, suffix: str, report: Report, only: Sequence[str]
) -> None:
    """One policy inside the whole core: start, steady state, the page, and a restart."""
    label, note = f"application with {policy}", _note(nodes, duration_s, suffix)
    master = ApplicationMaster(policy)
    world = World(master, nodes, seed=1)
    world.env.run(until=WARM_UP_S)
    started, master.timed = master.timed, Timed()
    world.env.run(until=WARM_UP_S + duration_s)
    steady, master.timed = master.timed, Timed()
    if "page" in only and policy == "weighted":
        report.add(page_rows(master, nodes, world.env.now, f"{len(nodes)} nodes{suffix}"))
    if "application" not in only:
        return
    _report(report, label, steady, duration_s, note)
    report.add(_kind_rows(label, steady, note))
    world.is_calm = True
    world.env.run(until=world.env.now + CALM_S)
    n_bound, master.timed = len(master.bound), Timed()
    master.restart(world.usable, world.env.now)
    first_ms, later_ms = (max(each.event_ns) / 1e6 for each in (started, master.timed))
    published, n_moves = f"{n_bound} bindings were published; {note}", master.timed.n_moves
    report.add(
        [
            observed(f"{label}: longest event of a start", first_ms, "ms", note=note),
            observed(f"{label}: longest event of a later attempt", later_ms, "ms", note=note),
            observed(f"{label}: moves by a later attempt", n_moves, "moves", goal="<= 0", note=published),
        ]
    )


def _report(report: Report, label: str, timed: Timed, duration_s: float, note: str) -> None:
    report.add(_rows(label, timed, duration_s, note))
    for name, times in (("event_us", timed.event_ns), ("change_us", timed.change_ns)):
        report.series.setdefault(name, {})[label] = _thinned(times)


def _thinned(times_ns: Sequence[int]) -> list[tuple[float, float]]:
    """Which share of the events, in percent, took longer than so many us: enough points for a curve."""
    falling = sorted(times_ns, reverse=True)
    n_all = len(falling)
    ranks = (
        sorted({round(n_all ** (point / _N_POINTS)) - 1 for point in range(_N_POINTS + 1)}) if n_all else []
    )
    return [(round(falling[rank] / 1000, 1), 100.0 * (rank + 1) / n_all) for rank in ranks]


def _rows(label: str, timed: Timed, duration_s: float, note: str) -> list[Row]:
    event_us = [ns / 1000 for ns in timed.event_ns]
    change_us = [ns / 1000 for ns in timed.change_ns]
    n_calls = f"{timed.n_calls / duration_s:.0f} calls per second; {note}"
    cpu_ms = timed.all_ns / 1e6 / duration_s
    rows = _times(f"{label}: time per event", event_us, _GOALS, note)
    per_event, per_change = (timed.n_moves / max(len(each), 1) for each in (event_us, change_us))
    if timed.change_ns != timed.event_ns:
        rows += _times(f"{label}: time per event that led to orders", change_us, ("", ""), note)
    return [
        *rows,
        observed(f"{label}: moves per event", per_event, "moves", note=note),
        observed(f"{label}: moves per event that led to orders", per_change, "moves", note=note),
        observed(f"{label}: CPU of the master per simulated second", cpu_ms, "ms", note=n_calls),
    ]


def _kind_rows(label: str, timed: Timed, note: str) -> list[Row]:
    return [
        row
        for kind, times_ns in sorted(timed.kind_ns.items())
        for row in _times(f"{label}: time per {kind}", [ns / 1000 for ns in times_ns], ("", ""), note)
    ]


def _times(what: str, times_us: Sequence[float], goals: tuple[str, str], note: str) -> list[Row]:
    if len(times_us) < 2:
        return [not_measured(what, "it hardly happened in the time simulated")]
    p99_us = quantiles(times_us, n=100)[98]
    return [
        measured(what, times_us, "us", goal=goals[0], note=note),
        observed(f"{what}, p99", p99_us, "us", goal=goals[1], note=f"n = {len(times_us)}; {note}"),
    ]


def _flapping(nodes: Sequence[Node], n_flaps: int, seed: int) -> Iterator[BindingEvent]:
    """All nodes join, then one after the other is lost and joins again a few events later."""
    rng = random.Random(seed)
    yield from map(added, nodes)
    down: list[Node] = []
    for _ in range(n_flaps):
        node = rng.choice(nodes)
        yield ANodeLost(node.name) if node.is_accelerator else NNodeLost(node.name)
        down.append(node)
        if len(down) > 30:
            yield added(down.pop(0))


def _deviation_rows(nodes: Sequence[Node], n_flaps: int) -> list[Row]:
    """What the paper's exemptions amount to; 25 racks are few enough to look at all after every event."""
    few = [node for node in nodes if node.rack < "/rack025"]
    found = deviation(make("paper"), _flapping(few, n_flaps, seed=1))
    note = f"{len(few)} nodes in 25 racks, {n_flaps} nodes lost, 30 at a time away"
    return [
        observed("paper: NNodes to move for balance, mean", found.misplaced_mean, "nodes", note=note),
        observed("paper: NNodes to move for balance, most", found.misplaced_max, "nodes", note=note),
        observed("paper: NNodes above a balanced stack, most", found.excess_max, "nodes", note=note),
        observed("paper: moves", found.n_moves, "moves", note=f"first bindings included; {note}"),
        observed("weighted: moves over the same events", found.n_moves_balanced, "moves", note=note),
    ]


def draw(report: Report, stem: str) -> list[str]:
    """Draw which share of the events took how long; returns the files."""
    from yarn_accel.report.figures import drawing

    series: Mapping[str, Any] = report.series
    if not series.get("change_us"):
        return []
    file = f"{stem}-time-per-event.png"
    with drawing(file, (10.0, 4.6), columns=2, sharey=True) as (_, table):
        both = table[0]
        for axes, name, title in zip(
            both, ("event_us", "change_us"), ("all events", "events that led to orders"), strict=True
        ):
            for label, points in series[name].items():
                if points:
                    axes.plot(*zip(*points, strict=True), label=label)
            axes.axvline(50.0, color="gray", linestyle=":", label="goal of the median")
            axes.axvline(1000.0, color="gray", linestyle="--", label="goal of p99")
            axes.set(xscale="log", yscale="log", xlabel="CPU time of an event, us", title=title)
            axes.grid(visible=True, alpha=0.3)
        both[0].set_ylabel("events that took longer, %")
        both[0].legend(fontsize="small")
    return [file]
