"""The demo's pictures: when tasks ran, what servers did, how good results are, and images by cluster."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from jobs.demo.record import DemoRecord
from jobs.factorize.manifest import STAGES, Done
from jobs.factorize.matrices import LIMIT
from jobs.images.make_input import photograph_of
from jobs.runners.step import TaskRecord
from yarn_accel.report.charts import lanes
from yarn_accel.report.figures import COLOURS, drawing

PATCHES_PER_CLUSTER = 14
_DPI = 130
_STAGE_COLOURS = {"read": "#56B4E9", "queue": "#BBBBBB", "compute": "#D55E00", "write": "#009E73"}
_INK = "#222222"


@dataclass(frozen=True, slots=True)
class MosaicRow:
    """One cluster in the mosaic.

    Attributes:
        label: what stands left of it.
        patches: some of its images, each (h, w, 3) u1.
        is_majority: for each patch, whether it comes from the cluster's most frequent photograph.
    """

    label: str
    patches: tuple[NDArray[np.uint8], ...]
    is_majority: tuple[bool, ...]


def pictures(record: DemoRecord, images: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every picture of the report by name, as PNG."""
    rows = mosaic_rows(record.images.clustering.index, images)
    heights = {
        "timeline": 4.6,
        "requests": 2.4,
        "stages": 3.4,
        "residuals": 3.8,
        "mosaic": 0.62 * len(rows) + 0.6,
    }
    found = {}
    for name, draw in _draws(record, rows).items():
        png = io.BytesIO()
        with drawing(png, (11, heights[name]), dpi=_DPI) as (_, grid):
            draw(grid[0, 0])
        found[name] = png.getvalue()
    return found


def overview(record: DemoRecord, images: Mapping[str, bytes]) -> bytes:
    """All of it on one page, as PNG: the picture for a README."""
    draws = _draws(record, mosaic_rows(record.images.clustering.index, images, 11))
    places = [["timeline", "mosaic"], ["stages", "mosaic"], ["residuals", "requests"]]
    png = io.BytesIO()
    with drawing(png, (15, 11.4), mosaic=places, height_ratios=(1.25, 1, 1), dpi=_DPI) as (figure, axes):
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.03, hspace=0.05)
        for name, draw in draws.items():
            draw(axes[name])
        figure.suptitle(_headline(record), fontsize=14, fontweight="bold", color=_INK)
    return png.getvalue()


def _draws(record: DemoRecord, rows: Sequence[MosaicRow]) -> dict[str, Callable[[Any], None]]:
    factorize, images = record.factorize, record.images.outcome
    jobs = {"factorize": factorize.tasks, "images": images.tasks}
    requests = {server.name: server.operations for server in record.servers}
    purity = record.purity
    title = f"{purity.n_images:,} images in {purity.n_clusters} clusters: purity {100 * purity.share:.1f} %"
    return {
        "timeline": lambda axes: _draw_timeline(axes, jobs, record.cluster.accelerated),
        "requests": lambda axes: _draw_requests(axes, requests),
        "stages": lambda axes: _draw_stages(axes, factorize.results),
        "residuals": lambda axes: _draw_residuals(axes, factorize.results),
        "mosaic": lambda axes: _draw_mosaic(axes, rows, title),
    }


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


def _pixels(encoded: bytes) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.uint8)


def _draw_timeline(
    axes: Any, jobs: Mapping[str, Sequence[TaskRecord]], accelerated: Sequence[str] = ()
) -> None:
    """When each task attempt ran, on which node; `jobs` maps a job's name to its attempts."""
    everything = [task for tasks in jobs.values() for task in tasks if task.finish_s > 0]
    origin_s = min((task.start_s for task in everything), default=0.0)
    job_of = {task.attempt: number for number, tasks in enumerate(jobs.values()) for task in tasks}
    nodes = sorted({task.node for task in everything}, reverse=True)
    top = 0.0
    ticks = []
    for node in nodes:
        inside = [task for task in everything if task.node == node]
        found, n_lanes = lanes([(task.start_s, task.finish_s) for task in inside])
        for lane, task in zip(found, inside, strict=True):
            axes.barh(
                top + lane,
                max(0.15, task.finish_s - task.start_s),
                left=task.start_s - origin_s,
                height=0.82,
                color=COLOURS[job_of[task.attempt] % len(COLOURS)],
                hatch="///" if task.kind == "reduce" else None,
                edgecolor="white",
                linewidth=0.6,
                alpha=1.0 if task.state == "SUCCEEDED" else 0.35,
            )
        ticks.append((top + (n_lanes - 1) / 2, f"{node}\n(server)" if node in accelerated else node))
        top += n_lanes + 0.6
        axes.axhline(top - 0.8, color="#DDDDDD", linewidth=0.8)
    axes.set_yticks([y for y, _ in ticks], [label for _, label in ticks])
    axes.set_ylim(-0.7, max(top - 0.7, 0.5))
    entries = [(name, COLOURS[number % len(COLOURS)]) for number, name in enumerate(jobs)]
    more = [_patch("#888888", "reduce", hatch="///", edgecolor="white")]
    if any(task.state != "SUCCEEDED" for task in everything):
        more.append(_patch("#888888", "killed twin", alpha=0.35))
    n_entries = len(entries) + len(more)
    _legend(axes, entries, "lower right", more, bbox_to_anchor=(1.0, 1.0), ncols=n_entries)
    _finish(axes, "Task attempts by node", "seconds since the first task started", "")


