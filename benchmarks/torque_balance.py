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
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.result import Report, Row, measured, observed, ratio
from benchmarks.torque_balance_cluster import (
    GIB,
    MACHINES,
    Cluster,
    History,
    Kind,
    Trace,
    tasks_of,
)
from benchmarks.torque_profiles import profiles
from torque_sched.policies.backfill import NoReservations
from torque_sched.policies.load import Load
from torque_sched.policies.registry import new_placement
from torque_sched.policies.rules import NodeRules, Rates
from torque_sched.policies.settings import Settings

__all__ = ["KINDS", "POLICIES", "Policy", "claims", "profiled_kinds", "run", "simulate", "with_profiles"]

_NOISE = 0.3
_EVERY_S = (40.0, 18.0, 14.0)
_N_JOBS = 200
_BATCHES = (40, 120)
"""Of fixed size, submitted at once: fewer than the 54 slots, and more."""
_BURSTS = (1, 4, 16)
_LARGE = 2.0
"""A gain by prediction above this is large for single jobs already."""
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
    is_job_aware: bool = False

    def settings(self) -> Settings:
        """The scheduler's settings: samples are exact and never stale here, and nobody jumps the queue."""
        values = {"job_aware": True} if self.is_job_aware else {}
        rates = {machine.name: Rates(machine.speed, machine.gpu_speed) for machine in MACHINES}
        rules = NodeRules(
            sample_lag_s=0.0,
            stale_after_s=float("inf"),
            dead_after_s=0.0,
            rates=rates,
            unknown_is_mean=self.predictor == "seed",
        )
        return Settings(
            placement=new_placement(self.placement, **values), nodes=rules, backfill=NoReservations()
        )


POLICIES = {
    "firstfit": Policy("firstfit"),
    "round_robin": Policy("round_robin"),
    "loadave": Policy("loadave"),
    "value": Policy("value", "seed"),
    "projected": Policy("projected", "chain"),
    # To tell apart what comes from where.
    "value, no prediction": Policy("value"),
    "value, job-aware": Policy("value", "seed", is_job_aware=True),
    "projected, no prediction": Policy("projected"),
    "projected with seed": Policy("projected", "seed"),
}
_MAIN = tuple(POLICIES)[:5]


@functools.cache
def simulate(
    name: str,
    every_s: float,
    seed: int,
    n_jobs: int = _N_JOBS,
    burst: int = 1,
    kinds: tuple[Kind, ...] = KINDS,
) -> tuple[Trace, tuple[float, ...]]:
    """One run; also the errors of the expected busy cores, in the order in which jobs ended."""
    policy = POLICIES[name]
    history = History(policy.predictor)
    arrivals = tasks_of(kinds, n_jobs, every_s, _NOISE, seed, burst)
    return Cluster(policy.settings(), history).run(arrivals), tuple(history.errors)


def _means(name: str, every_s: float, seeds: range, figure: str) -> list[float]:
    return [simulate(name, every_s, seed)[0].mean(figure) for seed in seeds]


def _makespans(name: str, every_s: float, seeds: range, n_jobs: int = _N_JOBS) -> list[float]:
    return [simulate(name, every_s, seed, n_jobs)[0].makespan_s for seed in seeds]


