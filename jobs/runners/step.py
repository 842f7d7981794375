"""What every runner takes and returns: one map (and reduce) step, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

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

    name: str

    def home(self, name: str) -> str:
        """URI of a folder for data of this run, such as the manifest and the output of a step."""
        ...

    def run(self, step: Step, report: Report) -> StepResult:
        """Run a step to its end.

        Raises:
            JobError: a task failed; the message is the first line the task wrote on stderr.
        """
        ...
