"""Two sites, one with an emulated Torque and one with an emulated OpenPBS: jobs leave both, and run once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.torque.grid.conftest import needs_namespaces
from tests.integration.torque.grid.grid import MAPPED, USER, Grid, GridSite

pytestmark = [pytest.mark.root]


@pytest.fixture(scope="module", name="grid")
def _grid() -> Iterator[Grid]:
    """alpha has the Torque, beta the OpenPBS and our scheduler on it."""
    needs_namespaces()
    with tempfile.TemporaryDirectory(prefix="grid-") as folder:
        Path(folder).chmod(0o711)
        with Grid(Path(folder), names=("alpha", "beta"), openpbs=frozenset({"beta"}), tag="tsp") as made:
            yield made


def test_a_job_of_a_torque_and_an_openpbs_starts_at_both_together(grid: Grid) -> None:
    alpha, beta = grid.alpha, grid.beta
    job = alpha.submit(grid.script("both", grid.waits_for("both")), nodes=4)
    starts = grid.begun("both", 2)
    assert {start[1] for start in starts} == {"alpha", "beta"}
    assert {(start[3], start[4]) for start in starts} == {("2", starts[0][4])}
    (there,) = (start[6] for start in starts if start[1] == "beta")
    block = beta.job(there)
    assert block["job_state"] == "R"
    assert block["exec_vnode"] in {
        "(node1:ncpus=2)+(node2:ncpus=2)", "(node2:ncpus=2)+(node1:ncpus=2)",
    }  # fmt: skip
    assert block["Job_Owner"].partition("@")[0] == MAPPED
    grid.ends("both", alpha, job)
    grid.is_free()
    assert len(grid.starts("both")) == 2
    assert alpha.job(job)["comment"].count("exit 0") == 2


def test_jobs_of_users_of_an_openpbs_leave_it(grid: Grid) -> None:
    """By nodes and by select; the script comes out of the server's database, and there is no file of it."""
    beta = grid.beta
    job = beta.submit(grid.script("back", grid.waits_for("back")), nodes=3)
    starts = grid.begun("back", 2)
    assert {start[1] for start in starts} == {"alpha", "beta"}
    assert set(beta.job(job)["Hold_Types"]) == {"u", "o"}
    grid.ends("back", beta, job)
    assert not list((beta.torque.home / "server_priv").glob("jobs/*"))
    beta.fill()
    marked = ("-h", "-v", "TORQUE_GRID=yes")
    select = ("-l", "select=2:ncpus=2", "-l", "place=free", "-l", "walltime=600")
    job = beta.torque.submit(*marked, *select, user=USER, script=grid.script("free", "exit 3"))
    (start,) = grid.begun("free", 1)
    assert start[1] == "alpha"
    grid.eventually("it ends", lambda: beta.is_over(job))
    words = ("-l", "select=1:ncpus=1:mem=1gb", "-l", "walltime=600")
    stays = beta.torque.submit(*marked, *words, user=USER, script=grid.script("stays"))
    grid.eventually("it says why", lambda: "not for the grid: mem" in beta.job(stays).get("comment", ""))


def test_each_job_runs_once_when_agents_and_schedulers_are_killed(grid: Grid) -> None:
    """Jobs leave both sites, full ones, while agents and schedulers of both die at any moment."""
    alpha, beta = grid.alpha, grid.beta
    alpha.start_scheduler()
    try:
        for home, other in ((alpha, beta), (beta, alpha)):
            _leaves_while_all_die(grid, home, other)
        _many_leave_while_all_die(grid, alpha, beta)
    finally:
        alpha.kill_scheduler()


def _kill(*sites: GridSite) -> None:
    """Agents and schedulers, all at once; then they come back."""
    for site in sites:
        site.kill_site()
        site.kill_scheduler()
    for site in sites:
        site.start_site()
        site.start_scheduler()


def _leaves_while_all_die(grid: Grid, home: GridSite, other: GridSite) -> None:
    name = f"from-{home.name}"
    full = home.fill()
    job = home.submit(grid.script(name, grid.waits_for(name)), nodes=2)
    grid.eventually("the other site has its block", lambda: other.state()["blocks"])
    _kill(home, other)
    (start,) = grid.begun(name, 1)
    assert start[1] == other.name
    grid.ends(name, home, job)
    assert grid.starts(name) == [start]
    assert grid.n_starts(other)[start[6]] == 1
    assert job not in grid.n_starts(home)
    for each in full:
        home.torque.run("qdel", each, user="root")


def _many_leave_while_all_die(grid: Grid, alpha: GridSite, beta: GridSite) -> None:
    """More than fit at once, and jobs that stay at home among them."""
    sites = (alpha, beta)
    names = {site: [f"many-{site.name}-{at}" for at in range(3)] for site in sites}
    leaving = {
        name: (site, site.submit(grid.script(name, "sleep 0.2"), nodes=1 + at % 2))
        for site in sites
        for at, name in enumerate(names[site])
    }
    local = {
        site: [site.torque.submit("-l", "nodes=1:ppn=1,walltime=60", user="bin", runtime_s=1) for _ in "abc"]
        for site in sites
    }
    for n in (1, 4):
        grid.eventually(f"{n} jobs have begun", lambda n=n: sum(map(bool, map(grid.starts, leaving))) >= n)  # type: ignore[misc]
        _kill(*sites)
    grid.eventually("all end", lambda: all(site.is_over(job) for site, job in leaving.values()))
    for name, (site, job) in leaving.items():
        blocks = grid.starts(name)
        assert sorted(start[2] for start in blocks) == [str(at) for at in range(int(blocks[0][3]))]
        assert job not in grid.n_starts(site)
    for site in sites:
        grid.eventually("local ones end", lambda s=site: all(map(s.is_over, local[s])))  # type: ignore[misc]
        assert all(grid.n_starts(site)[job] == 1 for job in local[site])
        assert set(grid.n_starts(site).values()) == {1}
