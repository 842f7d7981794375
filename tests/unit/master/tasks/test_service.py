"""A task service inside the master: workers and owners on one side, the journal and nodes on the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.adapters.journal_file import StoredJournal
from yarn_accel.core.application import events as application
from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition
from yarn_accel.core.tasks.attempt_orders import AttemptOrder
from yarn_accel.core.tasks.policies.registry import make
from yarn_accel.core.tasks.service import TaskService
from yarn_accel.core.tasks.service.submission import app_document
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand, ResourceId, TaskId
from yarn_accel.core.tasks.worker_messages import (
    AttemptEnd,
    AttemptOutcome,
    AttemptPhase,
    AttemptReport,
    WorkerReport,
    parse_order,
    report_document,
)
from yarn_accel.core.tasks.worker_nodes import WorkerNodes
from yarn_accel.errors import RejectedError, StorageError, UnavailableError
from yarn_accel.master.credentials import WORKER_ROLE
from yarn_accel.master.tasks import service as task_service
from yarn_accel.master.tasks.places import SizePlaces, WorkerPlaces
from yarn_accel.master.tasks.service import LiveTaskService, _count_of, _nodes_of
from yarn_accel.master.tasks.settings import TaskSettings
from yarn_accel.master.tasks.storage import TaskJournal
from yarn_accel.storage import Store

SETTINGS = TaskSettings(cores=2, max_workers=2, policy="fifo")
PRIORITY, PREEMPTED = 30, -102


class Scene:
    """A service whose files are in a folder, and what it ordered."""

    def __init__(self, folder: Path, attempt: int = 1) -> None:
        self.uri = f"file://{folder}"
        self.store = Store()
        self.stored = StoredJournal(self.store, f"{self.uri}/journal", attempt)
        self.chosen: list[frozenset[str]] = []
        self.decisions = TaskService(SETTINGS.service_settings(1_700_000_000_000, attempt), make("fifo"))
        self.service = LiveTaskService(
            self.decisions,
            lambda written, failed: TaskJournal(self.stored, written, failed),
            self.store,
            self.uri,
            WorkerPlaces(
                [SizePlaces(WORKER_ROLE, WorkerNodes(60.0), lambda: ["n1", "n2"], PRIORITY)],
                lambda _, nodes: self.chosen.append(nodes),
            ),
            asyncio.get_running_loop().time,
            heard=lambda role, node: self.heard.append((role, node)),
            logs_of=lambda node, container: f"http://{node}:8042/{container}",
            want_servers=lambda: self.wanted.append(None),
        )
        self.wanted: list[None] = []
        self.heard: list[tuple[str, str]] = []
        self.sequence = 0
        self.working = asyncio.create_task(self.service.work())

    async def opened(self) -> Scene:
        while True:
            try:
                self.service.status()
            except UnavailableError:
                await asyncio.sleep(0.01)
            else:
                return self

    def problem(self) -> str:
        try:
            self.service.status()
        except UnavailableError as error:
            return error.message
        return ""

    async def close(self) -> None:
        self.working.cancel()
        await asyncio.gather(self.working, return_exceptions=True)

    def hand_in(self, definition: AppDefinition) -> str:
        uri = f"{self.uri}/submitted/{definition.spec.app}.json"
        self.store.write_atomic(uri, [json.dumps(app_document(definition)).encode()])
        return uri

    async def first_attempts(self, definition: AppDefinition) -> tuple[int, tuple[AttemptOrder, ...]]:
        """Submit an application; the order by which n1 gets attempts of it: its number, and they."""
        await self.service.submit(self.hand_in(definition))
        return await self.attempts_of("n1")

    async def attempts_of(self, worker: str) -> tuple[int, tuple[AttemptOrder, ...]]:
        """The order by which a worker that is new gets its first attempts."""
        taken = None
        while True:
            document = self.report(worker, order=taken)
            order = parse_order(await self.service.report(f"worker:{worker}", document))
            taken = order.number
            if order.attempts:
                return taken, order.attempts

    def report(self, worker: str = "n1", **more: object) -> dict[str, object]:
        self.sequence += 1
        values = {
            "worker": ResourceId(worker),
            "node": worker,
            "incarnation": "0123456789abcdef",
            "sequence": self.sequence,
            "order": None,
            "cores": 2,
            "gpus": 0,
            "memory_bytes": 1 << 30,
            **more,
        }
        return report_document(WorkerReport(**values))


def app(name: str = "a", n_tasks: int = 3) -> AppDefinition:
    tasks = tuple(TaskDefinition(TaskId(f"{name}/{number}")) for number in range(n_tasks))
    spec = AppSpec(AppId(name), name, 0, n_tasks, {Form.CPU: FormDemand()})
    return AppDefinition(spec, {Form.CPU: FormProgram(("true",))}, tasks)


def test_an_application_with_tasks_for_servers_asks_for_those_that_were_given_back(tmp_path):
    """It is refused while none serves, and finds them when it is submitted again."""

    async def work():
        scene = await Scene(tmp_path).opened()
        await scene.service.submit(scene.hand_in(app("other")))
        assert scene.wanted == []
        plain = app()
        spec = replace(plain.spec, demands={Form.GPU: FormDemand(gpus=1, is_served=True)})
        programs = {Form.GPU: FormProgram((), "lu", {"form": "packed"})}
        served = replace(plain, spec=spec, programs=programs)
        with pytest.raises(RejectedError, match="no pipeline server serves any node now"):
            await scene.service.submit(scene.hand_in(served))
        assert scene.wanted == [None]
        await scene.close()

    run(work())


def run(work) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_a_worker_gets_the_tasks_of_an_application_and_another_master_knows_them(tmp_path):
    async def work():
        scene = await Scene(tmp_path).opened()
        assert await scene.service.submit(scene.hand_in(app())) == "a"
        await soon(lambda: bool(scene.chosen) and bool(scene.chosen[-1]))
        assert scene.chosen[-1] <= {"n1", "n2"}
        attempts, taken = [], None
        while len(attempts) < 2:
            order = parse_order(await scene.service.report("worker:n1", scene.report(order=taken)))
            attempts, taken = [each.task for each in order.attempts], order.number
        assert set(attempts) <= {"a/0", "a/1", "a/2"}
        assert "running" in scene.service.explain(attempts[0]) or "queued" in scene.service.explain(
            attempts[0]
        )
        await scene.close()
        second = await Scene(tmp_path, attempt=2).opened()
        assert second.service.status()["apps"]["a"]["tasks"]["done"] == 0
        assert second.service.status()["workers"]["n1"]["is_expected"]
        second.service.cancel("a")
        await second.close()

    run(work())


@pytest.mark.parametrize("is_early", [False, True], ids=["after the journal was read", "before"])
def test_a_worker_of_an_earlier_master_that_yarn_preempts_is_lost_at_once_and_crashed_nothing(
    tmp_path, is_early
):
    container = application.ContainerRef("container_1_01_000007", "n1", PRIORITY)
    registered = application.Registered((container,), 2, 0.0)
    preempted = application.ContainerCompleted(container.id, PREEMPTED, "", 1.0)

    async def work():
        first = await Scene(tmp_path).opened()
        taken, attempts = await first.first_attempts(app(n_tasks=1))
        (attempt,) = [each.attempt for each in attempts]
        running = AttemptReport(attempt, AttemptPhase.RUNNING, 0.0)
        await first.service.report("worker:n1", first.report(order=taken, attempts=(running,)))
        await first.close()
        second = Scene(tmp_path, attempt=2)
        second.service.observe(registered, ())
        if is_early:
            second.service.observe(preempted, ())
        await second.opened()
        if not is_early:
            assert "n1" in second.service.status()["workers"]
            second.service.observe(preempted, ())
        assert not second.service.status()["workers"]
        assert "n1 was lost: preempted" in second.service.explain("a/0")
        assert second.decisions.table.tasks[TaskId("a/0")].n_crashes == 0
        await second.close()

    run(work())


def test_a_worker_that_reports_keeps_its_container(tmp_path, monkeypatch):
    """A container of which the application hears nothing for two minutes is replaced."""
    monkeypatch.setattr(task_service, "_HOLD_S", 0.0)

    async def work():
        scene = await Scene(tmp_path).opened()
        for worker in ("n1", "n1", "n2", "n1"):
            with contextlib.suppress(UnavailableError):  # there may be no order yet
                await scene.service.report(f"worker:{worker}", scene.report(worker))
        assert scene.heard == [("worker", "n1"), ("worker", "n2")]
        monkeypatch.setattr(task_service, "_HEARD_S", 0.0)
        with contextlib.suppress(UnavailableError):
            await scene.service.report("worker:n1", scene.report())
        assert scene.heard[2:] == [("worker", "n1")]
        await scene.close()

    run(work())


def test_a_report_that_is_held_is_answered_when_its_worker_sends_another_one(tmp_path, monkeypatch):
    monkeypatch.setattr(task_service, "_HOLD_S", 600.0)

    async def scene() -> None:
        here = await Scene(tmp_path).opened()
        order = parse_order(await here.service.report("worker:n1", here.report()))
        held = asyncio.create_task(here.service.report("worker:n1", here.report(order=order.number)))
        await asyncio.sleep(0.05)
        assert not held.done()
        newer = asyncio.create_task(here.service.report("worker:n1", here.report(order=order.number)))
        assert parse_order(await held).number == order.number
        assert not newer.done()
        newer.cancel()
        await here.close()

    run(scene())


def test_an_end_and_what_starts_after_it_are_on_the_disk_by_one_write(tmp_path):
    async def work():
        scene = await Scene(tmp_path).opened()
        taken, attempts = await scene.first_attempts(app(n_tasks=9))
        written, append = [], scene.stored.append
        scene.stored.append = lambda lines: (written.append(lines), append(lines))
        end = AttemptReport(attempts[0].attempt, AttemptPhase.ENDED, 0.0, end=AttemptEnd(AttemptOutcome.DONE))
        answer = await scene.service.report("worker:n1", scene.report(order=taken, attempts=(end,)))
        assert {each.attempt for each in parse_order(answer).attempts} - {each.attempt for each in attempts}
        [lines] = written
        assert b'"settled"' in lines
        assert b'"assigned"' in lines
        await scene.close()

    run(work())


def test_what_is_reported_during_a_write_is_one_write_and_nothing_of_it_leaves_before(tmp_path):
    async def work():
        scene = await Scene(tmp_path).opened()
        had = {"n1": await scene.first_attempts(app(n_tasks=40)), "n2": await scene.attempts_of("n2")}
        written, append, let_go = [], scene.stored.append, threading.Event()

        def held(lines):
            written.append(lines)
            assert let_go.wait(60)
            append(lines)

        async def end(worker, n_ended):
            """Report that some attempts ended, and the others run; whether a new order answers."""
            taken, attempts = had[worker]
            reported = [
                AttemptReport(each.attempt, AttemptPhase.ENDED, 0.0, end=AttemptEnd(AttemptOutcome.DONE))
                if number < n_ended
                else AttemptReport(each.attempt, AttemptPhase.RUNNING, 0.0)
                for number, each in enumerate(attempts)
            ]
            document = scene.report(worker, order=taken, attempts=tuple(reported))
            return parse_order(await scene.service.report(f"worker:{worker}", document)).number > taken

        scene.stored.append = held
        first = asyncio.create_task(end("n1", 1))
        await soon(lambda: written)
        ending = [asyncio.create_task(end("n1", 2)), asyncio.create_task(end("n2", 2))]
        await soon(lambda: scene.service.status()["apps"]["a"]["tasks"]["done"] == 4)
        assert not await first, "it is answered as another report of its worker is there, with what it had"
        assert (len(written), [each.done() for each in ending]) == (1, [False] * 2)
        let_go.set()
        assert all(await asyncio.gather(*ending))
        assert [lines.count(b'"settled"') for lines in written] == [1, 3]
        await scene.close()

    run(work())


def test_who_reports_for_another_worker_or_sends_no_report_is_refused(tmp_path):
    async def work():
        scene = await Scene(tmp_path).opened()
        for sender, document in (
            ("worker:n2", scene.report("n1")),
            ("agent:n1", scene.report("n1")),
            ("worker:n1", {"version": 1}),
            ("worker:n1", None),
            ("worker:n1", {**scene.report("n1"), "cores": 10**9}),
        ):
            with pytest.raises(RejectedError):
                await scene.service.report(sender, document)
        assert scene.service.status()["workers"] == {}
        await scene.close()

    run(work())


def test_attempts_find_the_folder_that_they_write_to_and_a_refused_application_leaves_none(tmp_path):
    async def work():
        scene = await Scene(tmp_path).opened()
        first = replace(app(), output=f"file://{tmp_path}/first")
        for _ in range(2):
            await scene.service.submit(scene.hand_in(first))
            assert [each.name for each in (tmp_path / "first").iterdir()] == ["_temporary"]
        again = replace(app(), output=f"file://{tmp_path}/again")
        with pytest.raises(RejectedError, match="there is an application of this name"):
            await scene.service.submit(scene.hand_in(again))
        assert not (tmp_path / "again").exists()
        (tmp_path / "file").touch()
        unwritable = replace(app("b"), output=f"file://{tmp_path}/file/out")
        with pytest.raises(RejectedError, match="file/out/_temporary"):
            await scene.service.submit(scene.hand_in(unwritable))
        assert list(scene.service.status()["apps"]) == ["a"]
        await scene.close()

    run(work())


def test_a_new_application_is_checked_once(tmp_path, monkeypatch):
    """Of many tasks each look takes time that reports of workers wait for."""
    checked = []
    monkeypatch.setattr("yarn_accel.core.tasks.service.service.check_orders", checked.append)

    async def work():
        scene = await Scene(tmp_path).opened()
        await asyncio.gather(*(scene.service.submit(scene.hand_in(app(name))) for name in ("a", "b")))
        assert sorted(each.spec.app for each in checked) == ["a", "b"]
        assert list(scene.service.status()["apps"]) == ["a", "b"]
        await scene.close()

    run(work())


def test_only_files_of_its_own_folder_are_applications(tmp_path):
    async def work():
        scene = await Scene(tmp_path).opened()
        good = scene.hand_in(app())
        assert good == f"{scene.service.status()['submit_to']}/a.json"
        scene.store.write_atomic(f"{scene.uri}/elsewhere.json", [b"{}"])
        scene.store.write_atomic(f"{scene.uri}/submitted/broken.json", [b'{"version": 1}'])
        for uri, words in (
            (f"{scene.uri}/elsewhere.json", "no file in"),
            (f"{scene.uri}/submitted/../elsewhere.json", "no file in"),
            (f"{scene.uri}/submitted/broken.json", "no application"),
            (f"{scene.uri}/submitted/missing.json", "missing.json"),
        ):
            with pytest.raises(RejectedError, match=words):
                await scene.service.submit(uri)
        await scene.service.submit(good)
        with pytest.raises(RejectedError, match="application of this name"):
            await scene.service.submit(scene.hand_in(app(n_tasks=4)))
        await scene.close()

    run(work())


def test_a_master_waits_for_storage_that_is_away_and_says_so(tmp_path, monkeypatch):
    async def work():
        with monkeypatch.context() as patched:
            away = StorageError("safe mode", transient=True)
            patched.setattr(StoredJournal, "read", lambda _: (_ for _ in ()).throw(away))
            scene = Scene(tmp_path)
            await soon(lambda: scene.problem() == "the task service has not read its journal yet: safe mode")
        await scene.opened()
        assert scene.service.status()["apps"] == {}
        await scene.close()

    run(work())


def test_a_later_master_that_finds_no_journal_serves_nobody(tmp_path):
    async def work():
        scene = Scene(tmp_path, attempt=2)
        with pytest.raises(StorageError, match="no journal, though attempt 2 is not the first"):
            await scene.working
        with pytest.raises(UnavailableError):
            scene.service.status()

    run(work())


def test_while_the_journal_takes_nothing_nothing_takes_effect_and_later_all_does(tmp_path, monkeypatch):
    async def work():
        scene = await Scene(tmp_path).opened()
        await scene.service.submit(scene.hand_in(app("before")))
        fails = StorageError("no DataNode", transient=True)
        with monkeypatch.context() as patched:
            for name in ("append", "replace"):
                patched.setattr(scene.stored, name, lambda _lines: (_ for _ in ()).throw(fails))
            submitting = asyncio.create_task(scene.service.submit(scene.hand_in(app("meanwhile"))))
            await soon(lambda: bool(scene.service.status()["problems"]))
            assert not submitting.done()
        assert await submitting == "meanwhile"
        assert scene.service.status()["problems"] == []
        await scene.close()
        second = await Scene(tmp_path, attempt=2).opened()
        assert set(second.service.status()["apps"]) == {"before", "meanwhile"}
        await second.close()

    run(work())


def test_what_became_of_an_application_is_answered_in_the_time_of_the_day(tmp_path):
    async def work():
        scene = await Scene(tmp_path).opened()
        before = time.time()
        await scene.service.submit(scene.hand_in(app()))
        found = scene.service.outcome("a", 0)
        assert before - 1 <= found["begun_at"] <= time.time() + 1
        assert (found["policy"], found["state"], found["tasks"]["done"]) == ("fifo", "running", 0)
        with pytest.raises(RejectedError, match="no application that is known"):
            scene.service.outcome("nobody", 0)
        await scene.close()

    run(work())


@pytest.mark.parametrize(
    "document",
    [None, {}, {"nodes": "n1"}, {"nodes": ["n"] * 101}, {"nodes": [7]}, {"nodes": ["<b>"]}, {"nodes": [[]]}],
)
def test_a_question_for_the_use_of_no_nodes_is_refused(document):
    with pytest.raises(RejectedError, match="node"):
        _nodes_of(document)
    assert _nodes_of({"nodes": ["n1", "n2"]}) == {"n1", "n2"}


@pytest.mark.parametrize("first", [-1, True, "1", 1.5, 10**12])
def test_a_question_for_tasks_from_nowhere_is_refused(first):
    with pytest.raises(RejectedError, match="first: a number from 0"):
        _count_of({"first": first}, "first")
    assert _count_of({}, "first") == 0
