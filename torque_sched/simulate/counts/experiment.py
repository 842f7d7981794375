"""One log under one or more policies, each fresh, on the same jobs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from math import inf

from torque_sched.errors import ConfigError, TorqueSchedError
from torque_sched.simulate.check import problems
from torque_sched.simulate.counts.estimates import ESTIMATES, new_estimates
from torque_sched.simulate.counts.jobs import CountJob, StaticOrder, UsageOrder
from torque_sched.simulate.counts.policies import POLICIES
from torque_sched.simulate.counts.scheduler import CountScheduler, Pass, PolicySettings
from torque_sched.simulate.counts.table import ProcessorTable
from torque_sched.simulate.metrics import ClassBounds, figures_of
from torque_sched.simulate.results import Experiment, Result
from torque_sched.simulate.schedule import MovedPromise, Schedule
from torque_sched.simulate.swf import SwfTrace
from torque_sched.simulate.workload import LogSelection, Overrun, Workload, workload_of

ORDERS = ("fcfs", "priority", "fair_share", "sjf")
_REPORT_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """Policies, their settings and the jobs of an experiment.

    Attributes:
        policies: names, `POLICIES`; the first is the one asked for.
        estimates: what they plan with, `estimates.ESTIMATES`.
        order: who is considered first, `ORDERS`.
        priorities: of the log's queues, for the order ``priority``.
        half_life_s: after which usage counts half, for ``fair_share``.
        settings: of the policies.
        choice: which jobs of the log.
        limits: where classes of jobs part.
        check: whether the invariants are checked.
    """

    policies: tuple[str, ...] = ("easy",)
    estimates: str = "user"
    order: str = "fcfs"
    priorities: Mapping[int, float] = field(default_factory=dict)
    half_life_s: float = 86_400.0
    settings: PolicySettings = field(default_factory=PolicySettings)
    choice: LogSelection = field(default_factory=LogSelection)
    limits: ClassBounds = field(default_factory=ClassBounds)
    check: bool = False

    def __post_init__(self) -> None:
        """Refuse names that are not known.

        Raises:
            ConfigError: one is not.
        """
        for name in self.policies:
            _known("policy", name, tuple(POLICIES))
        _known("estimates", self.estimates, tuple(ESTIMATES))
        _known("order", self.order, ORDERS)

    def document(self) -> dict[str, object]:
        """What of it matters to a reader of the results."""
        unused = set() if "selective" in self.policies else {"threshold"}
        given = {name: value for name, value in asdict(self.settings).items() if name not in unused}
        compress = given.pop("compress")
        return {
            "estimates": self.estimates,
            "overrun": self.choice.overrun.value,
            "order": self.order,
            "compress": compress,
            **{name: value for name, value in given.items() if value is not None and 0 < value < inf},
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
        say: is called now and then with the policy, the number of jobs that ended, and that of all jobs.
    """
    workload = workload_of(trace, plan.choice)
    results = []
    for name in plan.policies:
        report = functools.partial(_progress, say, name, len(workload.jobs)) if say is not None else None
        if report is not None:
            report(0)
        policy = new_policy(name, workload, plan)
        schedule = simulate(name, workload, policy, priorities=plan.priorities, report=report)
        found = checked(schedule, plan) if plan.check else None
        results.append(Result(schedule, figures_of(schedule, plan.limits), found))
    return Experiment(trace_name, workload, tuple(results), plan.document(), limits=plan.limits)


def checked(schedule: Schedule, plan: Plan) -> tuple[str, ...]:
    """The invariants of its policy that a schedule breaks."""
    name, by_arrival = schedule.name, plan.order == "fcfs"
    is_in_time = plan.choice.overrun is Overrun.KILL and plan.estimates in ("user", "exact")
    # EASY reserves for the first few of a queue that changes: only with one reservation is nobody outranked.
    is_firm = by_arrival and is_in_time and (name != "easy" or plan.settings.depth in (None, 1))
    return tuple(problems(schedule, is_fcfs=by_arrival and name == "fcfs", is_firm=is_firm))


def _progress(say: Callable[[str, int, int], None], name: str, n_jobs: int, n_done: int) -> None:
    say(name, n_done, n_jobs)


def new_policy(name: str, workload: Workload, plan: Plan) -> CountScheduler:
    """A fresh policy over an empty machine."""
    first_s = workload.jobs[0].submit_s if workload.jobs else 0
    table = ProcessorTable(workload.procs, first_s, plan.settings.resolution_s)
    return POLICIES[name](table, _order(plan), new_estimates(plan.estimates, workload), plan.settings)


