"""Beside what the paper states: which reading of it matters, other clusters, and a large one.

Readings are `hdas` under S2, one option changed at a time. Other clusters have more or fewer GPUs, other
disks, or nodes of several kinds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.papers.hdas_paper.paper import APPS, MIXES, SETS, Job, Run, mix_world
from benchmarks.result import Row, measured, observed
from yarn_accel.core.tasks.commands import TaskCommand
from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies import registry
from yarn_accel.core.tasks.policies.base import FillingPolicy
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.records import Assignment
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.sim.simulator import simulate
from yarn_accel.sim.world import world_of

_BANDWIDTH_MB_S = 128.0


def _declared(mb_s: float) -> dict[str, Any]:
    disk = {"bandwidth_mb_s": _BANDWIDTH_MB_S, "gamma": SETS["S2"].gamma, "declared_mb_s": mb_s}
    return {"disks": {"sata": disk}}


#: What is changed of the world.
READINGS: Mapping[str, Mapping[str, Any]] = {
    "as it is (threshold, equal share)": {},
    "eq (3) proportional above B": {"settings": {"above_saturation": "proportional"}},
    "eq (3) max-min above B": {"settings": {"above_saturation": "max-min"}},
    "eq (6) as virtual time": {"settings": {"progress": "virtual-time"}},
    "delays within 0.05 are equal": {"settings": {"tie_tolerance": 0.05}},
    "TotalIO as the disk gives it": {"options": {"samples": "given"}},
    "heartbeat of 1 s": {"options": {"heartbeat_s": 1.0}},
    "heartbeat of 1 s, one task each": {
        "options": {"heartbeat_s": 1.0},
        "settings": {"tasks_per_heartbeat": "one"},
    },
    **{f"B declared as {mb_s:g} MB/s": _declared(mb_s) for mb_s in (96.0, 110.0, 140.0, 160.0)},
}
_BASE = ("hadoop", "fifo")


def reading_jobs(letters: Sequence[str] = tuple(MIXES)) -> Iterator[Job]:
    """Each reading, and what it is compared with."""
    for letter in letters:
        for policy in _BASE:
            yield Job((policy, letter), mix_world(MIXES[letter], SETS["S2"], policy))
        for reading, changes in READINGS.items():
            yield Job((reading, letter), mix_world(MIXES[letter], SETS["S2"], "hdas", **changes))


def reading_rows(runs: Mapping[tuple[str, ...], Run]) -> list[Row]:
    """Mean speed-up of each reading over the mixes, with the time saved and the delay."""
    letters = sorted({letter for _, letter in runs})
    rows = []
    for reading in READINGS:
        speedups = [
            runs["hadoop", letter].makespan_s / runs[reading, letter].makespan_s for letter in letters
        ]
        saved = [1 - runs[reading, letter].makespan_s / runs["fifo", letter].makespan_s for letter in letters]
        delay = fmean(runs[reading, letter].mean_delay for letter in letters)
        note = f"time saved against fifo {fmean(saved):.3f}, most {max(saved):.3f}; mean delay {delay:.2f}"
        spread = (min(speedups), max(speedups))
        what = f"hdas, {reading}: mean speed-up"
        rows.append(Row(what, fmean(speedups), "x", len(letters), spread, note=note))
    return rows


# ---- what the paper leaves open

BEYOND_POLICIES = ("fifo", "model", "hdas", "hdas+")
_LETTERS = ("K", "N", "P", "S")
_LEARNED = "figures learned, none declared"
_GPUS = (1, 2, 4, 6)
_DISKS_MB_S = (96, 128, 192, 256, 512)
_DECISION_GOAL = "<= 300"


def _clusters() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is changed of the paper's cluster, and how it is called."""
    for n_gpus in _GPUS:
        yield (
            f"GPUs per node {n_gpus}",
            {"nodes": [{"name": "node", "count": 6, "cores": 6, "gpus": n_gpus, "disk": "sata"}]},
        )
    for mb_s in _DISKS_MB_S:
        yield (
            f"disks of {mb_s} MB/s",
            {"disks": {"sata": {"bandwidth_mb_s": mb_s, "gamma": SETS["S2"].gamma}}},
        )
    yield _LEARNED, {}
    yield (
        "nodes of three kinds",
        {
            "disks": {
                "sata": {"bandwidth_mb_s": 128, "gamma": SETS["S2"].gamma},
                "ssd": {"bandwidth_mb_s": 500, "gamma": 0.0},
            },
            "nodes": [
                {"name": "fast", "count": 2, "cores": 6, "gpus": 2, "disk": "ssd", "accelerator": "double"},
                {"name": "plain", "count": 2, "cores": 6, "gpus": 4, "disk": "sata"},
                {"name": "cores", "count": 2, "cores": 12, "gpus": 0, "disk": "sata"},
            ],
        },
    )


