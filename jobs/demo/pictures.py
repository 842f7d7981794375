"""Put the charts onto figures and render them as PNG."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.demo.charts import (
    MosaicRow,
    draw_mosaic,
    draw_requests,
    draw_residuals,
    draw_stages,
    draw_timeline,
)
from jobs.demo.record import DemoRecord
from jobs.images.purity import photograph_of

DPI = 130
PATCHES_PER_CLUSTER = 14


def pictures(record: DemoRecord, images: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every picture of the report by name, as PNG."""
    rows = mosaic_rows(record.images.clustering.index, images)
    return {
        "timeline": _single(lambda axes: _timeline(axes, record), 11, 4.6),
        "requests": _single(lambda axes: draw_requests(axes, _operations(record)), 11, 2.4),
        "stages": _single(lambda axes: draw_stages(axes, record.factorize.results), 11, 3.4),
        "residuals": _single(lambda axes: draw_residuals(axes, record.factorize.results), 11, 3.8),
        "mosaic": _single(
            lambda axes: draw_mosaic(axes, rows, _mosaic_title(record)), 11, 0.62 * len(rows) + 0.6
        ),
    }


def overview(record: DemoRecord, images: Mapping[str, bytes]) -> bytes:
    """All of it on one page, as PNG: the picture for a README."""
    plt = _pyplot()
    figure = plt.figure(figsize=(15, 11.4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.03, hspace=0.05)
    grid = figure.add_gridspec(3, 2, height_ratios=(1.25, 1.0, 1.0), width_ratios=(1.0, 1.0))
    _timeline(figure.add_subplot(grid[0, 0]), record)
    draw_stages(figure.add_subplot(grid[1, 0]), record.factorize.results)
    draw_residuals(figure.add_subplot(grid[2, 0]), record.factorize.results)
    rows = mosaic_rows(record.images.clustering.index, images, 11)
    draw_mosaic(figure.add_subplot(grid[0:2, 1]), rows, _mosaic_title(record))
    draw_requests(figure.add_subplot(grid[2, 1]), _operations(record))
    figure.suptitle(
        _headline(record),
        fontsize=14,
        fontweight="bold",
        color="#222222",
    )
    return _png(figure)


def mosaic_rows(
    index: Mapping[str, int], images: Mapping[str, bytes], n_patches: int = PATCHES_PER_CLUSTER
) -> tuple[MosaicRow, ...]:
    """Some patches of every cluster, the largest share of strangers shown as it is in the cluster."""
    members: dict[int, list[str]] = defaultdict(list)
    for key in sorted(index):
        members[index[key]].append(key)
    rows = []
    for cluster, keys in sorted(members.items()):
        counts = Counter(photograph_of(key) for key in keys)
        main, n_main = counts.most_common(1)[0]
        step = max(1, len(keys) / n_patches)
        chosen = [keys[int(number * step)] for number in range(min(n_patches, len(keys)))]
        rows.append(
            MosaicRow(
                f"{cluster}: {main.replace('_', ' ')}, {len(keys)} images, {100 * n_main / len(keys):.0f} %",
                tuple(_pixels(images[key]) for key in chosen),
                tuple(photograph_of(key) == main for key in chosen),
            )
        )
    return tuple(rows)


def _headline(record: DemoRecord) -> str:
    cluster = record.cluster
    work = f"{len(record.factorize.results)} factorizations and {record.images.outcome.n_in:,} images"
    place = f"{len(cluster.nodes)} nodes, {len(record.servers)} pipeline servers"
    return f"{work} on stock Hadoop {cluster.hadoop_version}: {place}, {record.total_s:.0f} s in all"


def _timeline(axes: Any, record: DemoRecord) -> None:
    jobs = {"factorize": record.factorize.tasks, "images": record.images.outcome.tasks}
    draw_timeline(axes, jobs, record.cluster.accelerated)


def _operations(record: DemoRecord) -> dict[str, Mapping[str, int]]:
    return {server.name: server.operations for server in record.servers}


def _mosaic_title(record: DemoRecord) -> str:
    return (
        f"{record.purity.n_images:,} images in {record.purity.n_clusters} clusters: "
        f"purity {100 * record.purity.share:.1f} %"
    )


def _pixels(encoded: bytes) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.uint8)


def _single(draw: Any, width_in: float, height_in: float) -> bytes:
    figure, axes = _pyplot().subplots(figsize=(width_in, height_in), layout="constrained")
    draw(axes)
    return _png(figure)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    _pyplot().close(figure)
    return buffer.getvalue()


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
