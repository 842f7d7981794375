"""How inputs that the papers lost were chosen: ``python -m benchmarks.papers.fit hdas`` and ``... torque``.

`hdas` searches the task times of the HDAS worlds by CMA-ES (Hansen and Ostermeier 2001) so that those
statements of the paper come out that the report shows as fitted. The shipped sets S1 and S2 were found by an
earlier form of this search, from other beginnings. Fixed is what the paper states: the parts of time that
KNN, Kmeans and NB read, the splits of KNN, NB and BP, BP's 23.6 s.

`torque` goes through sizes of nodes and run times of jobs around those of the balance benchmark, which were
chosen by how uneven first fit, round robin and VALUE leave the CPUs.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.papers import torque_balance
from benchmarks.papers.hdas_paper.claims import Mixes, claim_rows
from benchmarks.papers.hdas_paper.paper import (
    MIXES,
    SETS,
    Application,
    Job,
    ParameterSet,
    mix_world,
    run_all,
)
from benchmarks.papers.report.claims import CLAIMS, Claim
from benchmarks.papers.torque_balance_cluster import MACHINES, Cluster, History, tasks_of
from benchmarks.result import Row

# ---- HDAS

TARGETS: Mapping[str, Claim] = {
    what.removeprefix("S2: "): each
    for each in CLAIMS
    if each.result == "hdas_paper" and each.is_fitted
    for _, what in each.rows
    if what.startswith("S2: ")
}
"""By the row that has the figure: the claims that the report shows as fitted."""
_POLICIES = ("hadoop", "fifo", "model", "hdas")
_READ_PART = {"KNN": 0.828, "Kmeans": 0.240, "NB": 0.539}
_BP_GPU_S = 23.6
_FITTED_SPLITS = ("Kmeans", "RS")
_WORDS_MISSED = 0.05
"""What a target without a number costs when it is missed."""
Vector = Sequence[float]
Loss = Callable[[Vector], float]


def vector_of(parameters: ParameterSet) -> list[float]:
    """Logarithms of what is fitted: tasks, CPU seconds, reading rates, two splits, RS's kernel, gamma."""
    apps = parameters.apps
    free = [
        *(float(app.tasks) for app in apps.values()),
        *(app.cpu_s for app in apps.values()),
        *(app.split_mb / app.gpu_read_s for app in apps.values()),
        *(apps[name].split_mb for name in _FITTED_SPLITS),
        apps["RS"].gpu_compute_s,
        parameters.gamma,
    ]
    return list(map(math.log, free))


def parameters_of(vector: Vector) -> ParameterSet:
    """The inverse of `vector_of`, with what the paper states put in."""
    base, free = SETS["S2"].apps, list(map(math.exp, vector))
    n = len(base)
    splits = {name: app.split_mb for name, app in base.items()}
    splits |= dict(zip(_FITTED_SPLITS, free[3 * n : 3 * n + 2], strict=True))
    apps = {}
    for at, name in enumerate(base):
        read_s = splits[name] / free[2 * n + at]
        compute_s = free[-2] if name == "RS" else _BP_GPU_S - read_s
        if name in _READ_PART:
            compute_s = read_s * (1 / _READ_PART[name] - 1)
        apps[name] = Application(max(1, round(free[at])), splits[name], read_s, compute_s, free[n + at])
    return ParameterSet(free[-1], apps)


def loss_of(rows: Mapping[str, Row]) -> float:
    """The sum of squares of what targets are missed by, as parts of the paper's figures."""
    return sum(_missed(claim, rows[what]) ** 2 for what, claim in TARGETS.items())


def _missed(claim: Claim, row: Row) -> float:
    rule = claim.rule
    if rule.kind == "near":
        return row.value / rule.bounds[0] - 1
    if rule.holds(vars_of(row)):
        return 0.0
    return abs(row.value / rule.bounds[0] - 1) if rule.bounds and rule.bounds[0] else _WORDS_MISSED


def vars_of(row: Row) -> dict[str, Any]:
    """A row as its JSON has it."""
    return {name: getattr(row, name) for name in ("value", "ok", "goal", "interval")}


def rows_of(parameters: ParameterSet) -> dict[str, Row]:
    """All statements under these parameters; 100 simulations."""
    jobs = [
        Job((letter, policy), mix_world(mix, parameters, policy), "node-1" if letter == "P" else "")
        for letter, mix in MIXES.items()
        for policy in _POLICIES
    ]
    runs = {(job.key[0], job.key[1]): run for job, run in run_all(jobs)}
    return {row.what.removeprefix("fit: "): row for row in claim_rows("fit", Mixes(runs))}


