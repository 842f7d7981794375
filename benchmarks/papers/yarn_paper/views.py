"""The cells as they are shown: rows, tables beside the paper's figures, pictures like its Figures 5 and 6."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from benchmarks.papers.yarn_paper.cells import (
    CLUSTERS,
    EMULATED,
    INTENSITIES,
    KERNELS,
    PAYLOAD_INTENSITY,
    PAYLOAD_MB,
    PAYLOADS_MB,
    REAL,
    Cell,
    Cells,
    expected_speedup,
)
from benchmarks.papers.yarn_paper.claims import Claim, job_speedups, paper_speedups, phase_speedups
from benchmarks.result import Report, Row, not_measured

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
            Row(f"claim: {claim.claim}", claim.value, claim.unit, 1, None, claim.bound, claim.holds, note)
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


# ---- pictures; what the paper's Table 2 lets one expect are dashed lines

_COLOURS = {"4-2": "tab:blue", "4-3": "tab:orange", "4-4": "tab:green"}

_SHOWN = (
    (phase_speedups, "o-", "tasks"),
    (paper_speedups, "^-.", "whole job at the paper's scale"),
    (job_speedups, "x:", "whole job here"),
)


def draw(report: Report, stem: str) -> list[str]:
    """Draw what the report has cells for; returns the files, called as the report.

    Args:
        report: with the cells in its series.
        stem: beginning of the files' names.
    """
    cells = Cells(Cell.from_mapping(values) for values in report.series.get("cells", ()))
    paints = {"speedup": _speedup, "images": _images}
    files = {name: f"{stem}-{name}.png" for name in paints}
    return [files[name] for name, paint in paints.items() if paint(cells, files[name])]


def _speedup(cells: Cells, file: str) -> bool:
    """Figure 5: a column for each operation, by intensity above, by payload below."""
    if not any(cell.key.operation in KERNELS for cell in cells.find(instrument=EMULATED, policy="paper")):
        return False
    from yarn_accel.report.figures import drawing

    with drawing(file, (5.0 * len(KERNELS), 8.4), rows=2, columns=len(KERNELS)) as (figure, axes):
        for column, (name, kernel) in enumerate(KERNELS.items()):
            for cluster, colour in _COLOURS.items():
                n_accelerators = CLUSTERS[cluster]
                expected = expected_speedup(kernel, n_accelerators)
                for axis in axes[:, column]:
                    axis.axhline(expected, color=colour, linestyle="--", linewidth=0.8)
                for make, style, label in _SHOWN:
                    found = make(cells, cluster, name)
                    axes[0][column].plot(
                        found.keys(), found.values(), style, color=colour, label=f"{cluster}, {label}"
                    )
                by_payload = _by_payload(cells, cluster, name)
                axes[1][column].plot(
                    by_payload.keys(), by_payload.values(), "o-", color=colour, label=cluster
                )
            axes[0][column].set(
                title=f"emulated {name}", xlabel="intensity", ylabel="speed-up over 4-0", xticks=INTENSITIES
            )
            axes[1][column].set(
                xlabel="payload of a task in the paper, MB", ylabel="speed-up of the task phase"
            )
            axes[1][column].set(xticks=PAYLOADS_MB)
            for axis in axes[:, column]:
                axis.set_ylim(bottom=0)
                axis.grid(visible=True, alpha=0.3)
        axes[0][0].legend(fontsize="x-small")
        axes[1][0].legend(fontsize="x-small")
        figure.suptitle(
            f"Figure 5 again (payload {PAYLOAD_MB} MB above, intensity {PAYLOAD_INTENSITY} below); dashed: "
            "kernels alone, by Table 2"
        )
    return True


def _by_payload(cells: Cells, cluster: str, operation: str) -> dict[int, float]:
    facts: dict[str, Any] = {"instrument": EMULATED, "operation": operation, "layout": ""}
    facts["intensity"] = PAYLOAD_INTENSITY
    without = cells.phase_s(cluster="4-0", policy="none", **facts)
    found = {}
    for payload_mb in PAYLOADS_MB:
        seconds = cells.phase_s(cluster=cluster, policy="paper", payload_mb=payload_mb, **facts)
        if without and seconds:
            found[payload_mb] = without / seconds
    return found


def _images(cells: Cells, file: str) -> bool:
    """Figure 6: bars of the image job, each instrument by itself."""
    instruments = [each for each in (EMULATED, REAL) if cells.find(instrument=each, operation="features")]
    if not instruments:
        return False
    from yarn_accel.report.figures import drawing

    with drawing(file, (5.0 * len(instruments), 4.2), columns=len(instruments)) as (figure, axes):
        for axis, instrument in zip(axes[0], instruments, strict=True):
            found = cells.find(instrument=instrument, operation="features")
            names = [cell.key.cluster for cell in found]
            axis.bar(names, [cell.job_s for cell in found], color="lightgrey", label="whole job")
            axis.bar(names, [cell.phase_s for cell in found], width=0.5, color="tab:blue", label="images")
            axis.set(title=f"image job, {instrument}", ylabel="s")
            axis.legend(fontsize="x-small")
        figure.suptitle("Figure 6 again")
    return True
