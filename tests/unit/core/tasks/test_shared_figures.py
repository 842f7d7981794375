"""What nodes learned of jobs, sent to each other through the master."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.late_binding import shared_figures
from yarn_accel.core.tasks.late_binding.shared_figures import (
    MAX_FIGURES,
    MAX_FIGURES_AGE_S,
    ClusterFigures,
    figures_document,
    parse_figures,
)
from yarn_accel.core.tasks.learning import FigureStore, SharedFigure
from yarn_accel.core.tasks.values import AppId, AppSpec, Form, FormDemand
from yarn_accel.node.claim_figures import SharedFigures

KNN = SharedFigure("ann/knn", Form.GPU, "t4", 8e6, 1.0, 2.0, 3)
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
    monkeypatch.setattr(shared_figures, "_MOST_OF_USER", 2)
    cluster = ClusterFigures()
    cluster.report("w1", [KNN, *(replace(KNN, name=f"eve/{n}") for n in range(9))], 10.0)
    assert [row.name for row in cluster.since(0, "w2", 10.0)] == ["eve/8", "eve/7", "ann/knn"]
    monkeypatch.setattr(shared_figures, "_MOST_ROWS", 2)
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
