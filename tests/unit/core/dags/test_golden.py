"""Plans of DAGs: as they were recorded, and as an independent HEFT makes them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.fixtures.dag_worlds import DAG_A, DAG_B, MACHINES, check_outcome, paper_world
from yarn_accel.core.dags.heft import heft, seconds_matrix
from yarn_accel.core.dags.model import Machine
from yarn_accel.core.dags.policies.registry import DAG_POLICIES, make_dag_policy
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.load import load_dag
from yarn_accel.sim.dag_simulator import DagSimulation, simulate_dags

FIGURE_3A = {
    "M1": "B1[0,4] B2[4,13] A3[21,32] A6[32,45] A7[45,52] A8[63,68]",
    "M2": "B4[6,21] A4[21,29] A5[29,42] B5[42,48] A9[60,72] A10[79,86]",
    "M3": "A1[0,9] B3[10,26] A2[26,44]",
}
FIGURE_3B = {
    "M1": "B1[0,4] B2[4,13] B3[13,31] B5[31,38] A2[38,51] A9[52,70] A8[70,75]",
    "M2": "B4[6,21] A4[21,29] A6[29,45] A10[86,93]",
    "M3": "A1[0,9] A3[9,28] A5[28,38] A7[38,49]",
}
OWN_A = {
    "M1": "A2[27,40] A8[57,62]",
    "M2": "A4[18,26] A6[26,42] A9[56,68] A10[73,80]",
    "M3": "A1[0,9] A3[9,28] A5[28,38] A7[38,49]",
}
OWN_B = {"M1": "B1[0,4] B2[4,13]", "M2": "B4[6,21]", "M3": "B3[10,26] B5[31,36]"}


def chart(tasks):
    rows = defaultdict(list)
    for machine, task, start_s, end_s in sorted(tasks, key=lambda each: each[2]):
        rows[machine].append(f"{task}[{start_s:g},{end_s:g}]")
    return {machine: " ".join(each) for machine, each in rows.items()}


def chart_of(outcome):
    return chart((task.node, task.task, task.start_s, task.end_s) for task in outcome.tasks)


@pytest.mark.parametrize("inserting", [True, False])
@pytest.mark.parametrize(
    ("dag", "ranks", "own"),
    [
        (DAG_A, (108, 77, 80, 80, 69, 63.33, 42.67, 35.67, 44.33, 14.67), OWN_A),
        (DAG_B, (42, 34.33, 31, 34.33, 6), OWN_B),
    ],
)
def test_ranks_and_own_schedules(dag, ranks, own, inserting) -> None:
    found = heft(dag, MACHINES, 1.0, inserting=inserting)
    assert found.ranks == pytest.approx(ranks, abs=0.01)
    names = [MACHINES[number].machine for number in found.machines]
    starts, ends = found.start_s.tolist(), found.end_s.tolist()
    assert chart(zip(names, (task.task for task in dag.tasks), starts, ends, strict=True)) == own


@pytest.mark.parametrize(
    ("policy", "figure", "makespans", "mean", "unfairness", "utilisation"),
    [
        ("fairness", FIGURE_3A, (86, 48), 0.840, 0.180, 0.593),
        ("round_robin_at_entry", FIGURE_3A, (86, 48), 0.840, 0.180, 0.593),
        ("mps", FIGURE_3B, (93, 38), 0.904, 0.087, 0.606),
    ],
)
def test_figure_3(policy, figure, makespans, mean, unfairness, utilisation) -> None:
    world = paper_world()
    outcome = simulate_dags(world, make_dag_policy(policy, 1.0))
    check_outcome(world, outcome)
    assert chart_of(outcome) == figure
    assert (outcome.apps["A"].makespan_s, outcome.apps["B"].makespan_s) == makespans
    assert (outcome.apps["A"].own_makespan_s, outcome.apps["B"].own_makespan_s) == (80, 36)
    assert sum(each.slowdown for each in outcome.apps.values()) / 2 == pytest.approx(mean, abs=5e-4)
    assert outcome.fairness.unfairness == pytest.approx(unfairness, abs=5e-4)
    assert outcome.utilisation == pytest.approx(utilisation, abs=5e-4)


def test_slowdowns_at_the_events_of_figure_3b() -> None:
    """At 13 s the paper evaluates equation (3) with ct = 12 and prints -1.3."""
    policy = make_dag_policy("mps", 1.0)
    simulation = DagSimulation(paper_world(), policy)
    found = {}
    while simulation.step():
        found[simulation.now_s] = {name: dag.slowdown for name, dag in policy.state.dags.items()}
    outcome = simulation.outcome()
    for name, points in outcome.slowdowns.items():
        *before, last = points
        assert before == [(now_s, found[now_s][name]) for now_s, _ in before]
        assert last == (outcome.apps[name].end_s, outcome.apps[name].slowdown)
    expected = {
        9: (1, 1),
        13: (1, -1.154),
        21: (0.857, 0.792),
        28: (0.857, 0.821),
        29: (0.862, 0.828),
        31: (0.871, 0.839),
    }
    for now_s, (of_a, of_b) in expected.items():
        assert found[now_s]["A"] == pytest.approx(of_a, abs=5e-4)
        assert found[now_s]["B"] == pytest.approx(of_b, abs=5e-4)
    assert found[38]["A"] == pytest.approx(0.711, abs=5e-4)


def test_what_is_taken_back_is_counted_and_explained() -> None:
    """B3 goes from M3 to M1, as the paper says; nothing else changes its machine."""
    outcome = simulate_dags(paper_world(), make_dag_policy("mps", 1.0))
    assert outcome.moved == 1
    reasons = {task.task: task.reason for task in outcome.tasks}
    assert reasons["B3"] == (
        "rank 31; class basic; SD -1.154; finish by machine: M1 31, M2 38, M3 44; taken back from M3; "
        "inputs: B1 from M1 at 4.0"
    )


def test_static_fairness_and_merged_heft_differ_from_the_figure() -> None:
    """Zhao and Sakellariou's static forms give neither chart; so 3(a) is the dynamic one."""
    for name in ("fairness-fpft", "fairness-fpct", "merged_heft"):
        outcome = simulate_dags(paper_world(), make_dag_policy(name, 1.0))
        assert (outcome.apps["A"].makespan_s, outcome.apps["B"].makespan_s) == (80, 87)


