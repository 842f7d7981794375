"""Four sites: jobs elsewhere or at several sites, cut links, kills, and requests that are refused."""

from __future__ import annotations

import json
import pwd
from pathlib import Path

import pytest

from tests.integration.torque.grid.grid import MAPPED, USER, Grid
from tests.unit.torque.grid.linked import make_certificate
from torque_sched.emulation import Fault

pytestmark = [pytest.mark.root]


def test_a_job_runs_elsewhere_as_the_mapped_user(grid: Grid) -> None:
    """alpha is full; its user's job runs at a peer, and its exit is in the place-holder's comment."""
    alpha = grid.alpha
    alpha.fill()
    staged = f"{grid.results}/file.$TORQUE_GRID_HOME.$TORQUE_GRID_JOB.$TORQUE_GRID_INDEX"
    body = f"echo of $TORQUE_GRID_SITE >> {staged}; {grid.waits_for('elsewhere')}; exit 3"
    job = alpha.submit(grid.script("elsewhere", body), nodes=2)
    (start,) = grid.begun("elsewhere", 1)
    there = grid.sites[start[1]]
    assert there is not alpha
    block = there.job(start[6])
    assert block["Job_Owner"] == f"{MAPPED}@{there.name}"
    assert set(alpha.job(job)["Hold_Types"]) == {"u", "o"}
    grid.ends("elsewhere", alpha, job)
    assert alpha.job(job)["comment"] == f"grid: ran at {there.name}: exit 3"
    assert len(grid.starts("elsewhere")) == 1
    # Its files came before it and went home after it.
    folder, token = pwd.getpwnam(MAPPED).pw_dir, f"alpha/{job}/1"
    words = [there.name, "alpha", job, "0", MAPPED, folder, token]
    assert grid.staged(job) == [["in", *words], ["out", *words]]
    back = grid.results / f"file.alpha.{job}.0.back"
    assert back.read_text() == f"of home\nof {there.name}\n"


def test_a_job_of_three_blocks_starts_together_and_knows_its_blocks(grid: Grid) -> None:
    alpha = grid.alpha
    job = alpha.submit(grid.script("split", grid.waits_for("split")), nodes=5)
    starts = grid.begun("split", 3)
    sites = starts[0][5].split()
    assert len(set(sites)) == 3
    assert {(start[1], start[2]) for start in starts} == {(site, str(at)) for at, site in enumerate(sites)}
    assert {start[3] for start in starts} == {"3"}
    assert len({start[4] for start in starts}) == 1
    assert sum(len(names.split(",")) for names in starts[0][4].split()) == 5
    # No body ran before the last block had its nodes.
    begun = [float(grid.sites[start[1]].job(start[6])["start_time"]) for start in starts]
    assert min(float(start[0]) for start in starts) >= max(begun)
    grid.ends("split", alpha, job)
    assert alpha.job(job)["comment"].count("exit 0") == 3
    grid.is_free()


def test_gpus_and_properties_are_looked_for_elsewhere(grid: Grid) -> None:
    """Only alpha and delta have them; alpha is full."""
    alpha, delta = grid.alpha, grid.delta
    alpha.fill()
    job = alpha.submit(grid.script("gpus", grid.waits_for("gpus")), nodes=2, shape=":gpus=1:fast")
    (start,) = grid.begun("gpus", 1)
    assert start[1] == "delta"
    block = delta.job(start[6])
    assert block["Resource_List.nodes"].count("ppn=2:gpus=1") == 2
    assert len(block["exec_gpus"].split("+")) == 2
    grid.ends("gpus", alpha, job)


def test_the_local_scheduler_keeps_off_the_nodes_and_off_the_job(grid: Grid) -> None:
    """beta's scheduler runs: it starts local jobs, but neither held grid jobs nor on nodes the grid holds."""
    beta = grid.beta
    body = grid.script("home", grid.waits_for("home"))
    job = beta.submit(body, nodes=2, ppn=1)  # a slot of each node stays free
    (start,) = grid.begun("home", 1)
    local = beta.torque.submit("-l", "nodes=1:ppn=1,walltime=60", user="bin", runtime_s=1)
    grid.eventually("the local job waits", lambda: "Not Running" in beta.job(local).get("comment", ""))
    grid.ends("home", beta, job)
    grid.eventually("then the local one runs", lambda: beta.job(local).get("job_state") in {"R", "C"})
    begun = [line.split(";")[2] for line in beta.torque.accounting() if ";S;" in line]
    assert job not in begun
    assert begun[-2:] == [start[6], local]


