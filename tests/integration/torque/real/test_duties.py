"""Every kind of request, limit and hold, served by the daemon on a real Torque."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.fixtures.torque_site import Daemon, TorqueSite
from tests.fixtures.waiting import until

from .conftest import in_force

Serve = Callable[..., Daemon]


def runs(site: TorqueSite, *jobs: str) -> None:
    until(lambda: all(site.state(job) == "R" for job in jobs), "they run", 30)


def waits(site: TorqueSite, job: str, words: str) -> None:
    until(lambda: words in site.job(job).get("comment", ""), f"{words!r}", 30)
    assert site.state(job) == "Q"


def hosts(site: TorqueSite, job: str) -> set[str]:
    return {part.split("/")[0] for part in site.job(job)["exec_host"].split("+")}


def n_slots(site: TorqueSite, job: str) -> int:
    """Slots in ``node/0-1+node2/0`` (6.x) or ``node/1+node/0`` (4.x)."""
    total = 0
    for part in site.job(job)["exec_host"].split("+"):
        for piece in part.split("/")[1].split(","):
            first, _, last = piece.partition("-")
            total += int(last or first) - int(first) + 1
    return total


@pytest.mark.parametrize(
    ("words", "slots", "nodes"),
    [
        (["-l", "nodes=1:ppn=2"], 2, None),
        (["-l", "nodes=2:ppn=2"], 4, None),
        (["-l", "nodes=1:ppn=8"], 8, {"node3"}),
        (["-l", "nodes=1:slow"], 1, {"node1"}),
        (["-l", "nodes=big"], 1, {"node3"}),
        (["-l", "nodes=node2:ppn=3+node4"], 4, {"node2", "node4"}),
        # Only the nodes of one element are apart.
        (["-l", "nodes=4+1"], 5, {"node1", "node2", "node3", "node4"}),
        (["-l", "nodes=1:gpunode:ppn=2+1:gpus=1"], 3, {"node4"}),
        (["-q", "bare", "-l", "procs=11"], 11, None),
        (["-l", "feature=gpunode"], 1, {"node4"}),
        (["-l", "host=node2"], 1, {"node2"}),
        # Beside the queue's nodes=1 it is one slot, as with pbs_sched.
        (["-l", "ncpus=2"], 1, None),
        (["-q", "bare", "-l", "ncpus=1"], 1, None),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_a_request(
    site: TorqueSite, serve: Serve, words: list[str], slots: int, nodes: set[str] | None
) -> None:
    serve()
    job = site.submit(*words)
    runs(site, job)
    assert n_slots(site, job) == slots
    assert nodes is None or hosts(site, job) == nodes
    until(lambda: site.job(job).get("comment", "").startswith("Job started on "), "its comment")


def test_tasks_of_the_new_syntax(site: TorqueSite, serve: Serve) -> None:
    done = site.run("qsub", "-q", "bare", "-L", "tasks=2:lprocs=2", user="alice", text="sleep 600")
    if done.returncode:
        pytest.skip(f"this Torque has no -L: {done.stderr.strip()}")
    serve()
    runs(site, done.stdout.strip())
    assert n_slots(site, done.stdout.strip()) == 4


@pytest.mark.parametrize("words", [("nodes=1:gpus=1",), ("gpus=1",), ("nodes=1,gpus=1",)], ids=" ".join)
def test_gpus(site: TorqueSite, serve: Serve, words: tuple[str]) -> None:
    serve()
    one, two = (site.submit("-l", *words) for _ in range(2))
    runs(site, one, two)
    held = {site.job(job)["exec_gpus"] for job in (one, two)}
    assert held == {"node4-gpu/0", "node4-gpu/1"}
    third = site.submit("-l", *words)
    waits(site, third, "free GPUs")
    site.must("qdel", one)
    runs(site, third)


def test_a_node_of_its_own(site: TorqueSite, serve: Serve) -> None:
    serve()
    small = site.submit("-l", "nodes=node1")
    runs(site, small)
    alone = site.submit("-n", "-l", "nodes=node1")
    waits(site, alone, "nodes of its own")
    site.must("qdel", small)
    runs(site, alone)
    waits(site, site.submit("-l", "nodes=node1"), "Not Running")


def test_memory_is_counted(site: TorqueSite, serve: Serve) -> None:
    serve()
    waits(site, site.submit("-l", "mem=90000gb"), "Job can never run here")


def test_array_with_a_slot_limit(site: TorqueSite, serve: Serve) -> None:
    serve()
    array = site.submit("-t", "0-4%2", script="sleep 2").replace("[]", "[{}]")
    members = [array.format(number) for number in range(5)]
    most = 0

    def all_ended() -> bool:
        nonlocal most
        states = [site.state(each) for each in members]
        most = max(most, sum(state in "RE" for state in states))
        return all(state == "C" for state in states)

    until(all_ended, "all members ended", 60)
    assert most == 2
    assert {site.starts()[each] for each in members} == {1}


def test_an_arrays_slot_limit_can_be_raised(site: TorqueSite, serve: Serve) -> None:
    if not site.torque.version.startswith("6."):
        pytest.skip("Torque 4.2 takes the holds off and leaves the members in state H")
    serve()
    array = site.submit("-t", "0-3%1")
    members = [array.replace("[]", f"[{number}]") for number in range(4)]
    runs(site, members[0])
    site.must("qalter", "-t", "%3", array)
    runs(site, *members[:3])
    assert site.state(members[3]) == "H"


def test_a_job_held_later_is_told_so(site: TorqueSite, serve: Serve) -> None:
    serve()
    runs(site, site.submit("-l", "nodes=node3:ppn=8"))
    job = site.submit("-l", "nodes=1:ppn=8")
    waits(site, job, "Not enough of the right type of nodes are available")
    site.must("qhold", job)
    until(lambda: "Job is held (user)" in site.job(job).get("comment", ""), "it is told", 30)
    site.must("qrls", job)
    waits(site, job, "Not enough of the right type of nodes are available")


def test_a_job_that_is_to_run_again_holds_nothing(site: TorqueSite, serve: Serve) -> None:
    """qrerun leaves its start_time, GPUs and an exit status on it."""
    serve()
    first = site.submit("-l", "nodes=1:gpus=2")
    runs(site, first)
    site.must("qhold", first)
    site.must("qrerun", first)
    until(lambda: site.state(first) == "H", "it is held")
    other = site.submit("-l", "nodes=1:gpus=2")
    runs(site, other)


def test_holds_dependencies_and_times(site: TorqueSite, serve: Serve) -> None:
    serve()
    first = site.submit(script="sleep 3")
    then = site.submit("-W", f"depend=afterok:{first}", script="sleep 1")
    held = site.submit("-h")
    at_s = time.time() + 8
    later = site.submit("-a", time.strftime("%Y%m%d%H%M.%S", time.localtime(at_s)), script="sleep 1")
    runs(site, first)
    assert [site.state(each) for each in (then, held, later)] == ["H", "H", "W"]
    until(lambda: [site.state(each) for each in (then, later)] == ["C", "C"], "all but the held one ended")
    assert float(site.job(later)["start_time"]) >= int(at_s)
    assert site.state(held) == "H"
    site.must("qrls", held)
    runs(site, held)


def test_slots_of_a_suspended_job_are_not_given_away(site: TorqueSite, serve: Serve) -> None:
    serve()
    job = site.submit("-l", "nodes=node1:ppn=2")
    runs(site, job)
    site.must("qsig", "-s", "suspend", job)
    until(lambda: site.state(job) == "S", "it is suspended")
    other = site.submit("-l", "nodes=node1:ppn=2")
    waits(site, other, "Not enough of the right type of nodes are available")
    site.must("qsig", "-s", "resume", job)
    until(lambda: site.state(job) == "R", "it goes on")
    assert site.state(other) == "Q"


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("max_running", "Server job limit has been reached."),
        ("max_user_run", "User has reached server running job limit."),
        ("max_group_run", "Group has reached server running limit."),
    ],
)
def test_limits(site: TorqueSite, serve: Serve, limit: str, words: str) -> None:
    serve()
    with in_force(site, **{limit: "1"}):
        first = site.submit()
        runs(site, first)
        second = site.submit()
        waits(site, second, words)
        site.must("qdel", first)
        runs(site, second)


def test_a_stopped_queue_and_the_pause_switch(site: TorqueSite, serve: Serve) -> None:
    serve()
    site.qmgr("set queue batch started = False")
    job = site.submit()
    waits(site, job, "Queue not started.")
    site.qmgr("set queue batch started = True")
    runs(site, job)
    site.qmgr("set server scheduling = False")
    paused = site.submit()
    time.sleep(4)  # more than a period of the timer
    assert site.state(paused) == "Q"
    site.qmgr("set server scheduling = True")
    runs(site, paused)


def test_comments_settle(site: TorqueSite, serve: Serve) -> None:
    serve()
    filling = [
        site.submit("-l", f"nodes={node}:ppn={np}") for node, np in (("node1", 2), ("node2", 4), ("node3", 8))
    ]
    runs(site, *filling)
    waiting = [site.submit("-l", words) for words in ("nodes=2:ppn=3", "nodes=1:gpus=2", "nodes=1:ppn=8")]
    waiting.append(site.submit("-n", "-l", "nodes=node2"))

    def told() -> dict[str, tuple[str, str]]:
        jobs = site.jobs()
        return {
            each: (jobs[each].get("comment", ""), jobs[each]["mtime"])
            for each in waiting
            if jobs[each]["job_state"] == "Q"
        }

    until(lambda: all(comment for comment, _ in told().values()), "comments")
    time.sleep(4)
    before = told()
    time.sleep(7)
    assert told() == before
