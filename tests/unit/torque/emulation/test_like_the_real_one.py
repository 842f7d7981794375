"""The emulation answers as recorded real servers did, command by command; what differs is named here."""

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
_ARRAY = "a whole array that is refused stands on a node for a while, and shows that in exec_host"
_NEW_NODE = "a node that qmgr made comes up later, when its mom speaks"
_LEAK = "4.2.10 tries to start `procs` on nodes of its own choice, fails and keeps their slots"
_CRASH = "4.2.10 crashes when a job is moved a second time, or out of a routing queue"
_MOM = "a change of a running job waits for its mom for more than a minute"
_EMPTY = "4.2.10 loses what it sends behind a variable whose value is empty"
_FOLDER = "a folder named from the root is not looked for: it may be on another machine"
_POLL = "a mom looks every 45 s whether a job has run too long"
_KILLED = "4.2.10 kills a running job whose dependency cannot be met any more"
_PLACES = "an attribute that was altered is listed at another place"
_COMMA = "a dependency that is gone leaves a comma"
KNOWN: dict[tuple[str, str], dict[str, str]] = {
    ("4.2.10", "submit-options"): {"alice: qsub -v A": _EMPTY},
    ("6.1.3", "run-hosts"): {
        "root: qrun -H node2:ppn=2+node2:ppn=1 1005": "a host named twice with a slot left: never, not later"
    },
    ("4.2.10", "run-own-spec"): {
        "root: qrun 1005": _LEAK,
        "root: qrun -H node3:ppn=2 1005": _LEAK,
        "root: qrun 1006": _LEAK,
        "root: qrun 1007": _LEAK,
        "root: qrun 1008": _LEAK,
        "root: qrun -a 1009": _LEAK,
        "root: qrun -a -H node1:ppn=2 1009": _LEAK,
        "root: pbsnodes -a": _LEAK,
    },
    ("4.2.10", "wait-until"): {
        "alice: qalter -a 12312359 1002": "a time that is over is forgotten at the next look at the clock"
    },
    ("*", "arrays"): {
        "root: qrun -H node3 1003[]": _ARRAY,
        "root: qalter -l walltime=10:00 1003[]": _ARRAY,
    },
    ("6.1.3", "arrays"): {"root: qstat -t": _ARRAY},
    ("*", "depend-arrays"): {"root: qrun -H node1 1000[1]": "a deleted job loses its dependency later"},
    ("4.2.10", "depend-arrays"): {
        "wait 6": "`afterstartarray` is met by the second start, `afternotokarray` never",
        "root: qstat -t": "the same",
    },
    ("6.1.3", "alter"): {
        "alice: qalter -l walltime=00:20:00 1000": _MOM,
        "root: qalter -l walltime=00:20:00 1000": _MOM,
        "root: qalter -l mem=1gb 1000": _MOM,
        "root: qstat -f -1 1000": "a mom writes its own host into Output_Path while the job runs",
    },
    ("4.2.10", "move-back"): {
        "alice: qmove batch 1000": _CRASH,
        "root: qmove gpuq@head 1000": _CRASH,
        "alice: qsub -q gpuq -l nodes=2": _CRASH,
        "alice: qmove batch 1001": _CRASH,
    },
    ("6.1.3", "node-attributes"): {
        'root: qmgr -c "set node node3 np = 1"': _NEW_NODE,
        "root: pbsnodes -a": _NEW_NODE,
    },
    ("4.2.10", "node-attributes"): {
        'root: qmgr -c "list node @default np"': _NEW_NODE,
        "root: pbsnodes -a": _NEW_NODE,
    },
    ("4.2.10", "events"): {"alice: qmove gpuq 1007": "the client asks twice, and prints the second answer"},
    ("*", "submit-more"): {"alice: qsub -d /nonexistent": _FOLDER},
    ("4.2.10", "submit-more"): {'alice: qsub -v ""': _EMPTY, "alice: qsub -v A=": _EMPTY},
    ("4.2.10", "arrays-act"): {"alice: qdel 1000[]": "an array of which a member was moved never ends"},
    ("*", "depend-more"): {"alice: qalter -W depend=afterok:9999 1003": _COMMA},
    ("4.2.10", "depend-more"): {"alice: qdel 1000": _KILLED, "root: qstat": _KILLED},
    ("4.2.10", "queue-refusals"): {'root: qmgr -c "list queue q"': "4.2.10 does not show a limit of procct"},
    ("*", "jobs-end-more"): {"wait 20": _POLL, "wait 5": _POLL},
    ("*", "alter-more"): {"root: qstat -f -1 1000": _PLACES},
    ("4.2.10", "move-more"): {"wait 12": _CRASH, "alice: qmove gpuq@head 1001": _CRASH},
}
"""(version or ``*``, scenario) -> step -> what the real server does that the emulation does not."""


@pytest.fixture(autouse=True)
def script_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Users have a script `s.sh` in their home, which is not on this machine."""
    (tmp_path / "s.sh").write_text(f"{SCRIPT}\n", encoding="ascii")
    home = HOME / "alice"

    def found(call: Call, path: str) -> Path:
        whole = resolve(call, path)
        return tmp_path / whole.relative_to(home) if whole.is_relative_to(home) else whole

    monkeypatch.setattr(torque_sched.emulation.qsub_client, "resolve", found)


def differing(real: list[Entry], mine: list[Entry]) -> dict[str, tuple[str, str]]:
    """Step -> what the real one and what the emulation did."""
    return {a.step: (a.text, b.text) for a, b in zip(real, mine, strict=True) if a.text != b.text}


def test_every_scenario_is_recorded() -> None:
    """On both servers, but what makes one of them hang."""
    missing = {
        (version, name) for version in _VERSIONS for name in _SCENARIOS.keys() - _RECORDED[version].keys()
    }
    assert missing == {("4.2.10", "order-message")}


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
    return {step for key in ((version, name), ("*", name)) for step in KNOWN.get(key, {})}
