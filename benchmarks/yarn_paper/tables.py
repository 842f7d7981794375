"""What is printed: a row for each cell, the speed-ups beside the paper's figures, and the claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from benchmarks.result import Row, not_measured
from benchmarks.yarn_paper.cells import Cell, Cells
from benchmarks.yarn_paper.claims import Claim, job_speedups, paper_speedups, phase_speedups
from benchmarks.yarn_paper.paper import INTENSITIES, KERNELS, expected_speedup

_CLUSTERS = {"4-2": 2, "4-3": 3, "4-4": 4}


def cell_row(cell: Cell) -> Row:
    """The task phase; the note says the rest."""
    parts = [f"whole job {cell.job_s:.1f} s"]
    if cell.key.policy != "none" and cell.n_fallback:
        parts.append(f"{cell.n_fallback} on mappers' own CPUs")
    if not cell.key.layout and not cell.is_even:
        parts.append(f"unevenly placed: {dict(cell.per_node)}")
    if cell.n_surplus_attempts:
        parts.append(f"{cell.n_surplus_attempts} attempts more than mappers")
    return Row(f"{cell.key}: task phase", cell.phase_s, "s", 1, None, note="; ".join(parts))


def verdict(claim: Claim) -> str:
    """In words."""
    return "not judged" if claim.holds is None else ("holds" if claim.holds else "does not hold")


def claim_rows(claims: Iterable[Claim]) -> list[Row]:
    """One row for each claim."""
    rows = []
    for claim in claims:
        if claim.holds is None:
            rows.append(not_measured(f"claim: {claim.claim}", claim.why))
            continue
        note = f"{verdict(claim)}: {claim.why}"
        rows.append(
            Row(f"claim: {claim.claim}", claim.value, claim.unit, 1, None, "holds", claim.holds, note)
        )
    return rows


def tables(cells: Cells, claims: Sequence[Claim]) -> list[Table]:
    """The speed-ups and the claims."""
    return [_speedups(cells), _claims(claims)]


def _speedups(cells: Cells) -> Table:
    table = Table(
        title="emulated: speed-up over 4-0 of the task phase; of the whole job here; of the whole job at the "
        "paper's scale (derived: only the task phase is scaled)"
    )
    for heading in ("operation", "cluster", "kernels alone", *(f"intensity {each}" for each in INTENSITIES)):
        table.add_column(heading, justify="left" if heading in ("operation", "cluster") else "right")
    for name, kernel in KERNELS.items():
        for cluster, n_accelerators in _CLUSTERS.items():
            series = [make(cells, cluster, name) for make in (phase_speedups, job_speedups, paper_speedups)]
            if series[0]:
                shown = [
                    "; ".join(f"{one[i]:.2f}" for one in series) if i in series[0] else ""
                    for i in INTENSITIES
                ]
                table.add_row(name, cluster, f"{expected_speedup(kernel, n_accelerators):.2f}", *shown)
    return table


def _claims(claims: Sequence[Claim]) -> Table:
    table = Table(title="claims of the paper, judged by the emulated cells", show_lines=True)
    table.add_column("claim", ratio=3)
    table.add_column("verdict")
    table.add_column("figure", justify="right")
    table.add_column("why", ratio=6)
    for claim in claims:
        figure = f"{claim.value:.3g} {claim.unit}" if claim.holds is not None else ""
        table.add_row(claim.claim, verdict(claim), figure, claim.why)
    return table
