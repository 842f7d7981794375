"""How even the load is under each placement, on a simulated cluster of four nodes (self-learning paper).

The policy objects are those of the scheduler. Four nodes shaped as the paper's, three types of jobs, 30 %
noise on all they use, a heartbeat of 300 s, a job every 40, 18 or 14 s on average. Sizes and run times are
ours (the paper's table is lost), chosen so that first fit is about as uneven as in our notes on the paper and
slots rarely run out. With smaller nodes or longer jobs all slots are in use at one job per 14 s, every
placement looks more alike, and `value` came to 0.70 to 0.85 of `firstfit` there.

Each policy comes with what belongs to it: `value` is the paper, with its predictor and fixed weights;
`projected` is ours, with `chain`; the others look at no prediction.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.papers.torque_balance_cluster import (
    GIB,
    MACHINES,
    Cluster,
    History,
    Kind,
    Trace,
    tasks_of,
)
from benchmarks.papers.torque_profiles import profiles
from benchmarks.result import Report, Row, measured, observed, ratio
from torque_sched.decide.backfill import NoReservations
from torque_sched.decide.context import Load
from torque_sched.decide.rules import NodeRules, Rates
from torque_sched.decide.settings import Settings, new_placement

_NOISE = 0.3
_EVERY_S = (40.0, 18.0, 14.0)
_N_JOBS = 200
_PROCESSES = 2
_CLAIM = re.compile(r"L\d: ")
"""How the rows of a claim begin."""
_BATCHES = (40, 120)
"""Of fixed size, submitted at once: fewer than the 54 slots, and more."""
_BATCH_SEEDS = 5
"""So many times the seeds for batches: a makespan hangs on the last few jobs."""
_BURSTS = (1, 4, 16)
_HEARTBEATS_S = (10.0, 60.0, 300.0)
_LONGER = 20.0
"""The measured jobs take seconds; so many times their input makes them minutes, as the paper's were."""

#: What the paper submitted, over and over in shuffled order; loads are invented, of the right size.
KINDS = (
    Kind("h264", 0.5, Load(2.0, 0.8 * GIB), 330.0),
    Kind("convolution", 0.35, Load(1.0, 1.2 * GIB), 220.0),
    Kind("convolution-gpu", 0.15, Load(0.8, 0.6 * GIB, 0.6, 0.4 * GIB), 220.0, gpus=1),
)


@dataclass(frozen=True)
class Policy:
    """A placement with the predictor that belongs to it; no name: nothing is predicted."""

    placement: str
    predictor: str = ""
    values: Mapping[str, object] = field(default_factory=dict)

    def settings(self) -> Settings:
        """The scheduler's settings: samples are exact and never stale here, and nobody jumps the queue."""
        rates = {machine.name: Rates(machine.speed, machine.gpu_speed) for machine in MACHINES}
        rules = NodeRules(
            sample_lag_s=0.0,
            stale_after_s=float("inf"),
            dead_after_s=0.0,
            rates=rates,
            unknown_is_mean=self.predictor == "seed",
        )
        return Settings(
            placement=new_placement(self.placement, **self.values), nodes=rules, backfill=NoReservations()
        )


POLICIES = {
    "firstfit": Policy("firstfit"),
    "round_robin": Policy("round_robin"),
    "loadave": Policy("loadave"),
    "value": Policy("value", "seed"),
    "projected": Policy("projected", "chain"),
    # To tell apart what comes from where.
    "value, no prediction": Policy("value"),
    "value, job-aware": Policy("value", "seed", {"job_aware": True}),
    "projected, no prediction": Policy("projected"),
    "projected with seed": Policy("projected", "seed"),
    # What a site may choose: jobs without GPU on nodes with idle GPUs last.
    "projected, GPU nodes last": Policy("projected", "chain", {"gpu_node_penalty": 1.0}),
}
_MAIN = tuple(POLICIES)[:5]
_GPU_NODES = frozenset(machine.name for machine in MACHINES if machine.gpus)


@functools.cache
def simulate(
    name: str,
    every_s: float,
    seed: int,
    n_jobs: int = _N_JOBS,
    burst: int = 1,
    kinds: tuple[Kind, ...] = KINDS,
    heartbeat_s: float = 300.0,
    tells_end: bool = True,
) -> tuple[Trace, tuple[float, ...]]:
    """One run; also the errors of the expected busy cores, in the order in which jobs ended."""
    policy = POLICIES[name]
    history = History(policy.predictor)
    arrivals = tasks_of(kinds, n_jobs, every_s, _NOISE, seed, burst)
    cluster = Cluster(policy.settings(), history, heartbeat_s, tells_end=tells_end)
    return cluster.run(arrivals), tuple(history.errors)


