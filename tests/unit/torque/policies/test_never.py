"""A job that can never run is told what is lacking, and the most that any node has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.torque.policies.builders import GIB, answers, job, node
from torque_sched.core.decisions import Hold
from torque_sched.core.reasons import Reason

NODES = [
    node("node1", 8, mem=int(23.5 * GIB)),
    node("node2", 8, mem=16 * GIB, properties=("fast",)),
    node("node3", 2, gpus=2, mem=16 * GIB),
    node("node4", 8, gpus=1, mem=16 * GIB, properties=("fast",)),
]
HALF = [NODES[0], NODES[3]]


@pytest.mark.parametrize(
    ("nodes", "asked", "why"),
    [
        (HALF, {"spec": "2:ppn=4:gpus=1"}, "2 nodes with gpus=1 and 4 slots: only node4 has GPUs"),
        (NODES, {"spec": "1", "mem_bytes": 900 * GIB}, "mem=900gb: the largest node has 23.5 GiB"),
        (NODES, {"spec": "1:ppn=9"}, "9 slots: the largest node has 8 slots"),
        (NODES, {"spec": "1:gpus=3"}, "gpus=3: the largest node has 2 GPUs"),
        (NODES[:2], {"spec": "1:gpus=1"}, "gpus=1: no node has GPUs"),
        (NODES, {"spec": "2:gpus=2"}, "2 nodes with gpus=2: only node3 has 2 GPUs"),
        (NODES, {"spec": "1:ppn=4:gpus=2"}, "1 node with gpus=2 and 4 slots: no node has both"),
        (NODES, {"spec": "2:ppn=4:gpus=1"}, "2 nodes with gpus=1 and 4 slots: only node4 has both"),
        (NODES, {"spec": "5"}, "5 nodes: only 4 nodes are in the cluster"),
        (NODES, {"spec": "3:fast"}, "3 nodes of fast: only node2 and node4 are of fast"),
        (NODES, {"spec": "1:slow"}, "1 node of slow: there is no node of slow"),
        (NODES, {"procs": 27}, "27 processors: all nodes together take 26"),
    ],
)
def test_what_is_lacking_is_named(nodes: list[Any], asked: dict[str, Any], why: str) -> None:
    wanted = dict(asked)
    spec = wanted.pop("spec", None)
    decision = answers(nodes, [job(1, spec, **wanted) if spec else job(1, **wanted)])[1]
    assert isinstance(decision, Hold)
    assert decision.reason is Reason.NEVER_FITS
    assert decision.comment == f"Not Running: Job can never run here: {why}"