def _order(plan: Plan) -> StaticOrder:
    if plan.order == "fair_share":
        return UsageOrder(plan.half_life_s)
    if plan.order == "priority":
        return StaticOrder(lambda job: -job.priority)
    return StaticOrder(lambda job: job.length_s) if plan.order == "sjf" else StaticOrder()


def simulate(
    name: str,
    workload: Workload,
    policy: CountScheduler,
    *,
    priorities: Mapping[int, float] | None = None,
    report: Callable[[int], None] | None = None,
) -> Schedule:
    """Run a workload to its end.

    All that happens in one instant reaches the policy at once. Between these instants the policy is asked
    when it wants to be: at a reserved start, or where a job outlives its estimate.

    Args:
        name: of the policy, for the schedule.
        workload: jobs in order of arrival.
        policy: fresh; a job's place is that in the workload.
        priorities: of the log's queues.
        report: is called now and then with the number of jobs that ended.

    Raises:
        TorqueSchedError: the policy started a job that does not wait, or left jobs waiting for ever.
    """
    began_s = time.perf_counter()
    jobs, n = workload.jobs, len(workload.jobs)
    events = _Events(workload, priorities or {})
    made = Schedule(name, workload, [inf] * n, [None] * n, [None] * n)
    broken: list[MovedPromise] = []
    n_passes, wake_s = 0, inf
    while (now_s := min(wake_s, events.next_s())) < inf:
        answer = policy.apply(now_s, *events.take(now_s))
        for place in answer.starts:
            if made.starts[place] != inf or place >= events.n_submitted:
                raise TorqueSchedError(f"the policy starts job {jobs[place].number}, which does not wait")
            made.starts[place] = now_s
            events.add_end(now_s + jobs[place].run_s, place)
        if answer.guaranteed or answer.moved:
            _note(answer, now_s, made, broken)
        wake_s = answer.wake_s
        if wake_s <= now_s:
            raise TorqueSchedError(f"the policy wants to be asked again at {wake_s}, and it is {now_s}")
        n_passes += 1
        if report is not None and n_passes % _REPORT_EVERY == 0:
            report(events.n_ended)
    left = [job.number for job, start_s in zip(jobs, made.starts, strict=True) if start_s == inf]
    if left:
        raise TorqueSchedError(f"the policy left {len(left)} jobs waiting for ever, first {left[0]}")
    return Schedule(
        name, workload, made.starts, made.first_promises, made.promises, tuple(broken),
        events.n_submitted + events.n_ended, n_passes, time.perf_counter() - began_s,
    )  # fmt: skip


class _Events:
    """Submissions of the log, and ends of the jobs that started, in the order of time."""

    def __init__(self, workload: Workload, priorities: Mapping[int, float]) -> None:
        self._jobs = workload.jobs
        self._priorities = priorities
        self._ends: list[tuple[float, int]] = []
        self._next_submit_s = self._jobs[0].submit_s if self._jobs else inf
        self.n_submitted = self.n_ended = 0

    def next_s(self) -> float:
        """When the next one is; infinite: there is none."""
        if self._ends and self._ends[0][0] < self._next_submit_s:
            return self._ends[0][0]
        return self._next_submit_s

    def add_end(self, end_s: float, place: int) -> None:
        """This job will end then."""
        heappush(self._ends, (end_s, place))

    def take(self, now_s: float) -> tuple[list[int], list[CountJob]]:
        """Places of the jobs that ended by now, and jobs that were submitted by now."""
        ends, ended = self._ends, []
        while ends and ends[0][0] <= now_s:
            ended.append(heappop(ends)[1])
        self.n_ended += len(ended)
        submitted: list[CountJob] = []
        while self._next_submit_s <= now_s:
            place, job = self.n_submitted, self._jobs[self.n_submitted]
            priority = self._priorities.get(job.queue, 0.0)
            submitted.append(CountJob(place, job.procs, job.limit_s, job.submit_s, str(job.user), priority))
            self.n_submitted += 1
            is_last = self.n_submitted == len(self._jobs)
            self._next_submit_s = inf if is_last else self._jobs[self.n_submitted].submit_s
        return ended, submitted


def _note(answer: Pass, now_s: float, schedule: Schedule, broken: list[MovedPromise]) -> None:
    for place, start_s in answer.guaranteed:
        if schedule.first_promises[place] is None:
            schedule.first_promises[place] = start_s
        schedule.promises[place] = start_s
    broken += [MovedPromise(each.place, now_s, each.old_s, each.new_s, each.reason) for each in answer.moved]
