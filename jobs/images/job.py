"""The driver of the images job: features by mappers, K-means by one reducer or in rounds, index and rejects
back.

One reducer (the default) is two phases of one streaming job. With rounds the features stay in HDFS as shards:
a sample of them gives the start, every round is a streaming job over all shards, and a last one writes the
index.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.entry import CENTROIDS_FILE
from jobs.images.clustering import iterate
from jobs.images.rows import Centroid, Clustering, doubled, format_centroid, parse_lines
from jobs.runners.step import (
    Outcome,
    RejectedRecord,
    Report,
    Runner,
    Step,
    StepResult,
    TaskRecord,
    write_table,
)
from yarn_accel.errors import JobError
from yarn_accel.storage import Store

MAX_PART_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ImagesJob:
    """How to run the job.

    Args:
        k: number of clusters.
        bins: 59 (uniform patterns) or 256.
        n_rounds: 0: one reducer clusters everything; else at most so many rounds of K-means.
        n_reduces: reducers of a round.
        sample_one_in: with rounds: one in so many rows gives the start.
        tolerance: with rounds: stop when the centroids' squared shift is below this share of their squared
        length.
        model: URI of an ONNX model whose output takes the place of histograms; empty: histograms.
        side_px: height and width of the images that it gets.
    """

    k: int = 16
    seed: int = 0
    bins: int = 59
    batch_images: int = 256
    n_rounds: int = 0
    n_reduces: int = 2
    sample_one_in: int = 10
    tolerance: float = 1e-6
    is_strict: bool = False
    is_fallback_allowed: bool = True
    patience_s: float = 60.0
    model: str = ""
    side_px: int = 64


@dataclass(frozen=True, slots=True)
class Indexed:
    """An image and the cluster it belongs to."""

    key: str
    cluster: int


@dataclass(frozen=True, slots=True)
class ImagesOutcome:
    """The outcome, and the clustering behind it."""

    outcome: Outcome[Indexed]
    clustering: Clustering


def run_images(
    runner: Runner,
    store: Store,
    inputs: Sequence[str],
    n_in: int,
    job: ImagesJob,
    report: Report,
    name: str = "images",
) -> ImagesOutcome:
    """Cluster the images in the SequenceFiles `inputs` (`n_in` records) and wait for the end.

    Raises:
        JobError: a task failed (with ``is_strict`` also: the first bad record), or the records do not add up.
    """
    run = _Run(runner, store, job, report, name)
    clustering = run.in_rounds(tuple(inputs)) if job.n_rounds else run.at_once(tuple(inputs))
    rejects = [RejectedRecord(key, why.code, why.message) for key, why in sorted(clustering.rejects)]
    for key in clustering.doubled:
        error = doubled(key)
        if job.is_strict:
            raise JobError(f"record {key} ({error.code}): {error}")
        rejects.append(RejectedRecord(key, error.code, str(error)))
    run.counters["done"] -= len(clustering.doubled)
    run.counters["rejected"] += len(clustering.doubled)
    outcome = Outcome(
        n_in,
        tuple(Indexed(key, cluster) for key, cluster in sorted(clustering.index.items())),
        tuple(rejects),
        dict(run.counters),
        tuple(run.tasks),
        run.wall_s,
        tuple(run.job_ids),
    )
    outcome.check_complete()
    return ImagesOutcome(outcome, clustering)


def write_outcome(outcome: ImagesOutcome, folder: Path) -> tuple[Path, Path, Path]:
    """Write ``index.tsv``, ``rejects.tsv`` and ``centroids.tsv`` into `folder`."""
    rows = outcome.outcome
    index = write_table(
        folder / "index.tsv", ("key", "cluster"), ((row.key, row.cluster) for row in rows.results)
    )
    rejects = write_table(
        folder / "rejects.tsv", ("key", "code", "message"), ((r.key, r.code, r.message) for r in rows.rejects)
    )
    centroids = folder / CENTROIDS_FILE
    centroids.write_text(_centroid_lines(outcome.clustering.centroids), encoding="utf-8")
    return index, rejects, centroids


@dataclass(slots=True)
class _Run:
    """One run of the job: its steps, and what they add up to."""

    runner: Runner
    store: Store
    job: ImagesJob
    report: Report
    name: str
    counters: Counter[str] = field(default_factory=Counter)
    tasks: list[TaskRecord] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def at_once(self, inputs: tuple[str, ...]) -> Clustering:
        """Features and clustering in one streaming job."""
        result = self._step(
            "cluster", self._map_command(), inputs, reducer=self._reduce_command(), n_reduces=1
        )
        return self._clustering(result)

    def in_rounds(self, inputs: tuple[str, ...]) -> Clustering:
        """Features first; then a start from a sample, rounds, and the index."""
        shards = self._step("features", self._map_command(), inputs, output_kind="sequence").parts
        sample = ("images-sample", "--one-in", str(self.job.sample_one_in))
        started = self._clustering(
            self._step("start", sample, shards, reducer=self._reduce_command(), n_reduces=1)
        )
        if not started.centroids:
            raise JobError("no image was understood, so there is nothing to cluster")
        with tempfile.TemporaryDirectory(prefix="accel-rounds-") as folder:
            number = 0

            def run_round(centroids: Mapping[int, Centroid]) -> Clustering:
                nonlocal number
                number += 1
                return self._clustering(
                    self._step(
                        f"round-{number}",
                        ("images-step", *self._common_options()),
                        shards,
                        reducer=("images-merge",),
                        n_reduces=self.job.n_reduces,
                        files=(_write_centroids(Path(folder), centroids),),
                    )
                )

            iterated = iterate(
                started.centroids,
                run_round,
                max_rounds=self.job.n_rounds,
                tolerance=self.job.tolerance,
                report=self.report,
            )
            files = (_write_centroids(Path(folder), iterated.centroids),)
            assigned = self._step("index", ("images-assign", *self._common_options()), shards, files=files)
            final = self._clustering(assigned)
        final.centroids = iterated.centroids
        final.summary.update(
            rounds=iterated.n_rounds, is_converged=iterated.is_converged, k=len(iterated.centroids)
        )
        return final

    def _step(
        self,
        name: str,
        mapper: tuple[str, ...],
        inputs: tuple[str, ...],
        reducer: tuple[str, ...] = (),
        n_reduces: int = 0,
        output_kind: str = "text",
        files: tuple[Path, ...] = (),
    ) -> StepResult:
        step = Step(
            name=f"{self.name}-{name}",
            mapper=mapper,
            inputs=inputs,
            output_uri=self.runner.home(f"{self.name}/{name}"),
            reducer=reducer,
            io="typedbytes",
            output_kind=output_kind,
            n_reduces=n_reduces,
            files=files,
            is_strict=self.job.is_strict,
        )
        result = self.runner.run(step, self.report)
        self.counters.update(result.counters)
        self.tasks += result.tasks
        self.job_ids += [result.job_id] if result.job_id else []
        self.wall_s += result.wall_s
        return result

    def _clustering(self, result: StepResult) -> Clustering:
        lines: list[str] = []
        for part in result.parts:
            lines += self.store.read_bytes(part, MAX_PART_BYTES).decode("utf-8").split("\n")
        return parse_lines(line for line in lines if line)

    def _common_options(self) -> tuple[str, ...]:
        options = ("--patience-s", f"{self.job.patience_s:g}")
        return options if self.job.is_fallback_allowed else (*options, "--no-fallback")

    def _map_command(self) -> tuple[str, ...]:
        options = ("images-map", "--bins", str(self.job.bins), "--batch", str(self.job.batch_images))
        model = ("--model", self.job.model, "--side-px", str(self.job.side_px)) if self.job.model else ()
        return (*options, *model, *(("--strict",) if self.job.is_strict else ()), *self._common_options())

    def _reduce_command(self) -> tuple[str, ...]:
        return (
            "images-reduce",
            "--k",
            str(self.job.k),
            "--seed",
            str(self.job.seed),
            *self._common_options(),
        )


def _write_centroids(folder: Path, centroids: Mapping[int, Centroid]) -> Path:
    path = folder / CENTROIDS_FILE
    path.write_text(_centroid_lines(centroids), encoding="utf-8")
    return path


def _centroid_lines(centroids: Mapping[int, Centroid]) -> str:
    pairs = (format_centroid(number, centroid) for number, centroid in sorted(centroids.items()))
    return "".join(f"{tag}\t{text}\n" for tag, text in pairs)
