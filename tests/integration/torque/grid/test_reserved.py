"""Four sites: a start reserved at several of them, files that take long or do not arrive, and kills amid."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.torque.grid.grid import USER, Grid, GridSite

pytestmark = [pytest.mark.root]


def own_job(site: GridSite, job: str) -> dict[str, Any]:
    """A job of its own, as `status --json` shows it."""
    return next((each for each in site.state()["jobs"] if each["job"] == job), {})


def reserved(grid: Grid, site: GridSite, job: str) -> tuple[float, list[str]]:
    """Start and sites of a job, once they are reserved."""

    def is_reserved() -> dict[str, Any]:
        found = own_job(site, job)
        are_set = found.get("stage") == "starting" and all(
            b["state"] == "submitting" for b in found["blocks"]
        )
        return found if are_set else {}

    found = grid.eventually("a start is reserved", is_reserved)
    return found["start_s"], [block["site"] for block in found["blocks"]]


@pytest.mark.slow
def test_a_common_start_is_reserved_and_kept_though_home_and_a_site_are_killed(grid: Grid) -> None:
    """All nodes are busy: five of them are reserved at three sites, and all blocks start together then."""
    alpha = grid.alpha
    ends = {site.name: site.fill(walltime_s=57, runtime_s=54) for site in grid.sites.values()}
    job = alpha.submit(grid.script("together", grid.waits_for("together")), nodes=5)
    start_s, sites = reserved(grid, alpha, job)
    assert len(sites) == 3
    last_end_s = max(
        float(grid.sites[name].job(local)["start_time"]) + 57 for name in sites for local in ends[name]
    )
    assert abs(start_s - last_end_s) < 2.0
    rows = grid.reservations(*sites)
    assert [len(rows[name]) for name in sites] == [1, 1, 1]
    assert {begin_s for kept in rows.values() for begin_s, _ in kept} == {start_s}
    assert "(reserved)" in alpha.job(job)["comment"]
    assert all(name in alpha.job(job)["comment"] for name in sites)
    there = next(grid.sites[name] for name in sites if name != "alpha")
    for site in (alpha, there):
        site.kill_site()
    assert grid.reservations(*sites) == rows
    for site in (alpha, there):
        site.start_site()
    starts = grid.begun("together", 3, 120)
    assert {start[1] for start in starts} == set(sites)
    assert min(float(start[0]) for start in starts) >= start_s
    begun = [float(grid.sites[start[1]].job(start[6])["start_time"]) for start in starts]
    assert min(float(start[0]) for start in starts) >= max(begun)
    assert own_job(alpha, job)["tries"] == 1
    grid.ends("together", alpha, job)
    assert alpha.job(job)["comment"].count("exit 0") == 3
    assert len(grid.starts("together")) == 3


def test_a_reserved_start_becomes_sooner_when_nodes_are_free_before(grid: Grid) -> None:
    alpha = grid.alpha
    locals_of = {site.name: site.fill() for site in grid.sites.values()}
    job = alpha.submit(grid.script("sooner", grid.waits_for("sooner")), nodes=5)
    start_s, _ = reserved(grid, alpha, job)
    for name, jobs in locals_of.items():
        grid.sites[name].torque.run("qdel", *jobs, user="root")
    starts = grid.begun("sooner", 3)
    assert max(float(start[0]) for start in starts) < start_s
    assert own_job(alpha, job)["tries"] == 1
    assert sum(len(rows) for rows in grid.reservations().values()) == 3
    grid.ends("sooner", alpha, job)


def test_a_reserved_start_that_is_not_wanted_any_more_leaves_nothing(grid: Grid) -> None:
    alpha = grid.alpha
    for site in grid.sites.values():
        site.fill()
    job = alpha.submit(grid.script("unwanted"), nodes=6)
    _, sites = reserved(grid, alpha, job)
    assert len(sites) == 3
    assert all(grid.reservations(*sites).values())
    alpha.torque.run("qdel", job, user=USER)
    grid.is_free()
    assert not any(site.blocks() for site in grid.sites.values())
    assert not grid.starts("unwanted")


@pytest.mark.slow
def test_nothing_stays_reserved_for_a_home_that_is_gone(grid: Grid) -> None:
    """Its job is placed anew when it is back."""
    alpha = grid.alpha
    for site in grid.sites.values():
        site.fill()
    job = alpha.submit(grid.script("gone"), nodes=6)
    _, sites = reserved(grid, alpha, job)
    others = [name for name in sites if name != "alpha"]
    alpha.kill_site()
    assert all(grid.reservations(*others).values())
    grid.is_free(*others)
    alpha.start_site()
    grid.eventually("it is tried again", lambda: own_job(alpha, job).get("tries") == 2, 90)
    alpha.torque.run("qdel", job, user=USER)
    grid.is_free()
    assert not grid.starts("gone")


def test_a_site_killed_while_files_come_goes_on_with_the_block(grid: Grid) -> None:
    alpha, gamma = grid.alpha, grid.gamma
    slow = grid.results / "wait-at-gamma"
    slow.touch()
    job = alpha.submit(grid.script("files"), nodes=8)

    def n_staged() -> int:
        return sum(words[:2] == ["in", "gamma"] for words in grid.staged(job))

    grid.eventually("gamma fetches the files", lambda: n_staged() == 1)
    gamma.kill_site()
    gamma.start_site()
    grid.eventually("it fetches them again", lambda: n_staged() == 2)
    slow.unlink()
    grid.eventually("it ends", lambda: alpha.is_over(job))
    assert sorted(start[1] for start in grid.starts("files")) == sorted(grid.sites)
    assert {words[7] for words in grid.staged(job)} == {f"alpha/{job}/1"}  # the same try


@pytest.mark.parametrize("heals", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_files_that_do_not_come_home_are_tried_again_and_then_told(grid: Grid, heals: bool) -> None:
    alpha, name = grid.alpha, f"out-{heals}"
    alpha.fill()
    job = alpha.submit(grid.script(name, grid.waits_for(name)), nodes=2)
    (start,) = grid.begun(name, 1)
    there = grid.sites[start[1]]
    full = grid.results / f"no-space-at-{there.name}"
    full.touch()
    grid.tell(name)
    grid.eventually(
        "its owner is told", lambda: "stage_out failed (1 of 3)" in alpha.job(job).get("comment", "")
    )
    if heals:
        there.kill_site()  # and it does not forget
    assert not any(grid.reservations(there.name).values())  # its nodes are free meanwhile
    assert not alpha.is_over(job)
    if heals:
        full.unlink()
        there.start_site()
    grid.eventually("it ends", lambda: alpha.is_over(job))
    told = alpha.job(job)["comment"]
    assert f"ran at {there.name}: exit 0" in told
    assert ("stage_out failed (3 of 3)" in told) is not heals
    if not heals:
        # The site there writes its status at its next look; the owner may have been told before.
        grid.eventually(
            "its site tells it, too", lambda: "stage_out failed (3 of 3): " in there.command("status").stdout
        )
        assert f"block alpha/{job}/1" in there.command("status").stdout
        full.unlink()
    assert len(grid.starts(name)) == 1
