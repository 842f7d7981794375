"""The product's own parsers read all that the emulation prints, and lose nothing."""

from __future__ import annotations

import pytest

from tests.unit.torque.emulation.in_memory import Bench, running_bench
from torque_sched.parse.accounting import parse_accounting
from torque_sched.parse.pbsnodes import parse_pbsnodes
from torque_sched.parse.qmgr import parse_qmgr
from torque_sched.parse.qstat import parse_jobs, parse_queues, parse_server


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = running_bench()
    made.advance(60)
    return made


def test_jobs(bench: Bench) -> None:
    for words in (("-f", "-t", "-x"), ("-f", "-t"), ("-f", "-t", "-1")):
        parsed = parse_jobs(bench.good("qstat", *words).encode())
        assert parsed.problems == ()
        assert [job.id for job in parsed.items][:3] == ["44.head", "45.head", "46.head"]
        assert len(parsed.items) == 12


@pytest.mark.parametrize("words", [("-a",), ("-x",)])
def test_nodes(bench: Bench, words: tuple[str, ...]) -> None:
    parsed = parse_pbsnodes(bench.good("pbsnodes", *words).encode())
    assert parsed.problems == ()
    assert {node.name: node.slots_used for node in parsed.items} == {
        "node1": 0,
        "node2": 4,
        "node3": 4,
        "node4": 2,
    }


def test_queues_server_and_configuration(bench: Bench) -> None:
    assert len(parse_queues(bench.good("qstat", "-Q", "-f", "-1").encode()).items) == 2
    assert parse_server(bench.good("qstat", "-B", "-f", "-1").encode())
    assert parse_qmgr(bench.good("qmgr", "-c", "print server"))


def test_accounting(bench: Bench) -> None:
    text = "".join(f"11/20/2026 17:28:51;{line}\n" for _, line in bench.world.records)
    parsed = parse_accounting(text)
    assert parsed.problems == ()
    assert len(parsed.items) == len(bench.world.records) > 10
