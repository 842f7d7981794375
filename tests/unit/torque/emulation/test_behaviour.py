"""What the server does and does not do, as the tables of observed behaviour say."""

from __future__ import annotations

import re

import pytest

from tests.unit.torque.emulation.in_memory import Bench, running_bench
from torque_sched.core.decisions import NodeShare, hosts_argument
from torque_sched.core.model import NodeName
from torque_sched.emulation.mom import report
from torque_sched.emulation.routing import RETRY_S
from torque_sched.parse.request import parse_request

WIDE = "node1 np=2\nnode2 np=4\nnode3 np=8 big\nnode4 np=4 gpus=2 gpunode\n"


@pytest.mark.parametrize(
    ("asked", "hosts", "exec_host", "exec_gpus"),
    [
        ("1:ppn=2", "node3", "node3/0", None),
        ("1:ppn=2", "node3:ppn=2", "node3/0-1", None),
        ("1:ppn=2", "node3+node3", "node3/0+node3/1", None),
        ("1:ppn=2", "node3/4-5", "node3/0", None),
        ("1:ppn=2", "node3/0+node3/1", "node3/0+node3/1", None),
        ("2:ppn=2", "node3:ppn=2+node2:ppn=2", "node3/0-1+node2/0-1", None),
        ("2:ppn=2", "node3:ppn=2+node3:ppn=2", "node3/0-1+node3/2-3", None),
        ("1:ppn=2:gpus=1", "node4:ppn=2", "node4/0-1", None),
        ("1:ppn=2:gpus=1", "node4:ppn=2:gpus=1", "node4/0-1", "node4-gpu/0"),
        ("1:ppn=2", "1:ppn=2", "node1/0-1", None),
        ("1:ppn=2", "1:big:ppn=2", "node3/0-1", None),
        ("1:gpus=2", "node4:gpus=2", "node4/0", "node4-gpu/1+node4-gpu/0"),
        ("gpunode+big", "", "node4/0+node3/0", None),
        ("1:gpunode", "", "node4/0", None),
    ],
)
def test_what_the_host_list_does(asked: str, hosts: str, exec_host: str, exec_gpus: str | None) -> None:
    bench = Bench(WIDE)
    job = bench.submit("-l", f"nodes={asked}")
    bench.good("qrun", *(["-H", hosts] if hosts else []), job)
    known = bench.world.job(job).attributes
    assert (known["exec_host"], known.get("exec_gpus")) == (exec_host, exec_gpus)


def test_a_gpu_index_cannot_be_chosen() -> None:
    bench = Bench(WIDE)
    job = bench.submit("-l", "nodes=1:gpus=1")
    answer = bench.ask("qrun", "-H", "node4-gpu/1", job)
    assert answer.code == 2
    assert "Unknown node in hostlist 'node4-gpu/1...'" in answer.err


def test_mode_word_of_the_job_is_kept() -> None:
    bench = Bench(WIDE)
    job = bench.submit("-l", "nodes=1:gpus=1:shared")
    bench.good("qrun", "-H", "node4:ppn=1:gpus=1", job)
    assert bench.world.job(job).attributes["gpu_flags"] == "0"


@pytest.mark.parametrize(
    ("asked", "plain", "with_hosts"),
    [
        ("1:gpus=1", "1", "1"),
        ("1:ppn=2:gpus=1:exclusive_process:reseterr", "1003", "3"),
        ("1:gpus=1:ppn=2:shared", "0", "0"),
        ("1:ppn=2:gpus=1:reseterr:exclusive_thread", "1001", "1"),
        ("1:ppn=2:gpus=1:Exclusive_Process", "3", "1"),
        ("1:gpunode:gpus=1:exclusive_process:SHARED", "0", "3"),
        ("1:gpus=1#exclusive_process", "3", "1"),
    ],
)
def test_every_mode_of_the_real_server_is_taken(asked: str, plain: str, with_hosts: str) -> None:
    for hosts, flags in (([], plain), (["-H", "node4:ppn=1:gpus=1"], with_hosts)):
        bench = Bench(WIDE)
        job = bench.submit("-l", f"nodes={asked}")
        bench.good("qrun", *hosts, job)
        known = bench.world.job(job).attributes
        assert (known["exec_gpus"], known["gpu_flags"]) == ("node4-gpu/0", flags)


