"""GFLOP/s of a factorization through the server against LAPACK's bare call, one BLAS thread each.

Judged is the time the worker's operation takes (with its check of the input), one request at a time, as
LAPACK is called bare: with more of them under way, client and server copy the next input beside it, on the
same cores where there are only two. That is the rate a client sees, reported beside it with the worker's own
rate then. LAPACK gets an array of numpy's own, ours lies in shared memory: huge pages, which only the former
may have, made at most 1 or 2 % of CPU time here, either way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat
from statistics import median

from benchmarks.pipeline.fleet import Child, one_thread
from benchmarks.pipeline.lapack import flops, matrix
from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.setting import Setting, calls, replies
from benchmarks.result import Row, measured, ratio
from yarn_accel.client.calls import Tensor

_WINDOW = 2


def kernel_rows(setting: Setting) -> Iterator[list[Row]]:
    """For each factorization and order: both rates, their ratio, and the rate at the client."""
    lapack = Child("bench", "lapack", setting.folder / "lapack.log", one_thread())
    try:
        with setting.server("kernels", workers=1) as server:
            for n in (1000,) if setting.quick else (1000, 2000, 4000):
                for operation in ("lu",) if setting.quick else ("lu", "qr", "cholesky"):
                    setting.report(f"kernels, {operation}, n = {n}")
                    yield _one(server, lapack, operation, n, n_rounds=2 if setting.quick or n > 2000 else 3)
    finally:
        lapack.stop()


def _one(server: OwnServer, lapack: Child, operation: str, n: int, n_rounds: int) -> list[Row]:
    work_gflop = flops(operation, n) / 1e9
    params = {"form": "packed"} if operation == "qr" else {}
    tensor = Tensor.of(matrix(operation, n))
    n_times = max(3, min(24, int(30 / work_gflop)))
    bare, ours, busy, seen = [], [], [], []
    with server.client() as client:

        def rate(n_requests: int, window: int) -> float:
            answers = replies(client, calls(operation, params, repeat(tensor, n_requests)), window)
            return work_gflop / median([reply.seconds["compute"] for reply in answers])

        rate(_WINDOW + 1, _WINDOW)  # touches the memory of the connection for the first time
        for _ in range(n_rounds):
            order = {"act": "routine", "operation": operation, "n": n, "n_times": n_times}
            bare.append(work_gflop / median(lapack.ask(order)["seconds"]))
            ours.append(rate(n_times, 1))
            start_s = time.perf_counter()
            busy.append(rate(n_times, _WINDOW))
            seen.append(work_gflop * n_times / (time.perf_counter() - start_s))
    what = f"kernel, {operation}, n = {n}"
    return [
        measured(f"{what}: bare LAPACK", bare, "GFLOP/s"),
        measured(f"{what}: in the worker", ours, "GFLOP/s"),
        measured(f"{what}: in the worker, window {_WINDOW}", busy, "GFLOP/s"),
        measured(f"{what}: at the client", seen, "GFLOP/s", note=f"{n_times} requests, window {_WINDOW}"),
        ratio(f"{what}: worker / bare", ours, bare, "share", goal=">= 0.95"),
    ]
