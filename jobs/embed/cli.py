"""``python -m jobs embed``, and the small ONNX model that it makes where none is named.

The model has no training. The filters of its one convolution are a discrete cosine transform of 8 x 8 blocks,
as in JPEG, of brightness and two colour differences. The mean strength of each filter over the image, as its
square root, is a number of the embedding; the mean colour is three more.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from jobs.console import Progress, results_console
from jobs.images.cli import make_images
from jobs.images.job import ImagesJob, ImagesOutcome, run_images, write_outcome
from jobs.images.make_input import purity
from jobs.options import COUNT, open_runner, runner_options, shown, with_options, with_runner_options
from jobs.runners.step import Report, Runner
from yarn_accel.errors import StartupError
from yarn_accel.extras import install_command
from yarn_accel.storage import Store

Outcomes = tuple[ImagesOutcome, ImagesOutcome]
SIDE_PX = 8
_N_COLOUR_FILTERS = 8
_COLOUR_WEIGHT = 0.5
_OPSET = 17
#: Brightness, and blue and red against it (ITU-R 601).
_CHANNELS = np.array([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]])


@click.command()
@with_runner_options
@with_options(
    shown("--model", default="", help="URI of an ONNX model; default: a small one, made for the run."),
    shown("--side-px", type=click.IntRange(min=8), default=64,
          help="Height and width of the images that it gets."),
    shown("--make", "n_made", type=COUNT, default=400, help="Patches cut from photographs."),
    shown("--files", "n_files", type=COUNT, default=2, help="Into how many SequenceFiles they are packed."),
    shown("--side", type=click.IntRange(min=8), default=64, help="Side of a patch in pixels."),
    shown("--broken", "n_broken", type=click.IntRange(min=0), default=0,
          help="So many more patches that are cut short."),
    shown("--k", type=COUNT, default=16, help="Clusters."),
    shown("--seed", type=int, default=0, help="Seed of the patches and of K-means."),
)  # fmt: skip
def embed(**values: Any) -> None:
    """Cluster images by the embeddings of an ONNX model, and by their histograms (LBP) beside it.

    The images are patches cut from photographs, so the truth is known, and the purity of both is shown.
    """
    with Progress() as progress:
        with open_runner(values["runner"], runner_options(values), progress.report) as (runner, store):
            patches = {**values, "side_px": values["side"]}
            uris = make_images(store, runner.home("embed/input"), patches, progress.report)
            job = ImagesJob(
                k=values["k"],
                seed=values["seed"],
                is_strict=values["strict"],
                is_fallback_allowed=not values["no_fallback"],
                model=values["model"] or put_model(store, runner.home("embed/model.onnx")),
                side_px=values["side_px"],
            )
            outcomes = run_both(
                runner, store, uris, values["n_made"] + values["n_broken"], job, progress.report
            )
        paths = write_outcome(outcomes[0], values["out"] / "embed")
    results_console().print(result_table(outcomes))
    click.echo("\n".join(str(path) for path in paths))
    sys.exit(0)


def put_model(store: Store, uri: str) -> str:
    """Make the small model and put it there; returns its URI.

    Raises:
        StartupError: the package onnx is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="accel-model-") as folder:
        path = Path(folder) / "model.onnx"
        write_model(path)
        store.write_atomic(uri, [path.read_bytes()])
    return uri


def run_both(
    runner: Runner, store: Store, uris: tuple[str, ...], n_in: int, job: ImagesJob, report: Report
) -> Outcomes:
    """The job with its model, and without one.

    Raises:
        JobError: as `run_images`.
    """
    embedded = run_images(runner, store, uris, n_in, job, report, "embed")
    return embedded, run_images(runner, store, uris, n_in, replace(job, model=""), report, "embed-lbp")


def result_table(outcomes: Outcomes) -> Table:
    """Facts about both clusterings as a rich table."""
    embedded, histograms = outcomes
    table = Table(title=f"embed: {embedded.outcome.wall_s:.1f} s", title_justify="left")
    for title in ("what", "model", "LBP"):
        table.add_column(title, justify="left" if title == "what" else "right")
    table.add_row("images", *(str(each.outcome.n_in) for each in outcomes))
    table.add_row("rejected", *(str(len(each.outcome.rejects)) for each in outcomes))
    table.add_row("clusters", *(str(each.clustering.summary.get("k", 0)) for each in outcomes))
    table.add_row("purity", *(f"{purity(each.clustering.index).share:.3f}" for each in outcomes))
    table.add_row("seconds", f"{embedded.outcome.wall_s:.1f}", f"{histograms.outcome.wall_s:.1f}")
    return table


def filters() -> Any:
    """The filters as float32 ``(n, 3, 8, 8)``: of brightness all but the mean, of colours the coarsest."""
    at = np.arange(SIDE_PX)
    waves = np.cos(np.pi * (at[None, :] + 0.5) * at[:, None] / SIDE_PX) / SIDE_PX
    order = sorted(((u, v) for u in at for v in at if u or v), key=lambda wave: (sum(wave), wave))
    planes = [np.outer(waves[u], waves[v]) for u, v in order]
    found = [channel[:, None, None] * plane for plane in planes for channel in _CHANNELS[:1]]
    found += [
        channel[:, None, None] * plane for plane in planes[:_N_COLOUR_FILTERS] for channel in _CHANNELS[1:]
    ]
    return np.stack(found).astype(np.float32)


def write_model(path: Path) -> None:
    """Write the model: ``image`` float32 ``(n, 3, h, w)`` of 0 to 1, ``embedding`` float32 ``(n, 82)``.

    Raises:
        StartupError: the package onnx is not installed.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper, save
    except ImportError:
        raise StartupError("making a model needs the package onnx", cure=install_command("onnx")) from None
    weights = filters()
    constants = {"filters": weights, "weight": np.array(_COLOUR_WEIGHT, np.float32)}
    nodes = [
        helper.make_node("Conv", ["image", "filters"], ["waves"], strides=[4, 4]),
        helper.make_node("Abs", ["waves"], ["strengths"]),
        helper.make_node("ReduceMean", ["strengths"], ["texture"], axes=[2, 3], keepdims=0),
        helper.make_node("Sqrt", ["texture"], ["roots"]),
        helper.make_node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Mul", ["means", "weight"], ["colour"]),
        helper.make_node("Concat", ["roots", "colour"], ["embedding"], axis=1),
    ]
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("image", kind, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("embedding", kind, ["n", len(weights) + 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8), path)
