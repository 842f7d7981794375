"""Section `overlap`: when each request was copied in, computed and copied out, by CUDA's own events.

The trace is in the JSON's ``series``: for each request its stages with begin and end in milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

from benchmarks.gpu.factorizations import params_of
from benchmarks.gpu.overlap import STAGES, overlap_of
from benchmarks.gpu.setting import GpuSetting
from benchmarks.gpu.traced import PREFIX, STAGES_KEY
from benchmarks.pipeline.lapack import matrix, order_of
from benchmarks.pipeline.setting import calls, replies
from benchmarks.pipeline.stages import MB
from benchmarks.result import Row, observed
from yarn_accel.client.calls import Tensor

_WINDOW = 8


def overlap_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """How much of the copies' time the computation hides, for each size."""
    n_requests = 8 if setting.quick else 40
    for size_mb in (4,) if setting.quick else (4, 16, 50):
        for operation in ("lu",) if setting.quick else ("lu", "qr", "cholesky"):
            what = f"{operation}, {size_mb} MB"
            if not setting.budget.allows(what):
                yield [setting.budget.cut_row(f"overlap, {what}")]
                continue
            setting.say(f"overlap, {what}")
            trace = _traced(setting, operation, size_mb, n_requests)
            setting.series.setdefault("trace", {})[what] = trace
            yield _rows(f"overlap, {what}", trace)


def _traced(setting: GpuSetting, operation: str, size_mb: int, n: int) -> list[Mapping[str, Any]]:
    """The stages of each request, in the order of their answers."""
    tensor = Tensor.of(matrix(operation, order_of(size_mb * MB)))
    found = []
    with setting.servers.gpu.client("memory") as client:
        for counts in (False, True):  # the first ones touch memory, pin it and load the routine
            work = calls(PREFIX + operation, params_of(operation), repeat(tensor, n if counts else _WINDOW))
            found = [reply.info[STAGES_KEY] for reply in replies(client, work, _WINDOW)]
    # A process that was replaced has a clock of its own.
    process = Counter(stages["process"] for stages in found).most_common(1)[0][0]
    return [
        {stage: stages.get(stage, []) for stage in STAGES} for stages in found if stages["process"] == process
    ]


def _rows(what: str, trace: list[Mapping[str, Any]]) -> list[Row]:
    found = overlap_of(trace)
    note = (
        f"{len(trace)} requests in {found.wall:.1f} ms: kernels {found.kernels:.1f}, "
        f"copies {found.copies:.1f}, both ways at once {found.both_ways:.2f}"
    )
    busy = found.kernels / found.wall if found.wall else 0.0
    return [
        observed(f"{what}: copies hidden behind kernels", found.hidden_share, "share", note=note),
        observed(f"{what}: copy in, kernel and copy out at once", found.all_three, "ms"),
        observed(f"{what}: kernels' part of the time", busy, "share"),
    ]