def test_property_alone_never_starts_on_6_but_on_4() -> None:
    new, old = Bench(WIDE), Bench(WIDE, version="4.2.10")
    for bench in (new, old):
        bench.submit("-l", "nodes=gpunode")
    assert new.ask("qrun", "44").err == "qrun: Unknown node in hostlist '(null)...' for job 44.head\n"
    old.good("qrun", "44")


def test_what_the_server_does_not_check() -> None:
    bench = Bench(
        WIDE, queues={"batch": {"max_running": "1", "max_user_run": "1", "resources_default.nodes": "1"}}
    )
    bench.good("qmgr", "-c", "set server max_running = 1")
    bench.good("emulated", "node", "node1", "max_load=1", "fixed_load=5")
    held = bench.submit("-h", "-l", "nodes=1,mem=900gb")
    big = bench.submit("-l", "nodes=1,mem=900gb")
    bench.good("qrun", "-H", "node1", held)
    bench.good("qrun", "-H", "node1", big)
    assert bench.state(held) == bench.state(big) == "R"
    bench.good("pbsnodes", "node1")
    assert "state = job-exclusive,busy" in bench.good("pbsnodes", "node1")


def test_ncpus_gets_one_slot_and_gres_gpu_no_gpu() -> None:
    bench = Bench(WIDE)
    ncpus, gres = bench.submit("-l", "ncpus=2"), bench.submit("-l", "nodes=1,gpus=1")
    assert bench.world.job(gres).resources["gres"] == "gpus:1"
    bench.good("qrun", ncpus)
    bench.good("qrun", gres)
    assert bench.world.job(ncpus).attributes["exec_host"] == "node1/0"
    assert "exec_gpus" not in bench.world.job(gres).attributes
    other = bench.submit("-l", "gpus=1")
    bench.good("qrun", "-H", "node4:gpus=1", other)
    assert bench.world.job(other).attributes["exec_gpus"] == "node4-gpu/0"


def test_procs_and_tasks_run_with_a_host_list_only() -> None:
    bench = Bench(WIDE, queues={"batch": {}})
    procs, tasks = bench.submit("-l", "procs=3"), bench.submit("-L", "tasks=2:lprocs=3:memory=1gb")
    assert bench.ask("qrun", procs).code == bench.ask("qrun", tasks).code == 2
    text = bench.good("qstat", "-f", "-1", tasks)
    assert "req_information.task_count.0 = 2" in text
    assert "req_information.memory.0 = 1048576kb" in text
    assert "Resource_List.nodes" not in text
    bench.good("qrun", "-H", "node3:ppn=3", procs)
    bench.good("qrun", "-H", "node3:ppn=3", tasks)


def test_exclusive_needs_an_empty_node_and_keeps_it() -> None:
    bench = Bench(WIDE)
    first, alone, later = (bench.submit(*words) for words in (("-l", "nodes=1"), ("-n", "-l", "nodes=1"), ()))
    bench.good("qrun", "-H", "node3", first)
    assert "temporarily unavailable" in bench.ask("qrun", "-H", "node3", alone).err
    bench.good("qrun", "-H", "node2", alone)
    assert "temporarily unavailable" in bench.ask("qrun", "-H", "node2", later).err
    assert "node_exclusive = True" in bench.good("qstat", "-f", alone)


def test_first_fit_fills_node_after_node() -> None:
    """The baseline of the real server: twenty one-slot jobs over nodes with 2, 4, 8 and 4 slots."""
    bench = Bench(WIDE)
    jobs = [bench.submit("-l", "nodes=1:ppn=1") for _ in range(20)]
    places = []
    for job in jobs:
        answer = bench.ask("qrun", job)
        places.append(bench.world.job(job).attributes["exec_host"].split("/")[0] if not answer.code else "")
    assert places == ["node1"] * 2 + ["node2"] * 4 + ["node3"] * 8 + ["node4"] * 4 + [""] * 2


