"""What three stages gain over one where moving the bytes costs as much as computing: on a slow link.

The link is the relay of `benchmarks.pipeline.proxy`, its rate chosen so that read and write together take as
long as the computation takes alone. One stage at a time is a window of one: nothing overlaps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

from benchmarks.pipeline.fleet import Child, one_thread
from benchmarks.pipeline.lapack import matrix, order_of
from benchmarks.pipeline.own_server import connect
from benchmarks.pipeline.setting import Setting, calls, replies
from benchmarks.result import Row, measured
from yarn_accel.client.calls import Tensor

_SIZE_BYTES = 8_000_000
_TIMES = 4
_WINDOW = 4


def link_rows(setting: Setting) -> Iterator[list[Row]]:
    """One row: the ratio of the wall times."""
    n_rounds, n_requests = (1, 6) if setting.quick else (3, 16)
    n = order_of(_SIZE_BYTES)
    tensor = Tensor.of(matrix("lu", n))
    lapack = Child("bench", "lapack", setting.folder / "lapack.log", one_thread())
    proxy = Child("bench", "proxy", setting.folder / "proxy.log")
    try:
        order = {"act": "alone", "operation": "repeat_lu", "params": {"times": _TIMES}, "n": n, "n_times": 5}
        compute_s = sorted(lapack.ask(order)["seconds"])[2]
        rate = 2 * 8 * n * n / compute_s
        with setting.server("links", workers=1) as server:
            opened = proxy.ask({"act": "open", "target_port": server.address["port"], "bytes_per_s": rate})
            address = {**server.address, "port": opened["port"], "unix": ""}
            gains = []
            for turn in range(n_rounds):
                setting.report(f"three stages over one, round {turn + 1} of {n_rounds}")
                one_s = _wall_s(address, tensor, n_requests, 1)
                gains.append(one_s / _wall_s(address, tensor, n_requests, _WINDOW))
    finally:
        proxy.stop()
        lapack.stop()
    note = (
        f"LU 8 MB, c = {_TIMES}: compute {compute_s * 1e3:.0f} ms; relayed at {rate / 1e6:.0f} MB/s each way"
    )
    yield [measured("three stages over one, read + write = compute", gains, "x", goal=">= 1.7", note=note)]


def _wall_s(address: Mapping[str, Any], tensor: Tensor, n: int, window: int) -> float:
    with connect(address, "tcp") as client:
        start_s = time.perf_counter()
        for _ in replies(client, calls("repeat_lu", {"times": _TIMES}, repeat(tensor, n)), window):
            pass
        return time.perf_counter() - start_s
