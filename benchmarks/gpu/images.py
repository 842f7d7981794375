"""Section `images`: features of images per second, on the GPU, on this CPU, and nvJPEG's decoding alone.

The images have soft colours as photographs have them, and are encoded as JPEG or PNG.
"""

from __future__ import annotations

import importlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.setting import OwnServer, calls_of, replies
from benchmarks.result import Row, measured, not_measured, ratio
from yarn_accel.client.calls import Tensor
from yarn_accel.operations.cuda_streams import cupy_module

Array = Any


@dataclass(frozen=True)
class Kind:
    """Images of one form; ``side`` is their height and width in pixels."""

    format: str
    side: int

    def __str__(self) -> str:
        return f"{self.format} {self.side} x {self.side}"

    def encoded(self, n: int) -> list[bytes]:
        """So many of them, all different."""
        from PIL import Image

        random = np.random.default_rng(self.side)
        found = []
        for _ in range(n):
            coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3)).astype(np.uint8))
            file = io.BytesIO()
            coarse.resize((self.side, self.side), Image.Resampling.BICUBIC).save(file, self.format)
            found.append(file.getvalue())
        return found


JPEG, PNG = Kind("JPEG", 256), Kind("PNG", 64)
"""PNG as the image job has them."""


def packed_images(encoded: Sequence[bytes]) -> tuple[Array, Array]:
    """As the operations on images take them: all bytes, and the length of each."""
    return np.frombuffer(b"".join(encoded), np.uint8), np.array([len(each) for each in encoded], np.int64)


_WINDOW = 4
_GOAL_OF_JPEG = ">= 0.8"
"""Of images of 256 x 256."""
_OPERATION = "features"


def image_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """For JPEG and PNG the rates and how much faster the GPU is."""
    for kind, n_images in kinds(setting.quick):
        what = f"images, {kind}"
        if not setting.begins(what):
            yield [setting.budget.cut_row(what)]
            continue
        encoded = kind.encoded(n_images)
        n_requests = _WINDOW if setting.quick else 2 * _WINDOW
        gpu, cpu = [], []
        for server in (setting.servers.gpu, setting.servers.cpu):
            features_per_s(server, encoded, _WINDOW)
        for _ in setting.budget.rounds(what, setting.n_rounds):
            gpu.append(features_per_s(setting.servers.gpu, encoded, n_requests))
            cpu.append(features_per_s(setting.servers.cpu, encoded, n_requests))
        note = f"{_OPERATION}, {n_images} a request, window {_WINDOW}"
        yield [
            measured(f"{what}: GPU", gpu, "images/s", note=note),
            measured(f"{what}: this CPU", cpu, "images/s", note=f"{note}, a worker for every core"),
            ratio(f"{what}: GPU over this CPU", gpu, cpu),
            *_decoding(setting, kind, encoded, gpu),
        ]


def kinds(quick: bool) -> list[tuple[Kind, int]]:
    """The images, and how many of them a request has: JPEG from 256 pixels to 4K, and the job's PNG."""
    if quick:
        return [(replace(JPEG, side=64), 8), (replace(JPEG, side=128), 4), (PNG, 8)]
    return [(JPEG, 256), (replace(JPEG, side=1024), 64), (replace(JPEG, side=2880), 8), (PNG, 256)]


def features_per_s(
    server: OwnServer, encoded: Sequence[bytes], n_requests: int, window: int = _WINDOW
) -> float:
    """Images a second of which a server computes the features, as many a request as are given."""
    tensors = tuple(Tensor.of(array) for array in packed_images(encoded))
    with server.client("memory") as client:
        start_s = time.perf_counter()
        for reply in replies(client, calls_of(_OPERATION, {}, repeat(tensors, n_requests)), window):
            assert not reply.info.get("rejected"), reply.info
        return n_requests * len(encoded) / (time.perf_counter() - start_s)


def _decoding(setting: GpuSetting, kind: Kind, encoded: Sequence[bytes], ours: Sequence[float]) -> list[Row]:
    """nvJPEG alone, which decodes and computes nothing; for PNG there is nothing to compare."""
    if kind.format != "JPEG":
        return []
    what = f"images, {kind}: nvJPEG bare, decoding only"
    try:
        codec = importlib.import_module("nvidia.nvimgcodec")
    except ImportError as error:
        return [not_measured(what, f"nvImageCodec is not installed: {error}")]
    decode = _decoder(codec)
    decode(encoded)
    rates, n_missing = [], 0
    for _ in setting.budget.rounds(what, setting.n_rounds):
        start_s = time.perf_counter()
        n_missing = len(encoded) - decode(encoded)
        rates.append(len(encoded) / (time.perf_counter() - start_s))
    note = f"one batch of {len(encoded)}; {n_missing} could not be decoded"
    return [
        measured(what, rates, "images/s", note=note),
        ratio(
            f"images, {kind}: GPU / nvJPEG bare",
            ours,
            rates,
            "share",
            goal=_GOAL_OF_JPEG if kind == JPEG else "",
            note="one worker; ours also computes",
        ),
    ]


def _decoder(codec: Any) -> Callable[[Sequence[bytes]], int]:
    """A function that decodes images on the GPU and says how many came out."""
    stream = cupy_module().cuda.Stream(non_blocking=True)
    decoder = codec.Decoder(max_num_cpu_threads=2, options=":fancy_upsampling=1")
    params = codec.DecodeParams(apply_exif_orientation=False)

    def decode(encoded: Sequence[bytes]) -> int:
        with stream:
            opened = [codec.CodeStream(each) for each in encoded]
            images = decoder.decode(opened, params=params, cuda_stream=stream.ptr)
            stream.synchronize()
        return sum(image is not None for image in images)

    return decode
