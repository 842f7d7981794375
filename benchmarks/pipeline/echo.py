"""Throughput and latency of echo, side by side: every candidate in every round, in an order that turns.

A figure of ours divided by another's is the ratio of the medians over the rounds of one cell. Both have
`WINDOW` requests in flight; a window of one is reported beside it. Where the machine lets us, the cores are
kept awake for everybody (`benchmarks.pipeline.setting`); latency is measured both ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks.pipeline.fleet import Cell, Fleet, Measured
from benchmarks.pipeline.peers.candidate import Route
from benchmarks.pipeline.setting import MIB, Setting, kept_awake, size_text
from benchmarks.result import Row, measured, observed, ratio
from yarn_accel.errors import JobError

WINDOW = 4
PEERS = ("grpc", "flight", "ray", "dask", "zmq")
BEST_PLACE = "same node"
_N_ROUNDS = 5
_DURATION_S = {64 << 10: 0.12, MIB: 0.12, 8 * MIB: 0.2, 50 * MIB: 0.25}
"""How long a run sends, by payload; it lasts until all is answered, which takes the slow ones seconds."""
_LATENCY_S = 0.3


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who, by which way; `name` is what the rows call it."""

    name: str
    program: str
    route: Route


def _candidates(place: str, peers: Sequence[str]) -> list[Candidate]:
    """Everybody in one cell: the bare loops, ours as plainly and as well as it goes, the peers' best."""
    carrier = _carrier(place)
    bare = [Candidate(f"bare {carrier} {sum_}", "bare", Route(carrier, sum_)) for sum_ in ("none", "xxh3")]
    ours = [
        Candidate(f"ours {carrier} {sum_}", "ours", Route(carrier, sum_))
        for sum_ in ("none", "xxh3", "crc32")
    ]
    if place == BEST_PLACE:
        ours.append(Candidate(_best(place), "ours", Route("memory")))
    return [*bare, *ours, *(Candidate(name, name, Route(carrier)) for name in peers)]


def _carrier(place: str) -> str:
    return "tcp" if place == "tcp" else "unix"


def _best(place: str) -> str:
    """Our candidate that is held against the peers; over TCP it is what a client with xxhash chooses."""
    return "ours best" if place == BEST_PLACE else "ours tcp xxh3"


class Rounds:
    """Runs candidates of one cell round by round; one that fails is left out and said so."""

    def __init__(self, setting: Setting, fleet: Fleet) -> None:
        self._setting, self._fleet = setting, fleet
        self.failures: dict[str, str] = {}

    def run(
        self, cell: Cell, candidates: Sequence[Candidate], n_rounds: int, duration_s: float
    ) -> Mapping[str, list[Measured]]:
        """Every candidate's runs, `n_rounds` of them."""
        for candidate in candidates:
            self._prepare(candidate, cell)
        found: dict[str, list[Measured]] = {}
        for turn in range(n_rounds):
            for at in range(len(candidates)):
                candidate = candidates[(at + turn) % len(candidates)]
                found.setdefault(candidate.name, []).extend(self._go(candidate, cell, duration_s))
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
    carrier = _carrier(place)
    rows = [
        measured(f"{where}: {name}", [run.bytes_per_s / 1e9 for run in runs], "GB/s")
        for name, runs in found.items()
    ]
    is_judged = cell.window == WINDOW
    bound = ">= 0.9" if is_judged and cell.n_bytes >= MIB else ""
    for sum_ in ("none", "xxh3"):
        ours, bare = (_rates(found, f"{who} {carrier} {sum_}") for who in ("ours", "bare"))
        rows += _ratio(f"{where}: ours / bare, {sum_}", ours, bare, bound, "")
    best = _rates(found, _best(place))
    for name in peers:
        goal = ">= 1" if is_judged else ""
        if name == "ray" and place == BEST_PLACE and cell.n_bytes == 50 * MIB:
            goal = ">= 1.5" if is_judged else ""
        rows += _ratio(f"{where}: ours / {name}", best, _rates(found, name), goal, "")
    return rows


