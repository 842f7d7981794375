"""The commands that look, plan and reserve, on a real Torque."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fixtures.torque_site import Daemon, TorqueSite
from tests.fixtures.waiting import until

from .conftest import Head, in_force

Serve = Callable[..., Daemon]


@pytest.fixture
def busy(site: TorqueSite, serve: Serve) -> tuple[str, str]:
    """A job of ten minutes that holds node3, and one that waits for it."""
    serve(backfill="conservative")
    first = site.submit("-l", "nodes=node3:ppn=8,walltime=00:10:00")
    until(lambda: site.state(first) == "R", "it runs")
    second = site.submit("-l", "nodes=1:ppn=6,walltime=00:30:00")
    until(lambda: "it starts not later than" in site.job(second).get("comment", ""), "it is told")
    return first, second


def test_what_waits_is_explained(site: TorqueSite, head: Head, busy: tuple[str, str]) -> None:
    first, second = busy
    assert "serve: runs" in head.says("status")
    assert "runs on node3:8" in head.says("explain", first)
    told = head.says("explain", second)
    assert "no: full" in told
    assert told.count("no: too small") == 3
    assert "8 of 8 used" in head.says("explain", "node3")
    assert "start on node" in head.says("whatif", "--submit", "nodes=1:ppn=2")
    assert "1 jobs considered, 0 would be started" in head.says("cycle", "--dry-run")
    # The server may still remember other users' jobs, from tests before this one.
    with in_force(site, query_other_jobs="True"):
        assert second in head.says("explain", second, user="alice")


def test_a_promise_is_shown_and_kept(site: TorqueSite, head: Head, busy: tuple[str, str]) -> None:
    first, second = busy
    ends_s = float(site.job(first)["start_time"]) + 600
    shown = head.document("showstart", second)
    assert abs(shown["start_s"] - ends_s) <= 120  # with what ending and starting take
    small = site.submit("-l", "nodes=1,walltime=00:05:00")
    until(lambda: site.state(small) == "R", "a small job goes before")
    assert site.state(second) == "Q"
    site.must("qdel", first)
    until(lambda: site.state(second) == "R", "sooner than promised")
    assert "it started" in head.says("showstart", second)


def test_nodes_free_for_backfilling(site: TorqueSite, head: Head, busy: tuple[str, str]) -> None:
    names = {row["node"] for row in head.document("showbf")["nodes"]}
    assert names == {"node1", "node2", "node4"}


def test_a_reservation_keeps_nodes(site: TorqueSite, head: Head, serve: Serve) -> None:
    serve()
    words = "--start now --length 1:00:00 --nodes node3 --user bob --name course"
    head.says("reserve", *words.split())
    assert "course" in head.says("reserve", "--list")
    stranger = site.submit("-l", "nodes=1:ppn=8")
    until(lambda: "course" in site.job(stranger).get("comment", ""), "it is told")
    guest = site.submit("-l", "nodes=1:ppn=6", user="bob")
    until(lambda: site.state(guest) == "R", "bob's job runs")
    assert site.job(guest)["exec_host"].startswith("node3/")
    head.says("reserve", "--delete", "course")
    site.must("qdel", guest)
    until(lambda: site.state(stranger) == "R", "the nodes are given back")


def test_report_and_replay(site: TorqueSite, head: Head, busy: tuple[str, str]) -> None:
    page = site.folder / "report.html"
    head.says("report", "--html", str(page))
    assert "</html>" in page.read_text()
    journal = site.torque.home / "sched_priv" / "journal"
    done = site.run(*site.python, "-m", "torque_sched", "replay", str(journal))
    assert done.returncode == 0, done.stdout + done.stderr


def test_outputs_are_read_whole(site: TorqueSite, head: Head, busy: tuple[str, str]) -> None:
    for what, words in (("pbsnodes", ("pbsnodes", "-a")), ("qstat", ("qstat", "-f", "-t"))):
        path = site.folder / f"{what}.txt"
        path.write_text(site.must(*words))
        done = site.run(*site.python, "-m", "torque_sched", "parse", what, str(path), "--json")
        assert done.returncode == 0, done.stderr
        assert all(name in done.stdout for name in (("node1", "node4") if what == "pbsnodes" else busy))