def beyond_jobs(letters: Sequence[str] = _LETTERS) -> Iterator[Job]:
    """Each cluster, mix and policy under S2; the GPUs called `double` compute twice as fast."""
    for cluster, changes in _clusters():
        for letter in letters:
            for policy in BEYOND_POLICIES:
                world = mix_world(MIXES[letter], SETS["S2"], policy, **changes)
                if cluster == _LEARNED:
                    world["settings"] = {"learns": True}
                for app in world["apps"]:
                    gpu = app["gpu"]
                    app["accelerators"] = {"double": {**gpu, "compute_s": gpu["compute_s"] / 2}}
                    app["is_learned"] = cluster == _LEARNED
                yield Job((cluster, letter, policy), world)


def beyond_rows(runs: Mapping[tuple[str, ...], Run]) -> list[Row]:
    """How much time each policy saves against fifo on the same cluster, mean over the mixes."""
    letters = sorted({letter for _, letter, _ in runs})
    rows = []
    for cluster, _ in _clusters():
        for policy in BEYOND_POLICIES[1:]:
            saved = [
                1 - runs[cluster, letter, policy].makespan_s / runs[cluster, letter, "fifo"].makespan_s
                for letter in letters
            ]
            delays = fmean(runs[cluster, letter, policy].mean_delay for letter in letters)
            fifo = fmean(runs[cluster, letter, "fifo"].mean_delay for letter in letters)
            note = f"mixes {', '.join(letters)}, S2; mean delay {delays:.2f}, fifo {fifo:.2f}"
            spread = (min(saved), max(saved))
            what = f"{cluster}: time saved against fifo, {policy}"
            rows.append(Row(what, fmean(saved), "share", len(saved), spread, note=note))
    return rows


def scale_world(n_apps: int, n_nodes: int, tasks: int, policy: str) -> dict[str, Any]:
    """Many applications: the paper's five, each a little different, on many of the paper's nodes."""
    apps = []
    for number in range(n_apps):
        factor = 0.7 + 0.6 * (number * 37 % 100) / 100
        app = SETS["S2"].apps[APPS[number % len(APPS)]].as_world(f"{APPS[number % len(APPS)]}-{number}")
        app["gpu"] = {key: value * factor for key, value in app["gpu"].items()}
        app["cpu"] = {key: value * factor for key, value in app["cpu"].items()}
        apps.append({**app, "split_mb": app["split_mb"] * factor, "tasks": tasks})
    return {
        "disks": {"sata": {"bandwidth_mb_s": 128.0, "gamma": SETS["S2"].gamma}},
        "nodes": [{"name": "node", "count": n_nodes, "cores": 6, "gpus": 4, "disk": "sata"}],
        "apps": apps,
        "policy": policy,
    }


class _Timed(TaskPolicy):
    """A policy, and the CPU time of each of its decision passes, with the number of orders given in it."""

    def __init__(self, policy: FillingPolicy) -> None:
        self._policy = policy
        self.passes: list[tuple[int, int]] = []
        self.other_ns = 0

    def follow(self, table: TaskTable) -> None:
        self._policy.follow(table)

    def plan(self, table: TaskTable, figures: FigureStore, now_s: float) -> Iterator[TaskCommand]:
        n_orders, started_ns = 0, time.thread_time_ns()
        for order in self._policy.plan(table, figures, now_s):
            yield order  # what the driver does with it is a part of the pass
            n_orders += 1
        self.passes.append((time.thread_time_ns() - started_ns, n_orders))

    def learn(
        self,
        table: TaskTable,
        figures: FigureStore,
        assignment: Assignment,
        measured: TaskMeasurement,
        ran_s: float,
    ) -> None:
        started_ns = time.thread_time_ns()
        self._policy.learn(table, figures, assignment, measured, ran_s)
        self.other_ns += time.thread_time_ns() - started_ns


def scale_rows(n_apps: int, n_nodes: int, tasks: int) -> list[Row]:
    """CPU time of the policy per decision, which is one task given a place."""
    rows: list[Row] = []
    declared, learned = {"learns": False}, {"learns": True}
    cases: list[tuple[str, str, dict[str, Any]]] = [
        *((name, name, declared) for name in BEYOND_POLICIES),
        ("hdas+, next tasks at workers", "hdas+", {**declared, "next_tasks_per_slot": 1}),
        ("hdas+, figures learned", "hdas+", learned),
    ]
    for what, name, settings in cases:
        document = scale_world(n_apps, n_nodes, tasks, name)
        for app in document["apps"]:
            app["is_learned"] = settings["learns"]
        world = world_of(document, "scale")
        timed = _Timed(registry.make(name, settings))
        simulate(world, timed)
        each_us = [ns / 1000 / n for ns, n in timed.passes if n]
        n_decisions = sum(n for _, n in timed.passes)
        pass_us = sum(ns for ns, _ in timed.passes) / 1000 / n_decisions
        all_us = pass_us + timed.other_ns / 1000 / n_decisions
        note = f"{n_apps} applications x {n_nodes} nodes, {n_decisions} decisions; CPU time of one thread"
        what = f"{what}: time per decision"
        rows += [
            measured(f"{what}, median", each_us, "us", goal=_DECISION_GOAL, note=note),
            observed(f"{what}, mean", pass_us, "us", goal=_DECISION_GOAL, note=f"all passes; {note}"),
            observed(f"{what}, with all events", all_us, "us", note=note),
        ]
    return rows