def _draw_requests(axes: Any, requests: Mapping[str, Mapping[str, int]]) -> None:
    """Requests that each server counted, by operation."""
    servers = sorted(requests, reverse=True)
    operations = sorted({name for counts in requests.values() for name in counts})
    left = np.zeros(len(servers))
    for number, operation in enumerate(operations):
        widths = np.array([requests[server].get(operation, 0) for server in servers], dtype=float)
        axes.barh(
            servers, widths, left=left, color=COLOURS[number % len(COLOURS)], edgecolor="white", height=0.62
        )
        left += widths
    for row, total in enumerate(left):
        axes.text(total, row, f" {total:.0f}", va="center", color=_INK, fontsize=9)
    axes.set_xlim(0, max(1.0, left.max(initial=0.0)) * 1.36)
    entries = [(name, COLOURS[number % len(COLOURS)]) for number, name in enumerate(operations)]
    _legend(axes, entries, "center right")
    _finish(axes, "Requests answered, by the servers' own counters", "requests", "")


def _draw_stages(axes: Any, rows: Sequence[Done]) -> None:
    """Mean seconds a matrix spent in each stage of the server, by operation and dtype."""
    groups = _groups(rows)
    labels = [f"{operation} {dtype}" for operation, dtype in groups]
    left = np.zeros(len(groups))
    for stage, colour in _STAGE_COLOURS.items():
        index = STAGES.index(stage)
        means = np.array([float(np.mean([row.seconds[index] for row in group])) for group in groups.values()])
        axes.barh(labels, means, left=left, color=colour, edgecolor="white", height=0.66)
        left += means
    for position, (total, group) in enumerate(zip(left, groups.values(), strict=True)):
        axes.text(total, position, f" {len(group)} matrices", va="center", color="#666666", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(0.01, left.max(initial=0.0)) * 1.25)
    _legend(axes, list(_STAGE_COLOURS.items()))
    _finish(axes, "Where a matrix spends its time (mean per stage)", "seconds", "")


def _draw_residuals(axes: Any, rows: Sequence[Done]) -> None:
    """Every residual as a point, by operation and dtype, against LAPACK's limit."""
    groups = _groups(rows)
    for position, group in enumerate(groups.values()):
        values = np.array([max(row.proven_residual, 1e-4) for row in group])
        spread = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
        colour = COLOURS[0] if group[0].dtype == "float64" else COLOURS[1]
        axes.scatter(
            position + spread, np.sort(values), s=26, color=colour, alpha=0.85, linewidths=0, zorder=3
        )
    axes.axhline(LIMIT, color="#D55E00", linewidth=1.4, linestyle="--")
    axes.text(len(groups) - 0.5, LIMIT * 1.12, "LAPACK's limit: 30", ha="right", color="#D55E00", fontsize=9)
    axes.set_yscale("log")
    axes.set_ylim(top=100)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(range(len(groups)), [f"{operation}\n{dtype}" for operation, dtype in groups], fontsize=8)
    _legend(axes, [("float64", COLOURS[0]), ("float32", COLOURS[1])], "lower right")
    _finish(axes, "Residuals of the factors read back from HDFS", "", "ratio (log scale)")


def _draw_mosaic(axes: Any, rows: Sequence[MosaicRow], title: str, gap: int = 4) -> None:
    """Images by cluster, one row each; a frame marks images that are not of the cluster's main photograph."""
    side = max((patch.shape[0] for row in rows for patch in row.patches), default=32)
    n_columns = max((len(row.patches) for row in rows), default=1)
    pitch = side + gap
    canvas = np.full((len(rows) * pitch - gap, n_columns * pitch - gap, 3), 255, dtype=np.uint8)
    strangers = []
    for y, row in enumerate(rows):
        for x, (patch, is_majority) in enumerate(zip(row.patches, row.is_majority, strict=True)):
            canvas[y * pitch : y * pitch + patch.shape[0], x * pitch : x * pitch + patch.shape[1]] = patch
            if not is_majority:
                strangers.append((x * pitch, y * pitch))
    axes.imshow(canvas, interpolation="nearest", aspect="equal")
    for x_px, y_px in strangers:
        axes.add_patch(_frame(x_px, y_px, side))
    axes.set_yticks([y * pitch + side / 2 for y in range(len(rows))], [row.label for row in rows], fontsize=8)
    axes.set_xticks([])
    axes.set_xlabel(
        "red frame: from another photograph than most of its cluster", fontsize=8, color="#B3002D"
    )
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK, pad=8)


def _frame(x_px: float, y_px: float, side: int) -> Any:
    return Rectangle((x_px - 1, y_px - 1), side + 1, side + 1, fill=False, edgecolor="#D5002E", linewidth=1.6)


def _groups(rows: Sequence[Done]) -> dict[tuple[str, str], list[Done]]:
    found: dict[tuple[str, str], list[Done]] = defaultdict(list)
    for row in rows:
        found[row.operation, row.dtype].append(row)
    return dict(sorted(found.items()))


def _patch(colour: str, label: str, **style: Any) -> Any:
    return Patch(facecolor=colour, label=label, **style)


def _legend(
    axes: Any,
    entries: Sequence[tuple[str, str]],
    location: str = "best",
    more: Sequence[Any] = (),
    **place: Any,
) -> None:
    handles = [*(_patch(colour, name) for name, colour in entries), *more]
    axes.legend(handles=handles, loc=location, framealpha=0.9, edgecolor="none", fontsize=8, **place)


def _finish(axes: Any, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK, pad=8)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    axes.tick_params(labelsize=8, length=3, color="#999999")
    axes.grid(axis="x" if not y_label else "y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#AAAAAA")
