"""Whatever bytes arrive: an error of this package or a result whose counts add up, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torque_sched.batch.openpbs.parse.select import parse_exec_vnode, parse_place, parse_select
from torque_sched.batch.openpbs.pbs import read_snapshot
from torque_sched.batch.system import OrderKind
from torque_sched.batch.torque.parse.accounting import job_from_accounting, parse_accounting
from torque_sched.batch.torque.parse.gpus import parse_gpu_status
from torque_sched.batch.torque.parse.pbsnodes import parse_pbsnodes, parse_status
from torque_sched.batch.torque.parse.qmgr import parse_qmgr
from torque_sched.batch.torque.parse.qrun import classify_qrun
from torque_sched.batch.torque.parse.qstat import parse_jobs, parse_queues, parse_server
from torque_sched.batch.torque.parse.records import Parsed
from torque_sched.batch.torque.parse.request import parse_nodes_spec, parse_request
from torque_sched.batch.torque.parse.slots import parse_exec_gpus, parse_exec_host, parse_node_jobs
from torque_sched.batch.torque.parse.times import epoch_s, stamp_s
from torque_sched.errors import TorqueSchedError
from torque_sched.model.units import amount, boolean, count

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "torque"


def jobs_of_accounting(data: bytes) -> Parsed[Any]:
    """The records, whose jobs can be made or have a problem that is named."""
    parsed = parse_accounting(data)
    for record in parsed.items:
        check(lambda record=record: job_from_accounting(record))
    return parsed


DOCUMENTS: dict[str, Callable[[bytes], Any]] = {
    "running-pbsnodes-x": parse_pbsnodes,
    "gpu-1job-pbsnodes": parse_pbsnodes,
    "running-qstat-f-t-x": parse_jobs,
    "running-qstat-f-t": parse_jobs,
    "running-qstat-Q-f-1": parse_queues,
    "idle-qstat-B-f": parse_server,
    "qmgr-print-node": parse_qmgr,
    "accounting-log": jobs_of_accounting,
}
TEXTS: tuple[Callable[[str], Any], ...] = (
    *(parse_nodes_spec, parse_exec_host, parse_exec_gpus, parse_node_jobs),
    *(parse_select, parse_place, parse_exec_vnode),
    *(parse_status, parse_gpu_status, epoch_s, stamp_s, boolean, count),
    *(partial(amount, name) for name in ("mem", "walltime", "nodect")),
)
pieces = st.sampled_from(
    ["", "<", ">", "</", "<Job>", "</Job>", "<Node>", "</Data>", "&", "&#x", ";", "\n", "\t",
     "\n\n",
     "=", ",", "+", ":", "/", "-", "[", "]", "%", "\x00", "\xff", "9" * 30, "nan", "Job Id: ", " = ", "٣"]
)  # fmt: skip


def check(call: Callable[[], Any]) -> None:
    """Calls; only errors of this package may come out, and their words name a place."""
    try:
        result = call()
    except TorqueSchedError as error:
        assert str(error)
        return
    if isinstance(result, Parsed):
        assert result.n_records == len(result.items) + len(result.problems)
        assert all(str(problem) and problem.cure for problem in result.problems)


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
@settings(max_examples=examples(150))
def test_mutated_captures(name: str, data: st.DataObject) -> None:
    text = (GOLDEN / f"{name}.txt").read_bytes()[:6000]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 200)))
        text = text[:start] + data.draw(pieces).encode("utf-8", "replace") + text[end:]
    check(lambda: DOCUMENTS[name](text))
    check(lambda: DOCUMENTS[name](text + b"</Data>\n\n"))


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("running-pbsnodes-x", "<name>"),
        ("running-qstat-f-t-x", "<Job_Id>"),
        ("running-qstat-f-t", "Job Id: "),
    ],
)
@given(data=st.data())
def test_damage_in_a_value_costs_that_record_alone(name: str, title: str, data: st.DataObject) -> None:
    document = (GOLDEN / f"{name}.txt").read_bytes()
    whole = {_name(each): each for each in DOCUMENTS[name](document).items}
    names = list(whole)
    victim = data.draw(st.integers(0, len(names) - 2))
    begin = document.index(f"{title}{names[victim]}".encode()) + len(title + names[victim]) + 20
    end = document.index(f"{title}{names[victim + 1]}".encode()) - 40
    at = data.draw(st.integers(begin, max(begin, end)))
    damage = data.draw(st.sampled_from([b"\xff\xfe", b"zzz", b"=", b"-1", b"&", b";", b""]))
    parsed = DOCUMENTS[name](document[:at] + damage + document[at + data.draw(st.integers(0, 3)) :])
    read = {_name(each): each for each in parsed.items}
    assert all(read.get(each) == whole[each] for each in names if each != names[victim])
    assert len(parsed.problems) <= 1


def _name(item: Any) -> str:
    return str(getattr(item, "id", None) or item.name)


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.binary(max_size=300))
def test_any_bytes(name: str, data: bytes) -> None:
    check(lambda: DOCUMENTS[name](data))


@pytest.mark.parametrize("which", range(len(TEXTS)))
@given(text=st.text(max_size=60) | st.lists(pieces, max_size=12).map("".join))
def test_any_text_in_a_value(which: int, text: str) -> None:
    check(lambda: TEXTS[which](text))


REQUEST_NAMES = (
    "Resource_List.nodes", "Resource_List.mem", "Resource_List.gres", "Resource_List.procs",
    "Resource_List.feature", "x", "L_Request", "node_exclusive", "req_information.task_count.0",
    "req_information.memory.0",
)  # fmt: skip
values = st.text(max_size=30) | st.lists(pieces, max_size=6).map("".join)


@given(st.dictionaries(st.sampled_from(REQUEST_NAMES), values))
def test_any_request_is_a_request(attributes: dict[str, str]) -> None:
    assert parse_request(attributes).n_procs >= 0


OPENPBS_LINES = st.sampled_from(
    [
        "",
        "\t",
        "Job Id: 1.s",
        "Job Id: 1[].s",
        "Queue: q",
        "Server: s",
        "n1",
        "Resv ID: R1.s",
        "    job_state = Q",
        "    job_state = R",
        "    queue = q",
        "    euser = a",
        "    exec_vnode = (n1:ncpus=2)",
        "    exec_vnode = (n1:ncpus=2",
        "    Resource_List.select = 2:ncpus=1:x=1",
        "    max_run_subjobs = x",
        "    max_run = [u:PBS_GENERIC=1]",
        "    max_run = [u:",
        "     state = free",
        "     jobs = 1.s/0, 1.s/1",
        "     resources_available.ncpus = 2",
        "     resources_available.mem = 9kb",
        "     resources_assigned.x = 1",
        "reserve_state = RESV_CONFIRMED",
        "resv_nodes = (n1:ncpus=1)",
        "reserve_start = x",
        "  odd",
    ]
)
"""Lines of what OpenPBS prints, whole, wrong and cut."""
openpbs_outputs = st.lists(OPENPBS_LINES | st.text(max_size=9), max_size=12).map(
    lambda lines: ("\n".join(lines) + "\n\n").encode("utf-8", "replace")
)


@given(openpbs_outputs, openpbs_outputs, openpbs_outputs, openpbs_outputs, openpbs_outputs)
def test_any_outputs_of_openpbs(nodes: bytes, jobs: bytes, queues: bytes, server: bytes, more: bytes) -> None:
    outputs = {"nodes": nodes, "jobs": jobs, "queues": queues, "server": server, "settings": b""}
    check(lambda: read_snapshot(outputs | {"resources": more, "reservations": more, "ended": more}, 0.0))


@given(st.integers(-10, 300), st.binary(max_size=200))
def test_any_answer_of_qrun_has_a_kind(exit_code: int, stderr: bytes) -> None:
    assert (classify_qrun(exit_code, stderr).kind is OrderKind.STARTED) == (exit_code == 0)
