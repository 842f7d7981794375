"""Whole inputs, and the files that tasks leave: committed once and whole, whatever is killed."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.worker.conftest import WorkerSite
from tests.integration.worker.test_attempts import pid_in
from tests.integration.worker.test_functions import call, result
from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder, TaskFolder
from yarn_accel.core.tasks.values import FormDemand
from yarn_accel.core.tasks.worker_messages import (
    AttemptOutcome,
    AttemptPhase,
    AttemptReport,
    OrderNumber,
    WorkerOrder,
    WorkerReport,
)
from yarn_accel.local_filesystem import Buffer
from yarn_accel.storage import Store
from yarn_accel.worker.config import WorkerConfig
from yarn_accel.worker.service import WorkerService


def again(order: AttemptOrder, number: int = 1) -> AttemptOrder:
    """Another attempt at the same task."""
    return replace(order, attempt=AttemptId(order.attempt.rpartition("_")[0] + f"_{number}"))


def unfinished(target: TaskFolder) -> list[str]:
    folder = Path(target.folder.removeprefix("file://"), "_temporary")
    return [each.name for each in folder.iterdir()] if folder.exists() else []


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[tuple[str, str], ...]:
    (tmp_path / "a").write_bytes(b"A" * 3_000_000)
    (tmp_path / "b").write_text("b\n")
    return (("in1", f"file://{tmp_path}/a"), ("in2", f"file://{tmp_path}/b"))


@pytest.mark.usefixtures("w1")
def test_a_command_finds_its_inputs_and_its_files_are_committed_together(
    site: WorkerSite, inputs: tuple[tuple[str, str], ...]
) -> None:
    target = site.leaving("sum", "list")
    script = "cat in1 in2 | wc -c > sum; cat in2 - > list; ls; touch surplus"
    order = site.task("sh", "-c", script, text="line\n", output=False, inputs=inputs, output_folder=target)
    end = site.master.run(order)
    assert end.outcome is AttemptOutcome.DONE, end
    assert site.left(target) == {"sum": "3000002\n", "list": "b\nline\n"}
    assert unfinished(target) == []
    assert site.log(order).split() == ["in1", "in2", "list", "sum", "tmp"]
    assert end.measured is not None
    assert end.measured.read_bytes == 3_000_002 + len("line\n")
    assert end.measured.read_s > 0
    assert end.measured.read_s + end.measured.compute_s == pytest.approx(end.wall_s)
    # Another attempt, and the first one of another application with the same folder.
    other = site.task("false", output=False, output_folder=target)
    for later in (again(replace(order, argv=("false",), input=None)), other):
        end = site.master.run(later)
        assert (end.outcome, end.was_done_before) == (AttemptOutcome.DONE, True)


@pytest.mark.usefixtures("w1")
def test_what_a_task_left_is_linked_for_the_next_one_on_its_worker(site: WorkerSite) -> None:
    first, second = site.leaving("out"), site.leaving("out")
    assert (
        site.master.run(site.task("sh", "-c", "echo x > out", output=False, output_folder=first)).outcome
        is AttemptOutcome.DONE
    )
    taken = (("in", f"{first.folder}/{first.name}/out"),)
    order = site.task("sh", "-c", "cat in in > out", output=False, inputs=taken, output_folder=second)
    end = site.master.run(order)
    assert (end.outcome, end.measured.read_bytes) == (AttemptOutcome.DONE, 0)
    assert site.left(second) == {"out": "x\nx\n"}
    # One that was written again is fetched, not taken for what was linked.
    path = Path(first.folder.removeprefix("file://"), first.name, "out")
    path.unlink()
    path.write_text("newer\n")
    third = site.task("sh", "-c", "cat in", output=False, inputs=taken)
    end = site.master.run(third)
    assert (site.log(third), end.measured.read_bytes) == ("newer\n", 6)


@pytest.mark.usefixtures("w1")
def test_the_inputs_of_an_attempt_come_while_it_waits(site: WorkerSite, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 2_345_678)
    script = "until find ../.files -size 2345678c | grep -q . ; do sleep 0.02; done"
    first = site.task("sh", "-c", script, output=False, demand=FormDemand(4, 0, 0))
    order = site.task("wc", "-c", "in", output=False, inputs=(("in", f"file://{tmp_path}/big"),))
    site.master.list(first, order)
    end = site.master.end_of(order.attempt)
    assert (end.outcome, end.measured.read_bytes) == (AttemptOutcome.DONE, 0)
    assert site.log(order) == "2345678 in\n"


class HeldStore(Store):
    """A storage that is slow: no file is written before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write_new(self, uri: str, parts: Iterable[Buffer]) -> int:
        assert self.let_go.wait(240.0)
        return super().write_new(uri, parts)


