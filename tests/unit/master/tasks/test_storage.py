"""The figures that a task service keeps over masters, and how its journal is written."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.service.commands import WriteJournal
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand
from yarn_accel.errors import StorageError
from yarn_accel.master.tasks.storage import FigureFile, TaskJournal
from yarn_accel.storage import Store

MEASURED = TaskMeasurement(1e6, 2.0, 3.0, True)


def learn(figures: FigureStore, name: str, measured: TaskMeasurement = MEASURED) -> None:
    spec = AppSpec(AppId(f"{name}-1"), name, 0, 1, {Form.CPU: FormDemand()})
    figures.observe(spec, Form.CPU, "", measured, None)


def kept(path: Path, figures: FigureStore, store: Store | None = None) -> FigureFile:
    return FigureFile(store or Store(), f"file://{path}", figures)


def names(path: Path) -> list[str]:
    return list(json.loads(path.read_text())["applications"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_later_master_believes_what_an_earlier_one_learned(tmp_path, caplog):
    async def work():
        path, first, second = tmp_path / "figures.json", FigureStore(), FigureStore()
        file = kept(path, first)
        await file.read()
        await file.write()
        assert not path.exists()
        learn(first, "knn")
        await file.close()
        await kept(path, second).read()
        assert second.to_document() == first.to_document()
        assert second.beliefs()[0].read_s == 2.0

    asyncio.run(work())
    assert warnings(caplog) == []


def test_services_of_one_user_keep_each_others_names(tmp_path):
    async def work():
        path, first, second = tmp_path / "figures.json", FigureStore(), FigureStore()
        one, other = kept(path, first), kept(path, second)
        learn(first, "knn")
        learn(second, "bp")
        await one.write()
        await other.write()
        assert set(names(path)) == {"knn", "bp"}
        learn(second, "knn", TaskMeasurement(1e6, 9.0, 3.0, True))
        await other.write()
        assert set(names(path)) == {"knn", "bp"}
        learn(first, "rs")
        await one.write()
        assert set(names(path)) == {"knn", "bp", "rs"}

    asyncio.run(work())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 9}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_one_warning_and_begun_anew(tmp_path, caplog, content):
    async def work():
        path, figures = tmp_path / "figures.json", FigureStore()
        path.write_bytes(content)
        file = kept(path, figures)
        await file.read()
        learn(figures, "knn")
        await file.write()
        assert names(path) == ["knn"]

    asyncio.run(work())
    assert len(warnings(caplog)) == 1
    assert "damaged, begun anew" in warnings(caplog)[0]


def test_a_file_that_is_too_large_is_not_read(tmp_path, caplog):
    async def work():
        path = tmp_path / "figures.json"
        with path.open("wb") as file:
            file.truncate(1 << 30)
        await kept(path, FigureStore()).read()

    asyncio.run(work())
    assert "at most" in warnings(caplog)[0]


def test_while_the_storage_is_away_nothing_of_others_is_overwritten(tmp_path, caplog):
    class Away(Store):
        is_away = False

        def size(self, uri: str) -> int:
            if self.is_away:
                raise StorageError(f"{uri}: nobody answers", transient=True)
            return super().size(uri)

    async def work():
        path, figures, store = tmp_path / "figures.json", FigureStore(), Away()
        others = FigureStore()
        learn(others, "bp")
        await kept(path, others).write()
        file = kept(path, figures, store)
        learn(figures, "knn")
        store.is_away = True
        await file.read()
        await file.write()
        assert names(path) == ["bp"]
        store.is_away = False
        await file.write()
        assert set(names(path)) == {"bp", "knn"}

    asyncio.run(work())
    assert len(warnings(caplog)) == 1


def test_without_a_place_nothing_is_kept():
    async def work():
        figures = FigureStore()
        learn(figures, "knn")
        file = FigureFile(Store(), "", figures)
        await file.read()
        await file.work()
        await file.close()

    asyncio.run(work())


def test_records_that_can_wait_are_written_with_those_that_follow_or_alone():
    async def work():
        written = asyncio.Queue()
        stored = SimpleNamespace(append=lines.append)
        journal = TaskJournal(stored, written.put_nowait, pytest.fail)
        journal.put(WriteJournal(1, ({"r": "one"},), can_wait=True))
        working = asyncio.create_task(journal.work())
        await asyncio.sleep(0)
        journal.put(WriteJournal(2, ({"r": "two"},)))
        assert await written.get() == 2
        journal.put(WriteJournal(3, ({"r": "three"},), can_wait=True))
        assert await written.get() == 3
        working.cancel()

    lines = []
    asyncio.run(work())
    assert [each.count(b"\n") for each in lines] == [2, 1]
