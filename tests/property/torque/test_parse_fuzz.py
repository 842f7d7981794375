"""Whatever bytes arrive: an error of this package or a result whose counts add up, nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torque_sched.core.units import amount, boolean, count
from torque_sched.errors import TorqueSchedError
from torque_sched.parse.accounting import job_from_accounting, parse_accounting
from torque_sched.parse.gpus import parse_gpu_status
from torque_sched.parse.openpbs import parse_openpbs_jobs, parse_openpbs_nodes, parse_select
from torque_sched.parse.pbsnodes import parse_pbsnodes, parse_status
from torque_sched.parse.qmgr import parse_qmgr
from torque_sched.parse.qrun import RunKind, classify_qrun
from torque_sched.parse.qstat import parse_jobs, parse_queues, parse_server
from torque_sched.parse.records import Parsed
from torque_sched.parse.request import parse_nodes_spec, parse_request
from torque_sched.parse.slots import parse_exec_gpus, parse_exec_host, parse_node_jobs
from torque_sched.parse.times import epoch_s, stamp_s

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "torque"
DOCUMENTS: dict[str, Callable[[bytes], Any]] = {
    "running-pbsnodes-x": parse_pbsnodes,
    "gpu-1job-pbsnodes": parse_pbsnodes,
    "running-qstat-f-t-x": parse_jobs,
    "running-qstat-f-t": parse_jobs,
    "running-qstat-Q-f-1": parse_queues,
    "idle-qstat-B-f": parse_server,
    "qmgr-print-node": parse_qmgr,
    "accounting-log": parse_accounting,
}
TEXTS: tuple[Callable[[str], Any], ...] = (
    parse_nodes_spec,
    parse_select,
    parse_exec_host,
    parse_exec_gpus,
    parse_node_jobs,
    parse_status,
    parse_gpu_status,
    epoch_s,
    stamp_s,
    boolean,
    count,
    lambda text: amount("mem", text),
    lambda text: amount("walltime", text),
    lambda text: amount("nodect", text),
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


JSON_NAMES = (
    "nodes", "Jobs", "1.s", "state", "jobs", "resources_available", "ncpus", "Resource_List", "select",
    "exec_host", "job_state", "queue",
)  # fmt: skip
leaves = st.none() | st.booleans() | st.floats() | st.text(max_size=9)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(JSON_NAMES), inner),
    max_leaves=20,
)


@given(documents)
def test_any_json(value: Any) -> None:
    text = json.dumps(value)
    check(lambda: parse_openpbs_nodes(text))
    check(lambda: parse_openpbs_jobs(text))


@given(st.integers(-10, 300), st.binary(max_size=200))
def test_any_answer_of_qrun_has_a_kind(exit_code: int, stderr: bytes) -> None:
    assert (classify_qrun(exit_code, stderr).kind is RunKind.STARTED) == (exit_code == 0)


@given(data=st.data())
@settings(max_examples=examples(100))
def test_jobs_of_mutated_accounting(data: st.DataObject) -> None:
    lines = (GOLDEN / "accounting-log.txt").read_text().split("\n")
    line = data.draw(st.sampled_from([line for line in lines if ";E;" in line]))
    at = data.draw(st.integers(0, len(line)))
    line = line[:at] + data.draw(pieces) + line[at + data.draw(st.integers(0, 9)) :]
    for record in parse_accounting(line + "\n").items:
        check(lambda record=record: job_from_accounting(record))
