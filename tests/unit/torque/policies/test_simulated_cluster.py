"""The simulated cluster of the benchmark `torque_balance`: small runs, the same policy objects."""

from __future__ import annotations

import pytest

pytest.importorskip("simpy", reason="the simulator needs SimPy (extra `bench`)")

from benchmarks.torque_balance import KINDS, POLICIES, simulate
from benchmarks.torque_balance_cluster import MACHINES, Cluster, History, Machine, tasks_of


def test_equal_seeds_give_equal_runs_and_every_job_ends() -> None:
    runs = []
    for _ in range(2):
        policy = POLICIES["projected"]
        arrivals = tasks_of(KINDS, 40, 18.0, 0.3, seed=1)
        trace = Cluster(policy.settings(), History(policy.predictor)).run(arrivals)
        assert len(trace.homes) == 40
        assert all(task.left_s <= 1e-6 for _, task in arrivals)
        runs.append((trace.figures, trace.makespan_s, trace.homes))
    assert runs[0] == runs[1]


def test_a_job_takes_its_time_and_crowded_jobs_take_longer() -> None:
    one_core = [Machine("n1", 2, 2.4, 16 * 1024**3)]
    kind = KINDS[0]
    settings = POLICIES["firstfit"].settings()

    def makespan(n: int) -> float:
        arrivals = tasks_of([kind], n, 0.0, 0.0, seed=1)
        return Cluster(settings, History(""), machines=one_core).run(arrivals).makespan_s

    assert makespan(1) == pytest.approx(kind.runtime_s)
    # Two jobs of two busy cores each on two cores: half the speed.
    assert makespan(2) == pytest.approx(2 * kind.runtime_s)


def test_gpu_jobs_stay_on_gpu_nodes_and_projected_is_the_most_even() -> None:
    gpu_nodes = {machine.name for machine in MACHINES if machine.gpus}
    stdev = {}
    for name in ("firstfit", "value", "projected"):
        trace, _ = simulate(name, 18.0, 1, n_jobs=80)
        assert all(node in gpu_nodes for kind, node in trace.homes if kind.gpus)
        stdev[name] = trace.mean("cpu stdev")
    assert stdev["projected"] < stdev["value"] < stdev["firstfit"]
