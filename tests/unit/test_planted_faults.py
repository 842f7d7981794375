"""The list of faults to plant fits the code of today."""

import json

import pytest

from tests.planted_faults.__main__ import FAULTS, PARTS, ROOT

LIST = json.loads(FAULTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted({fault["path"] for fault in LIST}))
def test_every_fault_has_one_place(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    faults = [fault for fault in LIST if fault["path"] == path]
    assert [fault["old"] for fault in faults if text.count(fault["old"]) != 1] == []
    assert [fault["part"] for fault in faults if fault["part"] not in PARTS] == []


def test_every_part_names_tests_that_are_there():
    paths = [path for part in PARTS.values() for path in part]
    assert [path for path in paths if not (ROOT / path).exists()] == []
