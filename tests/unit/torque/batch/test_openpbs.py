"""The second dialect, from documentation only: never run against a real OpenPBS."""

from __future__ import annotations

import json

import pytest

from torque_sched.batch.openpbs.parse import (
    parse_openpbs_jobs,
    parse_openpbs_nodes,
    parse_select,
    qrun_arguments,
)
from torque_sched.errors import DocumentError, RecordError
from torque_sched.model.cluster import NodeName
from torque_sched.model.decisions import NodeShare
from torque_sched.model.states import NodeState

NODES = {
    "nodes": {
        "n1": {
            "state": "free", "resources_available": {"ncpus": 8, "mem": "16gb", "ngpus": 2},
            "jobs": ["12.s/0", "12.s/1"],
        },
        "n2": {"state": "offline,job-busy", "resources_available": {"ncpus": 4}},
        "n3": {"state": "free", "resources_available": {"ncpus": "many"}},
    }
}  # fmt: skip
WANT = {"select": "2:ncpus=4:mem=8gb:ngpus=1", "place": "scatter:excl", "walltime": "01:00:00"}
JOBS = {
    "Jobs": {
        "12[3].s": {
            "Job_Owner": "al@h", "job_state": "R", "queue": "workq", "Resource_List": WANT,
            "exec_host": "n1/0*4+n2/1*4", "ctime": "Fri Nov 20 17:28:51 2026",
        },
        "13.s": {"job_state": "Q", "queue": "workq", "Resource_List": {"select": "1:ncpus=x"}},
        "bad": {"job_state": "Q", "queue": "workq"},
    }
}  # fmt: skip


def test_nodes() -> None:
    parsed = parse_openpbs_nodes(json.dumps(NODES))
    assert (len(parsed.items), len(parsed.problems)) == (2, 1)
    n1, n2 = parsed.items
    assert (n1.slots, n1.gpus, n1.slots_free, n1.mem_bytes) == (8, 2, 6, 16 * 2**30)
    assert n2.states == {NodeState.OFFLINE, NodeState.JOB_EXCLUSIVE}


def test_jobs() -> None:
    parsed = parse_openpbs_jobs(json.dumps(JOBS))
    assert (len(parsed.items), len(parsed.problems)) == (2, 1)
    job, odd = parsed.items
    assert job.slots_by_node() == {"n1": 4, "n2": 4}
    assert (job.array, job.array_index, job.walltime_s, job.ctime_s) == (12, 3, 3600.0, 1795195731.0)
    assert (job.request.n_gpus, job.request.n_procs, job.request.wants_empty_nodes) == (2, 8, True)
    assert odd.request.trouble


def test_select_that_is_not_understood() -> None:
    with pytest.raises(RecordError):
        parse_select("2:ncpus=4:big")


@pytest.mark.parametrize("data", ["", "{", "[]", '{"nodes": 3}', "[" * 100_000])
def test_what_is_no_json_object_is_no_output(data: str) -> None:
    with pytest.raises(DocumentError):
        parse_openpbs_nodes(data)


def test_the_argument_list_is_a_list() -> None:
    shares = [NodeShare(NodeName("n1"), 2, 1), NodeShare(NodeName("n2"), 1)]
    arguments = qrun_arguments("12.s", shares, mem_bytes=1024)
    assert arguments == ["qrun", "-H", "(n1:ncpus=2:ngpus=1:mem=1024b)+(n2:ncpus=1:mem=1024b)", "12.s"]
