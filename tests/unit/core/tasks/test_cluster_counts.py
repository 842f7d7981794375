"""What agents and the master say to each other about applications that bind late."""

from __future__ import annotations

import pytest

from yarn_accel.core.tasks.late_binding import cluster_counts
from yarn_accel.core.tasks.late_binding.cluster_counts import ClusterCounts
from yarn_accel.core.tasks.late_binding.messages import (
    MAX_APPS,
    counts_document,
    parse_claim,
    parse_counts,
    parse_end,
)
from yarn_accel.core.tasks.late_binding.values import ClusterCount
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import RemoteProtocolError


def test_each_node_gets_what_the_others_dispatched_and_the_earliest_start():
    counts = ClusterCounts()
    assert counts.report("w1", 1, {"a/1": ClusterCount(3, 1, 10.0)}, 100.0) == {"a/1": (0, 0, 10.0)}
    assert counts.report("w2", 1, {"a/1": ClusterCount(2, 2, 5.0)}, 101.0) == {"a/1": (3, 1, 11.0)}
    assert counts.report("w1", 1, {"a/1": ClusterCount(4, 2, 11.0)}, 102.0) == {"a/1": (2, 2, 12.0)}


def test_what_an_agent_had_counted_stays_when_it_is_replaced():
    counts = ClusterCounts()
    counts.report("w1", 1, {"a/1": ClusterCount(3, 1, 10.0)}, 100.0)
    assert counts.report("w1", 2, {"a/1": ClusterCount(1, 0, 0.0)}, 101.0) == {"a/1": (3, 1, 11.0)}


def test_a_master_keeps_so_many_applications_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_counts, "_MOST_APPS", 3)
    counts = ClusterCounts()
    for number in range(9):
        counts.report("w1", 1, {f"a/{number}": ClusterCount(1, 0, 0.0)}, float(number))
    assert len(counts._apps) == 3
    assert "a/8" in counts._apps


def test_counts_survive_their_way_and_nonsense_does_not():
    document = counts_document({"a/1": (3, 1, 2.0)})
    assert parse_counts(document) == {"a/1": ClusterCount(3, 1, 2.0)}
    for value in (None, [], "x", {"a": 7}, {"a": [1, 2]}, {"x" * 500: [1, 1, 1]}):
        assert parse_counts(value) == {}
    assert parse_counts({"a": [1, 5, -1]}) == {"a": ClusterCount(1, 1, 0.0)}
    assert parse_counts({"a": [float("nan"), True, "x"]}) == {"a": ClusterCount(0, 0, 0.0)}
    assert len(counts_document({str(n): (1, 0, float(n)) for n in range(9999)})) == MAX_APPS


QUESTION = {"v": 1, "job": "job_1", "name": "k", "attempt": "attempt_1", "forms": ["gpu", "cpu"]}


def test_a_question_is_read_with_its_forms_in_order_and_its_name_in_one_plain_line():
    request = parse_claim({**QUESTION, "name": "a\x1b[31m\nb" + "c" * 999})
    assert request.forms == (Form.CPU, Form.GPU)
    assert request.name.startswith("a?[31m b")
    assert len(request.name) == 128
    assert parse_claim({**QUESTION, "name": ""}).name == "job_1"


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"job": 7},
        {"attempt": "x" * 999},
        {"forms": []},
        {"forms": "cpu"},
        {"forms": [[]]},
        {"gpus": 0},
        {"gpus": True},
        {"gpus": 1.5},
        {"name": None},
    ],
)
def test_a_question_that_is_none_is_refused_with_its_key(change):
    (key,) = change
    with pytest.raises(RemoteProtocolError, match="version" if key == "v" else key):
        parse_claim({**QUESTION, **change})


def test_figures_at_the_end_are_numbers_or_nothing():
    assert parse_end({"end": "done", "read_bytes": 7, "read_s": 1.5}) == (True, 7.0, 1.5)
    assert parse_end({"end": "x", "read_bytes": -1, "read_s": float("inf")}) == (False, 0.0, 0.0)
