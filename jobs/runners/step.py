"""Values that runners and jobs exchange: a step, its result, and the outcome of a whole job.

They are the same with every runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from yarn_accel.errors import JobError

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One streaming job.

    Args:
        name: what users read in the job list.
        mapper: arguments of the zipapp, such as ``("factorize-map", "--by", "value")``.
        reducer: the same for the reducer; empty: no reduce phase.
        inputs: URIs of text files (``io`` text) or of SequenceFiles (``io`` typedbytes).
        output_uri: folder for the parts; it must not exist.
        io: ``text`` or ``typedbytes``: how records pass through the pipes.
        output_kind: ``text`` (lines of key, TAB, value) or ``sequence`` (SequenceFiles): what the parts are.
        lines_per_map: for text: cut the input into tasks of so many lines; 0: one task for each file.
        n_reduces: reduce tasks when there is a reducer.
        files: local files that travel with the job into each task's working directory.
        is_strict: a bad record fails the job, so a task is not tried again.
        has_task_files: tasks hand over files, which Hadoop commits with their lines (`TaskFiles`).
    """

    name: str
    mapper: tuple[str, ...]
    inputs: tuple[str, ...]
    output_uri: str
    reducer: tuple[str, ...] = ()
    io: str = "text"
    output_kind: str = "text"
    lines_per_map: int = 0
    n_reduces: int = 0
    files: tuple[Path, ...] = ()
    is_strict: bool = False
    has_task_files: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task attempt; times are Unix seconds."""

    attempt: str
    kind: str
    node: str
    state: str
    start_s: float
    finish_s: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step went.

    Attributes:
        parts: URIs of the output parts, sorted.
        counters: our own counters by name (`records_in`, `sent`, `done`, `rejected`, `cpu_fallback`,
        `bytes`).
        job_id: YARN's id of it; empty for the runners `inline` and `local`.
    """

    parts: tuple[str, ...]
    counters: Mapping[str, int]
    tasks: tuple[TaskRecord, ...]
    wall_s: float
    job_id: str = ""


class Runner(Protocol):
    """Where steps run. A runner is open between ``with runner:`` and its end."""

    def home(self, name: str) -> str:
        """URI of a folder for data of this run, such as the manifest and the output of a step."""
        ...

    def run(self, step: Step, report: Report) -> StepResult:
        """Run a step to its end.

        Raises:
            JobError: a task failed; the message is the first line the task wrote on stderr.
        """
        ...


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
