"""One log under one or more policies of the live scheduler, each fresh, on the same jobs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from torque_sched.errors import ConfigError
from torque_sched.parse.swf import SwfTrace
from torque_sched.policies.backfilling.conservative import Conservative
from torque_sched.policies.backfilling.count_table import CountTable
from torque_sched.policies.backfilling.easy import Easy
from torque_sched.policies.backfilling.fcfs import Fcfs
from torque_sched.policies.backfilling.order import ByFairShare, ByPriority, FirstCome, Order, ShortestFirst
from torque_sched.policies.backfilling.selective import Selective
from torque_sched.policies.backfilling.settings import Bounds
from torque_sched.sim.check import problems
from torque_sched.sim.driver import Decides, simulate
from torque_sched.sim.estimates import ESTIMATES, new_estimates
from torque_sched.sim.metrics import Limits, figures_of
from torque_sched.sim.results import Experiment, Result
from torque_sched.sim.schedule import Schedule
from torque_sched.sim.workload import Choice, Overrun, Workload, workload_of

POLICIES = ("fcfs", "easy", "conservative", "selective")
ORDERS = ("fcfs", "priority", "fair_share", "sjf")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is simulated.

    Attributes:
        policies: names, `POLICIES`; the first is the one asked for.
        estimates: what they plan with, `estimates.ESTIMATES`.
        order: who is considered first, `ORDERS`.
        priorities: of the log's queues, for the order ``priority``.
        half_life_s: after which usage counts half, for ``fair_share``.
        compress: conservative and selective move promises forward when a job ends early.
        threshold: expansion factor from which selective promises a start.
        depth: only the first so many waiting jobs are promised a start; None: as the policy has it.
        bounds: limits on the work of one pass.
        choice: which jobs of the log.
        limits: where classes of jobs part.
        check: whether the invariants are checked.
    """

    policies: tuple[str, ...] = ("easy",)
    estimates: str = "user"
    order: str = "fcfs"
    priorities: Mapping[int, float] = field(default_factory=dict)
    half_life_s: float = 86_400.0
    compress: bool = True
    threshold: float = 2.0
    depth: int | None = None
    bounds: Bounds = field(default_factory=Bounds)
    choice: Choice = field(default_factory=Choice)
    limits: Limits = field(default_factory=Limits)
    check: bool = False

    def __post_init__(self) -> None:
        """Refuse names that are not known.

        Raises:
            ConfigError: one is not.
        """
        for name in self.policies:
            _known("policy", name, POLICIES)
        _known("estimates", self.estimates, tuple(ESTIMATES))
        _known("order", self.order, ORDERS)

    def settings(self) -> dict[str, object]:
        """What of it matters to a reader of the results."""
        return {
            "estimates": self.estimates,
            "overrun": self.choice.overrun.value,
            "order": self.order,
            "compress": self.compress,
            **({"threshold": self.threshold} if "selective" in self.policies else {}),
            **({"depth": self.depth} if self.depth is not None else {}),
            **{name: value for name, value in asdict(self.bounds).items() if 0 < value < math.inf},
        }


def _known(what: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise ConfigError(f"no {what} {name!r}", cure=f"known are {', '.join(names)}")


def run(
    trace_name: str,
    trace: SwfTrace,
    plan: Plan,
    say: Callable[[str, int, int], None] | None = None,
) -> Experiment:
    """Simulate a log under each policy of the plan.

    Args:
        trace_name: for the results.
        trace: the log.
        plan: what to do with it.
        say: is told now and then: policy, jobs that ended, jobs.
    """
    workload = workload_of(trace, plan.choice)
    results = []
    for name in plan.policies:
        told = functools.partial(_progress, say, name, len(workload.jobs)) if say is not None else None
        if told is not None:
            told(0)
        policy = new_policy(name, workload, plan)
        schedule = simulate(name, workload, policy, priorities=plan.priorities, say=told)
        found = checked(schedule, plan) if plan.check else None
        results.append(Result(schedule, figures_of(schedule, plan.limits), found))
    return Experiment(trace_name, workload, tuple(results), plan.settings(), plan.limits)


def checked(schedule: Schedule, plan: Plan) -> tuple[str, ...]:
    """The invariants of its policy that a schedule breaks."""
    name, by_arrival = schedule.name, plan.order == "fcfs"
    is_in_time = plan.choice.overrun is Overrun.KILL and plan.estimates in ("user", "exact")
    # EASY promises to the first few of a line that changes: only with one promise is nobody outranked.
    is_firm = by_arrival and is_in_time and (name != "easy" or plan.depth in (None, 1))
    return tuple(problems(schedule, is_fcfs=by_arrival and name == "fcfs", is_firm=is_firm))


def _progress(say: Callable[[str, int, int], None], name: str, n_jobs: int, n_done: int) -> None:
    say(name, n_done, n_jobs)


def new_policy(name: str, workload: Workload, plan: Plan) -> Decides:
    """A fresh policy over an empty machine."""
    first_s = workload.jobs[0].submit_s if workload.jobs else 0
    table = CountTable(workload.procs, first_s, plan.bounds.resolution_s)
    depth = math.inf if plan.depth is None else plan.depth
    order, estimates, bounds = _order(plan), new_estimates(plan.estimates, workload), plan.bounds
    if name == "fcfs":
        return Fcfs(table, order, estimates, bounds)
    if name == "easy":
        return Easy(table, order, estimates, bounds, depth=plan.depth or 1)
    if name == "conservative":
        return Conservative(table, order, estimates, bounds, compress=plan.compress, depth=depth)
    return Selective(
        table, order, estimates, bounds, compress=plan.compress, depth=depth, threshold=plan.threshold
    )


def _order(plan: Plan) -> Order:
    if plan.order == "fair_share":
        return ByFairShare(plan.half_life_s)
    orders: dict[str, Callable[[], Order]] = {"fcfs": FirstCome, "priority": ByPriority, "sjf": ShortestFirst}
    return orders[plan.order]()
