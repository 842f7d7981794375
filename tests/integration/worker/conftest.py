from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.task_master import TaskMaster, start_worker
from yarn_accel.core.tasks.attempt_orders import (
    AttemptId,
    AttemptOrder,
    InputSplit,
    OutputFile,
    TaskFolder,
    attempt_id,
)
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, TaskId
from yarn_accel.core.tasks.worker_messages import AttemptOutcome

_JOBS = itertools.count(1)


@dataclass
class WorkerSite:
    """A master, a folder, and workers that are processes of their own."""

    master: TaskMaster
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, name: str, environ: Mapping[str, str] = os.environ, **settings: Any
    ) -> subprocess.Popen[bytes]:
        """Start a worker and wait for its first report."""
        merged = {"cores": 4, **settings}
        process = start_worker(self.folder / name, name, self.master.port, environ, **merged)
        self.workers.append(process)
        self.master.until(lambda: name in self.master.reports)
        self.master.worker = name
        return process

    def log(self, order: AttemptOrder, worker: str = "w1") -> str:
        """What an attempt has printed; there is no file of one that has printed nothing."""
        path = self.folder / worker / "logs" / f"{order.attempt}.log"
        return path.read_text() if path.exists() else ""

    def task(self, *argv: str, text: str | None = None, output: bool = True, **more: Any) -> AttemptOrder:
        """An attempt of a job of its own; its input is this text."""
        job = next(_JOBS)
        folder = self.folder / f"job{job}"
        folder.mkdir()
        if text is not None:
            (folder / "in").write_text(text)
            more.setdefault("input", InputSplit(f"file://{folder}/in", 0, len(text)))
        if output:
            (folder / "out" / "_temporary").mkdir(parents=True)
            more.setdefault("output", OutputFile(f"file://{folder}/out", "part-m-00003"))
        more.setdefault("demand", FormDemand(1, 0, 0))
        app = AppId(more.pop("app", "") or f"app{job}")
        return AttemptOrder(attempt_id(1, job, 3, 0), app, TaskId("3"), Form.CPU, argv, **more)

    def leaving(self, *names: str) -> TaskFolder:
        """A task's folder of these files, in a folder of its own."""
        folder = self.folder / f"dag{next(_JOBS)}"
        (folder / "_temporary").mkdir(parents=True)
        return TaskFolder(f"file://{folder}", "task-1", names)

    def left(self, target: TaskFolder) -> dict[str, str]:
        """What is in a task's folder."""
        folder = Path(target.folder.removeprefix("file://"), target.name)
        return {each.name: each.read_text() for each in folder.glob("*")}

    def run_two_attempts(self, first: AttemptOrder, folder: Path) -> list[str]:
        """Two attempts of a task end at once and one commits; the process ids that they print."""
        barrier = f"touch {folder}/$$; while [ $(ls {folder} | wc -l) -lt 2 ]; do sleep 0.01; done; echo $$"
        first = replace(first, argv=("sh", "-c", barrier))
        second = replace(first, attempt=AttemptId(first.attempt[:-1] + "1"))
        self.master.list(first, second)
        ends = [self.master.end_of(each.attempt) for each in (first, second)]
        assert [each.outcome for each in ends] == [AttemptOutcome.DONE] * 2
        assert sorted(each.was_done_before for each in ends) == [False, True]
        return [each.name for each in folder.iterdir()]

    def outputs(self, order: AttemptOrder) -> dict[str, str]:
        """What the output folder holds, but for the temporary one."""
        assert order.output is not None
        folder = Path(order.output.folder.removeprefix("file://"))
        return {each.name: each.read_text() for each in folder.glob("*") if each.is_file()}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerSite]:
    master = TaskMaster()
    site = WorkerSite(master, tmp_path_factory.mktemp("site"))
    try:
        yield site
    finally:
        for worker in site.workers:
            worker.kill()
            worker.wait()
        master.close()


@pytest.fixture(scope="module")
def w1(site: WorkerSite) -> subprocess.Popen[bytes]:
    """A worker with four cores and two GPUs."""
    return site.start("w1", gpus='["0", "1"]', max_log_bytes=4096)
