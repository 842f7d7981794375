"""Section `overlap`: how much of the copies to and from a GPU happens while it computes.

CUDA's own events say when each request was copied in, computed and copied out. The trace is in the JSON's
``series``: for each request its stages with begin and end in milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from benchmarks.gpu.factorizations import params_of
from benchmarks.gpu.setting import GpuSetting
from benchmarks.gpu.traced import PREFIX, STAGES_KEY
from benchmarks.pipeline.computing import MB
from benchmarks.pipeline.lapack import matrix, order_of
from benchmarks.pipeline.setting import calls, replies
from benchmarks.result import Row, observed
from yarn_accel.client.calls import Tensor

Span = tuple[float, float]
"""Begin and end, in any unit."""
STAGES = ("h2d", "kernel", "d2h")


@dataclass(frozen=True)
class Overlap:
    """What a trace shows; in the unit of its spans.

    Attributes:
        copies: time in which anything was copied, either way.
        hidden: of that, while a kernel of any request ran.
        both_ways: time in which something was copied in and something out.
        all_three: of that, while a kernel ran.
        wall: from the first begin to the last end.
    """

    copies: float
    hidden: float
    kernels: float
    both_ways: float
    all_three: float
    wall: float

    @property
    def hidden_share(self) -> float:
        """Part of the copies' time that a kernel hides; 0 without copies."""
        return self.hidden / self.copies if self.copies else 0.0


def overlap_of(requests: Iterable[Mapping[str, Sequence[Span]]]) -> Overlap:
    """From the spans of each request by stage, all on one clock."""
    stages: dict[str, list[Span]] = {stage: [] for stage in STAGES}
    for request in requests:
        for stage in STAGES:
            stages[stage] += request.get(stage, ())
    copied_in, computed, copied_out = (union(stages[stage]) for stage in STAGES)
    copies = union([*copied_in, *copied_out])
    both_ways = common(copied_in, copied_out)
    everything = union([*copies, *computed])
    return Overlap(
        copies=length(copies),
        hidden=length(common(copies, computed)),
        kernels=length(computed),
        both_ways=length(both_ways),
        all_three=length(common(both_ways, computed)),
        wall=everything[-1][1] - everything[0][0] if everything else 0.0,
    )


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as spans in order that do not touch."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def common(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The time that is in both; each as `union` returns it."""
    found: list[Span] = []
    i = j = 0
    while i < len(some) and j < len(others):
        begin, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if begin < end:
            found.append((begin, end))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(spans: Iterable[Span]) -> float:
    """All of it together; spans that do not overlap."""
    return sum(end - begin for begin, end in spans)


_WINDOW = 8


def overlap_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """How much of the copies' time the computation hides, for each size."""
    n_requests = 8 if setting.quick else 40
    for size_mb in (4,) if setting.quick else (4, 16, 50):
        for operation in ("lu",) if setting.quick else ("lu", "qr", "cholesky"):
            what = f"{operation}, {size_mb} MB"
            if not setting.begins(f"overlap, {what}"):
                yield [setting.budget.cut_row(f"overlap, {what}")]
                continue
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
