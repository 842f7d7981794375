"""The same DAGs in the simulator: equal machines, arrivals, classes, policy object and durations of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.mps_live.runs import SIMULATED, DagRun, RunKey, run_of_outcome
from benchmarks.mps_live.setting import BANDWIDTH_BYTES_PER_S, N_MACHINES, Costs, EmulatedDag, declared
from yarn_accel.core.dags.heft import heft
from yarn_accel.core.dags.model import DagId, Machine
from yarn_accel.core.dags.policies.registry import make_dag_policy
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.sim.dag_simulator import simulate_dags
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

POLICY = "mps"
_MACHINES = tuple(Machine(ResourceId(f"w{n + 1}")) for n in range(N_MACHINES))


def simulated_run(
    world: str,
    repeat: int,
    dags: Sequence[EmulatedDag],
    costs: Costs,
    arrivals_s: Mapping[str, float] | None = None,
) -> DagRun:
    """Simulate.

    Args:
        arrivals_s: DAG -> when it was submitted live; None: when it was to be.
    """
    arrivals = tuple(
        DagArrival(
            DagId(dag.name),
            declared(dag, costs),
            dag.arrival_s if arrivals_s is None else arrivals_s[dag.name],
            dag.priority_class,
        )
        for dag in dags
    )
    stays = tuple(MachineStay(machine) for machine in _MACHINES)
    outcome = simulate_dags(
        DagWorld(BANDWIDTH_BYTES_PER_S, stays, arrivals), make_dag_policy(POLICY, BANDWIDTH_BYTES_PER_S)
    )
    return run_of_outcome(RunKey(world, SIMULATED, repeat), dags, outcome.as_json())


def own_makespans(dags: Sequence[EmulatedDag], costs: Costs) -> dict[str, float]:
    """DAG -> M_own, by HEFT on the idle machines."""
    return {dag.name: heft(declared(dag, costs), _MACHINES, BANDWIDTH_BYTES_PER_S).makespan_s for dag in dags}
