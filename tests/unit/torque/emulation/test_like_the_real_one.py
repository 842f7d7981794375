"""The emulation answers as recorded real servers did, command by command, but for known differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torque_sched.emulation.qsub_client
from tests.unit.torque.emulation.played import Played
from tests.unit.torque.emulation.transcript import (
    FOLDER,
    HOME,
    SCRIPT,
    Entry,
    Scenario,
    play,
    read_scenarios,
    read_transcript,
)
from torque_sched.emulation.call import Call, resolve

_SCENARIOS = {scenario.name: scenario for scenario in read_scenarios()}
_VERSIONS = ("6.1.3", "4.2.10")
_RECORDED = {
    version: read_transcript((FOLDER / f"{version}.txt").read_text(encoding="utf-8")) for version in _VERSIONS
}


def _known() -> dict[tuple[str, str], set[str]]:
    """(version or ``*``, scenario) -> the steps in which the emulation is known to differ."""
    found: dict[tuple[str, str], set[str]] = {}
    for block in (FOLDER / "differences.txt").read_text(encoding="utf-8").split("\n== ")[1:]:
        title, *lines = block.splitlines()
        version, scenario = title.split()
        found[version, scenario] = {line for line in lines if not line.startswith("#")}
    return found


_KNOWN = _known()


@pytest.fixture(autouse=True)
def script_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Users have a script `s.sh` in their home, which is not on this machine."""
    (tmp_path / "s.sh").write_text(f"{SCRIPT}\n", encoding="ascii")
    home = HOME / "alice"

    def found(call: Call, path: str) -> Path:
        whole = resolve(call, path)
        return tmp_path / whole.relative_to(home) if whole.is_relative_to(home) else whole

    monkeypatch.setattr(torque_sched.emulation.qsub_client, "resolve", found)


_NOT_EMULATED = ("momctl", "pbsdsh", "qchkpt", "qmsg", "qorder", "qselect")
"""Programs of the recorded servers that neither the scheduler nor its tests need."""


def is_compared(entry: Entry) -> bool:
    """Whether the emulation has the program of a step."""
    return entry.step.partition(": ")[2].partition(" ")[0] not in _NOT_EMULATED


def differing(real: list[Entry], mine: list[Entry]) -> dict[str, tuple[str, str]]:
    """Step -> what the real one and what the emulation did, where it has the program."""
    return {
        a.step: (a.text, b.text)
        for a, b in zip(real, mine, strict=True)
        if a.text != b.text and is_compared(a)
    }


def test_every_scenario_is_recorded() -> None:
    """On both servers, but what makes one of them hang."""
    missing = {
        (version, name) for version in _VERSIONS for name in _SCENARIOS.keys() - _RECORDED[version].keys()
    }
    assert missing == {("4.2.10", "order-message")}


@pytest.mark.parametrize(("version", "n_steps"), [("6.1.3", 1766), ("4.2.10", 1759)])
def test_no_fewer_steps_are_compared(version: str, n_steps: int) -> None:
    """A program of the emulation that goes must not silently take recorded steps with it."""
    assert sum(is_compared(entry) for real in _RECORDED[version].values() for entry in real) == n_steps


@pytest.mark.parametrize(
    ("version", "name"), [(version, name) for version in _VERSIONS for name in _RECORDED[version]]
)
def test_emulation_answers_as_the_real_one_did(version: str, name: str) -> None:
    scenario: Scenario = _SCENARIOS[name]
    real = _RECORDED[version][name]
    assert [entry.step for entry in real] == [step.text for step in scenario.steps]
    mine = [seen.entry() for seen in play(Played(version), scenario)]
    found: dict[str, Any] = differing(real, mine)
    # A difference that is gone has to leave the list, too.
    assert found.keys() == known(version, name), "\n".join(
        f"{a}\n--- emulated:\n{b}" for a, b in found.values()
    )


def known(version: str, name: str) -> set[str]:
    """Steps of a scenario in which the emulation is known to differ."""
    return _KNOWN.get((version, name), set()) | _KNOWN.get(("*", name), set())
