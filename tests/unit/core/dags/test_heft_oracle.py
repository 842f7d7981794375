"""The independent package `heft` (PyPI, BSD) gives the same makespans; it does not insert."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.fixtures.dag_worlds import DAG_A, DAG_B, MACHINES
from yarn_accel.core.dags.heft import heft, seconds_matrix
from yarn_accel.core.dags.model import Machine
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.dags.load import load_dag

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