def test_suspend_frees_the_slots_and_resume_does_not_look() -> None:
    bench = Bench(WIDE)
    job, other = (
        bench.submit("-l", "nodes=1:ppn=2", "-v", "EMULATED_RUNTIME=100"),
        bench.submit("-l", "nodes=1:ppn=2"),
    )
    bench.good("qrun", "-H", "node1:ppn=2", job)
    bench.advance(40)
    bench.good("qsig", "-s", "suspend", job)
    assert bench.state(job) == "S"
    assert bench.world.jobs_on("node1") == []
    assert bench.world.job(job).attributes["exec_host"] == "node1/0-1"
    bench.good("qrun", "-H", "node1:ppn=2", other)
    bench.advance(1000)
    bench.good("qsig", "-s", "resume", job)
    bench.advance(59)
    assert bench.state(job) == "R"
    bench.advance(2)
    assert bench.state(job) == "C"


def test_array_slot_limit_moves_on() -> None:
    bench = Bench(WIDE)
    bench.submit("-t", "0-3%2", "-v", "EMULATED_RUNTIME=10")
    assert [bench.state(f"44[{i}]") for i in range(4)] == ["Q", "Q", "H", "H"]
    bench.good("qrun", "-H", "node3", "44[0]")
    bench.advance(11)
    assert [bench.state(f"44[{i}]") for i in range(4)] == ["C", "Q", "Q", "H"]
    assert [job.split()[0] for job in bench.good("qselect", "-s", "Q").splitlines()] == [
        "44[1].head",
        "44[2].head",
    ]


@pytest.mark.parametrize(
    ("kind", "status", "becomes"),
    [
        ("afterok", 0, "Q"),
        ("afterok", 1, "C"),
        ("afternotok", 1, "Q"),
        ("afterany", 7, "Q"),
        ("afternotok", 0, "C"),
    ],
)
def test_dependencies(kind: str, status: int, becomes: str) -> None:
    bench = Bench(WIDE)
    first = bench.submit("-v", f"EMULATED_RUNTIME=5,EMULATED_EXIT={status}")
    second = bench.submit("-W", f"depend={kind}:{first}")
    assert (bench.state(second), bench.world.job(second).substate) == ("H", 22)
    assert f"depend = {kind.replace('after', 'before')}:{second}" in bench.good("qstat", "-f", first)
    bench.good("qrun", first)
    bench.advance(6)
    assert bench.state(second) == becomes


def test_waiting_job_becomes_queued_at_its_time() -> None:
    bench = Bench(WIDE, scheduling="True")
    job = bench.submit("-a", "12312359")
    due = bench.world.job(job).seconds("Execution_Time")
    bench.world.events.clear()
    bench.advance(due - bench.world.now_s - 1)
    assert bench.state(job) == "W"
    bench.advance(2)
    assert bench.state(job) == "Q"
    assert 1 in bench.world.events


def test_holds_and_who_may_release_them() -> None:
    bench = Bench(WIDE)
    job = bench.submit()
    bench.good("qhold", "-h", "uo", job)
    assert "Hold_Types = ou" in bench.good("qstat", "-f", job)
    assert bench.ask("qrls", "-h", "o", job, user="alice").code == 159
    bench.good("qrls", "-h", "u", job, user="alice")
    assert bench.state(job) == "H"
    bench.good("qrls", "-h", "o", job)
    assert bench.state(job) == "Q"


def test_walltime_kills_and_completed_jobs_are_forgotten() -> None:
    bench = Bench(WIDE)
    over = bench.submit("-l", "walltime=00:00:05", "-v", "EMULATED_RUNTIME=100")
    plain = bench.submit("-l", "walltime=00:00:05")
    bench.good("qrun", over)
    bench.good("qrun", plain)
    bench.advance(10)
    assert bench.world.job(over).attributes["exit_status"] == "-11"
    assert bench.world.job(plain).attributes["exit_status"] == "0"
    bench.advance(297)
    assert bench.good("qstat") == ""