def _over(
    seeds: range, figure: Callable[[Trace], float], name: str, every_s: float, **more: Any
) -> list[float]:
    """A figure of each seed's run."""
    return [figure(simulate(name, every_s, seed, **more)[0]) for seed in seeds]


def _makespan_s(run: Trace) -> float:
    return run.makespan_s


def _stdev(run: Trace) -> float:
    return run.mean("cpu stdev")


def balance(every_s: float, seeds: range) -> list[Row]:
    """All figures of all policies at one rate of arrival, then what they are compared by."""
    at = f"1 job per {every_s:.0f} s"
    rows = []
    for name in POLICIES:
        for figure in ("cpu stdev", "cpu range", "cpu overload", "memory stdev"):
            values = _over(seeds, lambda run: run.mean(figure), name, every_s)  # noqa: B023
            rows.append(measured(f"{at}: {figure}, {name}", values, ""))
        rows.append(measured(f"{at}: makespan, {name}", _over(seeds, _makespan_s, name, every_s), "s"))
        waits = _over(seeds, lambda run: statistics.mean(run.waits_s), name, every_s)
        rows.append(measured(f"{at}: mean wait, {name}", waits, "s"))
    stdev = {name: _over(seeds, _stdev, name, every_s) for name in _MAIN}
    makespans = {
        name: _over(seeds, _makespan_s, name, every_s) for name in ("firstfit", "value", "projected")
    }
    return [
        *rows,
        ratio(f"{at}: cpu stdev, projected over value", stdev["projected"], stdev["value"], goal="<= 0.5"),
        ratio(f"{at}: cpu stdev, value over firstfit", stdev["value"], stdev["firstfit"], goal="<= 0.7"),
        *(
            ratio(
                f"{at}: makespan, {name} over firstfit", makespans[name], makespans["firstfit"], goal="<= 1"
            )
            for name in ("value", "projected")
        ),
    ]


def _fills(seeds: range) -> Row:
    """L1: the default fills node after node."""
    shares = []
    for seed in seeds:
        uses = simulate("firstfit", _EVERY_S[1], seed)[0].first_use
        first, second = MACHINES[0].name, MACHINES[1].name
        if second in uses:
            shares.append(uses[second][first])
    note = "least CPU utilisation of the first node when the second got its first job; 1 per 18 s"
    return observed("L1: first fit fills node by node", min(shares), "share", goal=">= 0.65", note=note)


def _together(seeds: range) -> list[Row]:
    """L2: with VALUE the nodes rise together, compared with every rule that looks at no prediction."""
    rows = []
    for figure in ("cpu stdev", "cpu range", "memory stdev"):
        for other in ("firstfit", "loadave", "round_robin"):
            value, plain = (
                [v for every_s in _EVERY_S for v in _over(seeds, lambda run: run.mean(figure), name, every_s)]  # noqa: B023
                for name in ("value", other)
            )
            what = f"L2: VALUE makes CPU and memory rise together: {figure}, value over {other}"
            rows.append(ratio(what, value, plain, goal="<= 1", note="time-mean; all three rates"))
    return rows


def _homes(seeds: range) -> list[Row]:
    """L3: jobs with GPUs on GPU nodes only, others anywhere."""
    runs = [simulate(n, every_s, seed)[0] for n in _MAIN for every_s in _EVERY_S for seed in seeds]
    wrong = sum(node not in _GPU_NODES for run in runs for kind, node in run.homes if kind.gpus)
    shares = [_gpu_share(run) for run in runs]
    part = sum(machine.slots for machine in MACHINES if machine.gpus) / sum(each.slots for each in MACHINES)
    note = f"GPU nodes have {part:.3f} of all slots: with more of the jobs than that they are preferred"
    goal = f"<= {part:.3f}"
    return [
        observed("L3: GPU jobs on nodes without GPU", wrong, "jobs", goal="<= 0", note="all runs"),
        measured("L3: other jobs on GPU nodes", shares, "share", note="they run anywhere; all policies"),
        *(
            measured(f"L3: other jobs on GPU nodes, {name}",
                     _over(seeds, _gpu_share, name, _EVERY_S[1]), "share")
            for name in ("value", "value, job-aware", "projected, GPU nodes last")
        ),
        *(
            measured(f"L3: other jobs on GPU nodes, projected, 1 per {every_s:.0f} s",
                     _over(seeds, _gpu_share, "projected", every_s), "share", goal=goal, note=note)
            for every_s in _EVERY_S
        ),
        *_gpu_waits(seeds),
    ]  # fmt: skip


