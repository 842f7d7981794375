"""What the paper claims, judged from the cells. Pure: equal cells give equal verdicts.

Figure 6 is judged by the real cells first, whose kernels compute, and then by the emulated ones; Figure 5 by
the emulated cells alone: their kernels take as long as Table 2 says. A verdict is about the task phase (first
task sent to last one done), which was scaled; where a claim is about the whole job, it says so.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.papers.yarn_paper.cells import (
    CLUSTERS,
    EMULATED,
    INTENSITIES,
    KERNELS,
    PAYLOAD_INTENSITY,
    PAYLOAD_MB,
    PAYLOADS_MB,
    REAL,
    SCALES,
    SPECULATION_LAYOUT,
    WEIGHTED_CLUSTER,
    Cells,
    expected_speedup,
)

CONTAINER_GOAL, CONTAINER_CEILING = 1.35, 1.5
WEIGHTED_GOAL, WEIGHTED_IDEAL = 1.7, 2.0
#: What two runs of the same cell may differ by without meaning anything.
_NOISE = 0.05
_FEW = 0.15

Series = dict[int, float]
Finding = tuple[bool, float, str, str]
"""Of a claim: whether it holds, its figure with the unit, and why."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and what came of it.

    Attributes:
        claim: in a few words.
        bound: what must be so for it to hold.
        holds: None: the cells for it are missing.
        value: the figure it is judged by.
        why: the figures behind it, and the cause.
    """

    claim: str
    bound: str
    holds: bool | None
    value: float
    unit: str
    why: str


def phase_speedups(cells: Cells, cluster: str, operation: str) -> Series:
    """By intensity: task phase of 4-0 over that of a cluster."""
    return _speedups(cells.phase_s, cluster, operation)


def job_speedups(cells: Cells, cluster: str, operation: str) -> Series:
    """The same for the whole job."""
    return _speedups(cells.job_s, cluster, operation)


def paper_speedups(cells: Cells, cluster: str, operation: str) -> Series:
    """The whole job's speed-up at the paper's scale, derived.

    The task phase divided by the factor, and the rest of the job as it was: starting a job costs seconds
    here and there, and is not scaled down.
    """
    factor = SCALES[operation].factor

    def seconds(**facts: object) -> float | None:
        phase_s, job_s = cells.phase_s(**facts), cells.job_s(**facts)
        return None if phase_s is None or job_s is None else phase_s / factor + job_s - phase_s

    return _speedups(seconds, cluster, operation)


def judge(cells: Cells) -> list[Claim]:
    """Every claim, in the order of the paper."""
    return [
        Claim(name, bound, *(make(cells) or (None, 0.0, "", "its cells were not run")))
        for name, (bound, make) in CLAIMS.items()
    ]


def _speedups(seconds: Callable[..., float | None], cluster: str, operation: str) -> Series:
    found = {}
    for intensity in INTENSITIES:
        facts = {
            "instrument": EMULATED,
            "operation": operation,
            "intensity": intensity,
            "payload_mb": PAYLOAD_MB,
            "layout": "",
        }
        without = seconds(cluster="4-0", policy="none", **facts)
        with_devices = seconds(cluster=cluster, policy="paper", **facts)
        if without and with_devices:
            found[intensity] = without / with_devices
    return found


def _follows_gpus(cells: Cells) -> Finding | None:
    ratios, deviations, notes = [], [], []
    for name, kernel in KERNELS.items():
        two, four = (phase_speedups(cells, cluster, name) for cluster in ("4-2", "4-4"))
        shared = [each for each in two if each in four]
        ratios += [four[each] / two[each] for each in shared]
        for series, n_accelerators in ((two, 2), (four, 4)):
            expected = expected_speedup(kernel, n_accelerators)
            deviations += [value / expected for value in series.values()]
        if shared:
            last = max(shared)
            notes.append(
                f"{name} {two[last]:.1f} and {four[last]:.1f} (Table 2 gives "
                f"{expected_speedup(kernel, 2):.1f} and {kernel.speedup:.1f})"
            )
    if not ratios:
        return None
    median = statistics.median(ratios)
    worst = max(abs(each - 1) for each in deviations)
    holds = abs(median - 2) <= 2 * _NOISE and worst <= _FEW
    why = (
        f"speed-up of 4-2 and 4-4 at the highest intensity: {'; '.join(notes)}; at any intensity at most "
        f"{worst:.0%} from the number of GPUs times Table 2; 4-4 over 4-2 "
        f"{min(ratios):.2f} to {max(ratios):.2f}"
    )
    return (holds, median, "x, 4-4 over 4-2", why)


def _grows(cells: Cells) -> Finding | None:
    is_growing, steps, notes = [], [], []
    for cluster in ("4-2", "4-3", "4-4"):
        for name in KERNELS:
            series = job_speedups(cells, cluster, name)
            if len(series) < 2:
                continue
            values = [series[each] for each in sorted(series)]
            growth = [after / before for before, after in itertools.pairwise(values)]
            is_growing.append(min(growth) >= 1 - _NOISE and values[-1] > values[0])
            steps.append(values[-1] / values[0])
            if cluster == "4-4":
                scaled = paper_speedups(cells, cluster, name)
                ends = (scaled[min(series)], scaled[max(series)])
                notes.append(
                    f"{name} {values[0]:.2f} -> {values[-1]:.2f} (at the paper's scale {ends[0]:.2f} -> "
                    f"{ends[1]:.2f})"
                )
    if not steps:
        return None
    why = (
        f"whole job, 4-4: {'; '.join(notes)}; {sum(is_growing)} of {len(is_growing)} curves rise at every "
        "step: starting the job costs the same at every intensity (and is not scaled down here), so longer "
        "tasks show more of the kernels' own speed-up; the task phase hardly changes"
    )
    return (all(is_growing), statistics.median(steps), "x, highest over lowest intensity", why)


def _payload(cells: Cells) -> Finding | None:
    spreads: dict[str, float] = {}
    trends = []
    for cluster in ("4-2", "4-3", "4-4"):
        for name in KERNELS:
            found = {
                payload: cells.phase_s(
                    instrument=EMULATED,
                    cluster=cluster,
                    policy="paper",
                    operation=name,
                    intensity=PAYLOAD_INTENSITY,
                    payload_mb=payload,
                    layout="",
                )
                for payload in PAYLOADS_MB
            }
            values = [value for value in found.values() if value]
            if len(values) >= 2:
                spreads[f"{cluster} {name}"] = max(values) / min(values)
                trends.append(values[-1] / values[0])
    if not spreads:
        return None
    widest = max(spreads, key=lambda which: spreads[which])
    trend = statistics.median(trends)
    why = (
        f"longest over shortest task phase of one cluster and operation: {spreads[widest]:.3f} at most "
        f"({widest}); largest over smallest payload {trend:.3f} (median): with several tasks in flight what "
        "travels is hidden behind the kernel before it"
    )
    holds = spreads[widest] <= 1 + _NOISE and abs(trend - 1) <= _NOISE
    return (holds, spreads[widest], "x, longest over shortest", why)


def _above_single_node(cells: Cells) -> Finding | None:
    over, notes = [], []
    for name in ("lu", "cholesky"):
        series = phase_speedups(cells, "4-4", name)
        if 8 in series:
            over.append(series[8] / KERNELS[name].speedup)
            notes.append(f"{name} {series[8]:.2f} against {KERNELS[name].speedup:.2f} on one node")
    if not over:
        return None
    why = f"{'; '.join(notes)}; {_speculation(cells)}"
    return (min(over) > 1 + _NOISE, min(over), "x, of the single node's", why)


def _speculation(cells: Cells) -> str:
    """What speculation did to the jobs without accelerators."""
    plain = cells.find(instrument=EMULATED, cluster="4-0", intensity=8, layout="")
    plain = [cell for cell in plain if cell.key.operation != "features"]
    said = (
        f"Hadoop started {sum(c.n_surplus_attempts for c in plain)} speculative attempts in {len(plain)} jobs"
    )
    found: dict[tuple[str, str], float] = {}
    attempts: dict[str, int] = {}
    for cluster in ("4-0", "4-4"):
        for state in ("off", "on"):
            facts = {"cluster": cluster, "layout": SPECULATION_LAYOUT + state}
            seconds = cells.job_s(**facts)
            if seconds:
                found[cluster, state] = seconds
                attempts[f"{cluster} {state}"] = sum(c.n_surplus_attempts for c in cells.find(**facts))
    if len(found) < 4:
        return f"{said} of 4-0 at intensity 8, so the paper's cause was absent"
    without, with_it = (found["4-0", state] / found["4-4", state] for state in ("off", "on"))
    return (
        f"{said} of 4-0 at intensity 8, where all mappers are alike; with "
        f"{SPECULATION_LAYOUT.rpartition(',')[0]}, it started {attempts['4-0 on']} in 4-0 and "
        f"{attempts['4-4 on']} in 4-4: whole job of 4-0 {found['4-0', 'off']:.1f} s without speculation, "
        f"{found['4-0', 'on']:.1f} s with it, so the speed-up of 4-4 {without:.2f} and {with_it:.2f}"
    )


def _images_fall(cells: Cells, instrument: str) -> Finding | None:
    facts = {"instrument": instrument, "operation": "features"}
    phases = {cluster: cells.phase_s(cluster=cluster, **facts) for cluster in CLUSTERS}
    jobs = {cluster: cells.job_s(cluster=cluster, **facts) for cluster in CLUSTERS}
    none, two, four = (phases[cluster] for cluster in ("4-0", "4-2", "4-4"))
    if none is None or two is None or four is None:
        return None
    three = phases["4-3"]
    holds = none > two * (1 + _NOISE) and two > four * (1 + _NOISE)
    holds = holds and (jobs["4-0"] or 0) > (jobs["4-2"] or 0) > (jobs["4-4"] or 0)
    shown = ", ".join(f"{c} {phases[c]:.1f} s ({jobs[c]:.1f} s)" for c in CLUSTERS if phases[c] is not None)
    same = f"; 4-3 over 4-2 {three / two:.2f}" if three else ""
    shared = "; all nodes share the cores of this machine, so more servers have no more to compute with"
    why = f"task phase (whole job): {shown}{same}{shared if instrument == REAL else ''}"
    return (holds, two / four, "x, 4-2 over 4-4", why)


def _three_like_two(cells: Cells) -> Finding | None:
    ratios = []
    for name in KERNELS:
        two, three = (phase_speedups(cells, cluster, name) for cluster in ("4-2", "4-3"))
        ratios += [three[each] / two[each] for each in two if each in three]
    if not ratios:
        return None
    median = statistics.median(ratios)
    why = (
        f"4-3 over 4-2 is {min(ratios):.2f} to {max(ratios):.2f}: two nodes with 25 tasks each share one "
        "accelerator in both, and the job ends with its slowest node"
    )
    return (max(ratios) <= 1 + _NOISE and median >= 1 - _NOISE, median, "x, 4-3 over 4-2", why)


def _container(cells: Cells) -> Finding | None:
    facts = {"instrument": EMULATED, "cluster": "4-3", "operation": "lu", "intensity": 8, "layout": ""}
    facts["payload_mb"] = PAYLOAD_MB
    before, after = (cells.phase_s(policy=policy, **facts) for policy in ("paper", "container"))
    if not before or not after:
        return None
    gain = before / after
    servers = [sorted(c.per_server.values()) for c in cells.find(policy="container", **facts)]
    why = (
        f"task phase of 4-3, lu, intensity 8: paper {before:.2f} s, container {after:.2f} s (ceiling "
        f"{CONTAINER_CEILING}: 50 tasks on the busiest server against 33.3); tasks by server {servers}"
    )
    return (gain >= CONTAINER_GOAL, gain, "x faster", why)


def _weighted(cells: Cells) -> Finding | None:
    facts = {"instrument": EMULATED, "cluster": WEIGHTED_CLUSTER, "operation": "lu"}
    before, after = (cells.phase_s(policy=policy, **facts) for policy in ("unweighted", "weighted"))
    if not before or not after:
        return None
    gain = before / after
    shares = {
        policy: [sorted(c.per_server.values()) for c in cells.find(policy=policy, **facts)][:1]
        for policy in ("unweighted", "weighted")
    }
    why = (
        f"accelerators of speed 1:2:4 and three more nodes, 25 tasks on each of six: unweighted "
        f"{before:.2f} s, weighted {after:.2f} s (ideal {WEIGHTED_IDEAL}); tasks by server {shares}"
    )
    return (gain >= WEIGHTED_GOAL, gain, "x faster", why)


#: By what is claimed: the bound in words, and what judges it, which returns None where cells are missing.
CLAIMS: Mapping[str, tuple[str, Callable[[Cells], Finding | None]]] = {
    "the speed-up follows the number of GPUs; 4-4 over 4-2 about 2": (
        "median within 5 % of 2, each speed-up within 15 % of GPUs x Table 2",
        _follows_gpus,
    ),
    "the speed-up grows with the intensity of a task": ("every curve rises, no step falls by > 5 %", _grows),
    "the speed-up does not depend on the payload": (
        "longest <= 1.05 x shortest, largest payload within 5 % of the smallest",
        _payload,
    ),
    "above the single node's speed-up at intensity 8 (LU, Cholesky), by speculation": (
        "> 1.05 x the single node's",
        _above_single_node,
    ),
    "real kernels: the image job's time falls with the number of GPUs": (
        "falls by > 5 % from 4-0 to 4-2 and from 4-2 to 4-4",
        functools.partial(_images_fall, instrument=REAL),
    ),
    "emulated kernels: the image job's time falls with the number of GPUs": (
        "falls by > 5 % from 4-0 to 4-2 and from 4-2 to 4-4",
        functools.partial(_images_fall, instrument=EMULATED),
    ),
    "with `paper` 4-3 is no better than 4-2": ("median within 5 % of 1, none above 1.05", _three_like_two),
    f"with `container` 4-3 is at least {CONTAINER_GOAL} x faster than with `paper`": (
        f">= {CONTAINER_GOAL}",
        _container,
    ),
    f"`weighted` is at least {WEIGHTED_GOAL} x faster than unweighted": (f">= {WEIGHTED_GOAL}", _weighted),
}