def balance(every_s: float, seeds: range) -> list[Row]:
    """All figures of all policies at one rate of arrival, then what they are compared by."""
    at = f"1 job per {every_s:.0f} s"
    rows = []
    for name in POLICIES:
        for figure in ("cpu stdev", "cpu range", "cpu overload", "memory stdev"):
            values = _means(name, every_s, seeds, figure)
            rows.append(measured(f"{at}: {figure}, {name}", values, ""))
        rows.append(measured(f"{at}: makespan, {name}", _makespans(name, every_s, seeds), "s"))
        waits = [statistics.mean(simulate(name, every_s, seed)[0].waits_s) for seed in seeds]
        rows.append(measured(f"{at}: mean wait, {name}", waits, "s"))
    stdev = {name: _means(name, every_s, seeds, "cpu stdev") for name in _MAIN}
    first = _makespans("firstfit", every_s, seeds)
    return [
        *rows,
        ratio(f"{at}: cpu stdev, projected over value", stdev["projected"], stdev["value"], goal="<= 0.5"),
        ratio(f"{at}: cpu stdev, value over firstfit", stdev["value"], stdev["firstfit"], goal="<= 0.7"),
        *(
            ratio(
                f"{at}: makespan, {name} over firstfit", _makespans(name, every_s, seeds), first, goal="<= 1"
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
                [v for every_s in _EVERY_S for v in _means(name, every_s, seeds, figure)]
                for name in ("value", other)
            )
            what = f"L2: VALUE makes CPU and memory rise together: {figure}, value over {other}"
            rows.append(ratio(what, value, plain, goal="<= 1", note="time-mean; all three rates"))
    return rows


def _homes(seeds: range) -> list[Row]:
    """L3: jobs with GPUs on GPU nodes only, others anywhere."""
    gpu_nodes = {machine.name for machine in MACHINES if machine.gpus}
    wrong, plain = 0, {True: 0, False: 0}
    for name in _MAIN:
        for every_s in _EVERY_S:
            for seed in seeds:
                for kind, node in simulate(name, every_s, seed)[0].homes:
                    if kind.gpus:
                        wrong += node not in gpu_nodes
                    else:
                        plain[node in gpu_nodes] += 1
    share = plain[True] / sum(plain.values())
    part = sum(machine.slots for machine in MACHINES if machine.gpus) / sum(each.slots for each in MACHINES)
    note = f"GPU nodes have {part:.3f} of all slots: with more of the jobs than that they are preferred"
    return [
        observed("L3: GPU jobs on nodes without GPU", wrong, "jobs", goal="<= 0", note="all runs"),
        observed("L3: other jobs on GPU nodes", share, "share", note="they run anywhere; all policies"),
        *(
            observed(f"L3: other jobs on GPU nodes, {name}", _gpu_share(name, seeds, gpu_nodes), "share")
            for name in ("value", "value, job-aware")
        ),
        observed(
            "L3: other jobs on GPU nodes, projected", _gpu_share("projected", seeds, gpu_nodes), "share",
            goal=f"<= {part:.3f}", note=note,
        ),
    ]  # fmt: skip


def _gpu_share(name: str, seeds: range, gpu_nodes: set[str]) -> float:
    places = [
        node in gpu_nodes
        for seed in seeds
        for kind, node in simulate(name, _EVERY_S[1], seed)[0].homes
        if not kind.gpus
    ]
    return sum(places) / len(places)


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
    return [
        ratio(
            f"L5: shorter total execution time: {n} jobs at once, {name} over firstfit",
            _makespans(name, 0.0, seeds, n),
            _makespans("firstfit", 0.0, seeds, n),
            goal="<= 1",
            note="makespan; 54 slots: with more jobs than slots every placement fills all of them",
        )
        for n in _BATCHES
        for name in ("value", "projected")
    ]


def _bursts(seeds: range) -> list[Row]:
    """L6: without prediction the load table ages between heartbeats, the more the more jobs come."""
    rows = []
    gains: dict[str, list[float]] = {}
    for name, without in (
        ("value", "value, no prediction"),
        ("projected with seed", "projected, no prediction"),
    ):
        for burst in _BURSTS:
            plain, told = (
                [simulate(each, 18.0, seed, burst=burst)[0].mean("cpu stdev") for seed in seeds]
                for each in (without, name)
            )
            what = f"L6: gain by prediction, {name}, bursts of {burst}"
            rows.append(
                ratio(what, plain, told, note="cpu stdev without over with; 1 job per 18 s on average")
            )
            gains.setdefault(name, []).append(rows[-1].value)
    for name, values in gains.items():
        growth = values[-1] / values[0]
        what = f"L6: prediction keeps the load table current, {name}: gain in large bursts over single jobs"
        note = f"gains {', '.join(f'{gain:.2f}' for gain in values)} for bursts of {_BURSTS}"
        if min(values) > _LARGE:
            note += "; so large already for single jobs that bursts leave nothing to gain"
        rows.append(observed(what, growth, "x", goal=">= 1", note=note))
    return rows


def claims(seeds: range) -> list[Row]:
    """The paper's claims L1 to L6, each with its check and what came out."""
    return [
        _fills(seeds),
        *_together(seeds),
        *_homes(seeds),
        _learns(seeds),
        *_shorter(seeds),
        *_bursts(seeds),
    ]


def claim_table(rows: Sequence[Row]) -> list[Mapping[str, object]]:
    """Claim, check and result of each judged claim, for the report's series."""
    return [
        {
            "claim": row.what,
            "check": f"{row.goal} {row.unit}".strip() + (f" ({row.note})" if row.note else ""),
            "result": round(row.value, 4),
            "holds": row.ok,
        }
        for row in rows
        if row.ok is not None
    ]


def profiled_kinds() -> tuple[Kind, ...]:
    """The types of `torque_profiles`, equally frequent, with `_LONGER` times as much work each."""
    return tuple(
        Kind(
            profile.name,
            1.0,
            Load(profile.cpu_cores, profile.mem_bytes, profile.gpus_busy, profile.gpu_mem_bytes),
            profile.runtime_s * _LONGER,
            profile.ppn,
            profile.gpus,
        )
        for profile in profiles()
    )


def with_profiles(seeds: range) -> list[Row]:
    """The same with measured types of jobs, as many as keep half of all cores busy."""
    kinds = profiled_kinds()
    work_s = statistics.mean(kind.load.cpu_cores * kind.runtime_s for kind in kinds)
    every_s = work_s / (0.5 * sum(machine.cores for machine in MACHINES))
    origins = ", ".join(f"{profile.name} {profile.origin}" for profile in profiles())
    note = f"{origins}; {_LONGER:.0f} times as long, 1 per {every_s:.1f} s"
    stdev = {
        name: [simulate(name, every_s, seed, kinds=kinds)[0].mean("cpu stdev") for seed in seeds]
        for name in _MAIN
    }
    return [
        *(measured(f"profiles: cpu stdev, {name}", values, "", note=note) for name, values in stdev.items()),
        ratio("profiles: cpu stdev, projected over value", stdev["projected"], stdev["value"], note=note),
        ratio("profiles: cpu stdev, value over firstfit", stdev["value"], stdev["firstfit"], note=note),
    ]


def run(quick: bool, say: Callable[[str], None], report: Report) -> None:
    """Simulate everything; `Benchmark`. Quick: 3 seeds instead of 20."""
    seeds = range(3 if quick else 20)
    suffix = f"{len(seeds)} seeds, {_N_JOBS} jobs each"
    for every_s in _EVERY_S:
        say(f"1 job per {every_s:.0f} s, {len(POLICIES)} policies, {suffix}")
        report.add([_noted(row, suffix) for row in balance(every_s, seeds)])
    say("measured types of jobs")
    report.add(with_profiles(seeds))
    say("claims L1 to L6")
    rows = claims(seeds)
    report.series["claims"] = claim_table(rows)
    report.add(rows)


def _noted(row: Row, suffix: str) -> Row:
    return replace(row, note=row.note or suffix)
