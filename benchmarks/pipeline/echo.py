"""Throughput and latency of echo, side by side: every candidate in every round, in an order that turns.

A figure of ours divided by another's is the ratio of the medians over the rounds of one cell. Both have
`WINDOW` requests in flight; a window of one is reported beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks.pipeline.fleet import Cell, Fleet, Measured
from benchmarks.pipeline.peers.candidate import Route
from benchmarks.pipeline.setting import MIB, Setting, size_text
from benchmarks.result import Row, measured, observed, ratio
from yarn_accel.errors import JobError

__all__ = ["PEERS", "Candidate", "latency_rows", "throughput_rows"]

WINDOW = 4
PEERS = ("grpc", "flight", "ray", "dask", "zmq")
BEST_PLACE = "same node"
_SHORT_S, _LONG_S = 0.35, 0.8
_LARGE_BYTES = 20 * MIB
_LARGE_ROUNDS = 3
_SLOW, _SLOW_ROUNDS = 4.0, 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who, by which way; `name` is what the rows call it."""

    name: str
    program: str
    route: Route


def _candidates(place: str, peers: Sequence[str]) -> list[Candidate]:
    """Everybody in one cell: the bare loops, ours as plainly and as well as it goes, the peers' best."""
    carrier = "tcp" if place == "tcp" else "unix"
    bare = [Candidate(f"bare {carrier} {sum_}", "bare", Route(carrier, sum_)) for sum_ in ("none", "xxh3")]
    ours = [
        Candidate(f"ours {carrier} {sum_}", "ours", Route(carrier, sum_))
        for sum_ in ("none", "xxh3", "crc32")
    ]
    best = Candidate("ours best", "ours", Route("tcp" if place == "tcp" else "memory"))
    others = [Candidate(name, name, Route(carrier)) for name in peers]
    return [*bare, *ours, best, *others]


class Rounds:
    """Runs candidates of one cell round by round; one that fails is left out and said so."""

    def __init__(self, setting: Setting, fleet: Fleet) -> None:
        self._setting, self._fleet = setting, fleet
        self.failures: dict[str, str] = {}

    def run(
        self, cell: Cell, candidates: Sequence[Candidate], n_rounds: int, duration_s: float
    ) -> Mapping[str, list[Measured]]:
        """Every candidate's runs; one that needs far longer than its time has only `_SLOW_ROUNDS` of them."""
        for candidate in candidates:
            self._prepare(candidate, cell)
        found: dict[str, list[Measured]] = {}
        for turn in range(n_rounds):
            for at in range(len(candidates)):
                candidate = candidates[(at + turn) % len(candidates)]
                runs = found.setdefault(candidate.name, [])
                is_slow = bool(runs) and runs[-1].wall_s > _SLOW * duration_s
                if is_slow and turn >= _SLOW_ROUNDS:
                    continue
                runs += self._go(candidate, cell, duration_s)
        for program in {each.program for each in candidates}:
            if program not in self.failures:
                self._fleet.runner(program).end()
        return {name: runs for name, runs in found.items() if runs}

    def _prepare(self, candidate: Candidate, cell: Cell) -> None:
        if candidate.program in self.failures:
            return
        with self._failing(candidate):
            self._fleet.runner(candidate.program).prepare(candidate.name, cell, candidate.route)

    def _go(self, candidate: Candidate, cell: Cell, duration_s: float) -> list[Measured]:
        if candidate.program in self.failures:
            return []
        with self._failing(candidate):
            return [self._fleet.runner(candidate.program).go(candidate.name, cell, duration_s)]
        return []

    def failure_rows(self) -> list[Row]:
        """A row for each candidate that failed: silence would look like a lead."""
        return [
            observed(f"echo: {name} failed", 1, "peers", goal="<= 0", note=why)
            for name, why in self.failures.items()
        ]

    @contextmanager
    def _failing(self, candidate: Candidate) -> Iterator[None]:
        try:
            yield
        except JobError as error:
            self._setting.report(f"{candidate.name} failed: {error.message}")
            self.failures[candidate.program] = error.message
            self._fleet.stop(candidate.program)


def _rates(found: Mapping[str, list[Measured]], name: str) -> list[float]:
    return [run.bytes_per_s for run in found.get(name, ())]


def _ratio(what: str, ours: Sequence[float], others: Sequence[float], goal: str, note: str) -> list[Row]:
    """One row, or none where a candidate gave no figures."""
    return [ratio(what, ours, others, goal=goal, note=note)] if ours and others else []


