"""Runs a job in this process, one task after the other, on this process's CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from jobs.runners.local_tasks import LocalTask, run_locally
from jobs.runners.step import Report, Step, StepResult
from jobs.verbs import TaskContext, parse_verb, run_verb
from yarn_accel.client import COUNTER_GROUP, CurrentAttempt, Reporter, TaskFiles, connect
from yarn_accel.errors import AccelError, JobError
from yarn_accel.uris import file_uri


class InlineRunner:
    """Runs every task in this process, one after the other, without any server.

    Args:
        home: folder for the data of this run; a temporary one, removed at the end, when None.
    """

    name = "inline"

    def __init__(self, home: Path | None = None) -> None:
        self._given_home = home
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._n_steps = 0

    def __enter__(self) -> InlineRunner:
        self._temporary = tempfile.TemporaryDirectory(prefix="accel-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def home(self, name: str) -> str:
        """URI of a local folder of this run."""
        return file_uri((self._given_home or self._scratch()) / name)

    def run(self, step: Step, report: Report) -> StepResult:
        """Run a step; raises JobError with the first failed task's diagnosis."""
        self._n_steps += 1
        return run_locally(step, self._scratch() / f"step-{self._n_steps}", _run_task, 1, report)

    def _scratch(self) -> Path:
        if self._temporary is None:
            raise JobError("the runner is not open")
        return Path(self._temporary.name)


def _run_task(task: LocalTask) -> Mapping[str, int]:
    reporter = Reporter(is_silent=True)
    task.link_files()
    with (
        task.stdin.open("rb") as stdin,
        task.stdout.open("wb") as stdout,
        connect("inline", count_calls=False, reporter=reporter, environ=task.environ()) as accel,
    ):
        context = TaskContext(
            attempt=CurrentAttempt.from_environ(task.environ()),
            map_calls=accel.map,
            files=TaskFiles(task.environ()),
            reporter=reporter,
            stdin=stdin,
            stdout=stdout,
            folder=task.folder,
        )
        try:
            run_verb(parse_verb(task.arguments), context)
        except AccelError as error:
            raise JobError(f"{task.attempt_id}: {error}") from error
    return {name: total for (group, name), total in reporter.totals.items() if group == COUNTER_GROUP}
