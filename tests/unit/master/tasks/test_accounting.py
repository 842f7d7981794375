"""What jobs used: added up by attempt, written as JSON lines, summed up over masters."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.unit.master.tasks.test_service import PRIORITY, Scene, app
from yarn_accel.adapters import accounting
from yarn_accel.adapters.accounting import Accounting, JobUse
from yarn_accel.core.application.events import ContainerRef, Registered
from yarn_accel.core.tasks.worker_messages import (
    AttemptEnd,
    AttemptOutcome,
    AttemptPhase,
    AttemptReport,
)
from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.launch.outcomes import accounted
from yarn_accel.storage import Store

APPLICATION = "application_1_1"


def of(folder, name="application_1_1-01"):
    return Accounting(Store(), f"file://{folder}/accounting", name)


def use(job, core_s=1.0, gpu_s=0.0, first_at=1.0, last_at=2.0, user="ann", **more):
    found = JobUse(user, APPLICATION, job, core_s, gpu_s, **{"attempts": 1, **more})
    found.first_at, found.last_at = first_at, last_at
    return found


def lines(folder, **more):
    return list(accounted(Store(), f"file://{folder}/accounting", **more))


def test_the_use_of_a_job_adds_up_over_processes_and_what_failed_counts(tmp_path):
    first, second = of(tmp_path), of(tmp_path, "application_1_1-02")
    first.add(use("knn-1", 20.0, 10.0, 100.0, 110.0, read_bytes=5000))
    first.add(use("knn-1", 4.0, 2.0, 105.0, 107.0, read_bytes=100, failed=1))
    first.add(use("lu-1", first_at=90.0, last_at=91.0))
    first.add(use("lu-1", user="bob"))
    first.write()
    second.add(use("knn-1", 2.0, 1.0, 200.0, 201.0, read_bytes=1, written_bytes=7))
    second.write()
    found = {(each["user"], each["job"]): each for each in lines(tmp_path)}
    assert found["ann", "knn-1"] == {
        **{"user": "ann", "application": APPLICATION, "job": "knn-1"},
        **{"core_s": 26.0, "gpu_s": 13.0, "read_bytes": 5101, "written_bytes": 7, "attempts": 3, "failed": 1},
        **{"first_at": 100.0, "last_at": 201.0},
    }
    assert found["ann", "lu-1"]["core_s"] == found["bob", "lu-1"]["core_s"] == 1.0
    assert len(lines(tmp_path, is_whole=True)) == 4


def test_a_file_takes_so_many_jobs_and_none_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(accounting, "_MAX_JOBS", 2)
    all_ = of(tmp_path)
    for job in ("j0", "j1", "j2", "j3", "j4", "j0"):
        all_.add(use(job))
        all_.write()
    assert len(list((tmp_path / "accounting").iterdir())) == 3
    assert {each["job"]: each["core_s"] for each in lines(tmp_path)} == {
        "j0": 2,
        **{f"j{n}": 1 for n in (1, 2, 3, 4)},
    }


def test_what_the_storage_does_not_take_is_written_later(tmp_path, monkeypatch):
    all_ = of(tmp_path)
    all_.add(use("a"))
    with monkeypatch.context() as patch:

        def refuse(*_):
            raise StorageError("it is away")

        patch.setattr(Store, "write_atomic", refuse)
        all_.write()
    assert lines(tmp_path) == []
    all_.write()
    assert [each["job"] for each in lines(tmp_path)] == ["a"]


def test_a_line_of_an_earlier_version_counts(tmp_path):
    all_ = of(tmp_path)
    all_.add(use("a"))
    all_.write()
    (file,) = (tmp_path / "accounting").iterdir()
    file.write_text(file.read_text().replace('"written_bytes": 0, ', ""))
    assert [(each["job"], each["written_bytes"]) for each in lines(tmp_path)] == [("a", 0)]


@pytest.mark.parametrize(
    "line", ["", "{", "[]", '{"user": 1}', '{"user": "a", "application": "b", "job": "c"}']
)
def test_a_line_that_is_none_is_left_out(tmp_path, line):
    all_ = of(tmp_path)
    all_.add(use("a"))
    all_.write()
    (file,) = (tmp_path / "accounting").iterdir()
    file.write_text(f"{line}\n{file.read_text()}{line}")
    assert [each["job"] for each in lines(tmp_path)] == ["a"]


def test_the_log_of_an_attempt_lies_in_the_container_of_its_worker(tmp_path):
    container = ContainerRef("container_1_01_000007", "n1", PRIORITY)

    async def work():
        scene = await Scene(tmp_path).opened()
        scene.service.observe(Registered((container,), 1, 0.0), ())
        with pytest.raises(RejectedError, match="knows no attempt"):
            scene.service.logs("a/0")
        _, attempts = await scene.first_attempts(app(n_tasks=1))
        (found,) = scene.service.logs("a/0")
        await scene.close()
        return found, attempts[0].attempt

    found, attempt = asyncio.run(asyncio.wait_for(work(), 120))
    place = f"http://n1:8042/{container.id}/{attempt}.log"
    assert found == {"attempt": attempt, "node": "n1", "url": place}


def test_an_attempt_counts_with_what_its_worker_reported_of_it(tmp_path):
    async def work():
        scene = await Scene(tmp_path).opened()
        taken, attempts = await scene.first_attempts(app(n_tasks=1))
        (attempt,) = [each.attempt for each in attempts]
        running = AttemptReport(attempt, AttemptPhase.RUNNING, 0.0, read_bytes=100)
        await scene.service.report("worker:n1", scene.report(order=taken, attempts=(running,)))
        end = AttemptEnd(AttemptOutcome.DONE, 0)
        ended = AttemptReport(attempt, AttemptPhase.ENDED, 0.0, read_bytes=300, end=end)
        await scene.service.report("worker:n1", scene.report(order=taken, attempts=(ended,)))
        used = scene.service.document()["used"]
        await scene.close()
        return used

    used = asyncio.run(asyncio.wait_for(work(), 120))
    assert (used["attempts"], used["failed"], used["read_bytes"]) == (1, 0, 300)
    assert used["core_s"] == pytest.approx(used["last_at"] - used["first_at"])
    assert used["gpu_s"] == 0
    assert json.dumps(used)
