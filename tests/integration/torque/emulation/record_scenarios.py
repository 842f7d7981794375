"""Record a real Torque: ``python -m tests.integration.torque.emulation.record_scenarios [NAME...]``.

As root, with `TORQUE_PREFIX` or a Torque on PATH. Named scenarios replace those in the file of its version;
without a name all are recorded.
"""

from __future__ import annotations

import sys

from tests.fixtures.torque_site import found
from tests.integration.torque.emulation.torque_cluster import real_cluster
from tests.unit.torque.emulation.transcript import (
    FOLDER,
    play,
    read_scenarios,
    read_transcript,
    write_transcript,
)


def main(names: list[str]) -> None:
    """Record and write."""
    torque = found()
    path = FOLDER / f"{torque.version.split('.h')[0]}.txt"
    known = read_transcript(path.read_text(encoding="utf-8")) if path.exists() else {}
    scenarios = read_scenarios()
    for scenario in scenarios:
        if names and scenario.name not in names:
            continue
        with real_cluster(torque) as cluster:
            known[scenario.name] = [seen.entry() for seen in play(cluster, scenario)]
        print(scenario.name, flush=True)
    ordered = {scenario.name: known[scenario.name] for scenario in scenarios if scenario.name in known}
    path.write_text(write_transcript(ordered), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
