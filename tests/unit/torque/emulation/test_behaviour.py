"""What the server does and does not do, as the tables of observed behaviour say."""

from __future__ import annotations

import pytest

from tests.unit.torque.emulation.in_memory import Bench
from torque_sched.batch.torque.parse.qrun import hosts_argument
from torque_sched.batch.torque.parse.request import parse_request
from torque_sched.emulation.mom import report
from torque_sched.emulation.routing import RETRY_S
from torque_sched.model.cluster import NodeName
from torque_sched.model.decisions import NodeShare

WIDE = "node1 np=2\nnode2 np=4\nnode3 np=8 big\nnode4 np=4 gpus=2 gpunode\n"


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


def test_first_fit_fills_node_after_node() -> None:
    """The baseline of the real server: twenty one-slot jobs over nodes with 2, 4, 8 and 4 slots."""
    bench = Bench(WIDE)
    jobs = [bench.submit("-l", "nodes=1:ppn=1") for _ in range(20)]
    places = []
    for job in jobs:
        answer = bench.ask("qrun", job)
        places.append(bench.world.job(job).attributes["exec_host"].split("/")[0] if not answer.code else "")
    assert places == ["node1"] * 2 + ["node2"] * 4 + ["node3"] * 8 + ["node4"] * 4 + [""] * 2


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
    bench = Bench("node1 np=2\n")
    bench.good("emulated", "node", "node1", "max_load=2", "fixed_load=2.21")
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


@pytest.mark.parametrize(
    ("asked", "flags", "by_host"),
    [
        ("1:gpus=1", "1", "1"), ("1:gpus=1:shared", "0", "0"), ("1:gpus=1:SHARED", "0", "1"),
        ("1:ppn=2:gpus=1:exclusive_process:reseterr", "1003", "3"), ("1:gpus=1:RESETERR", "1001", "1"),
        ("1:ppn=2:gpus=1:Exclusive_Process", "3", "1"), ("1:gpus=1#exclusive_process", "3", "1"),
        ("1:ppn=2:gpus=1:reseterr:exclusive_thread", "1001", "1"), ("gpus=1:exclusive_process", "3", "1"),
        ("1:ppn=1+1:gpus=1:Exclusive_Process:ResetErr", "1003", "1"),
        ("1:gpus=1:ppn=2:shared", "0", "0"),
    ],
)  # fmt: skip
def test_our_order_to_start_keeps_the_mode_that_a_bare_host_list_loses(
    asked: str, flags: str, by_host: str
) -> None:
    request = parse_request({"Resource_List.nodes": asked})
    ours = hosts_argument([NodeShare(NodeName("node4"), 1, 1)], request)
    found = []
    for hosts in ((), ("-H", "node4:ppn=1:gpus=1"), ("-H", ours)):
        bench = Bench(WIDE)
        job = bench.submit("-l", f"nodes={asked}")
        bench.good("qrun", *hosts, job)
        found.append(bench.world.job(job).attributes["gpu_flags"])
    assert found == [flags, by_host, flags]


# Routing queues: the first destination that takes a job, who waits, who is refused.


QUEUES = {
    "route": {"queue_type": "Route", "route_destinations": "short,long,elsewhere@other"},
    "short": {"resources_max.walltime": "01:00:00", "resources_default.nodes": "1", "max_queuable": "2"},
    "long": {"resources_min.walltime": "01:00:01", "resources_default.nodes": "1"},
}


def queues(bench: Bench, *jobs: str) -> list[str]:
    return [bench.world.job(job).queue for job in jobs]


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
