"""The demo's input: matrices, real photographs cut into patches, and some records spoilt on purpose."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass

from jobs.factorize.make_input import (
    GARBAGE_LINE,
    Matrix,
    balance,
    make_bytes,
    manifest_of,
    plan_flawed,
    plan_matrices,
)
from jobs.factorize.manifest import key_of
from jobs.images.make_input import PatchPlan, patches
from jobs.runners.step import Report
from yarn_accel.client import SequenceFileWriter
from yarn_accel.storage import Store

LOADERS = 2


@dataclass(frozen=True, slots=True)
class InputSize:
    """How much input."""

    n_matrices: int = 60
    n_min: int = 256
    n_max: int = 1500
    n_images: int = 2000
    n_broken_images: int = 2
    n_image_files: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DemoInput:
    """What will be made: the matrices in manifest order, bad ones among them, and the plan of the patches."""

    matrices: tuple[Matrix, ...]
    plan: PatchPlan

    def manifest(self, input_uri: str, output_uri: str) -> str:
        """The manifest: every matrix, and one line of garbage."""
        return manifest_of(self.matrices, input_uri, output_uri) + GARBAGE_LINE + "\n"

    def spoilt(self) -> tuple[str, ...]:
        """Keys of the records that must be rejected."""
        keys = [matrix.key for matrix in self.matrices if matrix.flaw]
        broken = range(self.plan.n_images, self.plan.n_images + self.plan.n_broken)
        return (*keys, key_of(GARBAGE_LINE), *(f"broken/{number:06d}" for number in broken))


Images = dict[str, bytes]
"""Key of a patch -> its encoded image."""


def plan_input(size: InputSize, n_tasks: int) -> DemoInput:
    """Plan the input for `n_tasks` map tasks of about equal work."""
    good = plan_matrices(size.n_matrices, size.n_min, size.n_max, size.seed)
    matrices = balance((*good, *plan_flawed(min(256, size.n_max), size.seed)), n_tasks)
    return DemoInput(matrices, PatchPlan(size.n_images, n_broken=size.n_broken_images, seed=size.seed))


def make_images(plan: PatchPlan) -> Images:
    """Cut every patch (about 15 KB each) into memory."""
    return dict(patches(plan))


def load_matrices(store: Store, folder_uri: str, matrices: Sequence[Matrix], report: Report) -> int:
    """Make the matrix files and write them into HDFS; returns their bytes."""
    present = [matrix for matrix in matrices if matrix.flaw != "missing"]

    def load(matrix: Matrix) -> int:
        return store.write_atomic(f"{folder_uri}/{matrix.key}.bin", [make_bytes(matrix)])

    n_bytes = 0
    with ThreadPoolExecutor(LOADERS) as pool:
        for number, future in enumerate(
            as_completed([pool.submit(load, matrix) for matrix in present]), start=1
        ):
            n_bytes += future.result()
            report(f"loading matrices into HDFS: {number} of {len(present)}, {n_bytes / 1e6:.0f} MB")
    return n_bytes


def load_images(
    store: Store, folder_uri: str, images: Images, n_files: int, report: Report
) -> tuple[tuple[str, ...], int]:
    """Pack the images into SequenceFiles in HDFS; returns the files' URIs and their bytes."""
    items = list(images.items())
    uris, n_bytes = [], 0
    for number in range(n_files):
        with closing(io.BytesIO()) as buffer:
            writer = SequenceFileWriter(buffer)
            for key, content in items[number * len(items) // n_files : (number + 1) * len(items) // n_files]:
                writer.append(key, content)
            uris.append(f"{folder_uri}/part-{number:03d}.seq")
            n_bytes += store.write_atomic(uris[-1], [buffer.getvalue()])
        report(f"loading images into HDFS: file {number + 1} of {n_files}, {n_bytes / 1e6:.0f} MB")
    return tuple(uris), n_bytes
