"""The daemon beside the emulated OpenPBS: its hook alone wakes it, and kills double nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.fixtures.waiting import until
from torque_sched.batch.openpbs import hook
from torque_sched.emulation import EmulatedOpenPbs, EmulatedTorque

from .conftest import Daemon, starts


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path, port: int) -> Iterator[EmulatedOpenPbs]:
    """With the hook; eight cores."""
    made = EmulatedOpenPbs.create(tmp_path / "cluster", shape="2xnp=4")
    with made:
        source = tmp_path / "hook.py"
        source.write_text(hook.hook_text([("127.0.0.1", port)]), encoding="ascii")
        for line in hook.qmgr_lines(str(source)):
            assert made.run("qmgr", "-c", line).returncode == 0
        yield made


@pytest.fixture(name="daemon")
def _daemon(cluster: EmulatedOpenPbs, port: int) -> Iterator[Daemon]:
    """It runs; its timer never rings."""
    made = Daemon(cast("EmulatedTorque", cluster), port)
    made.start()
    yield made
    if made.process is not None:
        made.stop()
    assert "Traceback" not in made.errors()


def test_the_hook_alone_has_jobs_started(cluster: EmulatedOpenPbs, daemon: Daemon) -> None:
    until(lambda: bool(daemon.state()), "the first cycle")
    first = cluster.submit("-l", "select=1:ncpus=4", "-l", "place=pack", runtime_s=3)
    whole = cluster.submit("-l", "select=2:ncpus=4", "-l", "place=scatter", runtime_s=600)
    until(lambda: first in starts(cast("EmulatedTorque", cluster)), "its start after qsub's knock")
    until(lambda: whole in daemon.running(), "a start after the knock of the other one's end")
    assert cluster.jobs()[whole]["exec_vnode"].count("(") == 2


def test_kills_start_no_job_twice_and_forget_none(cluster: EmulatedOpenPbs, daemon: Daemon) -> None:
    ids = [cluster.submit("-l", "ncpus=2", runtime_s=0.5) for _ in range(24)]
    for n_started in (2, 6, 10, 14):
        until(
            lambda n=n_started: len(starts(cast("EmulatedTorque", cluster))) >= n,  # type: ignore[misc]
            "starts",
        )
        daemon.kill()
        daemon.start()
    until(lambda: starts(cast("EmulatedTorque", cluster)).keys() >= set(ids), "all")
    assert starts(cast("EmulatedTorque", cluster)) == dict.fromkeys(ids, 1)
