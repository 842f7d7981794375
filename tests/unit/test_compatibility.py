"""This tree keeps what release 1.0 promised (docs/compatibility.md), and reads what it wrote.

The files of tests/golden/release-1.0 are never written again. Who changes what is public adds to it, and
keeps the old form as long as that page says.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.reference import metric_families
from tests.release import golden
from torque_sched.daemon.config import _RENAMED as RENAMED_OF_TORQUE
from torque_sched.daemon.journal_form import read_journal
from torque_sched.learn.store import Store
from yarn_accel import wire
from yarn_accel.core.tasks.service.journal import decode_journal
from yarn_accel.core.tasks.service.records import decode_record

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / "tests/golden/release-1.0"
THEN: dict[str, Any] = json.loads((RELEASE / "public.json").read_text(encoding="utf-8"))
MONITORING = ROOT / "docs/monitoring"


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    return golden.public()


def test_what_the_client_had_is_called_as_it_was(now: dict[str, Any]) -> None:
    for name, members in THEN["client"].items():
        for member, parameters in members.items():
            today = now["client"][name][member]
            known = {each.rstrip("=") for each in today}
            assert [each for each in parameters if each.rstrip("=") not in known] == [], (name, member)
            must = [each for each in today if not each.endswith("=") and not each.startswith("*")]
            assert [each for each in must if each not in parameters] == [], (name, member)


def test_every_command_takes_what_it_took(now: dict[str, Any]) -> None:
    for program, commands in THEN["commands"].items():
        for command, options in commands.items():
            today = now["commands"][program][command]
            known = {each.lstrip("!") for each in today}
            assert [each for each in options if each.lstrip("!") not in known] == [], (program, command)
            must = [each for each in today if each.startswith("!")]
            assert [each for each in must if each not in options] == [], (program, command)


def test_every_setting_is_still_known(now: dict[str, Any]) -> None:
    for heading, keys in THEN["settings"].items():
        known = {*now["settings"][heading], *RENAMED_OF_TORQUE}
        assert [key for key in keys if key not in known] == [], heading


def test_every_metric_has_its_kind_and_labels(now: dict[str, Any]) -> None:
    assert {name: now["metrics"].get(name) for name in THEN["metrics"]} == THEN["metrics"]


def test_formats_are_those_that_the_release_reads(now: dict[str, Any]) -> None:
    """Another number is for what an old release cannot read; add what reads the old form first."""
    assert {**now["formats"], "history": 0} == {**THEN["formats"], "history": 0}
    assert now["formats"]["history"] >= THEN["formats"]["history"], "an older file is brought to this version"


def test_every_message_of_the_release_is_understood() -> None:
    for sent in json.loads((RELEASE / "frames.json").read_text(encoding="utf-8")):
        message, payload_bytes = wire.messages.decode(
            sent["kind"], sent["varying_bytes"], bytes.fromhex(sent["header"])
        )
        today = golden.said_by(message)
        assert {name: today[name] for name in sent["says"]} == sent["says"]
        assert payload_bytes == sent["payload_bytes"]


def test_a_journal_of_tasks_is_read() -> None:
    found = decode_journal((RELEASE / "tasks.journal").read_bytes(), "tasks.journal")
    assert found.torn_bytes == 0
    kinds = {type(decode_record(record)).__name__ for record in found.records}
    assert {"AppBegun", "AttemptAssigned", "AttemptSettled", "WorkerKnown", "AppRemembered"} <= kinds


def test_a_journal_of_cycles_is_read() -> None:
    found = list(read_journal(RELEASE / "cycles.jsonl"))
    assert [cycle.number for cycle in found] == [1, 2, 3, 4, 5, 6]
    assert sum(len(cycle.decisions) for cycle in found) > 10


def test_a_history_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    db = sqlite3.connect(path)
    db.executescript((RELEASE / "history.sql").read_text(encoding="utf-8"))
    db.close()
    store = Store(path)
    assert sorted(job.key for job in store.ended(5)) == [("1.head", 1.0), ("2.head", 1.0)]
    assert set(store.uses()) == {(("3.head", 5.0), "n1")}
    store.close()


def _series() -> set[str]:
    """Every name of a sample that some program publishes."""
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
    return {
        family.name + end
        for families in metric_families().values()
        for family in families
        for end in ends.get(family.type, ("",))
    }


def _names(expression: str) -> set[str]:
    words = "".join(each if each.isalnum() or each == "_" else " " for each in expression).split()
    return {each for each in words if each.startswith(("yarn_accel_", "torque_sched_"))}


def test_alerts_ask_for_metrics_that_exist_and_say_what_to_do() -> None:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 20
    for rule in rules:
        assert _names(rule["expr"]), rule["alert"]
        assert _names(rule["expr"]) <= _series(), rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "cure"}


def test_the_board_asks_for_metrics_that_exist() -> None:
    board = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 30
    assert [expression for expression in asked if not _names(expression) <= _series()] == []
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