def test_a_block_that_cannot_start_cancels_all_and_the_job_is_tried_again(grid: Grid) -> None:
    """At gamma qsub fails, at delta staging does."""
    alpha, gamma = grid.alpha, grid.gamma
    gamma.torque.set_faults(Fault("qsub", "exit", code=1, text="qsub: no disk space\n"))
    full = grid.results / "no-space-at-delta"
    full.touch()
    job = alpha.submit(grid.script("again"), nodes=8)
    grid.eventually("a try failed", lambda: "failed" in alpha.job(job).get("comment", ""))
    told = ((gamma, "qsub: no disk space"), (grid.delta, "exit code 5: no space at delta"))
    for site, words in told:
        grid.eventually(f"{site.name} says why", lambda w=words, s=site: w in s.log.read_text())  # type: ignore[misc]
    assert not grid.starts("again")
    gamma.torque.set_faults()
    full.unlink()
    grid.begun("again", 4)
    grid.eventually("it ends", lambda: alpha.is_over(job))
    assert sorted(start[2] for start in grid.starts("again")) == ["0", "1", "2", "3"]


def test_a_site_killed_while_its_qsub_is_under_way_starts_the_block_once(grid: Grid) -> None:
    alpha, gamma = grid.alpha, grid.gamma
    gamma.torque.set_faults(Fault("qsub", "slow", seconds=2.0, times=1))
    job = alpha.submit(grid.script("slow"), nodes=8)
    grid.eventually("gamma submits", lambda: gamma.state()["blocks"])
    gamma.kill_site()
    gamma.start_site()
    grid.eventually("it runs", lambda: len(grid.starts("slow")) >= 4)
    grid.eventually("it ends", lambda: alpha.is_over(job))
    assert sorted(start[2] for start in grid.starts("slow")) == ["0", "1", "2", "3"]
    gamma.torque.set_faults()


def test_a_deleted_job_leaves_nothing(grid: Grid) -> None:
    alpha = grid.alpha
    job = alpha.submit(grid.script("deleted", "sleep 60"), nodes=6)
    grid.begun("deleted", 3)
    alpha.torque.run("qdel", job, user=USER)
    grid.eventually("no block is left", lambda: not any(site.blocks() for site in grid.sites.values()))
    grid.is_free()


def test_a_cut_grid_goes_on_in_both_parts_and_starts_nothing_twice(grid: Grid) -> None:
    alpha, gamma = grid.alpha, grid.gamma
    long = alpha.submit(grid.script("long", grid.waits_for("long")), nodes=5)
    starts = grid.begun("long", 3)
    assert {start[1] for start in starts} == {"alpha", "beta", "delta"}  # a node is left in both parts
    grid.partition("beta", "gamma")
    grid.eventually(
        "the cut is seen", lambda: alpha.sees("beta", "gamma", as_state="down") and gamma.sees("beta")
    )
    one = alpha.submit(grid.script("left", ""), nodes=1)
    other = gamma.submit(grid.script("right", ""), nodes=1)
    grid.eventually("each part runs its own", lambda: grid.starts("left") and grid.starts("right"))
    assert grid.starts("left")[0][1] in {"alpha", "delta"}
    assert grid.starts("right")[0][1] in {"beta", "gamma"}
    grid.heal()
    grid.wait_for_peers()
    grid.tell("long")
    grid.eventually("all end", lambda: alpha.is_over(long) and alpha.is_over(one) and gamma.is_over(other))
    assert grid.starts("long") == starts
    assert "exit 0" in alpha.job(long)["comment"]
    assert len(grid.starts("left")) == len(grid.starts("right")) == 1


def test_a_coordinator_killed_between_confirm_and_commit_leaves_nothing_behind(grid: Grid) -> None:
    """Three sites have said ready, the fourth cannot answer; then the coordinator dies."""
    alpha, gamma = grid.alpha, grid.gamma
    with gamma.cycle_locked():
        alpha.submit(grid.script("orphan"), nodes=8)
        others = [grid.beta, grid.delta]
        names = [site.name for site in others]

        def both_hold() -> bool:
            # Looked at again while it can take nothing back; had it just done so, it goes on and tries again.
            if not all(grid.reservations(*names).values()):
                return False
            alpha.freeze_site()
            if all(grid.reservations(*names).values()):
                return True
            alpha.thaw_site()
            return False

        grid.eventually("two hold", both_hold)
        alpha.kill_site()
    grid.eventually("the holds run out", lambda: not any(grid.reservations(*names).values()))
    grid.eventually("nothing is granted", lambda: not any(site.state()["grants"] for site in others))
    assert not any(grid.reservations(*names).values())
    assert not any(site.blocks() for site in others)
    assert not grid.starts("orphan")
    alpha.start_site()
    grid.eventually("it runs after all", lambda: len(grid.starts("orphan")) == 4, 90)
    grid.eventually("once", lambda: not alpha.state()["jobs"])
    assert sorted(start[2] for start in grid.starts("orphan")) == ["0", "1", "2", "3"]


def test_sites_killed_while_a_job_runs_go_on_with_it(grid: Grid) -> None:
    alpha, beta = grid.alpha, grid.beta
    job = alpha.submit(grid.script("killed", f"{grid.waits_for('killed')}; exit 7"), nodes=8)
    starts = grid.begun("killed", 4)
    alpha.kill_site()
    beta.kill_site()
    alpha.start_site()
    beta.start_site()
    grid.ends("killed", alpha, job)
    assert alpha.job(job)["comment"].count("exit 7") == 4
    assert grid.starts("killed") == starts


