"""Cut patches from real photographs and pack them into sequence files, the same ones every time.

The photographs are those that scikit-learn and scikit-image carry inside their wheels; nothing is
downloaded. Patch number i comes from photograph i modulo their number, from a place drawn from stream i of
the seed, so any part of the input can be made without the rest, and a key such as ``china/000123`` says what
the truth is. Patches are stored as PNG in the photograph's own kind of pixel. Memory holds the photographs,
one patch and one open file.

The purity of a clustering is the share of images that belong to the most frequent photograph of their
cluster. It rises with the number of clusters by itself (a cluster for each image has purity 1), so it is
given together with the purity that labels without any information would reach.
"""

from __future__ import annotations

import importlib.util
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from yarn_accel.client import SequenceFileWriter
from yarn_accel.errors import StartupError
from yarn_accel.extras import install_command
from yarn_accel.storage import Store


@dataclass(frozen=True, slots=True)
class Photograph:
    """A picture inside an installed package."""

    name: str
    package: str
    path: str

    def locate(self) -> Path:
        """Its file.

        Raises:
            StartupError: the package is not installed, or does not carry the picture any more.
        """
        spec = importlib.util.find_spec(self.package)
        folder = Path(spec.origin).parent if spec is not None and spec.origin else None
        if folder is None or not (folder / self.path).is_file():
            raise StartupError(
                f"photograph {self.path} of {self.package} is not on this machine",
                cure=install_command(self.package),
            )
        return folder / self.path


def _of_skimage(*names: str) -> tuple[Photograph, ...]:
    return tuple(Photograph(name.partition(".")[0], "skimage", f"data/{name}") for name in names)


def _of_sklearn(*names: str) -> tuple[Photograph, ...]:
    return tuple(Photograph(name.partition(".")[0], "sklearn", f"datasets/images/{name}") for name in names)


PHOTOGRAPHS = (
    *_of_sklearn("china.jpg", "flower.jpg"),
    *_of_skimage("brick.png", "grass.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png"),
)
"""Those with a surface of their own: a patch shows which one it is from."""

ALL_PHOTOGRAPHS = (
    *PHOTOGRAPHS,
    *_of_skimage("astronaut.png", "camera.png", "cell.png", "coins.png", "gravel.png", "moon.png"),
    *_of_skimage("motorcycle_left.png", "retina.jpg", "rocket.jpg"),
)
"""Also those with large even or black parts, and pairs that look alike; a harder truth."""

DEFAULT_CLUSTERS = 2 * len(PHOTOGRAPHS)
"""A photograph has more than one surface (petals and leaves, sky and roof), hence two clusters for each."""


@dataclass(frozen=True, slots=True)
class PatchPlan:
    """The patches to cut.

    Attributes:
        n_images: number of good patches.
        side_px: width and height of a patch.
        n_broken: this many more that are cut short in the middle, to show where bad input ends.
        seed: of the places.
        photographs: where from, in turn.
    """

    n_images: int = 2000
    side_px: int = 64
    n_broken: int = 0
    seed: int = 0
    photographs: tuple[Photograph, ...] = PHOTOGRAPHS