def _gpu_share(run: Trace) -> float:
    return statistics.mean(node in _GPU_NODES for kind, node in run.homes if not kind.gpus)


def _gpu_waits(seeds: range) -> list[Row]:
    """What jobs without GPU on GPU nodes cost those with: nothing, where no GPU waits for a slot."""
    rows = []
    for every_s in _EVERY_S[1:]:
        at = f"1 per {every_s:.0f} s"
        for name in ("value", "projected"):
            waits = _over(seeds, _gpu_wait_s, name, every_s)
            rows.append(measured(f"L3: mean wait of GPU jobs, {at}, {name}", waits, "s"))
    missed = [
        each
        for every_s in _EVERY_S
        for each in _over(seeds, lambda run: run.mean("gpus missed"), "projected", every_s)
    ]
    what = "L3: GPUs idle while a GPU job waits, projected"
    return [*rows, observed(what, max(missed), "GPUs", goal="<= 0", note="most of all runs, time-mean")]


def _gpu_wait_s(run: Trace) -> float:
    return statistics.mean(wait for wait, (kind, _) in zip(run.waits_s, run.homes, strict=True) if kind.gpus)


def _learns(seeds: range) -> Row:
    """L4: prediction improves as history grows."""
    early, late = [], []
    for seed in seeds:
        errors = simulate("value", _EVERY_S[1], seed)[1]
        tenth = len(errors) // 10
        early.append(statistics.mean(errors[:tenth]))
        late.append(statistics.mean(errors[-tenth:]))
    note = "mean absolute error of busy cores, last tenth of the jobs over the first; PREDICT (seed)"
    return ratio("L4: prediction improves as history grows", late, early, goal="<= 1", note=note)


def _shorter(seeds: range) -> list[Row]:
    """L5: a fixed batch ends sooner than under default Torque."""
    seeds = range(_BATCH_SEEDS * len(seeds))
    rows = []
    for n in _BATCHES:
        first = _over(seeds, _makespan_s, "firstfit", 0.0, n_jobs=n)
        for name in ("value", "projected"):
            own = _over(seeds, _makespan_s, name, 0.0, n_jobs=n)
            pairs = [ours / theirs for ours, theirs in zip(own, first, strict=True)]
            last = [simulate(name, 0.0, seed, n_jobs=n)[0].last for seed in seeds]
            on_gpu = sum(kind is not None and kind.gpus > 0 for kind in last)
            what = f"L5: shorter total execution time: {n} jobs at once, {name} over firstfit"
            note = (
                f"makespan, same batch under both, mean {statistics.mean(pairs):.3f} +- {_error(pairs):.3f}; "
                f"54 slots, 3 GPUs; a GPU job ended last in {on_gpu} of {len(last)} runs"
            )
            rows.append(measured(what, pairs, "x", goal="<= 1", note=note))
    return rows


