"""Tenants side by side: who gets the device-seconds, and how late one's answer is that others delay.

In `fairness` three tenants with weights 1 : 2 : 4 all ask for more than there is.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import repeat, takewhile
from typing import Any

from benchmarks import ROOT
from benchmarks.pipeline.lapack import matrix
from benchmarks.pipeline.setting import MIB, OwnServer, Setting, calls, connect, replies
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


# ---- six mappers of one tenant that are stopped (SIGSTOP): how much later another tenant has its answer

_N_MAPPERS = 6
_MAPPER_BYTES, _N_CONNECTIONS = 64 * MIB, 3
"""Each mapper sends one request on each connection and reads no answer; the memory is too small for all."""
_REQUEST_BYTES = 200 * MIB
_FULL = 0.9
"""Mappers are stopped when so much of the server's memory is in use, or after `_FILL_S`."""
_FILL_S = 20.0
_DEFAULTS = {"pool_bytes": 1024 * MIB, "queue_bytes": 512 * MIB, "max_shared_memory_bytes": 512 * MIB}


def stopped_rows(setting: Setting) -> Iterator[list[Row]]:
    """One echo of 200 MiB over TCP, with nobody else and just after six mappers were stopped, in turn.

    Each has a server of its own: memory that the system has not given out before costs time in both.
    """
    n_rounds = 2 if setting.quick else 7
    alone, beside, after, read, cuts, held = [], [], [], [], [], []
    for turn in range(n_rounds):
        setting.report(f"stopped mappers, round {turn + 1} of {n_rounds}")
        with setting.server(f"alone-{turn}", workers=1, **_DEFAULTS) as server:
            ((took_s, before_s),) = _seconds(server, 1)
            alone.append(took_s)
        with ExitStack() as stack:
            server = stack.enter_context(setting.server(f"stopped-{turn}", workers=1, **_DEFAULTS))
            held.append(_stop_mappers(server, setting, stack) / MIB)
            (took_s, read_s), (next_s, _) = _seconds(server, 2)
            beside.append(took_s)
            read.append(read_s - before_s)
            after.append(next_s)
            cuts.append(float(server.stats()["cut_off"]))
    what = "200 MiB echo over TCP"
    delays = [late - usual for late, usual in zip(beside, alone, strict=True)]
    yield [
        measured(f"{what}: alone", alone, "s", note="a new server"),
        measured(f"{what}: just after six mappers of another tenant were stopped", beside, "s"),
        measured(f"{what}: the delay by them", delays, "s", goal="<= 1", note="difference within a round"),
        measured("of the delay: until the server had the inputs", read, "s", note="as the server says"),
        measured(f"{what}: the next one", after, "s"),
        measured("memory that the stopped mappers held", held, "MiB", note="of 1024"),
        measured("connections cut off", cuts, "1"),
    ]


def _seconds(server: OwnServer, n: int) -> list[tuple[float, float]]:
    """Seconds of each of `n` requests, one after the other, and until the server had its inputs."""
    payload = bytes(_REQUEST_BYTES)
    took_s = []
    with server.client("tcp", tenant="other") as client:
        for _ in range(n):
            start_s = time.monotonic()
            (reply,) = replies(client, calls("echo", {}, (payload,)), 1)
            took_s.append((time.monotonic() - start_s, reply.seconds["read"]))
            assert reply.bytes_out == _REQUEST_BYTES
    return took_s


def _stop_mappers(server: OwnServer, setting: Setting, stack: ExitStack) -> float:
    """Let them fill the memory, and stop them; the bytes in use then."""
    argv = [sys.executable, "-m", "benchmarks.pipeline.sharing", json.dumps(server.address)]
    mappers = []
    with (setting.folder / "mappers.log").open("wb") as log:
        for _ in range(_N_MAPPERS):
            mapper = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(mapper.wait)
            stack.callback(mapper.kill)
            mappers.append(mapper)
    until_s = time.monotonic() + _FILL_S
    while (used := _held(server)) < _FULL * _DEFAULTS["pool_bytes"]:
        if time.monotonic() > until_s:
            break
        time.sleep(0.05)
    for mapper in mappers:
        mapper.send_signal(signal.SIGSTOP)
    return float(used)


def _held(server: OwnServer) -> int:
    """Bytes that are held by somebody; answers that are remembered make way."""
    pool = server.stats()["pool"]
    return int(pool["used_bytes"] - pool["kept_bytes"])


def _run_mapper(address: Any) -> None:
    payload = bytes(_MAPPER_BYTES)
    with ExitStack() as stack:
        for _ in range(_N_CONNECTIONS):
            client = stack.enter_context(connect(address, "tcp", tenant="stopped"))
            for call in calls("echo", {}, (payload,)):
                client.submit(call)
        time.sleep(_FILL_S)


if __name__ == "__main__":
    _run_mapper(json.loads(sys.argv[1]))
