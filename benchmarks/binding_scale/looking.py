"""What it costs the master when somebody looks: the state document, the page, the JSON of all nodes."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.binding_scale.world import ApplicationMaster, Node
from benchmarks.result import Row, measured
from yarn_accel.master.page import page
from yarn_accel.master.status_documents import AgentStatistics, Query, StatusDocuments
from yarn_accel.master.tracking_page import as_json

_N_LOOKS = 7
_N_BEATS = 5


def page_rows(master: ApplicationMaster, nodes: Sequence[Node], now_s: float, note: str) -> list[Row]:
    """Time the looks; milliseconds on the wall, and the longest the event loop could not do anything else."""
    states = StatusDocuments(master.core, _figures(nodes, now_s), lambda: now_s, {}, lambda _: {})
    query = Query()

    async def looked() -> None:
        state = await states.part(query.node, query.rack)
        await asyncio.to_thread(page, state, query)

    async def written() -> None:
        await asyncio.to_thread(as_json, await states.whole())

    rows: list[Row] = []
    for what, make, goal in (
        ("state of the page's nodes", lambda: states.part("", ""), "<= 200"),
        ("page, with its state", looked, ""),
        ("JSON of all nodes", written, ""),
    ):
        took_ms, blocked_ms = zip(*(asyncio.run(_watched(make)) for _ in range(_N_LOOKS)), strict=True)
        rows.append(measured(f"looking: {what}", took_ms, "ms", goal=goal, note=note))
        rows.append(measured(f"looking: {what}, loop held up", blocked_ms, "ms", goal="<= 50", note=note))
    return rows


def _figures(nodes: Sequence[Node], now_s: float) -> AgentStatistics:
    """Heartbeats of some seconds from all agents."""
    figures = AgentStatistics()
    for beat in range(_N_BEATS):
        at_s = now_s - _N_BEATS + 1 + beat
        for node in nodes:
            figures.heard(node.name, _heartbeat(node, beat), at_s)
    return figures


def _heartbeat(node: Node, beat: int) -> dict[str, Any]:
    device = {"device": "0", "name": "NVIDIA H200", "health": "ok", "index": 0, "temperature_c": 50}
    device |= {"memory_bytes": 2**35, "memory_total_bytes": 2**37, "utilisation": 0.5}
    server = {
        "endpoint": {"name": node.name, "host": node.name, "port": 7070},
        **{"health": "ok", "started_at": "then", "pid": 5, "workers": 2, "in_flight": 3, "queued": 1},
        **{"requests": 10 * beat, "done": 9 * beat, "device_s": 0.5 * beat, "read_busy_s": 0.1 * beat},
        **{"compute_busy_s": 0.5 * beat, "write_busy_s": 0.1 * beat},
        "operations": {"lu": {"done": 9 * beat, "compute_s": 0.5 * beat}},
    }
    return {
        **{"version": 1, "node": node.name, "seq": beat, "address": "10.0.0.1", "problems": []},
        "devices": [device] * 4 if node.is_accelerator else [],
        "server": server if node.is_accelerator else None,
        "pressure": {"io_some_avg10": 1.0, "io_full_avg10": 0.5},
        "nic": {"rx_bytes_per_s": 1e6, "tx_bytes_per_s": 1e6, "errors_per_s": 0},
        "disk": {"read_bytes_per_s": 1e6, "write_bytes_per_s": 1e6, "busy_share": 0.1},
        "agent": {"pid": 3, "rss_bytes": 5e7, "cpu_share": 0.01},
    }


async def _watched(make: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """How long it took, and the longest gap between two turns of the event loop meanwhile; both in ms."""
    gaps_s: list[float] = []

    async def watch() -> None:
        last_s = time.perf_counter()
        while True:
            await asyncio.sleep(0.0005)
            now_s = time.perf_counter()
            gaps_s.append(now_s - last_s)
            last_s = now_s

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    gaps_s.clear()
    gc.disable()  # as the pages do
    began_s = time.perf_counter()
    try:
        await make()
    finally:
        gc.enable()
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(0.001)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return 1000 * took_s, 1000 * max(gaps_s)