def _error(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of their mean."""
    return 1.96 * statistics.stdev(values) / math.sqrt(len(values))


_TOLD = (("value", "value, no prediction"), ("projected with seed", "projected, no prediction"))


def _heartbeats(seeds: range) -> list[Row]:
    """L6: without prediction the load table ages between heartbeats, the more the more jobs come in one."""
    rows = []
    for ends in (False, True):
        told = "and at each job's end" if ends else "alone"
        for name, without in _TOLD:
            gains = []
            for beat_s in _HEARTBEATS_S:
                plain, with_it = (
                    _over(seeds, _stdev, each, 18.0, heartbeat_s=beat_s, tells_end=ends)
                    for each in (without, name)
                )
                what = f"L6: gain by prediction, {name}, nodes report every {beat_s:.0f} s {told}"
                note = f"cpu stdev without over with; {beat_s / 18.0:.1f} arrivals per heartbeat"
                gains.append(ratio(what, plain, with_it, note=note))
            rows += gains
            if not ends:
                what = f"L6: prediction keeps the load table current between heartbeats, {name}"
                rows.append(_growth(what, gains, f"heartbeats of {_HEARTBEATS_S} s"))
    return rows


def _bursts(seeds: range) -> list[Row]:
    """L6 by bursts: as many jobs per heartbeat, but none of them sees a report that contains the others."""
    rows = []
    for name, without in _TOLD:
        gains = []
        for burst in _BURSTS:
            plain, told = (_over(seeds, _stdev, each, 18.0, burst=burst) for each in (without, name))
            what = f"L6: gain by prediction, {name}, bursts of {burst}"
            note = (
                f"cpu stdev without ({statistics.median(plain):.3f}) over with "
                f"({statistics.median(told):.3f}); 1 job per 18 s on average"
            )
            gains.append(ratio(what, plain, told, note=note))
        rows += gains
        rows.append(_growth(f"L6: the same within bursts, {name}", gains, f"bursts of {_BURSTS}"))
    return rows


def _growth(what: str, gains: Sequence[Row], over: str) -> Row:
    told = ", ".join(f"{row.value:.2f}" for row in gains)
    note = f"last gain over first; gains {told} for {over}"
    return observed(what, gains[-1].value / gains[0].value, "x", goal=">= 1", note=note)


def _at_all_rates(seeds: range) -> list[Row]:
    """All figures at every rate of arrival, and what hangs on those runs: L1 to L4."""
    suffix = f"{len(seeds)} seeds, {_N_JOBS} jobs each"
    rows = [_noted(row, suffix) for every_s in _EVERY_S for row in balance(every_s, seeds)]
    return [*rows, _fills(seeds), *_together(seeds), *_homes(seeds), _learns(seeds)]


def _prediction(seeds: range) -> list[Row]:
    return [*_heartbeats(seeds), *_bursts(seeds)]


_WHY = {
    "L5": (
        "more jobs than slots: each takes whatever slot comes free, so no placement has a choice, and what "
        "ends last is the chain of jobs for the 3 GPUs"
    ),
    "L6": (
        "single jobs at 1 per 18 s are 17 per heartbeat already, and bursts do not add to that: without "
        "prediction the nodes are as uneven at 1 as at 16, with it bursts cost a little"
    ),
}
"""Why a claim does not hold where it does not."""


def claim_table(rows: Sequence[Row]) -> list[Mapping[str, object]]:
    """Claim, check and result of each judged claim, for the report's series."""
    return [
        {
            "claim": row.what,
            "check": f"{row.goal} {row.unit}".strip() + (f" ({row.note})" if row.note else ""),
            "result": round(row.value, 4),
            "holds": row.ok,
            **({} if row.ok else {"why": _WHY.get(row.what[:2], "")}),
        }
        for row in rows
        if row.ok is not None
    ]


def profiled_kinds() -> tuple[Kind, ...]:
    """The types of `torque_profiles`, equally frequent, with `_LONGER` times as much work each."""
    return tuple(
        Kind(each.name, 1.0, load, each.runtime_s * _LONGER, each.ppn, each.gpus)
        for each in profiles()
        for load in [Load(each.cpu_cores, each.mem_bytes, each.gpus_busy, each.gpu_mem_bytes)]
    )


def with_profiles(seeds: range) -> list[Row]:
    """The same with measured types of jobs, as many as keep half of all cores busy."""
    kinds = profiled_kinds()
    work_s = statistics.mean(kind.load.cpu_cores * kind.runtime_s for kind in kinds)
    every_s = work_s / (0.5 * sum(machine.cores for machine in MACHINES))
    origins = ", ".join(f"{profile.name} {profile.origin}" for profile in profiles())
    note = f"{origins}; {_LONGER:.0f} times as long, 1 per {every_s:.1f} s"
    stdev = {name: _over(seeds, _stdev, name, every_s, kinds=kinds) for name in _MAIN}
    return [
        *(measured(f"profiles: cpu stdev, {name}", values, "", note=note) for name, values in stdev.items()),
        ratio("profiles: cpu stdev, projected over value", stdev["projected"], stdev["value"], note=note),
        ratio("profiles: cpu stdev, value over firstfit", stdev["value"], stdev["firstfit"], note=note),
    ]


_PARTS: Mapping[str, Callable[[range], list[Row]]] = {
    f"all rates of arrival, {len(POLICIES)} policies; L1 to L4": _at_all_rates,
    "batches; L5": _shorter,
    "heartbeats and bursts; L6": _prediction,
    "measured types of jobs": with_profiles,
}
"""What is said of each -> its rows; the parts share few runs, so each has a process of its own."""


def _part(name: str, seeds: range) -> list[Row]:
    return _PARTS[name](seeds)


def run(quick: bool, say: Callable[[str], None], report: Report) -> None:
    """Simulate everything, in two processes; `Benchmark`. Quick: 3 seeds instead of 20."""
    seeds = range(3 if quick else 20)
    rows: list[Row] = []
    # Left early, the pool ends its processes at once.
    with multiprocessing.get_context("spawn").Pool(_PROCESSES) as pool:
        for name, found in zip(_PARTS, pool.imap(functools.partial(_part, seeds=seeds), _PARTS), strict=True):
            say(f"{name}, {len(seeds)} seeds: {len(found)} rows")
            rows += found
            report.add(found)
    report.series["claims"] = claim_table([row for row in rows if _CLAIM.match(row.what)])
    report.save()


def _noted(row: Row, suffix: str) -> Row:
    return replace(row, note=row.note or suffix)
