"""``python -m jobs lu_blocks``."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from jobs.console import Progress, results_console
from jobs.lu_blocks.dag import RESIDUAL_TASK, Tiling, lu_dag, made_matrix, store_tiles
from jobs.lu_blocks.tiles import LIMIT
from jobs.options import COUNT, shown, with_options
from jobs.runners.hadoop import HadoopRunner
from yarn_accel.errors import ConfigError, JobError
from yarn_accel.storage import Store
from yarn_accel.streaming import SiteSettings
from yarn_accel.tasks import DagBuilder
from yarn_accel.uris import file_uri


@click.command("lu_blocks")
@click.argument("matrix", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_options(
    shown("--runner", type=click.Choice(("inline", "hadoop")), default="inline",
          help="In this process, or by the task service of the cluster that HADOOP_CONF_DIR names."),
    shown("--n", type=click.IntRange(1, 100_000), default=512,
          help="Without MATRIX: order of the one that is made."),
    shown("--tile", "side", type=COUNT, default=128, help="Side of a tile."),
    shown("--seed", type=int, default=0, help="Seed of the matrix made."),
    shown("--class", "priority_class", type=click.Choice(("preemptive", "high", "basic")), default="basic",
          help="Its class among DAGs (hadoop)."),
    click.option("--application", default="", metavar="ID", help="Which one has the service (hadoop)."),
    click.option("--home", "home_uri", default="", metavar="URI",
                 help="Folder for tiles and factors, which stay there  [default: a temporary one]."),
)  # fmt: skip
def lu_blocks(matrix: Path | None, **values: Any) -> None:
    """Factorize one large matrix by tiles, as a DAG: getrf, trsm and gemm, a task each.

    MATRIX is a square .npy of float64; without it one whose diagonal dominates is made. The last task
    measures how exact the factors are; a residual below 30 is a pass.
    """  # fmt: skip
    with Progress() as progress, _home(values["runner"], values["home_uri"]) as (store, home_uri):
        found = made_matrix(values["n"], values["seed"]) if matrix is None else _loaded(matrix)
        tiling = Tiling(found.shape[0], values["side"])
        store_tiles(store, f"{home_uri}/tiles", found, tiling)
        progress.milestone(f"{tiling.n_tiles**2} tiles of order {tiling.side} in {home_uri}/tiles")
        settings: dict[str, Any] = {}
        if values["runner"] == "inline":
            settings["environment"] = {"ACCEL_RUNNER": "inline"}
        dag = lu_dag(tiling, f"{home_uri}/tiles", f"{home_uri}/factors", values["seed"], **settings)
        began_s = time.monotonic()
        outcome = _run(dag, store, values, progress)
        took_s = time.monotonic() - began_s
    results_console().print(_table(outcome, tiling, took_s, values))
    if not outcome["residual"] < LIMIT:
        raise JobError(f"the residual is {outcome['residual']:.3g}, and {LIMIT:g} or more")


def _run(dag: DagBuilder, store: Store, values: Mapping[str, Any], progress: Progress) -> dict[str, float]:
    if values["runner"] == "inline":
        outcome: dict[str, float] = dag.run_inline(store)[RESIDUAL_TASK]
        return outcome
    run = dag.submit(values["application"], priority_class=values["priority_class"])
    progress.milestone(f"submitted as {run.dag_id}")
    run.wait(lambda counts: progress.report(", ".join(f"{n} {state}" for state, n in counts.items() if n)))
    outcome = run.result(RESIDUAL_TASK)
    return outcome


@contextlib.contextmanager
def _home(runner: str, home_uri: str) -> Iterator[tuple[Store, str]]:
    """The storage, and the folder of this run in it."""
    with contextlib.ExitStack() as stack:
        if runner == "inline":
            store = Store()
            own = file_uri(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lu-blocks-"))))
        else:
            hadoop = HadoopRunner(SiteSettings.read())
            store, own = Store(hadoop.site.conf_dir), hadoop.home("lu_blocks")
            if not home_uri:
                stack.callback(store.delete, own)
        yield store, home_uri.rstrip("/") or own


def _loaded(path: Path) -> NDArray[np.float64]:
    try:
        matrix = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.dtype != np.float64:
        raise ConfigError(
            f"{path}: {matrix.dtype} of shape {matrix.shape}", cure="give a square float64 matrix"
        )
    loaded: NDArray[np.float64] = matrix
    return loaded


def _table(outcome: Mapping[str, float], tiling: Tiling, took_s: float, values: Mapping[str, Any]) -> Table:
    table = Table(title="lu_blocks")
    for name in ("order", "tiles", "runner", "seconds", "residual"):
        table.add_column(name, justify="left" if name == "runner" else "right")
    counts = f"{tiling.n_tiles} x {tiling.n_tiles}"
    table.add_row(str(tiling.n), counts, values["runner"], f"{took_s:.2f}", f"{outcome['residual']:.3g}")
    return table
