"""The shadow runs beside a scheduler, looks, reports and touches nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.fixtures.waiting import until
from torque_sched.cli import main
from torque_sched.emulation import EmulatedTorque

from .conftest import Serve, free_port, spy, starts

ALL = (
    "qsub", "qrun", "qstat", "pbsnodes", "qalter", "qhold", "qrls", "qsig", "qdel", "qrerun",
    "qmgr", "qstart", "qstop", "qenable", "qdisable",
)  # fmt: skip


def test_it_runs_nothing_but_pbsnodes_and_qstat(torque: EmulatedTorque, serve: Serve) -> None:
    job = torque.submit("-l", "nodes=1:ppn=1:gpus=1", runtime_s=60)
    calls = spy(torque, *ALL)
    shadow = serve("--shadow", shadow_timer_s=0.2)
    until(lambda: f"would start {job} on node4:ppn=1:gpus=1" in shadow.log(), "the wish")
    until(lambda: shadow.log() and len(calls.read_text(encoding="utf-8").splitlines()) > 12, "cycles")
    lines = set(calls.read_text(encoding="utf-8").splitlines())
    assert lines == {"pbsnodes -x", "qstat -f -t -x", "qstat -Q -f -1", "qstat -B -f -1", "qstat --version"}
    assert starts(torque) == {}


def test_it_runs_beside_a_daemon_and_compares(torque: EmulatedTorque, serve: Serve, tmp_path: Path) -> None:
    torque.run("qmgr", "-c", "set server scheduling = False")
    job = torque.submit("-l", "nodes=1:ppn=2", runtime_s=60)
    torque.run("qmgr", "-c", "set server scheduling = True")
    shadow = serve("--shadow", port=free_port(), shadow_timer_s=0.2)
    until(lambda: f"would start {job}" in shadow.log(), "the wish")
    time.sleep(1.5)  # Torque counts whole seconds
    serve()
    report = shadow.own / "report.json"

    def told_so_far() -> dict[str, Any]:
        return json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}  # type: ignore[no-any-return]

    until(lambda: told_so_far().get("n_started") == 1, "the comparison")
    told = told_so_far()
    assert told["jobs"][0]["job"] == job
    assert told["waited_longer_s"] > 0
    assert told["n_judged"] == told["n_same_nodes"] == 1
    assert starts(torque) == {job: 1}
    shadow.stop()
    assert "1 jobs we would have started before it did" in shadow.log()
    shadow.start()
    until(lambda: told_so_far()["n_cycles"] > told["n_cycles"], "a new look")
    assert told_so_far()["n_started"] == 1
    page = tmp_path / "page.html"
    asked = CliRunner().invoke(main, ["report", "-d", str(shadow.home), "--shadow", "--html", str(page)])
    assert "1 jobs we would have started before it did" in asked.output
    assert "<li>of 1 jobs it started we would in the same state" in page.read_text(encoding="utf-8")
