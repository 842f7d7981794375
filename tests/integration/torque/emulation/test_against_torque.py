"""The recorded transcripts against a real Torque, where one is found: what they say is what it does."""

from __future__ import annotations

import pytest

from tests.fixtures.torque_site import Absent, Binaries, found
from tests.integration.torque.emulation.torque_cluster import real_cluster
from tests.unit.torque.emulation.transcript import FOLDER, play, read_scenarios, read_transcript

_SCENARIOS = {scenario.name: scenario for scenario in read_scenarios()}
_CHECKED = (
    "run-hosts", "run-gpus", "run-whole-node", "delete", "holds", "depend-after", "rerun", "move",
    "nodes-offline",
)  # fmt: skip
"""What a scheduler leans on; all of them together take a quarter of an hour."""


@pytest.fixture(scope="module")
def torque() -> Binaries:
    try:
        return found()
    except Absent as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", _CHECKED)
def test_real_torque_does_what_was_recorded(torque: Binaries, name: str) -> None:
    version = next((each for each in ("6.1.3", "4.2.10") if torque.version.startswith(each)), "")
    if not version:
        pytest.skip(f"recorded are 6.1.3 and 4.2.10, this is {torque.version}")
    recorded = read_transcript((FOLDER / f"{version}.txt").read_text(encoding="utf-8"))[name]
    with real_cluster(torque) as cluster:
        entries = [seen.entry() for seen in play(cluster, _SCENARIOS[name])]
    different = {
        a.step: f"recorded:\n{a.text}\nnow:\n{b.text}"
        for a, b in zip(recorded, entries, strict=True)
        if a.text != b.text
    }
    assert not different, "\n".join(different.values())
