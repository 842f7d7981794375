"""Three tenants with weights 1 : 2 : 4 who all ask for more than there is: who gets the device-seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from itertools import repeat, takewhile

from benchmarks.pipeline.lapack import matrix
from benchmarks.pipeline.own_server import OwnServer
from benchmarks.pipeline.setting import Setting, calls, replies
from benchmarks.result import Row, measured
from yarn_accel.client.calls import Tensor

_WEIGHTS = {"tenant-1": 1.0, "tenant-2": 2.0, "tenant-4": 4.0}
_SIZES = {"tenant-1": 500, "tenant-2": 250, "tenant-4": 400}
"""Orders of their matrices: shares are of seconds, so requests of unequal cost must not matter."""
_WINDOW = 32
"""More than two batches of the smallest matrices: who has nothing waiting is no part of the overload."""


def fairness_rows(setting: Setting) -> Iterator[list[Row]]:
    """The largest relative deviation of a share, and the shares."""
    duration_s, n_rounds = (2.0, 1) if setting.quick else (6.0, 3)
    tenants = {name: {"weight": weight} for name, weight in _WEIGHTS.items()}
    stop = threading.Event()
    with setting.server("fairness", workers=1, tenants=tenants) as server:
        threads = [threading.Thread(target=_load, args=(server, name, stop)) for name in _WEIGHTS]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        rounds = []
        try:
            for turn in range(n_rounds):
                setting.report(f"fairness, round {turn + 1} of {n_rounds}")
                rounds.append(_shares(server, duration_s))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    total = sum(_WEIGHTS.values())
    worst = [max(abs(got[name] * total / weight - 1) for name, weight in _WEIGHTS.items()) for got in rounds]
    text = ", ".join(f"{rounds[-1][name]:.3f}" for name in _WEIGHTS)
    yield [
        measured(
            "fairness 1:2:4, largest deviation of a share",
            worst,
            "share",
            goal="<= 0.05",
            note=f"last: {text}",
        )
    ]


def _load(server: OwnServer, tenant: str, stop: threading.Event) -> None:
    tensor = Tensor.of(matrix("lu", _SIZES[tenant]))
    endless = takewhile(lambda _: not stop.is_set(), repeat(tensor))
    with server.client(tenant=tenant) as client:
        for _ in replies(client, calls("lu", {}, endless), _WINDOW):
            pass


def _device_s(server: OwnServer) -> Mapping[str, float]:
    tenants = server.stats()["tenants"]
    return {name: float(tenants[name]["device_s"]) for name in _WEIGHTS}


def _shares(server: OwnServer, duration_s: float) -> Mapping[str, float]:
    before = _device_s(server)
    time.sleep(duration_s)
    after = _device_s(server)
    used = {name: after[name] - before[name] for name in _WEIGHTS}
    return {name: value / sum(used.values()) for name, value in used.items()}