def test_failed_start_with_a_shows_running_then_falls_back() -> None:
    bench = Bench(WIDE)
    job = bench.submit("-l", "nodes=1:ppn=2")
    bench.good("emulated", "node", "node1", "is_failing=True")
    assert bench.ask("qrun", "-a", "-H", "node1:ppn=2", job).code == 0
    assert (bench.state(job), bench.world.job(job).substate) == ("R", 40)
    bench.advance(3)
    assert bench.state(job) == "Q"
    assert "state = down" in bench.good("pbsnodes", "node1")
    assert not [line for _, line in bench.world.records if line.startswith("S;")]


def test_failed_multi_node_start_leaks_slots_on_4() -> None:
    bench = Bench(WIDE, version="4.2.10")
    job = bench.submit("-l", "nodes=2:ppn=2")
    bench.good("emulated", "node", "node1", "is_failing=True")
    bench.ask("qrun", "-a", "-H", "node2:ppn=4+node1:ppn=2", job)
    bench.advance(60)
    assert "jobs = " not in bench.good("pbsnodes", "node2")
    assert "temporarily unavailable" in bench.ask("qrun", "-H", "node2", job).err


def test_events() -> None:
    bench = Bench(WIDE)
    events = bench.world.events
    bench.submit()
    assert events == []
    bench.good("qmgr", "-c", "set server scheduling = True")
    held = bench.submit("-h")
    bench.good("qrls", held)
    bench.good("qdel", held)
    bench.good("qmgr", "-c", "set server scheduling = True")
    bench.submit("-v", "EMULATED_RUNTIME=1")
    bench.good("qrun", "46")
    bench.advance(5)
    # The end of a job that never ran is told to nobody.
    assert events == [10, 1, 1, 5, 1, 2]


def test_ordinary_users_see_their_own_jobs() -> None:
    bench = running_bench()
    mine = bench.good("qstat", "-f", "-t", "-x", user="bob")
    assert re.findall(r"<Job_Id>(.*?)</Job_Id>", mine) == ["46.head", "50.head", "51.head", "52.head"]
    assert "neednodes" not in mine
    assert bench.good("qstat", user="carol") == ""
    bench.good("qmgr", "-c", "set server query_other_jobs = True")
    assert bench.good("qstat", user="carol") != ""
    bench.good("qmgr", "-c", "set server operators += carol@head")
    # As the recordings of the batch protocol have it: some of it is for managers.
    operators = bench.good("qstat", "-f", "-x", user="carol")
    assert ("substate" in operators, "neednodes" in operators) == (True, False)
    bench.good("qmgr", "-c", "set server managers += carol@head")
    assert "neednodes" in bench.good("qstat", "-f", "-x", user="carol")


def test_comment_for_many_jobs_keeps_its_commas() -> None:
    bench = running_bench()
    bench.good("qalter", "-W", "comment=Not Running: waiting, for = gpus", "51", "52")
    for job in ("51", "52"):
        assert bench.world.job(job).attributes["comment"] == "Not Running: waiting, for = gpus"
    # The client says nothing of an unknown job, and exits with the code of the last one.
    answer = bench.ask("qalter", "-W", "comment=x", "51", "9999", "52")
    assert (answer.code, answer.err) == (0, "")
    assert bench.ask("qalter", "-W", "comment=x", "52", "9999").code == 153
    assert bench.world.job("52").attributes["comment"] == "x"


def test_load_follows_jobs_with_the_delay_of_a_report() -> None:
    bench = Bench("node1 np=8 # base_load=0.5\n")
    node = bench.world.nodes["node1"]
    job = bench.submit("-l", "nodes=1:ppn=4", "-v", "EMULATED_CPU=0.5,EMULATED_MEM=2gb,EMULATED_RUNTIME=900")
    bench.advance(100)
    before = report(bench.world, node)
    bench.good("qrun", job)
    assert report(bench.world, node) == before
    bench.advance(600)
    after = report(bench.world, node)
    assert after.load == pytest.approx(2.5, abs=0.01)
    assert after.used_kb == 2 * 1048576
    assert 0 <= bench.world.now_s - after.at_s <= 45
    bench.advance(400)
    assert report(bench.world, node).load < 2.0
    assert bench.state(job) == "C"