def patches(plan: PatchPlan, numbers: Sequence[int] | None = None) -> Iterator[tuple[str, bytes]]:
    """Key and PNG bytes of each patch, or of those with the given numbers only.

    Raises:
        StartupError: a photograph is missing.
    """
    pictures = [_open(photograph, plan.side_px) for photograph in plan.photographs]
    for number in range(plan.n_images + plan.n_broken) if numbers is None else numbers:
        which = number % len(pictures)
        encoded = _cut(pictures[which], plan, number)
        if number < plan.n_images:
            yield f"{plan.photographs[which].name}/{number:06d}", encoded
        else:
            yield f"broken/{number:06d}", encoded[: len(encoded) // 2]


def write_files(
    plan: PatchPlan,
    n_files: int,
    open_file: Callable[[int], AbstractContextManager[BinaryIO]],
    report: Callable[[str], None],
    *,
    sync_interval_bytes: int = 100 << 10,
) -> int:
    """Write the patches into ``n_files`` sequence files of equal share, one after the other.

    Args:
        plan: what to cut.
        n_files: number of files; each photograph occurs in every one.
        open_file: opens file number i for writing.
        report: gets a line about each file.
        sync_interval_bytes: see `SequenceFileWriter`.

    Returns:
        the number of bytes written.
    """
    n_bytes = 0
    total = plan.n_images + plan.n_broken
    for file_number in range(n_files):
        numbers = range(file_number * total // n_files, (file_number + 1) * total // n_files)
        with open_file(file_number) as stream:
            writer = SequenceFileWriter(stream, sync_interval_bytes=sync_interval_bytes)
            for key, encoded in patches(plan, numbers):
                writer.append(key, encoded)
        n_bytes += writer.n_bytes
        report(
            f"images: file {file_number + 1} of {n_files}, {writer.n_records} patches, {writer.n_bytes} bytes"
        )
    return n_bytes


def store_files(
    store: Store, folder_uri: str, plan: PatchPlan, n_files: int, report: Callable[[str], None]
) -> tuple[str, ...]:
    """Write the patches into ``n_files`` sequence files below a folder of a store; returns their URIs."""
    uris = tuple(f"{folder_uri}/part-{number:03d}.seq" for number in range(n_files))

    @contextmanager
    def open_file(number: int) -> Iterator[BinaryIO]:
        buffer = io.BytesIO()
        yield buffer
        store.write_atomic(uris[number], [buffer.getbuffer()])

    write_files(plan, n_files, open_file, report)
    return uris


def _open(photograph: Photograph, side_px: int) -> Image.Image:
    with Image.open(photograph.locate()) as picture:
        if min(picture.size) < side_px:
            raise StartupError(
                f"photograph {photograph.name} has {picture.size[0]} x {picture.size[1]} pixels, "
                f"patches of {side_px} do not fit",
                cure="choose smaller patches",
            )
        copy: Image.Image = picture.copy()
        return copy


def _cut(picture: Image.Image, plan: PatchPlan, number: int) -> bytes:
    generator = np.random.Generator(np.random.PCG64([plan.seed, number]))
    left, top = (int(generator.random() * (size - plan.side_px + 1)) for size in picture.size)
    encoded = io.BytesIO()
    picture.crop((left, top, left + plan.side_px, top + plan.side_px)).save(encoded, "PNG")
    return encoded.getvalue()


@dataclass(frozen=True, slots=True)
class Purity:
    """Purity of a clustering, from 0 to 1.

    Attributes:
        share: of all images, those in agreement with their cluster.
        n_images: how many images.
        n_clusters: how many clusters have an image.
        largest_photograph: share of the most frequent photograph, the purity of one single cluster.
        by_photograph: of each photograph's images, the share in clusters where it is the most frequent.
    """

    share: float
    n_images: int
    n_clusters: int
    largest_photograph: float
    by_photograph: Mapping[str, float]


def photograph_of(key: str) -> str:
    """The photograph a patch was cut from: the key without its number."""
    return key.rpartition("/")[0]


def purity(index: Mapping[str, int]) -> Purity:
    """Measure an index (key -> cluster) against the photographs that the keys name."""
    members: dict[int, Counter[str]] = {}
    for key, cluster in index.items():
        members.setdefault(cluster, Counter())[photograph_of(key)] += 1
    totals: Counter[str] = Counter(photograph_of(key) for key in index)
    agreeing: Counter[str] = Counter()
    for counter in members.values():
        photograph, n_images = min(counter.items(), key=lambda item: (-item[1], item[0]))
        agreeing[photograph] += n_images
    n_images = max(1, len(index))
    return Purity(
        share=sum(agreeing.values()) / n_images,
        n_images=len(index),
        n_clusters=len(members),
        largest_photograph=max(totals.values(), default=0) / n_images,
        by_photograph={
            photograph: agreeing[photograph] / totals[photograph] for photograph in sorted(totals)
        },
    )
