"""Scripts that really run: what a server does that goes on after one that was killed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.torque.emulation.in_memory import Bench
from torque_sched.emulation.execute import Processes


def test_files_that_a_killed_servers_process_is_reading_are_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wrapper may be slow to begin; a shell that found them empty would end with 0 and do nothing."""
    bench = Bench(executes=True)
    job = bench.world.job(bench.submit("-l", "nodes=1", script="echo first\n"))
    bench.good("qrun", "-H", "node2", job.id)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: SimpleNamespace(poll=lambda: None))
    Processes(tmp_path).start(bench.world, job)
    (folder,) = tmp_path.iterdir()
    with (folder / "script").open() as read_by_the_first:
        job.script = "echo again\n"
        Processes(tmp_path).start(bench.world, job)
        assert read_by_the_first.read() == "echo first\n"
    assert (folder / "script").read_text() == "echo again\n"
    assert sorted(path.name for path in folder.iterdir()) == ["gpus", "nodes", "script", "wrapper"]