def test_health_message_takes_a_node_down() -> None:
    bench = Bench("node1 np=2 # max_load=2 fixed_load=2.21\n")
    assert "state = busy" in bench.good("pbsnodes", "node1")
    bench.good("emulated", "node", "node1", "message=ERROR /scratch not mounted")
    text = bench.good("pbsnodes", "node1")
    assert "state = down,busy" in text
    assert "note = ERROR /scratch not mounted" in text
    assert "message=ERROR /scratch not mounted ," in text


def test_flapping_node() -> None:
    bench = Bench("node1 np=2\n")
    bench.good("emulated", "node", "node1", "flap_s=30")
    seen = set()
    for _ in range(8):
        bench.advance(15)
        seen.add("down" in bench.good("pbsnodes", "-l"))
    assert seen == {True, False}


def test_pbsnodes_r_and_notes() -> None:
    bench = Bench("node1 np=2\n")
    bench.good("pbsnodes", "-o", "-N", "broken", "node1")
    bench.good("pbsnodes", "-c", "node1")
    assert "note = broken" in bench.good("pbsnodes", "node1")
    bench.good("pbsnodes", "-N", "n", "node1")
    assert "note" not in bench.good("pbsnodes", "node1")
    bench.good("pbsnodes", "-r", "node1")
    assert "state = down" in bench.good("pbsnodes", "node1")
    bench.advance(46)
    assert "state = free" in bench.good("pbsnodes", "node1")
    answer = bench.ask("pbsnodes", "-o", "node1", user="alice")
    assert (answer.code, "Unauthorized Request" in answer.err) == (0, True)
    assert "state = free" in bench.good("pbsnodes", "node1")


def test_accounting_records() -> None:
    bench = Bench(WIDE, next_job=64)
    bench.submit(
        "-l", "nodes=1:ppn=2,walltime=00:01:00", "-N", "burn", "-v", "EMULATED_RUNTIME=8,EMULATED_EXIT=3"
    )
    bench.good("qrun", "64")
    bench.advance(9)
    gone = bench.submit()
    bench.good("qdel", gone)
    kinds = [line[0] for _, line in bench.world.records]
    assert kinds == ["Q", "S", "E", "Q", "D"]
    ended = bench.world.records[2][1]
    assert "exec_host=node1/0-1 Resource_List.nodes=1:ppn=2 Resource_List.walltime=00:01:00" in ended
    assert "total_execution_slots=2 unique_node_count=1" in ended
    assert "Exit_status=3 resources_used.cput=16" in ended


def test_a_quoted_comment_loses_its_quotes_and_gains_a_blank() -> None:
    bench = Bench(WIDE)
    job = bench.submit("-l", "nodes=1")
    bench.good("qalter", "-W", 'comment="wants ppn=2"', job)
    assert bench.world.job(job).attributes["comment"] == "wants ppn=2 "
    bench.good("qalter", "-W", "comment=plain text", job)
    assert bench.world.job(job).attributes["comment"] == "plain text"