class ListedLink:
    """A master in this process: it lists some attempts, and keeps what is reported."""

    def __init__(self) -> None:
        self.listed: tuple[AttemptOrder, ...] = ()
        self.sequence = 0
        self._reports: asyncio.Queue[WorkerReport] = asyncio.Queue()

    async def exchange(self, report: WorkerReport) -> WorkerOrder:
        self.sequence += 1
        self._reports.put_nowait(report)
        await asyncio.sleep(0.01)
        return WorkerOrder(OrderNumber(1, self.sequence), report.incarnation, report.sequence, self.listed)

    async def ended(self, order: AttemptOrder) -> dict[AttemptId, AttemptReport]:
        """The attempts of the first report that has the end of this one."""
        while True:
            report = await asyncio.wait_for(self._reports.get(), 240.0)
            held = {each.attempt: each for each in report.attempts}
            if order.attempt in held and held[order.attempt].phase is AttemptPhase.ENDED:
                return held

    async def taken(self) -> None:
        """What is listed now was taken by the worker."""
        number = OrderNumber(1, self.sequence + 1)
        while ((await asyncio.wait_for(self._reports.get(), 240.0)).order or (0, 0)) < number:
            pass


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_the_next_task_runs_while_an_output_is_written(
    site: WorkerSite, tmp_path: Path, is_dropped: bool
) -> None:
    target = site.leaving("out")
    first = site.task("sh", "-c", "echo x > out", output=False, output_folder=target)
    second = site.task("true", output=False)
    config = WorkerConfig(
        node="n", worker="n", work_dir=str(tmp_path / "work"), log_dir=str(tmp_path / "logs")
    )
    link, store, stop = ListedLink(), HeldStore(), asyncio.Event()
    link.listed = (first, second)
    working = asyncio.create_task(WorkerService(config, link, store).run_until(stop))
    held = await link.ended(second)
    assert held[first.attempt].phase is AttemptPhase.RUNNING, "its output is not there"
    if is_dropped:  # from now on it must write nothing more
        link.listed = (second,)
        await link.taken()
    store.let_go.set()
    end = (await link.ended(first))[first.attempt].end
    assert end is not None
    assert end.outcome is (AttemptOutcome.CANCELLED if is_dropped else AttemptOutcome.DONE)
    assert site.left(target) == ({} if is_dropped else {"out": "x\n"})
    stop.set()
    assert await working == 0


@pytest.mark.usefixtures("w1")
def test_a_function_takes_and_leaves_files_and_its_result_is_kept_with_them(
    site: WorkerSite, inputs: tuple[tuple[str, str], ...]
) -> None:
    target = site.leaving("out")
    order = call(site, "concatenate", {"number": 2}, inputs=inputs[1:], output_folder=target)
    end = site.master.run(order)
    assert (result(end), end.was_done_before) == (1, False)
    assert site.left(target) == {"out": "b\nb\n", "_result.json": "1"}
    end = site.master.run(again(order))
    assert (result(end), end.was_done_before, end.measured) == (1, True, None)
    silent = call(site, "children_write", {"n_children": 2}, output_folder=site.leaving("out0", "out1"))
    assert result(site.master.run(silent)) is None
    assert site.left(silent.output_folder) == {"out0": "x", "out1": "x"}
    assert result(site.master.run(again(silent))) is None


@pytest.mark.usefixtures("w1")
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("true", "the task has left no file out"),
        (
            "ln -s /etc/passwd out",
            "out, which the task has left, cannot be read: Too many levels of symbolic",
        ),
        ("mkdir out", "out, which the task has left, is no regular file"),
        ("mkfifo out", "out, which the task has left, is no regular file"),
    ],
)
def test_what_is_no_file_of_the_task_is_not_committed(site: WorkerSite, script: str, error: str) -> None:
    target = site.leaving("out", "first")
    end = site.master.run(
        site.task("sh", "-c", f"echo 1 > first; {script}", output=False, output_folder=target)
    )
    assert end.outcome is AttemptOutcome.FAILED
    assert error in end.error
    assert (site.left(target), unfinished(target)) == ({}, [])