def test_one_site_fully_down_does_not_hinder_the_others(grid: Grid) -> None:
    delta = grid.delta
    delta.kill_site()
    delta.torque.kill()
    delta.unplug()
    alpha = grid.alpha
    try:
        grid.eventually("it is seen", lambda: alpha.sees("delta", as_state="down"))
        job = alpha.submit(grid.script("three", ""), nodes=6)
        starts = grid.begun("three", 3)
        assert {start[1] for start in starts} == {"alpha", "beta", "gamma"}
        grid.eventually("it ends", lambda: alpha.is_over(job))
        told = alpha.command("peers")
        assert told.returncode == 0
        assert "down" in told.stdout
    finally:
        delta.plug()
        assert delta.start_torque().wait(240) == 0
        delta.start_site()


# ---- who is refused

SEND = """
import asyncio, json, sys, time
from pathlib import Path
from torque_sched.grid.handshake.blocks import SITE_WIRE
from torque_sched.grid.handshake.messages import Claim, Confirm, Piece, SiteId, Token
from torque_sched.grid.site.config import read_site_config
from torque_sched.grid.site.messages import Engine, EngineAnswer
from torque_sched.grid.site.peers import LinkError, Links
async def ask(config, peer, user, home):
    links = Links(read_site_config(Path(config)))
    token = Token(SiteId(home), "99.forged", 1)
    claim = Claim((Piece("", 1),), time.time(), 60.0)
    message = SITE_WIRE.plain(Confirm(token, SiteId(peer), time.time(), claim, user=user))
    try:
        return str((await links.ask(peer, Engine(message=message), EngineAnswer)).message)
    except LinkError as error:
        return f"LinkError {error}"
    finally:
        await links.close()
async def main():
    print(json.dumps([await ask(*words) for words in json.loads(sys.argv[1])]))
asyncio.run(main())
"""


def test_root_unmapped_users_and_other_sites_tokens_are_refused(grid: Grid) -> None:
    alpha, gamma = grid.alpha, grid.gamma
    asked = [(str(alpha.settings), "gamma", user, "alpha") for user in ("root", "games", "")]
    asked.append((str(alpha.settings), "gamma", USER, "beta"))
    told = json.loads(alpha.play(SEND, json.dumps(asked)))
    assert all("NotReady" in answer and "is not known at gamma" in answer for answer in told[:3])
    assert "not yours" in told[3]
    lines = [line for line in gamma.audit() if line.get("kind") == "Confirm"][-4:]
    assert [line["why"] for line in lines] == ["denied", "denied", "denied", "not yours"]
    assert {line["peer"] for line in lines} == {"alpha"}
    assert not gamma.state()["grants"]


def test_a_stranger_gets_nowhere(grid: Grid, tmp_path: Path) -> None:
    """A certificate of his own that says alpha; and a shared key that is not the one."""
    alpha = grid.alpha
    crt, key = make_certificate(tmp_path, "alpha")
    forged = alpha.settings.with_name("forged.yaml")
    text = alpha.settings.read_text()
    own = str(grid.keys / "alpha")
    forged.write_text(text.replace(f"{own}.crt", crt).replace(f"{own}.key", key))
    other = alpha.settings.with_name("other.yaml")
    wrong = tmp_path / "wrong.shared"
    wrong.write_text("00" * 32)
    wrong.chmod(0o600)
    other.write_text(text.replace(f"{own}-beta.shared", str(wrong)))
    asked = [(str(forged), "gamma", USER, "alpha"), (str(other), "beta", USER, "alpha")]
    by_certificate, by_key = json.loads(alpha.play(SEND, json.dumps(asked)))
    assert "LinkError" in by_certificate
    assert "not authorised" in by_key
    assert any("wrong signature" in line["answer"] for line in grid.beta.audit()[-5:])


def test_commands_for_the_administrator(grid: Grid) -> None:
    alpha = grid.alpha
    tried = alpha.command("serve", "--dry-run")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "ok   peer delta" in tried.stdout
    status = alpha.command("status", "--json")
    assert status.returncode == 0
    assert json.loads(status.stdout)["name"] == "alpha"
    peers = ("beta", "gamma", "delta")

    def with_all_alive() -> dict[str, float]:
        # On a busy machine one may be late at any one moment.
        found = alpha.figures()
        are_alive = all(found[f'torque_sched_site_peer_alive{{peer="{peer}"}}'] for peer in peers)
        return found if are_alive else {}

    figures = grid.eventually("all peers are alive", with_all_alive)
    for peer in peers:
        assert figures[f'torque_sched_site_peer_clock_skew_seconds{{peer="{peer}"}}'] < 1.0
        sent = f'torque_sched_site_requests_sent_total{{outcome="answered",peer="{peer}"}}'
        assert figures[sent] > 0
        taken = "torque_sched_site_requests_taken_total"
        assert figures[f'{taken}{{kind="gossip",outcome="answered",peer="{peer}"}}'] > 0
    for name in ("foreign_blocks", "grants", "own_jobs"):
        assert figures[f"torque_sched_site_{name}"] == 0.0
