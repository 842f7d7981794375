"""The sections `forms`, `tenants` and `killed`: other requests, others' requests, and a worker's end.

All go by `Client.empty`, as users' arrays of `Accelerator.empty` do.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import repeat
from statistics import quantiles
from typing import Any

import numpy as np

from benchmarks.gpu.cases import Case
from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.computing import MB
from benchmarks.pipeline.lapack import matrix, order_of
from benchmarks.pipeline.setting import OwnServer, calls, calls_of, replies
from benchmarks.result import Row, measured, not_measured, observed, ratio
from yarn_accel.client.calls import Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import JobError
from yarn_accel.operations import get
from yarn_accel.operations.cuda_streams import cupy_module
from yarn_accel.wire import TensorSpec

Array = Any
_WINDOW = 6
_N, _N_QUICK = 60, 6
_READY_S = 120.0
_LOST_BYTES = 64 * MB
"""Of a GPU: what a driver may keep of a process that is gone, and pools of another that grew meanwhile."""


def forms(quick: bool) -> Iterator[Case]:
    """Requests beside the square matrices in float64 that `factorizations` has."""
    n = 96 if quick else 1000
    random = np.random.default_rng(0)
    general = matrix("lu", n)
    yield Case("lu", (general.astype("f4"),))
    yield Case("lu", ((general + 1j * general.T).astype("c16"),))
    columns, rows = np.triu_indices(n)
    yield Case("cholesky", (matrix("cholesky", n)[rows, columns],), {"triangle": "lower"})
    yield Case("gemm", (general, general))
    factors = get("lu").run([general.copy("F")], {}).arrays
    yield Case("solve", (factors["lu"], factors["piv"], random.standard_normal((n, 16))))
    points = random.standard_normal((50 * n, 16))
    yield Case("knn", (points[: 2 * n].copy(), points[: 20 * n].copy(), np.repeat(np.arange(20), n)))
    yield Case("kmeans_step", (points, points[:32].copy()))


def form_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """For each form requests a second on the GPU and on this CPU, and how long one takes."""
    n = _N_QUICK if setting.quick else _N
    for case in forms(setting.quick):
        what = f"forms, {case}"
        if not setting.begins(what):
            yield [setting.budget.cut_row(what)]
            continue
        rates: dict[str, list[float]] = {"GPU": [], "this CPU": []}
        latencies: list[float] = []
        with ExitStack() as stack:
            servers = {"GPU": setting.servers.gpu, "this CPU": setting.servers.cpu}
            clients = {name: stack.enter_context(server.client("memory")) for name, server in servers.items()}
            given = {name: own_inputs(client, case.arrays) for name, client in clients.items()}
            for name, client in clients.items():
                _rate(client, case, given[name], 2)
            for _ in setting.budget.rounds(what, setting.n_rounds):
                for name, client in clients.items():
                    n_here = n if name == "GPU" else max(2, n // 10)
                    rates[name].append(_rate(client, case, given[name], n_here))
                latencies += _latencies(clients["GPU"], case.operation, case.params, given["GPU"], n)
        yield [
            *(measured(f"{what}: {name}", found, "requests/s") for name, found in rates.items()),
            ratio(f"{what}: GPU over this CPU", rates["GPU"], rates["this CPU"]),
            *percentiles(what, latencies),
        ]


def own_inputs(client: Client, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
    """The arrays as parts of one piece of memory that the server shares."""
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // 64) * 64
    whole = memoryview(client.empty(TensorSpec("|u1", (max(1, end),))).data)
    found = []
    for start, array in zip(starts, arrays, strict=True):
        spec = Tensor.of(array).spec
        tensor = Tensor(spec, whole[start : start + array.nbytes])
        tensor.array()[...] = array
        found.append(tensor)
    return tuple(found)


def percentiles(what: str, seconds: Sequence[float]) -> list[Row]:
    """The middle, p95 and p99 of how long requests took, in milliseconds."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    note = f"one at a time, {len(seconds)} requests"
    named = (("p50", cuts[49]), ("p95", cuts[94]), ("p99", cuts[98]))
    return [observed(f"{what}: {name}", 1e3 * value, "ms", note=note) for name, value in named]


def _rate(client: Client, case: Case, inputs: tuple[Tensor, ...], n: int) -> float:
    start_s = time.perf_counter()
    for _ in replies(client, calls_of(case.operation, case.params, repeat(inputs, n)), _WINDOW):
        pass
    return n / (time.perf_counter() - start_s)


