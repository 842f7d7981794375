"""Section `images`: features of images per second, on the GPU, on this CPU, and nvJPEG's decoding alone."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from benchmarks.gpu.pictured import JPEG, PNG, Kind, packed_images
from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.setting import calls_of, replies
from benchmarks.result import Row, measured, not_measured, ratio
from yarn_accel.client.calls import Tensor
from yarn_accel.operations.cuda_streams import cupy_module

_WINDOW = 4
_OPERATION = "features"


def image_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """For JPEG and PNG the rates and how much faster the GPU is."""
    n_images = 8 if setting.quick else 256
    for kind in (replace(JPEG, side=64), PNG) if setting.quick else (JPEG, PNG):
        what = f"images, {kind}"
        if not setting.budget.allows(what):
            yield [setting.budget.cut_row(what)]
            continue
        setting.say(what)
        encoded = kind.encoded(n_images)
        n_requests = _WINDOW if setting.quick else 2 * _WINDOW
        gpu, cpu = [], []
        for server in (setting.servers.gpu, setting.servers.cpu):
            _rate(server, encoded, _WINDOW)
        for _ in setting.budget.rounds(what, setting.n_rounds):
            gpu.append(_rate(setting.servers.gpu, encoded, n_requests))
            cpu.append(_rate(setting.servers.cpu, encoded, n_requests))
        note = f"{_OPERATION}, {n_images} a request, window {_WINDOW}"
        yield [
            measured(f"{what}: GPU", gpu, "images/s", note=note),
            measured(f"{what}: this CPU", cpu, "images/s", note=f"{note}, a worker for every core"),
            ratio(f"{what}: GPU over this CPU", gpu, cpu),
            *_decoding(setting, kind, encoded, gpu),
        ]


def _rate(server: OwnServer, encoded: Sequence[bytes], n_requests: int) -> float:
    tensors = tuple(Tensor.of(array) for array in packed_images(encoded))
    with server.client("memory") as client:
        start_s = time.perf_counter()
        for reply in replies(client, calls_of(_OPERATION, {}, repeat(tensors, n_requests)), _WINDOW):
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
        ratio(f"images, {kind}: GPU / nvJPEG bare", ours, rates, "share", note="ours also computes"),
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