def test_tokens_are_stored_and_counted_by_nobody() -> None:
    bench = Bench(WIDE)
    bench.good("qmgr", "-c", "set server tokens = 'matlab:1,ansys:2'")
    assert "    tokens = matlab:1,ansys:2\n" in bench.good("qstat", "-B", "-f", "-1")
    jobs = [bench.submit("-l", "nodes=1,tokens=matlab:1") for _ in range(2)]
    for job in jobs:
        bench.good("qrun", "-H", "node3", job)
    assert "Resource_List.tokens = matlab:1\n" in bench.good("qstat", "-f", "-1", jobs[1])


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        ("1:gpus=1", "1"), ("1:gpus=1:shared", "0"), ("1:gpus=1:SHARED", "0"),
        ("1:ppn=2:gpus=1:exclusive_process:reseterr", "1003"), ("1:ppn=2:gpus=1:Exclusive_Process", "3"),
        ("1:ppn=2:gpus=1:reseterr:exclusive_thread", "1001"), ("1:gpus=1:RESETERR", "1001"),
        ("1:gpus=1#exclusive_process", "3"), ("1:ppn=1+1:gpus=1:Exclusive_Process:ResetErr", "1003"),
        ("gpus=1:exclusive_process", "3"),
    ],
)  # fmt: skip
def test_our_order_to_start_keeps_the_mode(asked: str, flags: str) -> None:
    bench = Bench(WIDE)
    job = bench.submit("-l", f"nodes={asked}")
    shares = [NodeShare(NodeName("node4"), 1, 1)]
    words = parse_request({"Resource_List.nodes": asked}).gpu_words
    bench.good("qrun", "-H", hosts_argument(shares, words), job)
    assert bench.world.job(job).attributes["gpu_flags"] == flags


# Routing queues: the first destination that takes a job, who waits, who is refused.


QUEUES = {
    "route": {"queue_type": "Route", "route_destinations": "short,long,elsewhere@other"},
    "short": {"resources_max.walltime": "01:00:00", "resources_default.nodes": "1", "max_queuable": "2"},
    "long": {"resources_min.walltime": "01:00:01", "resources_default.nodes": "1"},
}


def queues(bench: Bench, *jobs: str) -> list[str]:
    return [bench.world.job(job).queue for job in jobs]


def test_the_first_destination_that_takes_it() -> None:
    bench = Bench(queues=QUEUES)
    short = bench.submit("-q", "route", "-l", "walltime=00:10:00")
    long = bench.submit("-q", "route", "-l", "walltime=09:00:00")
    assert queues(bench, short, long) == ["short", "long"]
    assert bench.world.job(short).resources["nodes"] == "1"
    assert "PBS_O_QUEUE=route" in bench.world.job(short).attributes["Variable_List"]
    bench.good("qrun", "-H", "node3", short)
    assert bench.state(short) == "R"


def test_refused_by_all_is_refused_at_once() -> None:
    only = {**QUEUES, "route": {**QUEUES["route"], "route_destinations": "short"}}
    answer = Bench(queues=only).ask(
        "qsub", "-q", "route", "-l", "walltime=09:00:00", user="alice", stdin="x\n"
    )
    assert answer.code == 15041 % 256
    assert "Job rejected by all possible destinations" in answer.err


def test_where_it_is_full_it_waits_and_goes_on_later() -> None:
    bench = Bench(queues=QUEUES, scheduling="True")
    jobs = [bench.submit("-q", "route", "-l", "walltime=00:10:00") for _ in range(3)]
    assert queues(bench, *jobs) == ["short", "short", "route"]
    answer = bench.ask("qrun", "-H", "node3", jobs[2])
    assert "attempt to start job in non-execution queue" in answer.err
    bench.good("qdel", jobs[0])
    bench.world.events.clear()
    bench.advance(RETRY_S + 1)
    assert queues(bench, jobs[2]) == ["short"]
    assert bench.world.events == [1]


def test_a_stopped_routing_queue_keeps_its_jobs() -> None:
    bench = Bench(queues=QUEUES)
    bench.good("qstop", "route")
    array = bench.submit("-q", "route", "-l", "walltime=02:00:00", "-t", "0-1")
    bench.advance(3 * RETRY_S)
    members = bench.world.job(array).members
    assert queues(bench, array, *members) == ["route"] * 3
    bench.good("qstart", "route")
    bench.advance(RETRY_S)
    assert queues(bench, array, *members) == ["long"] * 3


@pytest.mark.parametrize(("user", "code"), [("root", 0), ("alice", 2)])
def test_qterm_asks_who_it_is(user: str, code: int) -> None:
    bench = Bench()
    assert bench.ask("qterm", user=user).code == code
    assert bench.ask("qterm", "-t", "immediate", user=user).code == 1
