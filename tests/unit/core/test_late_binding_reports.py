"""Counts and figures that agents, the master and nodes send each other: bounded, and nothing trusted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.core import late_binding_reports
from yarn_accel.core.late_binding_reports import (
    MAX_APPS,
    MAX_FIGURES,
    MAX_FIGURES_AGE_S,
    ClusterCount,
    ClusterCounts,
    ClusterFigures,
    SharedFigure,
    claim_counts,
    claims_text,
    counts_document,
    figures_document,
    parse_claim_counts,
    parse_counts,
    parse_figures,
    results_text,
    sum_claim_counts,
)
from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.late_binding.values import parse_claim, parse_end
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.node.late_binding import SharedFigures

KNN = SharedFigure("ann/knn", "gpu", "t4", 8e6, 1.0, 2.0, 3)
SPEC = AppSpec(AppId("ann/job_1"), "ann/knn", 0, 9, {Form.GPU: FormDemand(gpus=1), Form.CPU: FormDemand()})


def read(compute_s: float) -> TaskMeasurement:
    return TaskMeasurement(8e6, 1.0, compute_s, True)


def test_a_node_gets_the_median_of_the_others_and_not_its_own() -> None:
    cluster = ClusterFigures()
    for node, compute_s in (("w1", 2.0), ("w2", 4.0), ("w3", 100.0)):
        cluster.report(node, [replace(KNN, compute_s=compute_s)], 10.0)
    assert cluster.since(0, "w4", 15.0) == (replace(KNN, compute_s=4.0, n_measured=9, n_nodes=3, age_s=5.0),)
    assert cluster.since(0, "w3", 15.0)[0].compute_s == 3.0
    lonely = ClusterFigures()
    lonely.report("w1", [KNN], 10.0)
    assert lonely.since(0, "w1", 10.0) == ()


def test_only_what_changed_is_sent_again_and_what_is_too_old_is_not() -> None:
    cluster = ClusterFigures()
    cluster.report("w1", [KNN, replace(KNN, name="ann/bp")], 10.0)
    seen = cluster.sequence
    cluster.report("w1", [KNN], 11.0)
    assert cluster.since(seen, "w2", 12.0) == ()
    cluster.report("w1", [replace(KNN, n_measured=4)], 13.0)
    assert [row.name for row in cluster.since(seen, "w2", 14.0)] == ["ann/knn"]
    assert cluster.since(0, "w2", 14.0 + MAX_FIGURES_AGE_S) == ()


def test_a_user_with_many_names_drops_only_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_binding_reports, "_MOST_OF_USER", 2)
    cluster = ClusterFigures()
    cluster.report("w1", [KNN, *(replace(KNN, name=f"eve/{n}") for n in range(9))], 10.0)
    assert [row.name for row in cluster.since(0, "w2", 10.0)] == ["eve/8", "eve/7", "ann/knn"]
    monkeypatch.setattr(late_binding_reports, "_MOST_ROWS", 2)
    cluster.report("w1", [replace(KNN, name="bob/knn")], 11.0)
    assert [row.name for row in cluster.since(0, "w2", 11.0)] == ["bob/knn", "eve/8"]


def test_figures_survive_their_way_and_nonsense_does_not() -> None:
    assert parse_figures(figures_document([KNN])) == (KNN,)
    assert parse_figures(figures_document([KNN] * 999)) == (KNN,) * MAX_FIGURES
    [row] = figures_document([KNN])
    wrong: list[Any] = [None, 7, {}, ["x"], [row[:-1]]]
    for column, values in {
        0: ("", "x" * 401, 7),
        1: ("tpu", None, "cpu"),
        2: (7, "x" * 129),
        4: (-1, float("nan"), True, "1", 1e19),
        6: (0, -1),
    }.items():
        wrong += [[[*row[:column], value, *row[column + 1 :]]] for value in values]
    wrong.append([[*row[:4], 0, 0, *row[6:]]])
    for value in wrong:
        assert parse_figures(value) == (), value


def test_what_others_measured_is_believed_until_this_node_has_measured_more() -> None:
    figures = FigureStore()
    assert figures.profile(SPEC, Form.GPU, "t4") is None
    assert figures.believe_others([KNN], until_s=100.0) == {"ann/knn"}
    believed = figures.profile(SPEC, Form.GPU, "t4")
    assert believed is not None
    assert (believed.read_s, believed.compute_s) == (1.0, 2.0)
    assert figures.profile(SPEC, Form.GPU, "h100") is None
    for _ in range(2):
        figures.observe(SPEC, Form.GPU, "t4", read(9.0), None)
    own = figures.profile(SPEC, Form.GPU, "t4")
    assert own is not None
    assert own.compute_s == 9.0
    assert figures.to_document() == FigureStore.from_document(figures.to_document()).to_document()
    figures.forget_others(99.0)
    assert figures.of_others() == (KNN,)
    figures.forget_others(100.0)
    assert figures.of_others() == ()


def test_two_agents_tell_each_other_through_the_master_and_a_new_master_hears_all_again() -> None:
    stores, agents = (FigureStore(), FigureStore()), (SharedFigures(), SharedFigures())

    def beat(cluster: ClusterFigures, epoch: int, number: int) -> frozenset[str]:
        said = agents[number].heartbeat(stores[number])
        cluster.report(f"w{number}", parse_figures(said["figures"]), 1.0)
        seen = said["figures_seen"]
        rows = cluster.since(seen[1] if seen[0] == epoch else 0, f"w{number}", 1.0)
        answer = {"figures": figures_document(rows), "figures_seen": [epoch, cluster.sequence]}
        return agents[number].answered(answer, stores[number], 1.0)

    first = ClusterFigures()
    stores[0].observe(SPEC, Form.GPU, "t4", read(2.0), None)
    assert [beat(first, 1, number) for number in (0, 1, 0, 1)] == [set(), {"ann/knn"}, set(), set()]
    assert agents[0].heartbeat(stores[0])["figures"] == []
    assert stores[1].profile(SPEC, Form.GPU, "t4") == stores[0].profile(SPEC, Form.GPU, "t4")
    # What was received is not sent on as if it had been measured here.
    assert agents[1].heartbeat(stores[1])["figures"] == []
    second = ClusterFigures()
    assert [beat(second, 2, number) for number in (0, 0)] == [set(), set()]
    assert [row.name for row in second.since(0, "w9", 1.0)] == ["ann/knn"]
    assert agents[1].answered({}, stores[1], 2.0) == frozenset()


# What an agent reports of late binding: bounded, and nothing of it trusted.


OUTCOMES = Counter(gpu=3, cpu=4, late=1, refused=2, lost=5, expired=1, ended=9)
COUNTS = {
    "waiting": 2,
    "cpu": 0,
    "gpu": 1,
    "decided": 7,
    "undecided": 2,
    "lost": 6,
    "counts_age_s": 1.235,
}


def test_the_document_of_an_agent_is_parsed_as_it_is():
    assert claim_counts({"waiting": 2, "gpu": 1}, OUTCOMES, 1.23456) == COUNTS
    assert parse_claim_counts(json.loads(json.dumps(COUNTS))) == COUNTS
    assert "counts_age_s" not in claim_counts({}, {}, None)


@pytest.mark.parametrize("value", [None, [], "gpu", 7, {}, {"gpu": "1", "cpu": True}, {"user": 1}])
def test_what_is_none_is_nothing(value):
    assert parse_claim_counts(value) is None


@pytest.mark.parametrize("value", [-1, 1.5, True, "1", None, 2**60, float("nan"), float("inf"), [1], {}])
def test_a_malformed_number_is_left_out_and_the_others_count(value):
    assert parse_claim_counts({**COUNTS, "gpu": value}) == {
        key: each for key, each in COUNTS.items() if key != "gpu"
    }


@pytest.mark.parametrize("value", [-1, True, "1", None, 1e12, float("nan"), float("inf"), 10**400, [1]])
def test_a_malformed_age_is_left_out(value):
    found = parse_claim_counts({**COUNTS, "counts_age_s": value})
    assert found == {key: each for key, each in COUNTS.items() if key != "counts_age_s"}


def test_sums():
    other = {"gpu": 1, "decided": 3, "counts_age_s": 4.0, "lost": 1}
    total = sum_claim_counts([COUNTS, other])
    assert total == {
        **COUNTS,
        "nodes": 2,
        "gpu": 2,
        "decided": 10,
        "lost": 7,
        "counts_age_s": 4.0,
    }
    assert sum_claim_counts([]) is None


def test_words():
    assert claims_text(COUNTS) == "1 GPU, 0 core, 2 wait"
    assert results_text(COUNTS) == "7 decided, 2 undecided, 6 lost; counts of the cluster 1.2 s old"
    assert claims_text({"gpu": 1}) == "1 GPU, - core, - wait"
    assert results_text({}) == "- decided, - undecided, - lost; counts of the cluster not known"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*COUNTS, "x"]), inner),
    max_leaves=12,
)


@given(JSON)
def test_whatever_comes_is_finite_small_and_can_be_shown(value):
    found = parse_claim_counts(value)
    if found is not None:
        assert set(found) <= set(COUNTS)
        assert len(json.dumps(found, allow_nan=False)) < 250
        assert claims_text(found)
        assert results_text(found)
        json.dumps(sum_claim_counts([found, found]), allow_nan=False)


# What agents and the master say to each other about applications that bind late.


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
    monkeypatch.setattr(late_binding_reports, "_MOST_APPS", 3)
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
