"""What a second CPU worker gains, against what a second bare LAPACK process gains in the same run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks.pipeline.fleet import Child, one_thread
from benchmarks.pipeline.lapack import matrix, order_of
from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.setting import Setting
from benchmarks.pipeline.stages import MB, WINDOW, wall_s, warm
from benchmarks.result import Row, measured, ratio
from yarn_accel.client.calls import Tensor

_TIMES = 4
_N_REQUESTS = {10: 40, 20: 24}
"""By megabytes. Two workers may do N/2 + 1 and N/2 - 1 of N requests: with few, that alone is a tenth."""
_N_QUICK = 12
_LEAD_S = 1.0
"""Time for a process to make its matrix and to warm up."""


def worker_rows(setting: Setting) -> Iterator[list[Row]]:
    """For each size the two gains and their ratio."""
    with ExitStack() as stack:
        bare = [Child("bench", "lapack", setting.folder / f"lapack-{at}.log", one_thread()) for at in (0, 1)]
        for child in bare:
            stack.callback(child.stop)
        servers = [stack.enter_context(setting.server(f"workers-{n}", workers=n)) for n in (1, 2)]
        sizes = (10,) if setting.quick else (10, 20)
        for size_mb in sizes:
            yield _rows(setting, servers, bare, size_mb)


def _rows(
    setting: Setting, servers: Sequence[OwnServer], children: Sequence[Child], size_mb: int
) -> list[Row]:
    n = order_of(size_mb * MB)
    tensor = Tensor.of(matrix("lu", n))
    n_requests = _N_QUICK if setting.quick else _N_REQUESTS[size_mb]
    ours, bare = [], []
    for turn in range(1 if setting.quick else 3):
        setting.report(f"two workers over one, {size_mb} MB, round {turn + 1}")
        one_s, two_s = (_server_s(each, tensor, n_requests) for each in servers)
        ours.append(one_s / two_s)
        bare.append(_bare_s(children[:1], n, n_requests) / _bare_s(children, n, n_requests))
    what = f"two workers over one, LU, {size_mb} MB, c = {_TIMES}"
    return [
        measured(f"{what}: server", ours, "x"),
        measured(f"{what}: bare LAPACK, two processes", bare, "x"),
        ratio(f"{what}: server / bare", ours, bare, "share", goal=">= 0.92"),
    ]


def _server_s(server: OwnServer, tensor: Tensor, n_requests: int) -> float:
    params = {"times": _TIMES}
    with server.client() as client:
        warm(client, "repeat_lu", params, tensor, WINDOW)
        return wall_s(client, "repeat_lu", params, tensor, n_requests)


def _bare_s(children: Sequence[Child], n: int, n_requests: int) -> float:
    """Wall seconds of the same factorizations, shared by the processes."""
    start_s = time.monotonic() + _LEAD_S
    n_times = n_requests * _TIMES // len(children)
    order = {"act": "share", "operation": "lu", "n": n, "n_times": n_times, "start_s": start_s}
    for core, child in enumerate(children):
        child.tell({**order, "core": core})
    return max(float(child.hear(120.0)["end_s"]) for child in children) - start_s