def _cell_rows(
    place: str, cell: Cell, found: Mapping[str, list[Measured]], peers: Sequence[str]
) -> list[Row]:
    clients = f"{cell.n_clients} client{'s' if cell.n_clients > 1 else ''}"
    where = f"echo, {place}, {size_text(cell.n_bytes)}, {clients}, window {cell.window}"
    carrier = "tcp" if place == "tcp" else "unix"
    rows = [
        measured(f"{where}: {name}", [run.bytes_per_s / 1e9 for run in runs], "GB/s")
        for name, runs in found.items()
    ]
    is_judged = cell.window == WINDOW
    bound = ">= 0.9" if is_judged and cell.n_bytes >= MIB else ""
    for sum_ in ("none", "xxh3"):
        ours, bare = (_rates(found, f"{who} {carrier} {sum_}") for who in ("ours", "bare"))
        rows += _ratio(f"{where}: ours / bare, {sum_}", ours, bare, bound, "")
    best = _rates(found, "ours best")
    for name in peers:
        goal = ">= 1" if is_judged else ""
        if name == "ray" and place == BEST_PLACE and cell.n_bytes == 50 * MIB:
            goal = ">= 1.5" if is_judged else ""
        rows += _ratio(f"{where}: ours / {name}", best, _rates(found, name), goal, "")
    return rows


def throughput_rows(setting: Setting, fleet: Fleet, peers: Sequence[str]) -> list[Row]:
    """All cells; each candidate is up from its first cell to the last."""
    sizes = (MIB,) if setting.quick else (64 << 10, MIB, 8 * MIB, 50 * MIB)
    n_rounds = 2 if setting.quick else 5
    rounds = Rounds(setting, fleet)
    rows: list[Row] = []
    for place in (BEST_PLACE, "tcp"):
        for n_bytes in sizes:
            for n_clients in (1, 4):
                cell = Cell(n_bytes, n_clients, WINDOW)
                setting.report(f"echo, {place}, {size_text(n_bytes)}, {n_clients} client(s)")
                duration_s = _LONG_S if n_bytes > _LARGE_BYTES else _SHORT_S
                n_here = min(n_rounds, _LARGE_ROUNDS) if n_bytes > _LARGE_BYTES else n_rounds
                found = rounds.run(cell, _candidates(place, peers), n_here, duration_s)
                rows += _cell_rows(place, cell, found, peers)
            if not setting.quick:
                rows += _one_at_a_time(rounds, place, n_bytes, n_rounds)
    return [*rows, *rounds.failure_rows()]


def _one_at_a_time(rounds: Rounds, place: str, n_bytes: int, n_rounds: int) -> list[Row]:
    """A window of one, ours against the bare loop: reported only."""
    cell = Cell(n_bytes, 1, 1)
    candidates = [each for each in _candidates(place, ()) if each.name.endswith(("none", "xxh3"))]
    return _cell_rows(place, cell, rounds.run(cell, candidates, max(2, n_rounds - 2), _SHORT_S), ())


def latency_rows(setting: Setting, fleet: Fleet, peers: Sequence[str]) -> list[Row]:
    """64 B there and back, one at a time; the median over the runs of each run's median."""
    cell = Cell(64, 1, 1)
    n_rounds = 2 if setting.quick else 7
    goals = {"unix": "<= 150", "tcp": "<= 200"}
    rounds = Rounds(setting, fleet)
    rows: list[Row] = []
    for carrier in ("unix", "tcp"):
        setting.report(f"latency, {carrier}")
        candidates = [
            Candidate(f"bare {carrier}", "bare", Route(carrier, "none")),
            Candidate(f"ours {carrier}", "ours", Route(carrier)),
            *(Candidate(name, name, Route(carrier)) for name in peers),
        ]
        found = rounds.run(cell, candidates, n_rounds, _SHORT_S)
        for name, runs in found.items():
            goal = goals[carrier] if name.startswith("ours") else ""
            note = f"p99 {median(run.p99_s for run in runs) * 1e6:.0f} us"
            values_us = [run.median_s * 1e6 for run in runs]
            rows.append(measured(f"latency, 64 B, {carrier}: {name}", values_us, "us", goal=goal, note=note))
        rows += _latency_ratios(carrier, found, peers)
    return [*rows, *rounds.failure_rows()]


def _latency_ratios(carrier: str, found: Mapping[str, list[Measured]], peers: Sequence[str]) -> list[Row]:
    ours = [run.median_s for run in found.get(f"ours {carrier}", ())]
    rows: list[Row] = []
    for name in peers:
        goal = "" if name == "zmq" else ">= 1"
        theirs = [run.median_s for run in found.get(name, ())]
        rows += _ratio(
            f"latency, 64 B, {carrier}: {name} / ours", theirs, ours, goal, "above 1: ours is faster"
        )
    return rows
