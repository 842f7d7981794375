"""Every figure that the paper states, beside ours: "holds / does not", and why not.

A figure holds where ours is within `_CLOSE` of it, or on the same side of a bound. The worlds were fitted to
these same statements (`paper.SETS`), since the paper's table of tasks is lost.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

from benchmarks.papers.hdas_paper.paper import EXCEPTIONS, MIXES, Run
from benchmarks.result import Row
from yarn_accel.core.tasks.contention import READ_SECONDS, profile_of
from yarn_accel.core.tasks.values import FormFigures

# ---- A second model of contention, measured by others: jobs that share a GPU (Gavel, OSDI 2020).
#
# Equation (3) is asked about GPUs as it is about disks: the shared limit B is the whole GPU, a job's request
# is the part of it that the job uses. That part is known from the job beside its own twin, so every other
# pair is a prediction. A scheduler needs the order of the pairs, not their delays: ranks are compared.

_FILE = Path(__file__).parent / "gavel" / "colocated.csv"
_GPUS = ("k80", "p100", "v100")
_WHOLE_GPU = 1.0


@dataclass
class Rates:
    """Steps per second on one kind of GPU: alone, and of both jobs of each pair that fits."""

    alone: dict[str, float] = field(default_factory=dict)
    pairs: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)


def load_rates(gpu: str) -> Rates:
    """The measured rates of one kind of GPU."""
    rates = Rates()
    with _FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] != gpu:
                continue
            if not row["partner"]:
                rates.alone[row["job"]] = float(row["job_steps_per_s"])
                continue
            both = float(row["job_steps_per_s"]), float(row["partner_steps_per_s"])
            if min(both) > 0:
                rates.pairs[row["job"], row["partner"]] = both
    return rates


def pair_delays(rates: Rates, form: str) -> list[tuple[float, float]]:
    """(predicted, measured) mean delay of each pair of two different jobs, by a form of equation (3)."""
    requests = {
        job: rates.alone[job] / (sum(rates.pairs[job, job]) / 2) / 2
        for job in rates.alone
        if (job, job) in rates.pairs
    }
    found = []
    for pair in combinations(sorted(requests), 2):
        if pair not in rates.pairs:
            continue
        measured = fmean(rates.alone[job] / rate for job, rate in zip(pair, rates.pairs[pair], strict=True))
        predicted = fmean(_delay(requests, job, other, form) for job, other in (pair, pair[::-1]))
        found.append((predicted, measured))
    return found


def _delay(requests: Mapping[str, float], job: str, other: str, form: str) -> float:
    profile = profile_of(FormFigures(1.0, 0.0), requests[job])
    return READ_SECONDS[form](profile, requests[other], 1, _WHOLE_GPU)


def _ranks(values: list[float]) -> list[float]:
    """Rank of each value; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for each in order[first : last + 1]:
            ranks[each] = (first + last) / 2
        first = last + 1
    return ranks


def rank_correlation(pairs: Iterable[tuple[float, float]]) -> float:
    """Spearman's rank correlation: 1 for the same order, -1 for the opposite one."""
    xs, ys = (_ranks(list(values)) for values in zip(*pairs, strict=True))
    mean_x, mean_y = fmean(xs), fmean(ys)
    together = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    apart = sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys)
    return float(together / apart**0.5)


def colocation_rows() -> list[Row]:
    """Whether the predicted order of pairs is the measured one, for each kind of GPU."""
    rows = []
    for gpu in _GPUS:
        rates = load_rates(gpu)
        by_form = {form: pair_delays(rates, form) for form in READ_SECONDS}
        rho = {form: rank_correlation(pairs) for form, pairs in by_form.items()}
        pairs = by_form["equal-share"]
        others = ", ".join(f"{form} {value:.2f}" for form, value in rho.items() if form != "equal-share")
        note = (
            f"{len(pairs)} pairs of {len(rates.alone)} jobs; mean delay predicted "
            f"{fmean(p for p, _ in pairs):.2f}, measured {fmean(m for _, m in pairs):.2f}; {others}. "
            "Agrees from 0.5 on: a job's demand on a GPU is more than one number"
        )
        what = f"Gavel, {gpu.upper()}: order of pairs by eq (3) against measured"
        value = rho["equal-share"]
        rows.append(Row(what, value, "Spearman", len(pairs), None, "agrees: >= 0.5", value >= 0.5, note))
    return rows


#: What a figure of ours may be off by, as a part of the paper's.
_CLOSE = 0.05
_SAME = 0.01
_TRIPLES = tuple(letter for letter, mix in MIXES.items() if len(mix) == 3)
_OTHERS = tuple(letter for letter in MIXES if letter not in EXCEPTIONS)
_LITTLE_DELAY = 1.06
#: By how much less time hdas must take than the model for a mix to count as better.
_CLEARLY = 0.02

_TASK_TIMES = (
    "the paper's table of tasks is lost: counts, CPU times and two splits are fitted to all statements"
)
_TAIL = "a long task (RS 2,300 to 2,617 s, BP 941 to 968 s) that starts late on a core makes the mix wait"
_TIE = "an idle disk delays nobody, so a tie at delay 1 hands KNN its GPUs by the fewest GPU tasks so far"


