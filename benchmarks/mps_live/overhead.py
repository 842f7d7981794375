"""What a task costs beside its work: from submission to start, from end to start, tasks per second. Pure."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from benchmarks.mps_live.runs import TaskSpan, spans_by_machine
from benchmarks.mps_live.setting import LEAST_S, Costs
from yarn_accel.core.tasks.service.history import EndedTask


class OverheadKey(NamedTuple):
    """Which measurement: of functions in warm workers, or of tasks that leave files in HDFS; by whom."""

    kind: str
    system: str

    def __str__(self) -> str:
        return f"overhead of {self.kind}, {self.system}"


@dataclass(frozen=True)
class OverheadRun:
    """What was measured.

    Attributes:
        first_s: from a submission to the start of its first task, each time anew.
        gaps_s: from a task's end to its successor's start on the same worker, of a chain.
        rate_per_s: of tasks that need nothing of one another, on all workers.
        n_together: how many these were.
        stamped_first_s: from when the service had a submission to the start of its first task, and all the
            others: the same by what the service itself recorded, to the millisecond; Dask has none.
    """

    key: OverheadKey
    first_s: Sequence[float]
    gaps_s: Sequence[float]
    rate_per_s: float
    n_together: int
    load_average: float
    commit: str = ""
    at: str = ""
    stamped_first_s: Sequence[float] = field(default_factory=list)
    stamped_gaps_s: Sequence[float] = field(default_factory=list)
    stamped_rate_per_s: float = 0.0

    def to_mapping(self) -> dict[str, Any]:
        """Fit for JSON."""
        shown = {name: " ".join(f"{each:.5f}" for each in getattr(self, name)) for name in _LISTS}
        return {**asdict(self), "key": list(self.key), **shown}

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> OverheadRun:
        """What `to_mapping` gave."""
        lists = {name: [float(each) for each in values[name].split()] for name in _LISTS}
        return cls(**{**values, "key": OverheadKey(*values["key"]), **lists})


_LISTS = ("first_s", "gaps_s", "stamped_first_s", "stamped_gaps_s")


def read_notes(text: str) -> list[TaskSpan]:
    """What tasks noted, see `steps`."""
    rows = [json.loads(line) for line in text.splitlines()]
    names = ("dag", "task", "machine", "started_s", "ended_s")
    return [TaskSpan(*(row[name] for name in names)) for row in rows]


def stamped_spans(answers: Mapping[str, Mapping[str, Any]]) -> list[TaskSpan]:
    """What the service recorded of the tasks of DAGs: ``tasks-outcome``, with all rows."""
    return [
        TaskSpan(name, each.name, each.node, each.started_at, each.ended_at)
        for name, answer in answers.items()
        for each in (EndedTask(*row) for row in answer["rows"])
    ]


def gaps_s(spans: Iterable[TaskSpan]) -> list[float]:
    """From each task's end to the next start on its machine."""
    return [
        after.start_s - before.end_s
        for each in spans_by_machine(spans).values()
        for before, after in itertools.pairwise(each)
    ]


def tasks_per_s(spans: Sequence[TaskSpan]) -> float:
    """From the first start to the last end."""
    return len(spans) / (max(each.end_s for each in spans) - min(each.start_s for each in spans))


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def costs_of(small: Iterable[TaskSpan], large: Iterable[TaskSpan], n_more_bytes: float) -> Costs:
    """What tasks cost, from chains that hardly move bytes and the same with large files.

    Each chain has a machine to itself, so what lies between two ends on it is a task.

    Args:
        n_more_bytes: that a task of the latter reads and writes.
    """
    task_s = max(_beside_wait_s(small), 0.0)
    moved_s = max(_beside_wait_s(large) - task_s, 1e-3)
    return Costs(round(task_s, 4), round(n_more_bytes / moved_s))


def _beside_wait_s(spans: Iterable[TaskSpan]) -> float:
    """Of a task; the first of a chain also waits for its DAG to be planned, and is left out."""
    periods = [
        after.end_s - before.end_s
        for each in spans_by_machine(spans).values()
        for before, after in itertools.pairwise(each)
    ]
    return statistics.median(periods) - LEAST_S