def throughput_rows(setting: Setting, fleet: Fleet, peers: Sequence[str]) -> Iterator[list[Row]]:
    """All cells; each candidate is up from its first cell to the last."""
    sizes = (MIB,) if setting.quick else tuple(_DURATION_S)
    rounds = Rounds(setting, fleet)
    with kept_awake(setting.cores_awake):
        for place in (BEST_PLACE, "tcp"):
            for n_bytes in sizes:
                for n_clients in (1, 4):
                    cell = Cell(n_bytes, n_clients, WINDOW)
                    setting.report(f"echo, {place}, {size_text(n_bytes)}, {n_clients} client(s)")
                    yield _cell(rounds, place, cell, peers, 2 if setting.quick else _N_ROUNDS)
                if not setting.quick:
                    yield _one_at_a_time(rounds, place, n_bytes)
    yield rounds.failure_rows()


def _cell(rounds: Rounds, place: str, cell: Cell, peers: Sequence[str], n_rounds: int) -> list[Row]:
    found = rounds.run(cell, _candidates(place, peers), n_rounds, _DURATION_S[cell.n_bytes])
    return _cell_rows(place, cell, found, peers)


def _one_at_a_time(rounds: Rounds, place: str, n_bytes: int) -> list[Row]:
    """A window of one, ours against the bare loop: reported only."""
    cell = Cell(n_bytes, 1, 1)
    candidates = [each for each in _candidates(place, ()) if each.name.endswith(("none", "xxh3"))]
    found = rounds.run(cell, candidates, _N_ROUNDS, _DURATION_S[n_bytes])
    return _cell_rows(place, cell, found, ())


_GOALS_US = {"unix": "<= 150", "tcp": "<= 200"}
_AWAKE, _ASLEEP = "cores awake", "cores may sleep"


def latency_rows(setting: Setting, fleet: Fleet, peers: Sequence[str]) -> Iterator[list[Row]]:
    """64 B there and back, one at a time; the median over the runs of each run's median.

    With the cores kept awake for all, and without: there our server keeps its own hands off them, and as it
    is by its defaults (it keeps them awake itself) it is measured when nobody else could gain by that.
    """
    n_rounds = 2 if setting.quick else _N_ROUNDS
    rounds = Rounds(setting, fleet)
    for carrier in _GOALS_US:
        for cores in (_AWAKE, _ASLEEP) if setting.cores_awake else (_ASLEEP,):
            setting.report(f"latency, {carrier}, {cores}")
            yield _latency(rounds, (carrier, cores), peers, n_rounds)
        yield _latency_by_default(rounds, carrier, n_rounds)
    fleet.stop("ours-asleep")
    yield rounds.failure_rows()


def _latency(rounds: Rounds, kind: tuple[str, str], peers: Sequence[str], n_rounds: int) -> list[Row]:
    carrier, cores = kind
    is_awake = cores == _AWAKE
    candidates = [
        Candidate(f"bare {carrier}", "bare", Route(carrier, "none")),
        Candidate(f"ours {carrier}", "ours" if is_awake else "ours-asleep", Route(carrier)),
        *(Candidate(name, name, Route(carrier)) for name in peers),
    ]
    with kept_awake(is_awake):
        found = rounds.run(Cell(64, 1, 1), candidates, n_rounds, _LATENCY_S)
    what = f"latency, 64 B, {carrier}, {cores}"
    return [*_latency_rows(what, found, _GOALS_US[carrier]), *_latency_ratios(what, carrier, found, peers)]


def _latency_by_default(rounds: Rounds, carrier: str, n_rounds: int) -> list[Row]:
    candidate = Candidate(f"ours {carrier}", "ours", Route(carrier))
    found = rounds.run(Cell(64, 1, 1), [candidate], n_rounds, _LATENCY_S)
    return _latency_rows(f"latency, 64 B, {carrier}, the server's default", found, _GOALS_US[carrier])


def _latency_rows(what: str, found: Mapping[str, list[Measured]], goal: str) -> list[Row]:
    rows = []
    for name, runs in found.items():
        note = f"p99 {median(run.p99_s for run in runs) * 1e6:.0f} us"
        values_us = [run.median_s * 1e6 for run in runs]
        judged = goal if name.startswith("ours") else ""
        rows.append(measured(f"{what}: {name}", values_us, "us", goal=judged, note=note))
    return rows


def _latency_ratios(
    what: str, carrier: str, found: Mapping[str, list[Measured]], peers: Sequence[str]
) -> list[Row]:
    ours = [run.median_s for run in found.get(f"ours {carrier}", ())]
    rows: list[Row] = []
    for name in peers:
        goal = "" if name == "zmq" else ">= 1"
        theirs = [run.median_s for run in found.get(name, ())]
        rows += _ratio(f"{what}: {name} / ours", theirs, ours, goal, "above 1: ours is faster")
    return rows
