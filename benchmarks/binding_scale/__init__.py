"""The master at scale: 10,000 nodes in 250 racks under SimPy, with the very objects that run live.

Every node sends a heartbeat a second; 1 % of the nodes per minute fall silent for 5 to 30 s and come back,
and every second of them the RM takes for lost meanwhile. What is timed is the master only, in CPU time of its
thread, for each binding policy: once the policy behind the least there must be around it (who was heard
when), once the whole core of the ApplicationMaster. RM and NMs are simulated: they grant, start and stop
whatever is asked, after a delay, and report all nodes every 10 s. At the end nobody
flaps any more, and the next attempt takes over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import quantiles
from typing import Any

from benchmarks.binding_scale.deviation import deviation
from benchmarks.binding_scale.looking import page_rows
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
from yarn_accel.core.binding import POLICIES, ANodeLost, BindingEvent, NNodeLost, make

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
    report.add(
        [
            observed(f"{label}: longest event of a start", max(started.event_ns) / 1e6, "ms", note=note),
            observed(
                f"{label}: longest event of a later attempt",
                max(master.timed.event_ns) / 1e6,
                "ms",
                note=note,
            ),
            observed(
                f"{label}: moves by a later attempt",
                master.timed.n_moves,
                "moves",
                goal="<= 0",
                note=f"{n_bound} bindings were published; {note}",
            ),
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
    if timed.change_ns != timed.event_ns:
        rows += _times(f"{label}: time per event that led to orders", change_us, ("", ""), note)
    return [
        *rows,
        observed(f"{label}: moves per event", timed.n_moves / max(len(event_us), 1), "moves", note=note),
        observed(
            f"{label}: moves per event that led to orders",
            timed.n_moves / max(len(change_us), 1),
            "moves",
            note=note,
        ),
        observed(f"{label}: CPU of the master per simulated second", cpu_ms, "ms", note=n_calls),
    ]


def _kind_rows(label: str, timed: Timed, note: str) -> list[Row]:
    rows: list[Row] = []
    for kind, times_ns in sorted(timed.kind_ns.items()):
        rows += _times(f"{label}: time per {kind}", [ns / 1000 for ns in times_ns], ("", ""), note)
    return rows


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
