"""A cell of the experiment: what was run, and what came of it. Pure; the JSON keeps cells as mappings."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from benchmarks.papers.yarn_paper.shipped.tasks import TaskRow

EMULATED, REAL = "emulated", "real"


@dataclass(frozen=True, slots=True)
class Key:
    """What was run.

    Attributes:
        instrument: `EMULATED` (the kernel is a timed wait) or `REAL` (computed on the machine's own CPUs);
            figures of one are never set against the other's.
        cluster: ``4-2``: four nodes, two of them with an accelerator.
        policy: of the binding; ``none`` without the application, ``weighted`` with the table of weights,
            ``unweighted`` the same policy without one.
        operation: ``lu``, ``qr``, ``cholesky`` or ``features`` (the image job).
        payload_mb: of a task in the paper; 0 where the operation says itself what travels.
        repeat: from 0.
        layout: empty: four mappers of 25 tasks, one on each node; else another one.
    """

    instrument: str
    cluster: str
    policy: str
    operation: str
    intensity: int = 1
    payload_mb: int = 0
    repeat: int = 0
    layout: str = ""

    def __str__(self) -> str:
        parts = [f"{self.instrument} {self.operation} {self.cluster} {self.policy}"]
        parts.append(f"intensity {self.intensity}")
        parts += [f"{self.payload_mb} MB"] if self.payload_mb else []
        parts += [self.layout] if self.layout else []
        return ", ".join(parts) + (f" (run {self.repeat + 1})" if self.repeat else "")


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of it.

    Attributes:
        phase_s: the task phase: from the first task sent to the last one done.
        job_s: the whole job: from the start of Hadoop's client to its end.
        n_done: tasks (for images: images).
        n_fallback: of these, computed by a mapper's own CPU.
        per_node: tasks by the node of their mapper.
        per_server: tasks by who answered.
        kernel_s: seconds of all kernels together.
        n_attempts: attempts of mappers that Hadoop started.
        n_maps: mappers.
        commit, at: which version ran, and when.
    """

    key: Key
    phase_s: float
    job_s: float
    n_done: int
    n_fallback: int
    per_node: Mapping[str, int] = field(default_factory=dict)
    per_server: Mapping[str, int] = field(default_factory=dict)
    kernel_s: float = 0.0
    n_attempts: int = 0
    n_maps: int = 0
    commit: str = ""
    at: str = ""

    @property
    def n_surplus_attempts(self) -> int:
        """Attempts more than mappers: speculative ones, and those after a failure."""
        return self.n_attempts - self.n_maps

    @property
    def is_even(self) -> bool:
        """Whether every mapper had a node of its own, and each equally many tasks."""
        return len(set(self.per_node.values())) == 1 and len(self.per_node) == self.n_maps

    def to_mapping(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {**asdict(self.key), **{k: v for k, v in asdict(self).items() if k != "key"}}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Cell:
        """What `to_mapping` gave.

        Raises:
            TypeError, KeyError: it is none.
        """
        names = [each.name for each in fields(Key)]
        key = Key(**{name: values[name] for name in names})
        return cls(key=key, **{name: value for name, value in values.items() if name not in names})


def cell_of(
    key: Key, rows: Sequence[TaskRow], job_s: float, n_attempts: int, n_maps: int, commit: str, at: str
) -> Cell:
    """Put the rows of all mappers together.

    Raises:
        ValueError: a task is missing, or is there twice.
    """
    counted = Counter(row.task for row in rows)
    doubled = sorted(task for task, times in counted.items() if times > 1)
    missing = sorted(set(range(max(counted, default=0))) - set(counted))
    if doubled or missing or not rows:
        raise ValueError(f"{key}: tasks {doubled[:5]} are there twice, {missing[:5]} are missing")
    return Cell(
        key=key,
        phase_s=max(row.done_s for row in rows) - min(row.sent_s for row in rows),
        job_s=job_s,
        n_done=len(rows),
        n_fallback=sum(row.is_fallback for row in rows),
        per_node=dict(sorted(Counter(row.node for row in rows).items())),
        per_server=dict(sorted(Counter(row.server for row in rows).items())),
        kernel_s=sum(row.compute_s for row in rows),
        n_attempts=n_attempts,
        n_maps=n_maps,
        commit=commit,
        at=at,
    )


class Cells:
    """All cells there are, by key."""

    def __init__(self, cells: Iterable[Cell] = ()) -> None:
        self._cells = {cell.key: cell for cell in cells}

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, key: Key) -> bool:
        return key in self._cells

    def all(self) -> list[Cell]:
        """In the order in which they were run."""
        return list(self._cells.values())

    def add(self, cell: Cell) -> None:
        """Take one more; a key that is there is replaced."""
        self._cells[cell.key] = cell

    def find(self, **facts: Any) -> list[Cell]:
        """Those whose keys have these facts."""
        wanted = facts.items()
        return [
            cell for key, cell in self._cells.items() if all(getattr(key, name) == v for name, v in wanted)
        ]

    def phase_s(self, **facts: Any) -> float | None:
        """Median task phase of the runs with these facts; None: there is none."""
        found = self.find(**facts)
        return statistics.median(cell.phase_s for cell in found) if found else None

    def job_s(self, **facts: Any) -> float | None:
        """The same for the whole job."""
        found = self.find(**facts)
        return statistics.median(cell.job_s for cell in found) if found else None
