"""The journal beside a slow disk: whole cycles are left out and counted, the daemon goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.torque.policies.builders import job, node, snapshot
from torque_sched.adapters.journal import Journal, read_journal
from torque_sched.adapters.log_file import LogFile
from torque_sched.adapters.metrics import Figures
from torque_sched.adapters.pbs import Look
from torque_sched.core.decisions import Hold
from torque_sched.core.reasons import Reason
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleReport
from torque_sched.daemon.records import Records
from torque_sched.policies.context import Context


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