def search(
    start: Vector, loss: Loss, n_evaluations: int, journal: Path, say: Callable[[str], None]
) -> tuple[list[float], float]:
    """Minimise by CMA-ES; what an earlier run evaluated is read from its journal, so a killed run goes on.

    Equal seeds and losses ask for equal vectors, so the losses are all that has to be kept.

    Returns:
        the best vector, and its loss.
    """
    import cma

    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    known = [float(json.loads(line)["loss"]) for line in lines]
    strategy = cma.CMAEvolutionStrategy(list(start), 0.05, {"seed": 1, "verbose": -9})
    best, best_loss, n = list(start), math.inf, 0
    with journal.open("a", encoding="utf-8") as file:
        while n < n_evaluations:
            asked = strategy.ask() if n else [list(start), *strategy.ask()[1:]]
            losses = []
            for vector in asked:
                if n >= max(n_evaluations, len(known)):
                    return best, best_loss
                found = known[n] if n < len(known) else loss(vector)
                if n >= len(known):
                    file.write(json.dumps({"loss": found}) + "\n")
                    file.flush()
                if found < best_loss:
                    best, best_loss = list(vector), found
                    say(f"evaluation {n + 1}: loss {found:.4f}")
                losses.append(found)
                n += 1
            strategy.tell(asked, losses)
    return best, best_loss


def _targets_table(rows: Mapping[str, Row]) -> Table:
    table = Table("target", "paper", "ours", "missed by")
    for what, claim in TARGETS.items():
        table.add_row(what, claim.stated, f"{rows[what].value:.3g}", f"{_missed(claim, rows[what]):+.1%}")
    return table


@click.group()
def main() -> None:
    """Repeat how the inputs were chosen that the papers lost."""


@main.command()
@click.option("--start", default="S2", type=click.Choice(list(SETS)), help="Where the search begins.")
@click.option(
    "--evaluations", default=200, show_default=True, help="100 simulations each, 10 s on two quiet cores."
)
@click.option("--journal", default="out/fit-hdas.jsonl", type=click.Path(path_type=Path), show_default=True)
def hdas(start: str, evaluations: int, journal: Path) -> None:
    """Search the task times of the HDAS worlds; one evaluation shows how far the shipped set is off."""
    console = Console()
    journal.parent.mkdir(parents=True, exist_ok=True)

    def loss(vector: Vector) -> float:
        return loss_of(rows_of(parameters_of(vector)))

    best, best_loss = search(vector_of(SETS[start]), loss, evaluations, journal, console.print)
    parameters = parameters_of(best)
    console.print(_targets_table(rows_of(parameters)))
    console.print(f"loss {best_loss:.4f} over {len(TARGETS)} targets; gamma {parameters.gamma:.3f}")
    for name, app in parameters.apps.items():
        console.print(f"{name}: {app}")


# ---- Torque

_EVERY_S, _N_JOBS, _NOISE = 18.0, 200, 0.3
_FACTORS = (0.5, 0.75, 1.0, 1.5)
UNEVENNESS = {"firstfit": 0.688, "round_robin": 0.590, "value": 0.419}
"""Time-mean of the standard deviation of CPU use over the nodes, at a job per 18 s: what was aimed at.

Of an earlier simulation of ours with the paper's four kinds of nodes; the paper itself gives no such figure.
"""


def unevenness(sizes: float, lengths: float, policy: str, seed: int) -> float:
    """With nodes so many times as large and jobs so many times as long as the shipped ones."""
    machines = tuple(
        replace(each, cores=max(1, round(each.cores * sizes)), mem_bytes=each.mem_bytes * sizes)
        for each in MACHINES
    )
    kinds = tuple(replace(kind, runtime_s=kind.runtime_s * lengths) for kind in torque_balance.KINDS)
    chosen = torque_balance.POLICIES[policy]
    cluster = Cluster(chosen.settings(), History(chosen.predictor), 300.0, machines)
    return cluster.run(tasks_of(kinds, _N_JOBS, _EVERY_S, _NOISE, seed, 1)).mean("cpu stdev")


@main.command()
@click.option("--seeds", default=3, show_default=True)
def torque(seeds: int) -> None:
    """Show how uneven each placement leaves the CPUs on clusters around the shipped one, which is 1 x 1."""
    found = []
    for sizes, lengths in itertools.product(_FACTORS, _FACTORS):
        ours = {
            policy: statistics.median(unevenness(sizes, lengths, policy, seed) for seed in range(seeds))
            for policy in UNEVENNESS
        }
        off = math.sqrt(sum((ours[policy] / aim - 1) ** 2 for policy, aim in UNEVENNESS.items()))
        found.append((off, sizes, lengths, ours))
    table = Table("nodes x", "run times x", *UNEVENNESS, "value / firstfit", "off by")
    table.add_row("aimed at", "", *(f"{aim:.3f}" for aim in UNEVENNESS.values()), "0.609", "")
    for off, sizes, lengths, ours in sorted(found, key=lambda each: each[0]):
        part = ours["value"] / ours["firstfit"]
        shown = (f"{value:.3f}" for value in (*ours.values(), part, off))
        table.add_row(f"{sizes:g}", f"{lengths:g}", *shown, style="bold" if sizes == lengths == 1 else "")
    Console().print(table)


if __name__ == "__main__":
    main()
