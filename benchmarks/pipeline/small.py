"""Many small matrices: one frame each, batched by the server, and packed by the client as well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.setting import Setting, calls, replies
from benchmarks.result import Row, measured, ratio
from yarn_accel.client.calls import Tensor

_N = 32
_WINDOW = 16
_PACK = 64
_MATRICES_UNDER_WAY = 64


def small_rows(setting: Setting) -> Iterator[list[Row]]:
    """Rates, and the gain at an equal window: of requests, and more strictly of matrices."""
    n_rounds, n_matrices = (2, 2000) if setting.quick else (5, 6000)
    rates: dict[str, list[float]] = {}
    with (
        setting.server("single", workers=1, max_batch_size=1) as single,
        setting.server("batching", workers=1) as batching,
    ):
        ways = {
            f"one frame each, window {_WINDOW}": (single, _WINDOW, 1),
            f"server batching, window {_WINDOW}": (batching, _WINDOW, 1),
            f"packed by {_PACK} and batched, window {_WINDOW}": (batching, _WINDOW, _PACK),
            f"one frame each, {_MATRICES_UNDER_WAY} under way": (single, _MATRICES_UNDER_WAY, 1),
            f"packed by 16 and batched, {_MATRICES_UNDER_WAY} under way": (
                batching,
                _MATRICES_UNDER_WAY // 16,
                16,
            ),
        }
        for turn in range(n_rounds):
            setting.report(f"n = {_N} matrices, round {turn + 1} of {n_rounds}")
            for name, (server, window, pack) in ways.items():
                rates.setdefault(name, []).append(_rate(server, window, pack, n_matrices))
    rows = [measured(f"LU n = {_N}: {name}", values, "matrices/s") for name, values in rates.items()]
    names = list(rates)
    rows += _gain(
        f"LU n = {_N}: server batching alone over one frame each", rates[names[1]], rates[names[0]], ""
    )
    rows += _gain(
        f"LU n = {_N}: packing + batching over one frame each", rates[names[2]], rates[names[0]], ">= 4"
    )
    rows += _gain(f"LU n = {_N}: the same, equal matrices under way", rates[names[4]], rates[names[3]], "")
    yield rows


def _rate(server: OwnServer, window: int, pack: int, n_matrices: int) -> float:
    import numpy as np

    stack = np.random.default_rng(1).standard_normal((n_matrices, _N, _N))
    tensors = [Tensor.of(np.asfortranarray(each)) for each in stack]
    with server.client() as client:
        for _ in replies(client, calls("lu", {}, tensors[: 4 * pack]), window, pack=pack):
            pass
        start_s = time.perf_counter()
        n = sum(1 for _ in replies(client, calls("lu", {}, tensors), window, pack=pack))
        return n / (time.perf_counter() - start_s)


def _gain(what: str, ours: list[float], others: list[float], goal: str) -> list[Row]:
    return [ratio(what, ours, others, goal=goal, note=f"medians: {median(ours):.0f} / {median(others):.0f}")]
