"""Where a job goes: the paper's equations, ours, the plain rules; and what a node's load is taken to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.torque_builders import (
    GIB,
    NOW_S,
    answers,
    gpu_devices,
    job,
    node,
    predicting,
    running,
    snapshot,
)
from torque_sched.decide.context import Context, Load, Measured, PlacedLoad
from torque_sched.decide.decide import placed_loads
from torque_sched.decide.explain import explain
from torque_sched.decide.ledger import open_ledger
from torque_sched.decide.needs import ResourceChunk
from torque_sched.decide.node_ledger import Refusal
from torque_sched.decide.placement.plain import FirstFitPlacement, LoadAveragePlacement, RoundRobinPlacement
from torque_sched.decide.placement.projected import ProjectedPlacement
from torque_sched.decide.placement.value import ValuePlacement
from torque_sched.decide.rules import GpuRules, MemoryRules, NodeRules, Rates
from torque_sched.decide.settings import PLACEMENTS, Settings
from torque_sched.errors import ConfigError
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.decisions import Hold, NodeShare, Start
from torque_sched.model.reasons import Reason

N1 = NodeName("n1")
BOTH_BUSY = [running(8, "n1/0+n1-gpu/0", "1:gpus=1"), running(9, "n2/0")]


def ledger_of(nodes: list[Any], context: Context | None = None, jobs: Any = (), **rules: Any) -> Any:
    shot = snapshot(nodes, jobs)
    return open_ledger(shot, context or Context(), NodeRules(**rules), GpuRules(), MemoryRules())


def measured(**loads: Load) -> Context:
    return Context(measured={NodeName(name): Measured(load, NOW_S) for name, load in loads.items()})


def value_of(ledger: Any, name: str, placement: ValuePlacement, piece: ResourceChunk | None = None) -> float:
    scorer = placement.scorer(ledger.nodes, Context())
    return -scorer.score(ledger.by_name[NodeName(name)], piece or ResourceChunk())


def test_value_is_1_for_the_idle_strongest_node_and_follows_the_equations() -> None:
    """cluster: 8 cores at 2, 16 GiB; gpu: 16 cores at 3, 32 GiB, 2 GPUs of 16 GiB."""
    nodes = [node("cluster", 8, mem=16 * GIB), node("gpu", 16, mem=32 * GIB, gpus=2, devices=gpu_devices(2))]
    rates = {"cluster": Rates(2.0), "gpu": Rates(3.0, 1.0)}
    placement = ValuePlacement()
    assert value_of(ledger_of(nodes, rates=rates), "gpu", placement) == pytest.approx(1.0)
    busy = measured(cluster=Load(2.0, 4 * GIB), gpu=Load(4.0, 8 * GIB, 1.0, 8 * GIB))
    ledger = ledger_of(nodes, busy, rates=rates)
    by_hand = 0.4 * (8 * 2) / (16 * 3) * 0.75 + 0.2 * 0.5 * 0.75
    assert value_of(ledger, "cluster", placement) == pytest.approx(by_hand)
    of_gpu = 0.4 * 0.75 + 0.2 * 0.75 + 0.25 * 0.5 + 0.15 * 0.75
    assert value_of(ledger, "gpu", placement) == pytest.approx(of_gpu)
    by_speed = 0.4 * 2 / 3 * 0.75 + 0.2 * 0.5 * 0.75
    assert value_of(ledger, "cluster", ValuePlacement(normaliser="frequency")) == pytest.approx(by_speed)
    aware = ValuePlacement(job_aware=True)
    assert value_of(ledger, "gpu", aware) == pytest.approx(0.4 * 0.75 + 0.2 * 0.75)
    assert value_of(ledger, "gpu", aware, ResourceChunk(gpus=1)) == pytest.approx(of_gpu)


def test_value_of_a_cluster_without_gpus_and_of_an_overloaded_node() -> None:
    ledger = ledger_of([node("n1"), node("n2")], measured(n1=Load(9.0, 99 * GIB), n2=Load()))
    assert value_of(ledger, "n1", ValuePlacement()) == 0.0
    assert value_of(ledger, "n2", ValuePlacement()) == pytest.approx(0.6)


def test_weights_and_normaliser_are_checked() -> None:
    with pytest.raises(ConfigError):
        ValuePlacement(weights=(0.5, 0.5, 0.5, -0.5))
    with pytest.raises(ConfigError):
        ValuePlacement(normaliser="mean")


def test_projected_looks_at_the_worst_resource_the_job_meets() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    loads = measured(n1=Load(2.0, 1 * GIB), n2=Load(1.0, 60 * GIB))
    context = replace(loads, predictions=predicting(j1=Load(1.0, 4 * GIB)).predictions)
    assert answers(nodes, [job(1)], context=context).hosts(1) == "n1:ppn=1"
    assert answers(nodes, [job(1)], Settings(placement=ValuePlacement())).hosts(1) == "n1:ppn=1"


@pytest.mark.parametrize(
    ("nodes", "busy", "placement", "where"),
    [
        ([node("n1", gpus=2), node("n2")], [], ProjectedPlacement(), "n2"),
        ([node("n2"), node("n1", gpus=2)], [], ValuePlacement(), "n1"),
        ([node("n1", gpus=1), node("n2")], BOTH_BUSY, ProjectedPlacement(), "n2"),
        ([node("n1", gpus=1), node("n2", loadave=2.0)], BOTH_BUSY, ProjectedPlacement(), "n1"),
    ],
    ids=["without", "faithful to the paper", "equal though its GPU is busy", "busier"],
)
def test_a_job_without_gpu_prefers_nodes_without(
    nodes: list[Node], busy: list[Job], placement: Any, where: str
) -> None:
    assert answers(nodes, [*busy, job(1)], Settings(placement=placement)).hosts(1) == f"{where}:ppn=1"


def test_jobs_without_gpu_come_to_gpu_nodes_last_where_a_site_wants_that() -> None:
    """8 slots without GPU: the first 8 jobs take them, the rest leaves a slot for each idle GPU."""
    nodes = [node("g1", 8, gpus=2), node("n1", 8)]
    last = Settings(placement=ProjectedPlacement(gpu_node_penalty=1.0))
    got = answers(nodes, [job(number) for number in range(1, 17)], last, Context(gpu_work_s=NOW_S))
    assert [got.hosts(number).partition(":")[0] for number in range(1, 9)] == ["n1"] * 8
    assert [got.hosts(number).partition(":")[0] for number in range(9, 15)] == ["g1"] * 6
    assert got.reason(15) is got.reason(16) is Reason.NO_FREE_SLOTS


@pytest.mark.parametrize(("layout", "where"), [("pack", "n2"), ("spread", "n1")])
def test_gpu_jobs_are_packed_or_spread(layout: str, where: str) -> None:
    nodes = [node("n1", 8, gpus=4), node("n2", 8, gpus=4)]
    busy = running(9, "n2/0+n2-gpu/0", "1:gpus=1")
    settings = Settings(placement=ProjectedPlacement(gpu_layout=layout))
    assert answers(nodes, [busy, job(1, "1:gpus=1")], settings).hosts(1) == f"{where}:ppn=1:gpus=1"


def test_plain_rules() -> None:
    nodes = [node("n1", loadave=3.0), node("n2", loadave=1.0), node("n3", loadave=2.0)]
    jobs = [job(i) for i in range(1, 5)]

    def hosts(placement: Any, context: Context | None = None) -> list[str]:
        got = answers(nodes, jobs, Settings(placement=placement), context)
        return [got.hosts(i)[:2] for i in range(1, 5)]

    assert hosts(FirstFitPlacement()) == ["n1"] * 4
    assert hosts(RoundRobinPlacement()) == ["n1", "n2", "n3", "n1"]
    assert hosts(RoundRobinPlacement(), Context(last_node=NodeName("n1"))) == ["n2", "n3", "n1", "n2"]
    assert hosts(LoadAveragePlacement()) == ["n2", "n2", "n3", "n1"]
    # n1 stays within its ideal load with a second job, n2 and n3 would not.
    nodes[0] = node("n1", 8, loadave=3.0)
    assert hosts(LoadAveragePlacement(ideal_share=0.5))[:2] == ["n2", "n1"]


def test_starts_of_one_cycle_see_each_other() -> None:
    nodes = [node("n1", 4), node("n2", 4)]
    got = answers(nodes, [job(1), job(2), job(3), job(4)])
    assert sorted(got.hosts(i) for i in range(1, 5)) == ["n1:ppn=1"] * 2 + ["n2:ppn=1"] * 2


def test_a_placed_load_counts_until_the_sample_contains_it() -> None:
    load = PlacedLoad(JobId("9.head"), N1, Load(2.0, 1 * GIB), NOW_S - 30)
    runs = [running(9, "n1/0")]

    def busy(sample_s: float, jobs: Any = runs, lag_s: float = 20.0) -> float:
        context = Context(measured={N1: Measured(Load(1.0), sample_s)}, placed=(load,))
        entry = ledger_of([node("n1")], context, jobs, sample_lag_s=lag_s).by_name[N1]
        return float(entry.cpu_cores)

    assert busy(NOW_S - 40) == 3.0
    assert busy(NOW_S - 11) == 3.0
    assert busy(NOW_S - 10) == 1.0
    # The job is gone: what it was to add is, too.
    assert busy(NOW_S - 40, ()) == 1.0


def test_a_stale_node_gets_uncertainty_not_trust() -> None:
    old = [node("n1", loadave=0.0, rectime_s=NOW_S - 200), node("n2", loadave=1.0)]
    entry = ledger_of(old, jobs=[running(9, "n1/0-1", "1:ppn=2")]).by_name[N1]
    assert entry.cpu_cores == pytest.approx(2 + 0.25 * 4)
    busy = [running(9, "n1/0", "1")]
    assert answers(old, [*busy, job(1)]).hosts(1) == "n2:ppn=1"


@pytest.mark.parametrize(
    ("jobs", "rules", "cores"),
    [(2, {}, 2.0), (2, {"unknown_is_mean": True}, 3.0), (0, {"unknown_is_mean": True}, 2.0)],
)
def test_an_unknown_job_adds_what_it_asks_for_or_the_mean_job_of_its_node(
    jobs: int, rules: dict[str, Any], cores: float
) -> None:
    runs = [running(8 + i, f"n1/{i}") for i in range(jobs)]
    context = measured(n1=Load(6.0)) if jobs else None
    entry = ledger_of([node("n1", 8)], context, runs, **rules).by_name[N1]
    assert entry.expected(ResourceChunk(slots=2)).cpu_cores == cores


def test_loads_to_remember_after_a_start() -> None:
    start = Start(JobId("1.head"), (NodeShare(N1, 2, 1), NodeShare(NodeName("n2"), 2)))
    known = placed_loads(start, job(1, "2:ppn=2"), predicting(j1=Load(2.0, 8 * GIB, 0.5, GIB)), NOW_S)
    assert [each.node for each in known] == ["n1", "n2"]
    assert [each.load for each in known] == [Load(1.0, 4 * GIB, 0.5, GIB), Load(1.0, 4 * GIB)]
    unknown = placed_loads(start, job(1, "2:ppn=2", mem_bytes=4 * GIB), Context(), NOW_S)
    assert [each.load for each in unknown] == [Load(2.0, 2 * GIB, 1.0), Load(2.0, 2 * GIB)]


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_explain_names_every_node_and_its_terms_agree_with_the_decision(name: str) -> None:
    nodes = [
        node("n1", 4, loadave=2.0),
        node("n2", 4, gpus=1, loadave=1.0),
        node("n3", 2),
        node("n4", state="offline", note="fan"),
    ]
    settings = Settings(placement=PLACEMENTS[name](), nodes=NodeRules(cores_per_idle_gpu=0))
    shot = snapshot(nodes, [job(1, "1:ppn=3")])
    told = explain(shot, settings, Context(), shot.jobs[0])
    by_node = {verdict.node: verdict for verdict in told.nodes}
    assert by_node[NodeName("n3")].refusal is Refusal.TOO_SMALL
    assert (by_node[NodeName("n4")].refusal, by_node[NodeName("n4")].why) == (Refusal.UNUSABLE, "offline")
    fitting = [verdict for verdict in told.nodes if verdict.fits]
    assert {verdict.node for verdict in fitting} == {"n1", "n2"}
    best = min(fitting, key=lambda verdict: verdict.score or 0.0)
    assert isinstance(told.decision, Start)
    assert told.decision.allocation[0].node == best.node
    assert all(verdict.terms for verdict in fitting)


def test_the_terms_of_projected_and_value_add_up_to_the_score() -> None:
    nodes = [node("n1", 4, gpus=2, devices=gpu_devices(2), loadave=1.0)]
    for spec in ("1", "1:gpus=1"):
        shot = snapshot(nodes, [job(1, spec)])
        (told,) = explain(shot, Settings(), Context(), shot.jobs[0]).nodes
        parts = dict(told.terms)
        extra = parts.get("gpu layout", 0.0) + parts.get("idle gpus", 0.0)
        assert told.score == pytest.approx(parts["worst"] + parts["all resources"] + extra)
        (told,) = explain(shot, Settings(placement=ValuePlacement()), Context(), shot.jobs[0]).nodes
        assert told.score == pytest.approx(-dict(told.terms)["VALUE"])


def test_explain_a_job_that_is_not_there_yet_or_held() -> None:
    shot = snapshot([node("n1")], [])
    asked = (job(7), job(7, execution_time_s=NOW_S + 60), running(7, "n1/0"))
    start, held, done = (explain(shot, Settings(), Context(), one).decision for one in asked)
    assert isinstance(start, Start)
    assert isinstance(held, Hold)
    assert "Not to be started before" in held.comment
    assert done is None
