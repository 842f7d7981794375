"""What a job gives back, the same with every runner: results, rejects, counters, tasks, seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from jobs.runners.step import TaskRecord
from yarn_accel.errors import JobError

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that could not be done: which, a stable code, and the reason with its cure."""

    key: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome(Generic[ResultT]):
    """How a job went.

    Attributes:
        n_in: records that went in.
        results: one for each record done.
        rejects: one for each bad record.
        counters: the job's own counters, by name.
        tasks: every task attempt.
        wall_s: seconds from submission to the end of the last step.
        job_ids: the YARN jobs; empty but for the runner `hadoop`.
    """

    n_in: int
    results: tuple[ResultT, ...]
    rejects: tuple[RejectedRecord, ...]
    counters: Mapping[str, int]
    tasks: tuple[TaskRecord, ...]
    wall_s: float
    job_ids: tuple[str, ...] = ()

    def check_complete(self) -> None:
        """Every record is accounted for: in = done + rejected, in the output and in the counters.

        Raises:
            JobError: it does not add up; the message has the numbers.
        """
        counted = tuple(self.counters.get(name, 0) for name in ("records_in", "done", "rejected"))
        found = (self.n_in, len(self.results), len(self.rejects))
        if found[0] != found[1] + found[2] or counted != found:
            raise JobError(
                "records do not add up: in {} = done {} + rejected {} in the output; "
                "in {} = done {} + rejected {} by the counters".format(*found, *counted)
            )


def write_table(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> Path:
    """Write a TSV file with a header line; TABs and line ends inside a field become spaces."""
    lines = ["\t".join(header)]
    lines += ["\t".join(" ".join(str(field).split()) for field in row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
