"""``python -m jobs images``."""

from __future__ import annotations

import io
import sys
from typing import Any

import click
from rich.table import Table

from jobs.console import Progress, results_console
from jobs.images.job import ImagesJob, ImagesOutcome, run_images, write_outcome
from jobs.options import COUNT, open_runner, runner_options, shown, with_options, with_runner_options
from jobs.runners.step import Report
from yarn_accel.client import SequenceFileReader
from yarn_accel.storage import Store

MAX_FILE_BYTES = 8 << 30


@click.command()
@click.argument("inputs", nargs=-1)
@with_runner_options
@with_options(
    shown("--make", "n_made", type=COUNT, default=400,
          help="Without INPUTS: cut so many patches from photographs."),
    shown("--files", "n_files", type=COUNT, default=2, help="Into how many SequenceFiles they are packed."),
    shown("--side", "side_px", type=click.IntRange(min=8), default=64, help="Side of a patch in pixels."),
    shown("--broken", "n_broken", type=click.IntRange(min=0), default=0,
          help="So many more patches that are cut short."),
    shown("--k", type=COUNT, default=16, help="Clusters."),
    shown("--bins", type=click.Choice(("59", "256")), default="59", help="Bins of the LBP."),
    shown("--seed", type=int, default=0, help="Seed of the patches and of K-means."),
    shown("--rounds", "n_rounds", type=click.IntRange(min=0), default=0,
          help="K-means in rounds of streaming jobs; 0: one reducer does it."),
    shown("--reduces", "n_reduces", type=COUNT, default=2, help="Reducers of a round."),
)  # fmt: skip
def images(inputs: tuple[str, ...], **values: Any) -> None:
    """Cluster the images in INPUTS by texture (LBP) and colour (HSV).

    INPUTS are URIs of SequenceFiles of Text keys and BytesWritable values (encoded images). Without them,
    patches are cut from the photographs that scikit-learn and scikit-image ship, so the truth is known and
    the clusters' purity is shown.
    """
    with Progress() as progress:
        with open_runner(values["runner"], runner_options(values), progress.report) as (runner, store):
            if inputs:
                uris, n_in = inputs, sum(_count_records(store, uri) for uri in inputs)
            else:
                uris = make_images(store, runner.home("images/input"), values, progress.report)
                n_in = values["n_made"] + values["n_broken"]
            job = ImagesJob(
                k=values["k"],
                seed=values["seed"],
                bins=int(values["bins"]),
                n_rounds=values["n_rounds"],
                n_reduces=values["n_reduces"],
                is_strict=values["strict"],
                is_fallback_allowed=not values["no_fallback"],
            )
            outcome = run_images(runner, store, uris, n_in, job, progress.report)
        paths = write_outcome(outcome, values["out"] / "images")
    results_console().print(result_table(outcome, is_truth_known=not inputs))
    click.echo("\n".join(str(path) for path in paths))
    sys.exit(0)


def make_images(store: Store, folder_uri: str, values: dict[str, Any], report: Report) -> tuple[str, ...]:
    """Cut patches and write them as SequenceFiles into a folder; returns their URIs.

    Raises:
        StartupError: a photograph is not on this machine.
    """
    from jobs.images.make_input import PatchPlan, store_files

    plan = PatchPlan(values["n_made"], values["side_px"], values["n_broken"], values["seed"])
    return store_files(store, folder_uri, plan, values["n_files"], report)


def result_table(found: ImagesOutcome, is_truth_known: bool) -> Table:
    """Facts about the clustering as a rich table."""
    outcome, clustering = found.outcome, found.clustering
    table = Table(title=f"images: {outcome.wall_s:.1f} s", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("images", str(outcome.n_in))
    table.add_row("clusters", str(clustering.summary.get("k", 0)))
    table.add_row("inertia", f"{float(clustering.summary.get('inertia', 0.0)):.6g}")
    if is_truth_known:
        from jobs.images.make_input import purity

        table.add_row("purity", f"{purity(clustering.index).share:.3f}")
    for reject in outcome.rejects:
        table.add_row(f"[red]rejected[/red] {reject.key}", reject.code)
    return table


def _count_records(store: Store, uri: str) -> int:
    stream = io.BytesIO(store.read_bytes(uri, MAX_FILE_BYTES))
    return sum(1 for _ in SequenceFileReader(stream))
