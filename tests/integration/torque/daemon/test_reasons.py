"""Why a job waits: the comment, `cycle`, `showstart` and `explain` name the same reservation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.command_server import run_command
from tests.fixtures.waiting import until
from tests.integration.torque.daemon.conftest import Serve, comment
from tests.integration.torque.daemon.test_promises import EXACT, ours, promise_of
from torque_sched.emulation import EmulatedTorque

WEEK_S = 7 * 86_400


class Site:
    """An emulated Torque whose clock stands still, and our commands beside it."""

    def __init__(self, torque: EmulatedTorque) -> None:
        self.torque = torque

    def ours(self, *words: str) -> str:
        """Standard output of ``torque-sched WORDS``."""
        done = run_command("torque_sched", words, env=self.torque.env)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def set(self, **settings: Any) -> None:
        """Settings in force from the next command on."""
        path = self.torque.home / "sched_priv" / "torque_sched.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")

    def submit(self, nodes: str, **resources: object) -> str:
        """A job that asks for these nodes."""
        asked = [f"nodes={nodes}", *(f"{name}={value}" for name, value in resources.items())]
        return self.torque.submit("-l", ",".join(asked), runtime_s=10 * WEEK_S)

    def told(self, job: str) -> set[str]:
        """All sentences said of why the job waits; one if all say the same."""
        cycle = re.search(rf"^{re.escape(job)}: (.*)$", self.ours("cycle"), re.MULTILINE)
        dry = re.search(rf"^{re.escape(job)}: (.*)$", self.ours("cycle", "--dry-run"), re.MULTILINE)
        now = re.search(r"^now: (?:hold|reserve): (.*)$", self.ours("explain", job), re.MULTILINE)
        because = re.search(r"^because: (.*)$", self.ours("showstart", job), re.MULTILINE)
        assert cycle
        assert dry
        assert now
        assert because
        found = (self.torque.jobs()[job].get("comment", ""), cycle[1], dry[1], now[1], because[1])
        return {sentence.removeprefix("Not Running: ") for sentence in found}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes a site of such nodes, whose queue gives no walltime."""
    made: list[EmulatedTorque] = []

    def make(shape: str, **settings: Any) -> Site:
        torque = EmulatedTorque.create(tmp_path / "cluster", shape=shape, clock="manual")
        torque.start()
        made.append(torque)
        assert torque.run("qmgr", "-c", "unset queue batch resources_default.walltime").returncode == 0
        new = Site(torque)
        new.set(**settings)
        return new

    yield make
    for torque in made:
        torque.stop()


@pytest.mark.parametrize("backfill", ["conservative", "easy"])
def test_one_piece_behind_a_reservation_whose_start_nobody_knows(
    site: Callable[..., Site], backfill: str
) -> None:
    """It was said of its one piece that "its pieces fit one by one, not all together"."""
    at = site("2xnp=4,physmem=64gb", backfill=backfill)
    at.submit("1:ppn=4")
    at.ours("cycle")
    at.submit("2:ppn=4", walltime="1:00:00")
    without, within = at.submit("1:ppn=4"), at.submit("1:ppn=4", walltime="1:00:00")
    for job in (without, within):
        (words,) = at.told(job)
        assert words.startswith(
            "Free nodes are kept for other jobs: needs 1 of 2: 1 full, 1 kept for 1 job before it (2.head)"
        )
        row = re.search(r"^node2 +(.*?)  ", at.ours("explain", job), re.MULTILINE)
        assert row
        assert row[1] == "fits, but kept for 1 job before it"


@pytest.mark.parametrize("backfill", ["conservative", "aged"])
def test_of_two_reservations_that_is_named_which_is_in_the_way(
    site: Callable[..., Site], backfill: str
) -> None:
    more = {"after_s": 60} if backfill == "aged" else {"reservations": 2}
    at = site("2xnp=4", backfill={"name": backfill, **more})
    for name in ("node1", "node2"):
        at.submit(f"{name}:ppn=2", walltime="1:00:00")
    at.ours("cycle")
    first, second = (at.submit(f"{name}:ppn=4", walltime="1:00:00") for name in ("node1", "node2"))
    at.torque.clock.advance(300)
    at.ours("cycle")
    behind = {name: at.submit(f"{name}:ppn=2", walltime="2:00:00") for name in ("node1", "node2")}
    if backfill == "conservative":
        assert "reservations: a reservation once made stays (outrank: never)" in at.ours("explain", first)
        assert "outrank: never" in at.ours("check-config")
    for name, keeper in (("node1", first), ("node2", second)):
        (words,) = at.told(behind[name])
        assert f"needs 1 of 1: 1 kept for 1 job before it ({keeper})" in words


@pytest.mark.parametrize("backfill", ["conservative", "easy", "aged"])
def test_who_starts_beyond_the_window_reads_why_nothing_is_guaranteed(
    site: Callable[..., Site], backfill: str
) -> None:
    at = site("2xnp=8", backfill=backfill)
    at.submit("2:ppn=8", walltime=2 * WEEK_S)
    at.ours("cycle")
    waits = at.submit("1:ppn=8", walltime="1:00:00")
    words = at.told(waits)
    shown = at.ours("showstart", waits)
    if backfill == "aged":
        assert "guaranteed: none: backfill aged guarantees no start" in shown
    else:
        assert all("no start is guaranteed: no place for it is free within 7 days" in each for each in words)
        assert "guaranteed: none: " in shown
    assert len(words) == 1
    assert "needs 1 of 2: 2 full" in words.pop()


def test_a_start_put_off_by_qalter_of_a_running_job_names_that_job(
    torque: EmulatedTorque, serve: Serve
) -> None:
    daemon = serve(**EXACT)
    first = torque.submit("-l", "nodes=node3:ppn=8,walltime=600", runtime_s=5000)
    until(lambda: first in daemon.running(), "the first start")
    waits = torque.submit("-l", "nodes=node3:ppn=8,walltime=60", runtime_s=2)
    told_s = promise_of(daemon, waits).promise.start_s
    assert "put off" not in comment(torque, waits)
    assert torque.run("qalter", "-l", "walltime=4000", first).returncode == 0
    until(lambda: "put off" in comment(torque, waits), "the comment that says so")
    words = comment(torque, waits)
    assert f"; put off: job {first} may run on node3 until 20" in words
    assert words.startswith("Not Running: Nodes are reserved for it; it starts not later than 20")
    row = promise_of(daemon, waits)
    assert row.promise.start_s >= told_s + 3000
    assert f"job {first} may run on node3 until 20" in ours(torque, "explain", waits)
    assert f"because: put off: job {first} may run on node3 until 20" in ours(torque, "showstart", waits)
