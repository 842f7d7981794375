"""The emulation answers as recorded real servers did, command by command; what differs is named here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torque_sched.emulation.submit
from tests.unit.torque.emulation.played import Played
from tests.unit.torque.emulation.transcript import (
    FOLDER,
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
_LIMIT = "a limit of 0 and one that changes later are not followed"
_DEPENDS = "a dependency that qalter may not add leaves a hold without a reason"
_NEW_NODE = "a node that qmgr made waits for its mom; here moms are up at once"
_LEAK = "4.2.10 tries to start `procs` on nodes of its own choice, fails and keeps their slots"
_CRASH = "4.2.10 crashes when a job comes back to a queue it was in"
_MOM = "a change of a running job waits for its mom for more than a minute"
_ROUTED = "a routed job has no euser and egroup when the queue opens late"
KNOWN: dict[tuple[str, str], dict[str, str]] = {
    ("*", "submit-options"): {"alice: qsub -v A": "a variable that is not set is sent under a wrong name"},
    ("6.1.3", "submit-options"): {'alice: qsub -S /bin/sh -v A=1,B="x y",C': "the same"},
    ("*", "submit-refused"): {"alice: qsub -t 1-3%0": _LIMIT},
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
        "alice: qdel 1000[]": "Hold_Types of members that were gone before",
        "root: qrun -H node3 1003[]": _ARRAY,
        "root: qalter -l walltime=10:00 1003[]": _ARRAY,
    },
    ("6.1.3", "arrays"): {"alice: qalter -t %1 1000[]": _LIMIT, "root: qstat -t": _ARRAY},
    ("*", "depend-before"): {"alice: qalter -W depend=afterok:1004 1000": _DEPENDS},
    ("*", "depend-arrays"): {"root: qrun -H node1 1000[1]": "a deleted job loses its dependency later"},
    ("4.2.10", "depend-arrays"): {
        "wait 6": "`afterstartarray` is met by the second start, `afternotokarray` never",
        "root: qstat -t": "the same",
    },
    ("6.1.3", "alter"): {
        "alice: qalter -l walltime=00:20:00 1000": _MOM,
        "root: qalter -l walltime=00:20:00 1000": _MOM,
        "root: qalter -l mem=1gb 1000": _MOM,
        "root: qstat -f -1 1000": "the mom writes its own host into Output_Path",
    },
    ("4.2.10", "move-back"): {
        "alice: qmove batch 1000": _CRASH,
        "root: qmove gpuq@head 1000": _CRASH,
        "alice: qsub -q gpuq -l nodes=2": _CRASH,
        "alice: qmove batch 1001": _CRASH,
    },
    ("*", "routing"): {"wait 12": _ROUTED},
    ("*", "node-attributes"): {
        'root: qmgr -c "set node node1 properties = a,properties += b"': "the second half is not heard",
        'root: qmgr -c "create node node1 np=5,properties=new"': _NEW_NODE,
        'root: qmgr -c "list node @default np"': _NEW_NODE,
        'root: qmgr -c "print node node1"': _NEW_NODE,
        "root: pbsnodes -a": _NEW_NODE,
    },
    ("6.1.3", "node-attributes"): {'root: qmgr -c "delete node node3"': _NEW_NODE},
    ("*", "listings"): {
        "root: qstat -R": "not emulated: a table of file systems",
        "root: qselect -l nodes.eq.1": "not emulated: selection by resources",
    },
    ("4.2.10", "events"): {"alice: qmove gpuq 1007": "the client asks twice, and prints the second answer"},
}
"""(version or ``*``, scenario) -> step -> what the real server does that the emulation does not."""


@pytest.fixture(autouse=True)
def script_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Users have a script `s.sh` in their home, which is not on this machine."""
    (tmp_path / "s.sh").write_text(f"{SCRIPT}\n", encoding="ascii")

    def found(call: Call, path: str) -> Path:
        return tmp_path / path if path == "s.sh" else resolve(call, path)

    monkeypatch.setattr(torque_sched.emulation.submit, "resolve", found)


def differing(real: list[Entry], mine: list[Entry]) -> dict[str, tuple[str, str]]:
    """Step -> what the real one and what the emulation did."""
    return {a.step: (a.text, b.text) for a, b in zip(real, mine, strict=True) if a.text != b.text}


@pytest.mark.parametrize("name", list(_SCENARIOS))
@pytest.mark.parametrize("version", _VERSIONS)
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
