"""Recorded cycles are decided as they were: starts, reservations, reasons and expected starts apart."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from tests.fixtures.recorded_torque import FOLDER, VIEWS, Difference, read_recordings, replay, unpacked
from tests.fixtures.torque_worlds import recording_of
from torque_sched.decide.settings import BACKFILLS

FILES = sorted(FOLDER.glob("*.jsonl.gz"))


@functools.cache
def differences_of(path: Path) -> tuple[int, list[Difference]]:
    """How many cycles the recordings of a file have, and what is decided otherwise in them."""
    found = [differences for recording in read_recordings(path) for _, differences in replay(recording)]
    return len(found), [each for differences in found for each in differences]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_cycles_are_decided_as_they_were(path: Path, view: str) -> None:
    n_cycles, differences = differences_of(path)
    assert n_cycles > 0
    told = [
        f"{each.recording}, cycle {each.cycle}, {each.job}:\n"
        f"  was {json.dumps(each.was)}\n  now {json.dumps(each.now)}"
        for each in differences
        if each.view == view
    ]
    assert not told, f"{len(told)} differ, the first ones:\n" + "\n".join(told[:5])


@pytest.mark.parametrize("backfill", sorted(BACKFILLS))
def test_what_a_daemon_decided_is_decided_again_from_its_journal(backfill: str) -> None:
    recording = unpacked(recording_of(7, backfill, "projected", n_cycles=6))
    assert sum(len(cycle["decisions"]) for cycle in recording.cycles) > 10
    assert [each for _, differences in replay(recording) for each in differences] == []