def test_every_policy_runs_the_example() -> None:
    world = paper_world()
    for name in DAG_POLICIES:
        policy = make_dag_policy(name, 1.0)
        check_outcome(world, simulate_dags(world, policy))
        policy.validate()


# The independent package `heft` (PyPI, BSD) gives the same makespans; it does not insert.


WORKFLOWS = Path(__file__).parents[3] / "workflows"
CLUSTER = tuple(Machine(ResourceId(f"m{n}"), speed) for n, speed in enumerate((1.0, 2.0, 1.5, 0.75)))


@pytest.fixture(scope="module")
def oracle():
    """The package imports its own modules by names of Python 2: they are found where it lies."""
    spec = importlib.util.find_spec("heft")
    if spec is None:
        pytest.skip("the package heft is not installed: pip install heft==0.1.1")
    [folder] = spec.submodule_search_locations
    taken = {name: sys.modules.pop(name, None) for name in ("core", "util")}
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("core")
    finally:
        sys.path.remove(folder)
        for name, module in taken.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def makespan_by(oracle, dag, machines, bandwidth, monkeypatch) -> float:
    """Tasks get falling numbers, as the package prefers the higher one of equal rank."""
    last = len(dag.tasks) - 1
    seconds = seconds_matrix(dag, machines).tolist()
    succ = {last - n: tuple(last - child for child, _ in dag.children[n]) for n in range(last + 1)}
    n_bytes = {(last - n, last - child): size for n in range(last + 1) for child, size in dag.children[n]}
    ranks, plain = {}, oracle.ranku

    def remembered(task, **more):
        if task not in ranks:
            # Its own sum may differ in the last digit for tasks that are equal.
            found = plain(task, **more) if succ[task] else oracle.wbar(task, more["agents"], more["compcost"])
            ranks[task] = float(f"{found:.12g}")
        return ranks[task]

    @cache
    def communication(parent, child, one, other):
        return 0.0 if one == other else n_bytes[parent, child] / bandwidth

    monkeypatch.setattr(oracle, "ranku", remembered)
    agents = range(len(machines))
    state, _ = oracle.schedule(succ, agents, lambda task, agent: seconds[last - task][agent], communication)
    return oracle.makespan(state)


@pytest.mark.parametrize("bandwidth", [1e6, 1e9])
@pytest.mark.parametrize("name", sorted(path.name for path in WORKFLOWS.glob("*.*") if path.suffix != ".md"))
def test_workflows(oracle, monkeypatch, name, bandwidth) -> None:
    dag = load_dag(WORKFLOWS / name)
    ours = heft(dag, CLUSTER, bandwidth, inserting=False).makespan_s
    assert ours == pytest.approx(makespan_by(oracle, dag, CLUSTER, bandwidth, monkeypatch), rel=1e-9)
    assert heft(dag, CLUSTER, bandwidth).makespan_s > 0


@pytest.mark.parametrize("dag", [DAG_A, DAG_B])
def test_the_papers_dags(oracle, monkeypatch, dag) -> None:
    ours = heft(dag, MACHINES, 1.0, inserting=False).makespan_s
    assert ours == makespan_by(oracle, dag, MACHINES, 1.0, monkeypatch)
