"""``python -m jobs factorize``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal
from rich.table import Table

from jobs.console import Progress, results_console
from jobs.factorize.job import (
    FactorizeJob,
    factors_of,
    good_entries,
    parts_uri,
    run_factorize,
    write_outcome,
)
from jobs.factorize.manifest import Done
from jobs.factorize.mapper import OUTPUTS, RESIDUALS
from jobs.factorize.matrices import LIMIT, balance, drawn, make_bytes, manifest_of, plan_matrices, verify
from jobs.options import COUNT, open_runner, runner_options, shown, with_options, with_runner_options
from jobs.runners.step import Outcome, Report, Runner
from yarn_accel.storage import Store

MAX_FILE_BYTES = 8 << 30


@click.command()
@click.argument("manifest", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_runner_options
@with_options(
    shown("--make", "n_made", type=COUNT, default=12, help="Without MANIFEST: make so many matrices."),
    shown("--n-min", type=COUNT, default=64, help="Smallest side made."),
    shown("--n-max", type=COUNT, default=256, help="Largest side made."),
    shown("--seed", type=int, default=0, help="Seed of the matrices made."),
    shown("--by", type=click.Choice(("reference", "value")), default="reference",
          help="Send the matrix's URI, or its bytes."),
    shown("--residual", type=click.Choice(RESIDUALS), default="sample",
          help="Whose factors servers read back and check: about as much reading as the factorization "
               "itself."),
    shown("--output", type=click.Choice(OUTPUTS), default="npz",
          help="A file of factors for each matrix, or a SequenceFile for each task."),
    shown("--tasks", type=COUNT, default=4, help="Map tasks."),
    shown("--verify", "n_verified", type=click.IntRange(min=-1), default=0,
          help="Check the factors of so many matrices again here (-1: all)."),
)  # fmt: skip
def factorize(manifest: Path | None, **values: Any) -> None:
    """Factorize the matrices of MANIFEST (LU, QR, Cholesky) and measure the residuals.

    MANIFEST has one TAB-separated line for each matrix: key, URI, dtype, shape, order, operation, URI of the
    factors (see jobs/factorize/README.md). Without it, matrices are made.

    Bad records end in rejects.tsv with a reason; the exit code is 1 only when the job fails, a residual is 30
    or more, or --strict meets a bad record.
    """
    with Progress() as progress:
        with open_runner(values["runner"], runner_options(values), progress.report) as (runner, store):
            text = manifest.read_text("utf-8", "surrogateescape") if manifest else ""
            if not manifest:
                text = _make(runner, store, values, progress.report)
            job = FactorizeJob(
                n_tasks=values["tasks"],
                is_by_value=values["by"] == "value",
                is_strict=values["strict"],
                is_fallback_allowed=not values["no_fallback"],
                residual=values["residual"],
                output=values["output"],
            )
            outcome = run_factorize(runner, store, text, job, progress.report)
            folder_uri = parts_uri(runner) if job.output == "sequence" else ""
            bad = _verify(store, text, outcome, values["n_verified"], folder_uri, progress)
        results, rejects = write_outcome(outcome, values["out"] / "factorize")
    results_console().print(result_table(outcome))
    click.echo(f"{results}\n{rejects}")
    bad += [f"{row.key}: residual {row.residual}" for row in outcome.results if not _is_good(row)]
    for line in bad:
        click.echo(f"jobs: {line} is not below {LIMIT:g}", err=True)
    sys.exit(1 if bad else 0)


def result_table(outcome: Outcome[Done]) -> Table:
    """One line for each operation and dtype, and the rejects, as a rich table."""
    table = Table(title=f"factorize: {outcome.wall_s:.1f} s", title_justify="left")
    for name in (
        "operation",
        "dtype",
        "matrices",
        "bytes",
        "compute s",
        "total s",
        "worst residual",
        "servers",
    ):
        table.add_column(name, justify="left" if name in ("operation", "dtype", "servers") else "right")
    groups: dict[tuple[str, str], list[Done]] = {}
    for row in outcome.results:
        groups.setdefault((row.operation, row.dtype), []).append(row)
    for (operation, dtype), rows in sorted(groups.items()):
        table.add_row(
            operation,
            dtype,
            str(len(rows)),
            decimal(sum(row.n_bytes for row in rows)),
            f"{sum(row.seconds[2] for row in rows):.2f}",
            f"{sum(row.seconds[4] for row in rows):.2f}",
            _worst(rows),
            ", ".join(sorted({row.server for row in rows})),
        )
    for reject in outcome.rejects:
        table.add_row("[red]rejected[/red]", "", reject.key, "", "", "", reject.code, "")
    return table


def _worst(rows: list[Done]) -> str:
    residuals = [row.residual for row in rows if row.residual is not None]
    return f"{max(residuals):.3g} of {len(residuals)}" if residuals else "not checked"


def _is_good(row: Done) -> bool:
    """Whether no check of these factors failed."""
    return row.residual is None or row.residual < LIMIT


def _make(runner: Runner, store: Store, values: dict[str, Any], report: Report) -> str:
    matrices = plan_matrices(
        values["n_made"], values["n_min"], max(values["n_min"], values["n_max"]), values["seed"]
    )
    input_uri, output_uri = runner.home("factorize/matrices"), runner.home("factorize/factors")
    for number, matrix in enumerate(matrices, start=1):
        report(f"making matrix {number} of {len(matrices)}")
        store.write_atomic(f"{input_uri}/{matrix.key}.bin", [make_bytes(matrix)])
    return manifest_of(balance(matrices, values["tasks"]), input_uri, output_uri)


def _verify(
    store: Store,
    manifest: str,
    outcome: Outcome[Done],
    n_verified: int,
    folder_uri: str,
    progress: Progress,
) -> list[str]:
    """Check factors again here; a line for each that is not good."""
    if n_verified == 0:
        return []
    done = {row.key for row in outcome.results}
    entries = [entry for entry in good_entries(manifest, not folder_uri) if entry.key in done]
    progress.report("checking factors")
    factors = factors_of(store, drawn(entries, max(0, n_verified)), folder_uri)
    checks = verify(lambda uri: store.read_bytes(uri, MAX_FILE_BYTES), factors)
    worst = max((check.residual for check in checks), default=0.0)
    progress.milestone(f"checked the factors of {len(checks)} matrices here: worst ratio {worst:.3g}")
    return [f"{check.key}: ratio {check.residual:.3g}" for check in checks if not check.residual < LIMIT]
