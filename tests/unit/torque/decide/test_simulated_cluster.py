"""The simulated cluster of the benchmark `torque_balance`: small runs, the same policy objects."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("simpy", reason="the simulator needs SimPy (extra `bench`)")

from benchmarks.papers.torque_balance import KINDS, POLICIES, simulate
from benchmarks.papers.torque_balance_cluster import MACHINES, Cluster, History, Machine, tasks_of


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


def test_at_moderate_load_gpu_nodes_are_there_for_gpu_jobs_and_projected_is_the_most_even() -> None:
    """A fifth of the cores busy: jobs without GPU go where it is idlest, and take no GPU's slots."""
    gpu_nodes = {machine.name for machine in MACHINES if machine.gpus}
    slots = sum(machine.slots for machine in MACHINES if machine.gpus) / sum(m.slots for m in MACHINES)
    shares, stdev = {}, {}
    for name in ("firstfit", "value", "projected", "projected, GPU nodes last"):
        trace, _ = simulate(name, 40.0, 1, n_jobs=120)
        without = [node in gpu_nodes for kind, node in trace.homes if not kind.gpus]
        assert all(node in gpu_nodes for kind, node in trace.homes if kind.gpus)
        shares[name], stdev[name] = sum(without) / len(without), trace.mean("cpu stdev")
        assert name == "firstfit" or trace.mean("gpus missed") == 0, name
    assert shares["projected, GPU nodes last"] < shares["projected"] <= slots < shares["value"]
    assert stdev["projected"] < stdev["value"] < stdev["firstfit"]


def test_on_a_full_cluster_the_slots_kept_per_idle_gpu_let_gpu_jobs_start() -> None:
    """Few GPU jobs, most of them behind more jobs without GPU than there are slots."""
    policy = POLICIES["projected"]
    kinds = (*KINDS[:2], replace(KINDS[2], weight=0.03))

    def missed(cores_per_idle_gpu: int) -> float:
        settings = policy.settings()
        settings = replace(settings, nodes=replace(settings.nodes, cores_per_idle_gpu=cores_per_idle_gpu))
        arrivals = tasks_of(kinds, 110, 0.0, 0.3, seed=1)
        return Cluster(settings, History(policy.predictor)).run(arrivals).mean("gpus missed")

    assert missed(1) == 0 < missed(0)
