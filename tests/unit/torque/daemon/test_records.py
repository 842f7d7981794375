"""The journal: beside a slow disk whole cycles are left out and counted; wrong lines are named."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.torque_builders import job, node, snapshot
from torque_sched.adapters.journal import Journal, read_journal
from torque_sched.adapters.log_file import LogFile
from torque_sched.adapters.metrics import Figures
from torque_sched.batch.system import Look
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleReport
from torque_sched.daemon.journal_form import VERSION
from torque_sched.daemon.journal_form import read_journal as read_cycles
from torque_sched.daemon.records import Records
from torque_sched.decide.context import Context
from torque_sched.errors import RecordError
from torque_sched.model.decisions import Hold
from torque_sched.model.reasons import Reason


def test_a_damaged_record_is_logged_once_and_shown_as_long_as_it_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problems = tuple(RecordError(f"qstat: job {n}.head is damaged") for n in range(23))
    state, log = tmp_path / "state.json", LogFile(tmp_path / "logs")
    records = Records(log, state, None, Figures(), Config(), {}, "serve")
    troubles = []
    for damaged in (problems, problems, ()):
        made = report(Reason.NO_FREE_SLOTS)
        assert made.look is not None
        made.look = replace(made.look, problems=damaged)
        records.cycle(made, "timer")
        troubles.append(json.loads(state.read_text())["trouble"])
    log.close()
    assert caplog.text.count("left out: qstat: job 7.head is damaged") == 1
    assert troubles[0] == troubles[1]
    assert troubles[0][20:] == ["3 more records were damaged and left out"]
    assert troubles[2] == []


class SlowJournal(Journal):
    """Writes when it is let."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, file_bytes=1 << 20, n_files=2)
        self.is_let = threading.Event()

    def append(self, record: Mapping[str, Any]) -> None:
        self.is_let.wait()
        super().append(record)


def report(reason: Reason) -> CycleReport:
    waiting = job(1)
    look = Look(snapshot([node("n1")], [waiting]), {})
    return CycleReport(
        look.snapshot.now_s, look=look, context=Context(), decisions=(Hold(waiting.id, reason),)
    )


def test_a_journal_that_is_behind_drops_whole_cycles_and_counts_them(tmp_path: Path) -> None:
    journal, figures, state = SlowJournal(tmp_path / "journal"), Figures(), tmp_path / "state.json"
    reasons = list(Reason)[:6]

    async def run() -> None:
        log = LogFile(tmp_path / "logs")
        records = Records(log, state, journal, figures, Config(), {}, "serve")
        for reason in reasons:
            records.cycle(report(reason), "timer")
            await asyncio.sleep(0)
        assert figures.n_journal_dropped == 4
        assert json.loads(state.read_text())["trouble"] == [
            "journal: 3 cycles are not in it, the disk was too slow for them"
        ]
        journal.is_let.set()
        await records.finish()
        records.cycle(report(reasons[-1]), "timer")
        await records.finish()
        log.close()

    asyncio.run(run())
    journal.close()
    written = [line["cycle"] for line in read_journal(tmp_path / "journal")]
    assert written == [1, 2, 7]
    assert figures.n_journal_dropped == 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "line 1: not a mapping"),
        ("{}", "journal version None"),
        (json.dumps({"version": VERSION}), "is not as the daemon writes it"),
        (json.dumps({"version": VERSION, "outputs": 7, "cycle": 3}), "cycle 3 is not as the daemon writes"),
        (json.dumps({"version": VERSION, "outputs": {"nodes": "<a"}}), "is not as the daemon writes it"),
        (json.dumps({"version": VERSION, "outputs": {"nodes": "aGk="}}), "is not as the daemon writes it"),
    ],
)
def test_what_is_no_cycle(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "cycles-1.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(RecordError, match=words) as caught:
        list(read_cycles(path))
    assert "cycles-1.jsonl" in caught.value.message
    assert caught.value.cure


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "cycles-1.jsonl"
    path.write_text('{"version": 1, "outp')
    assert list(read_cycles(path)) == []
