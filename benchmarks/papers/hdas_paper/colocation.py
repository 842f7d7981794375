"""A second model of contention, measured by others: jobs that share a GPU (Gavel, OSDI 2020).

Equation (3) is asked about GPUs as it is about disks: the shared limit B is the whole GPU, a job's request is
the part of it that the job uses. That part is known from the job beside its own twin, so every other pair is
a prediction. A scheduler needs the order of the pairs, not their delays: ranks are compared.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean

from benchmarks.result import Row
from yarn_accel.core.tasks.contention import READ_SECONDS, profile_of
from yarn_accel.core.tasks.values import FormFigures

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
