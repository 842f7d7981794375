"""A journal decided again gives the same answers; a cycle that differs is found and kept."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.integration.torque.learn.cycles import by_commands, clock_of, cycle_of, journal_in
from tests.integration.torque.learn.test_profiles import NODES, PROGRAMS
from torque_sched.commands.replay import replay
from torque_sched.daemon.config import Config
from torque_sched.daemon.journal_form import line_of
from torque_sched.emulation import EmulatedTorque
from torque_sched.learn import History


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve cycles in which jobs start, wait, get reservations, end and are learned from."""
    folder = tmp_path_factory.mktemp("journal")
    choose = random.Random(3)
    torque = EmulatedTorque.create(folder / "emulation", nodes=NODES, clock="manual")
    history = History.open(None)
    lines = journal_in(folder / "cycles")
    with torque:
        cycle = cycle_of(by_commands(torque, clock_of(torque)), history, clock_of(torque))
        for number in range(12):
            jobs = [{"arguments": each.arguments(number, choose), "user": each.user} for each in PROGRAMS * 2]
            torque.submit_many([*jobs, {"arguments": ["-l", "nodes=4:ppn=16"], "user": "zoe"}])
            report = asyncio.run(cycle.run())
            lines.append(line_of(report, number, Config(), {}, mode="serve", cause="test"))
            torque.clock.advance(100.0)
    lines.close()
    history.close()
    return folder / "cycles"


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(replay, arguments)
    return done.exit_code, done.output


def test_a_cycle_that_differs_is_shown_and_kept(journal: Path, tmp_path: Path) -> None:
    (path,) = journal.glob("*.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines()
    wrong = json.loads(lines[7])
    start = next(each for each in wrong["decisions"] if each["is"] == "start")
    was = start["allocation"][0]["node"]
    start["allocation"][0]["node"] = "node2" if was != "node2" else "node1"
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([*lines[:7], json.dumps(wrong), *lines[8:]]) + "\n", encoding="utf-8")
    kept = tmp_path / "kept.jsonl"
    code, text = run(str(changed), "--keep", str(kept))
    assert code == 1
    assert "cycle 7: 1 jobs are decided otherwise" in text
    assert f"{start['job']}: was start on" in text
    assert "12 cycles" in text
    assert "1 cycles differ" in text
    assert run(str(kept))[1].endswith("1 cycles differ\n")
    assert "0 cycles differ" in run(str(changed), "--cycle", "3")[1]


def test_a_damaged_line_is_left_out_and_the_others_are_decided(journal: Path, tmp_path: Path) -> None:
    (path,) = journal.glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:-200] + b"\n"
    lines[5] = lines[5].replace(b'"outputs":{"', b'"outputs":{"x', 1)
    lines[8] = b"\xff\x00\n"
    damaged = tmp_path / "cycles-1.jsonl"
    damaged.write_bytes(b"".join(lines))
    code, text = run(str(damaged))
    assert code == 1
    assert "9 cycles with " in text
    assert "0 cycles differ, 3 damaged and left out" in text
    assert [text.count(f"cycles-1.jsonl, line {number}: ") for number in (4, 9)] == [1, 1]


def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    damaged = tmp_path / "cycles-1.jsonl"
    damaged.write_text("{}\n", encoding="utf-8")
    code, text = run(str(damaged))
    assert code == 1
    assert "journal version" in text
