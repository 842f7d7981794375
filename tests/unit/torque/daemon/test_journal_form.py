"""Lines of a journal that are not as the daemon writes them are named, whatever is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torque_sched.daemon.journal_form import VERSION, read_journal
from torque_sched.errors import RecordError


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "line 1: not a mapping"),
        ("{}", "journal version None"),
        (json.dumps({"version": VERSION}), "is not as the daemon writes it"),
        (
            json.dumps({"version": VERSION, "outputs": 7, "cycle": 3}),
            "cycle 3 is not as the daemon writes it",
        ),
        (json.dumps({"version": VERSION, "outputs": {"nodes": "<a"}}), "is not as the daemon writes it"),
        (json.dumps({"version": VERSION, "outputs": {"nodes": "aGk="}}), "is not as the daemon writes it"),
    ],
)
def test_what_is_no_cycle(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "cycles-1.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(RecordError, match=words) as caught:
        list(read_journal(path))
    assert "cycles-1.jsonl" in caught.value.message
    assert caught.value.cure


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "cycles-1.jsonl"
    path.write_text('{"version": 1, "outp')
    assert list(read_journal(path)) == []