@pytest.mark.usefixtures("w1")
def test_a_folder_that_was_replaced_by_a_link_is_not_followed(site: WorkerSite, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("of somebody else")
    target = site.leaving("out")
    script = f'w=$PWD; cd ..; mv "$w" "$w.moved"; ln -s {tmp_path} "$w"'
    end = site.master.run(site.task("sh", "-c", script, output=False, output_folder=target))
    assert end.error == "the task has left no file out"
    assert site.left(target) == {}


@pytest.mark.usefixtures("w1")
def test_an_input_that_is_missing_fails_the_attempt(site: WorkerSite, tmp_path: Path) -> None:
    target = site.leaving("out")
    taken = (("in", f"file://{tmp_path}/none"),)
    end = site.master.run(site.task("true", output=False, inputs=taken, output_folder=target))
    assert (end.outcome, end.is_transient) == (AttemptOutcome.FAILED, False)
    assert "none: there is no such file or folder" in end.error


@pytest.mark.usefixtures("w1")
def test_of_two_attempts_one_commits_its_folder(site: WorkerSite, tmp_path: Path) -> None:
    target = site.leaving("out", "more")
    barrier = f"touch {tmp_path}/$$; while [ $(ls {tmp_path} | wc -l) -lt 2 ]; do sleep 0.01; done"
    script = f"{barrier}; echo $$ > out; echo $$ > more"
    first = site.task("sh", "-c", script, output=False, output_folder=target)
    site.master.list(first, again(first))
    ends = [site.master.end_of(each.attempt) for each in (first, again(first))]
    assert [each.outcome for each in ends] == [AttemptOutcome.DONE] * 2
    assert sorted(each.was_done_before for each in ends) == [False, True]
    found = site.left(target)
    assert found["out"] == found["more"]
    assert unfinished(target) == []


def test_a_stopped_worker_that_returns_does_not_commit_again(site: WorkerSite, tmp_path: Path) -> None:
    lost = site.start("lost")
    target = site.leaving("out")
    script = f"echo $$ > {tmp_path}/pid; while [ ! -e {tmp_path}/end ]; do sleep 0.02; done; echo lost > out"
    order = site.task("sh", "-c", script, output=False, output_folder=target)
    site.master.list(order)
    pid_in(tmp_path / "pid")
    lost.send_signal(signal.SIGSTOP)
    (tmp_path / "end").touch()
    site.master.drop(order.attempt)
    site.start("found")
    second = again(replace(order, argv=("sh", "-c", "echo found > out")))
    assert site.master.run(second).outcome is AttemptOutcome.DONE
    site.master.worker = "lost"
    site.master.list(order)
    lost.send_signal(signal.SIGCONT)
    end = site.master.end_of(order.attempt)
    # It may read first that the attempt was dropped, while it stood still.
    if end.outcome is not AttemptOutcome.CANCELLED:
        assert (end.outcome, end.was_done_before) == (AttemptOutcome.DONE, True)
    assert site.left(target) == {"out": "found\n"}
    assert unfinished(target) == []
    for worker in site.workers[-2:]:
        worker.terminate()


N_FILES, FILE_BYTES = 6, 2_000_000


def killed_at_random(site: WorkerSite, seed: int, n_kills: int) -> None:
    """Workers die at random moments of a task that leaves much, until one is done."""
    chance = random.Random(seed)
    names = tuple(f"out{number}" for number in range(N_FILES))
    target = site.leaving(*names)
    script = f"for n in {' '.join(names)}; do head -c {FILE_BYTES} /dev/zero > $n; done; echo >> out0"
    first = site.task("sh", "-c", script, output=False, output_folder=target)
    for number in range(n_kills):
        worker = site.start(f"killed-{seed}-{number}")
        site.master.list(again(first, number))
        own = Path(target.folder.removeprefix("file://"), "_temporary")
        until_s = time.monotonic() + 60
        # Half of the deaths are while it writes, or right after.
        while chance.random() < 0.97 and time.monotonic() < until_s:
            if own.exists() and chance.random() < 0.5:
                time.sleep(chance.random() * 0.02)
                break
            time.sleep(0.002)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        site.master.drop(again(first, number).attempt)
    site.start(f"last-{seed}")
    end = site.master.run(again(first, n_kills))
    assert end.outcome is AttemptOutcome.DONE, end
    folder = Path(target.folder.removeprefix("file://"), target.name)
    sizes = {each.name: each.stat().st_size for each in folder.iterdir()}
    assert sizes == {name: FILE_BYTES + (name == "out0") for name in names}
    site.workers[-1].terminate()


def test_kill_9_while_files_are_committed_leaves_all_of_them_or_none(site: WorkerSite) -> None:
    killed_at_random(site, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
def test_kill_9_at_many_moments_leaves_all_files_or_none(site: WorkerSite, seed: int) -> None:
    killed_at_random(site, seed, 8)
