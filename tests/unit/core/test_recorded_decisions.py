"""Policies decide as they did at the commit at which `tests/recordings` were made, order included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.recorded import FOLDER, read_recordings, replay

_FILES = sorted(FOLDER.glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_facts_lead_to_the_recorded_decisions(path: Path) -> None:
    n_decisions = 0
    for recording in read_recordings(path):
        for answer in replay(recording):
            assert answer.given == answer.recorded, f"{recording.name}, line {answer.line}"
            n_decisions += bool(answer.recorded)
    assert n_decisions > 0