def _latencies(
    client: Client, operation: str, params: Mapping[str, Any], inputs: tuple[Tensor, ...], n: int
) -> list[float]:
    found = []
    for call in calls_of(operation, params, repeat(inputs, n)):
        start_s = time.perf_counter()
        next(replies(client, [call], 1))
        found.append(time.perf_counter() - start_s)
    return found


def tenant_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """How long LU of 1 MB takes a tenant, alone, and beside another one that sends 16 MB without a pause."""
    what = "tenants, lu, 1 MB"
    if not setting.begins(what):
        yield [setting.budget.cut_row(what)]
        return
    n = _N_QUICK if setting.quick else _N
    server = setting.servers.gpu
    large = matrix("lu", order_of((1 if setting.quick else 16) * MB))
    with server.client("memory", tenant="small") as client:
        inputs = own_inputs(client, [matrix("lu", order_of(MB))])
        _latencies(client, "lu", {}, inputs, 2)
        alone = _latencies(client, "lu", {}, inputs, 2 * n)
        is_over, n_large = threading.Event(), [0]
        other = threading.Thread(target=_send, args=(server, large, is_over, n_large))
        other.start()
        try:
            beside = _latencies(client, "lu", {}, inputs, 2 * n)
        finally:
            is_over.set()
            other.join()
    note = f"{n_large[0]} of the other's were computed meanwhile, {_WINDOW} under way"
    yield [
        *percentiles(f"{what}: alone", alone),
        *percentiles(f"{what}: beside another tenant", beside),
        ratio(f"{what}: beside another tenant / alone", beside, alone, note=note),
    ]


def _send(server: OwnServer, array: Array, is_over: threading.Event, n_done: list[int]) -> None:
    with server.client("memory", tenant="large") as client:
        inputs = own_inputs(client, [array])
        while not is_over.is_set():
            n_done[0] += sum(1 for _ in replies(client, calls("lu", {}, repeat(inputs[0], _WINDOW)), _WINDOW))


def killed_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """A worker killed while kernels run: every answer comes and is right, and the GPU's memory comes back."""
    what = "killed, lu"
    if not setting.begins(what):
        yield [setting.budget.cut_row(what)]
        return
    server = setting.servers.gpu
    array = matrix("lu", order_of((1 if setting.quick else 50) * MB))
    expected = get("lu").run([array.copy("F")], {}).arrays["piv"]
    n = 4 * _WINDOW
    free_before = _free_bytes(server)
    start_s, n_right, longest_s, is_killed = time.perf_counter(), 0, 0.0, False
    with server.client("memory") as client:
        inputs = own_inputs(client, [array])
        last_s = start_s
        for reply in replies(client, calls("lu", {}, repeat(inputs[0], n)), _WINDOW):
            now_s = time.perf_counter()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
            n_right += int(np.array_equal(reply.arrays()["piv"], expected))
            if not is_killed:
                is_killed = True
                os.kill(_gpu_worker(server), signal.SIGKILL)
    _await_workers(server)
    lost = max(0, free_before - _free_bytes(server))
    memory = f"{what}: GPU memory lost"
    yield [
        observed(f"{what}: right answers of {n}", n_right, "answers", goal=f">= {n}"),
        observed(f"{what}: longest pause between answers", longest_s, "s"),
        not_measured(memory, "each process has an emulated GPU's memory of its own")
        if setting.machine.is_emulated
        else observed(memory, lost / MB, "MB", goal=f"<= {_LOST_BYTES // MB}", note="a new worker beside it"),
    ]


def _gpu_worker(server: OwnServer) -> int:
    return next(int(row["pid"]) for row in server.stats()["workers"] if row["device"].startswith("cuda"))


def _await_workers(server: OwnServer) -> None:
    until_s, states = time.monotonic() + _READY_S, ["not asked"]
    while time.monotonic() < until_s:
        states = [row["state"] for row in server.stats()["workers"]]
        if "standby" in states and not {"starting", "lost"} & set(states):
            return
        time.sleep(0.1)
    raise JobError(f"no new worker in {_READY_S:.0f} s: {states}")


def _free_bytes(server: OwnServer) -> int:
    """Of the GPU, whoever has the rest."""
    _await_workers(server)
    return int(cupy_module().cuda.runtime.memGetInfo()[0])