@dataclass(frozen=True)
class Mixes:
    """The runs of one parameter set."""

    runs: Mapping[tuple[str, str], Run]

    def speedup(self, letter: str, policy: str) -> float:
        """Makespan of Hadoop's own, CPU only, over that of a policy."""
        return self.runs[letter, "hadoop"].makespan_s / self.runs[letter, policy].makespan_s

    def saved(self, letter: str, policy: str) -> float:
        """Which part of FIFO's makespan a policy saves."""
        return 1 - self.runs[letter, policy].makespan_s / self.runs[letter, "fifo"].makespan_s

    def delay(self, letter: str, policy: str) -> float:
        """Mean delay of all tasks, equation (5)."""
        return self.runs[letter, policy].mean_delay

    def speedups(self, policy: str) -> list[float]:
        """Of all 25 mixes."""
        return [self.speedup(letter, policy) for letter in MIXES]


def _near(what: str, paper: float, ours: float, unit: str, why: str = _TASK_TIMES) -> Row:
    holds = abs(ours - paper) <= _CLOSE * abs(paper)
    return _row(what, f"{paper:g}", ours, unit, holds, why)


def _row(
    what: str, paper: str, ours: float, unit: str, holds: bool, why: str = _TASK_TIMES, always: str = ""
) -> Row:
    note = "; ".join(part for part in (always, "" if holds else why) if part)
    return Row(what, ours, unit, 1, None, f"paper: {paper}", holds, note)


def _speedups(mixes: Mixes) -> Iterator[Row]:
    for policy, paper in (("fifo", 14.3), ("model", 17.9), ("hdas", 21.9)):
        ours = fmean(mixes.speedups(policy))
        yield _near(f"mean speed-up over Hadoop, {policy}", paper, ours, "x", _TAIL)
    yield _near("greatest speed-up, hdas", 31.0, max(mixes.speedups("hdas")), "x")
    best_c = max(mixes.speedup("C", policy) for policy in ("fifo", "model", "hdas"))
    is_low = round(best_c, 1) <= 2.8
    yield _row("C: speed-up of the best of three", "<= 2.8", best_c, "x", is_low)
    of_i = [mixes.speedup("I", policy) for policy in ("fifo", "model", "hdas")]
    yield _row("I: speed-up of the worst of three", "> 21.0", min(of_i), "x", min(of_i) > 21.0)
    spread = max(of_i) / min(of_i) - 1
    yield _row("I: the three policies differ by", "nearly 0", spread, "share", spread <= _SAME, _TAIL)


def _savings(mixes: Mixes) -> Iterator[Row]:
    for policy, mean, greatest in (("model", 0.187, 0.357), ("hdas", 0.336, 0.505)):
        saved = [mixes.saved(letter, policy) for letter in MIXES]
        why = _TAIL if policy == "hdas" else _TASK_TIMES
        yield _near(f"time saved against fifo, {policy}, mean", mean, fmean(saved), "share", why)
        yield _near(f"time saved against fifo, {policy}, most", greatest, max(saved), "share", why)
    triples = {letter: mixes.saved(letter, "model") for letter in _TRIPLES}
    yield _near("time saved by the model, mixes of three, mean", 0.175, fmean(triples.values()), "share")
    yield _near("time saved by the model, mixes of three, most", 0.299, max(triples.values()), "share")
    yield _near("P: time saved by the model", 0.089, triples["P"], "share")
    least_helped = min(triples, key=triples.__getitem__)
    always = f"least is {least_helped} with {triples[least_helped]:.3f}"
    what = "P is the mix of three that the model helps least"
    yield _row(what, "yes", triples["P"], "share", least_helped == "P", always=always)


def _delays(mixes: Mixes) -> Iterator[Row]:
    for policy, paper in (("model", 1.6), ("hdas", 1.2)):
        ours = fmean(mixes.delay(m, policy) for m in MIXES)
        yield _near(f"mean delay of 25 mixes, {policy}", paper, ours, "x")
    above = {m: mixes.delay(m, "hdas") for m in MIXES if round(mixes.delay(m, "hdas"), 2) > _LITTLE_DELAY}
    always = "above: " + ", ".join(f"{m} {delay:.3f}" for m, delay in above.items())
    n_within = len(MIXES) - len(above)
    why = "beside A, C, F and L, the paper's own, mixes with two or three applications of readers"
    what = "mixes with a delay of at most 1.06, hdas"
    yield _row(what, "21", n_within, "mixes", n_within >= 21, why, always)
    for policy, paper in (("fifo", 3.0), ("model", 3.0), ("hdas", 2.9)):
        yield _near(f"C: mean delay, {policy}", paper, mixes.delay("C", policy), "x")
    for policy in ("fifo", "model", "hdas"):
        delay = mixes.delay("I", policy)
        yield _row(f"I: mean delay, {policy}", "hardly any", delay, "x", delay <= 1.02)
    for letter in "ABDF":
        ours = max(mixes.delay(letter, policy) for policy in ("model", "hdas"))
        holds = ours < mixes.delay(letter, "fifo")
        bound = f"below fifo's {mixes.delay(letter, 'fifo'):.2f}"
        why = "the model's: it gives all GPUs to one application, whose readers meet each other"
        yield _row(f"{letter}: mean delay, worse of model and hdas", bound, ours, "x", holds, why)


def _order(mixes: Mixes) -> Iterator[Row]:
    for letter in EXCEPTIONS:
        ratio = mixes.speedup(letter, "hdas") / mixes.speedup(letter, "model")
        holds = abs(ratio - 1) <= 0.1
        why = (
            _TAIL if ratio < 1 else "hdas is better: it also lets readers of one application meet less often"
        )
        yield _row(f"{letter}: hdas over model", "about 1", ratio, "x", holds, why)
    better = [m for m in _OTHERS if mixes.saved(m, "hdas") > mixes.saved(m, "model") + _CLEARLY]
    always = f"not clearly: {', '.join(sorted(set(_OTHERS) - set(better))) or 'none'}"
    what = "of the 18 other mixes, hdas clearly faster than model and fifo"
    yield _row(what, "18", len(better), "mixes", len(better) == len(_OTHERS), _TAIL, always)
    less = [m for m in _OTHERS if mixes.delay(m, "hdas") < min(mixes.delay(m, p) for p in ("fifo", "model"))]
    what = "of the 18 other mixes, delay least under hdas"
    yield _row(what, "18", len(less), "mixes", len(less) == len(_OTHERS), _TAIL)


def _mix_p(mixes: Mixes) -> Iterator[Row]:
    fifo, model, hdas = (mixes.runs["P", policy] for policy in ("fifo", "model", "hdas"))
    for app, papers in (("KNN", (4.8, 4.2)), ("NB", (2.7, 3.1))):
        for name, paper, run in zip(("fifo", "model"), papers, (fifo, model), strict=True):
            yield _near(f"P: delay of {app} on GPUs, {name}", paper, run.delay(app, "gpu"), "x")
    for name, run in (("fifo", fifo), ("model", model)):
        yield _near(f"P: mean delay, {name}", 1.6, run.mean_delay, "x")
    cpu = max(run.delay(app, "cpu") for run in (fifo, model) for app in MIXES["P"])
    yield _row("P: greatest mean delay on CPUs, fifo and model", "about 1", cpu, "x", cpu <= 1.05)
    bp = max(run.delay("BP", "gpu") for run in (fifo, model))
    yield _row("P: delay of BP on GPUs, fifo and model", "about 1", bp, "x", bp <= 1.05)
    on_cpu = model.forms["BP"]["cpu"][0]
    yield _row("P: BP's tasks on CPUs, model", "0", on_cpu, "tasks", on_cpu == 0)
    nb = hdas.share("NB", "gpu")
    yield _row("P: share of NB's tasks on GPUs, hdas", "high", nb, "share", nb >= 0.9)
    knn = hdas.share("KNN", "gpu")
    yield _row("P: share of KNN's tasks on GPUs, hdas", "0", knn, "share", knn <= 0.05, _TIE)
    for figure, name in (("GPUs that compute", "gpu_computing"), ("disk in use", "io_used")):
        values = [getattr(run, name) for run in (fifo, model, hdas)]
        always = "one node over time: fifo {:.2f}, model {:.2f}, hdas {:.2f}".format(*values)
        what, stated = f"P: {figure}, figures 3, 4, 10, hdas", "fifo < model < hdas"
        yield _row(what, stated, values[2], "share", values[0] < values[1] < values[2], _TAIL, always)


_PARTS: tuple[Callable[[Mixes], Iterable[Row]], ...] = (_speedups, _savings, _delays, _order, _mix_p)


def _named(rows: Iterable[Row], name: str) -> list[Row]:
    return [replace(row, what=f"{name}: {row.what}") for row in rows]


def claim_rows(name: str, mixes: Mixes) -> list[Row]:
    """All statements, judged by one parameter set."""
    return _named((row for part in _PARTS for row in part(mixes)), name)


def goal_rows(name: str, mixes: Mixes, goals: Mapping[str, float]) -> list[Row]:
    """Our own goals, and what the tail guard changes.

    Args:
        name: of the parameter set.
        mixes: its runs.
        goals: policy -> mean speed-up to reach, where there is one.
    """
    rows = []
    n = len(MIXES)
    for policy in ("hdas", "hdas+"):
        ours, goal = fmean(mixes.speedups(policy)), goals.get(policy)
        judged = ("", None) if goal is None else (f">= {goal}", ours >= goal)
        rows.append(Row(f"mean speed-up, {policy}", ours, "x", n, None, *judged))
    saved = [mixes.saved(letter, "hdas+") for letter in MIXES]
    delay = fmean(mixes.delay(letter, "hdas+") for letter in MIXES)
    note = (
        f"least {min(saved):.3f}, most {max(saved):.3f}; mean delay {delay:.2f}; greatest speed-up "
        f"{max(mixes.speedups('hdas+')):.1f}"
    )
    what = "time saved against fifo, hdas+ (ours), mean"
    rows.append(Row(what, fmean(saved), "share", n, None, note=note))
    return _named(rows, name)
