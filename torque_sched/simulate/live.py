"""A site under the live scheduler's `decide`: the clock, the cycles, and what they took.

One SimPy process walks from instant to instant. In each, first what ended ends, then nodes fail or come back,
then what was submitted waits, and then the scheduler makes a cycle. There are cycles

* where a job was submitted or ended, or a node failed or came back: the server tells the scheduler of these;
* at a promised start, and where an advance reservation, dedicated time or prime time begins or ends, while
  jobs wait: the daemon wakes for the first, and its timer would for the others;
* once more in the same instant where a cycle ended at `Settings.max_starts`.

Between these nothing can start, so the other ticks of the daemon's timer are left out. A start takes no time
and is seen running by the next cycle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import Any

import simpy

from torque_sched.decide.decide import Decider
from torque_sched.errors import TorqueSchedError
from torque_sched.learn.promises import BETTER, MADE, Change
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import Decision, Hold, Reserve, Start
from torque_sched.model.reasons import Reason
from torque_sched.simulate.cluster import SimulatedCluster
from torque_sched.simulate.memory import Memory, Rules
from torque_sched.simulate.schedule import MovedPromise, Schedule, Took
from torque_sched.simulate.site import Site
from torque_sched.simulate.workload import Rejected

_SAY_EVERY = 200
_MOST_IDLE_CYCLES = 100_000
"""So many cycles in a row at which nothing happens and nothing starts are a fault."""
_MINUTE_S = 60.0
_STANDING_S = 60 * 86_400.0
"""Standing reservations go on so long after the last submission."""


def run_live(site: Site, rules: Rules, say: Callable[[int], None] | None = None) -> Schedule:
    """Simulate a site under some settings, to the end of its last job.

    Args:
        site: with its jobs in order of arrival.
        rules: fresh settings.
        say: called now and then with the number of jobs that have ended.

    Raises:
        TorqueSchedError: a decision that cannot be carried out.
    """
    began_s = time.perf_counter()
    run = _LiveRun(site, _with_standing(site, rules), say)
    environment = simpy.Environment(site.jobs[0].submit_s if site.jobs else 0)
    environment.process(run.walk(environment))
    environment.run()
    return run.result(time.perf_counter() - began_s)


@dataclass(slots=True)
class _Course:
    """What became of a job, by its place."""

    start_s: float = inf
    first_promise_s: float | None = None
    promise_s: float | None = None


@dataclass(slots=True)
class _Happened:
    """What there is to tell in an instant."""

    ended: list[Job] = field(default_factory=list)
    is_any: bool = False


class _LiveRun:
    def __init__(self, site: Site, rules: Rules, say: Callable[[int], None] | None) -> None:
        self._site, self._rules, self._say = site, rules, say
        self._cluster, self._memory = SimulatedCluster(site), Memory(rules)
        self._decider = Decider()
        self._place = {job.job.id: place for place, job in enumerate(site.jobs)}
        self._courses = [_Course() for _ in site.jobs]
        self._broken: list[MovedPromise] = []
        self._ends: list[tuple[float, int, JobId, int]] = []
        self._runs: dict[JobId, int] = {}
        self._edges = _edges(site, rules)
        self._last: tuple[Decision, ...] = ()
        self._next_job = 0
        self._n_ended = 0
        self._wake_s = inf
        self.took = Took()

    # -- the clock

    def walk(self, environment: Any) -> Generator[Any, Any, None]:
        """The SimPy process: from instant to instant, until nothing more will happen."""
        n_idle = 0
        while True:
            now_s = self._next_s()
            if now_s == inf:
                return
            # Not below 0: with fractions, the clock may be ahead by its last bit.
            yield environment.timeout(max(0, now_s - environment.now))
            happened = self._happen(now_s)
            n_started = self._cycles(now_s, happened)
            n_idle = 0 if happened.is_any or n_started else n_idle + 1
            if n_idle > _MOST_IDLE_CYCLES:
                raise TorqueSchedError(f"at {now_s} the policy wants cycle after cycle and starts nothing")

    def _next_s(self) -> float:
        jobs = self._site.jobs
        next_s = jobs[self._next_job].submit_s if self._next_job < len(jobs) else inf
        self._drop_old_ends()
        if self._ends:
            next_s = min(next_s, self._ends[0][0])
        if self._cluster.waiting:
            next_s = min(next_s, self._wake_s)
        if self._edges and (next_s < inf or self._cluster.waiting):
            next_s = min(next_s, self._edges[0][0])
        return next_s

    def _drop_old_ends(self) -> None:
        """Ends of runs that a failing node cut short."""
        ends = self._ends
        while ends and self._runs.get(ends[0][2]) != ends[0][3]:
            heappop(ends)

    def _happen(self, now_s: float) -> _Happened:
        happened = _Happened()
        while self._ends and self._ends[0][0] <= now_s:
            job_id = heappop(self._ends)[2]
            del self._runs[job_id]
            happened.ended.append(self._cluster.end(job_id, now_s))
            self._n_ended += 1
            self._drop_old_ends()
        while self._edges and self._edges[0][0] <= now_s:
            self._at_edge(*self._edges.pop(0)[2:])
            happened.is_any = True
        jobs = self._site.jobs
        while self._next_job < len(jobs) and jobs[self._next_job].submit_s <= now_s:
            self._cluster.submit(jobs[self._next_job])
            self._next_job += 1
            happened.is_any = True
        happened.is_any = happened.is_any or bool(happened.ended)
        return happened

    def _at_edge(self, node: NodeName | None, is_up: bool) -> None:
        if node is None:
            return
        if is_up:
            self._cluster.repair(node)
            return
        for job_id in self._cluster.fail(node):
            self._runs.pop(job_id, None)
            self._courses[self._place[job_id]].start_s = inf

    # -- the scheduler

    def _cycles(self, now_s: float, happened: _Happened) -> int:
        """One cycle, and more while the one before left jobs for the next; how many jobs started."""
        n_all, ended = 0, happened.ended
        while True:
            n_started, is_full = self._cycle(now_s, ended)
            n_all += n_started
            if not (is_full and n_started):
                return n_all
            ended = []

    def _cycle(self, now_s: float, ended: list[Job]) -> tuple[int, bool]:
        cluster, memory = self._cluster, self._memory
        began_s = time.perf_counter()
        snapshot = cluster.snapshot(now_s)
        context = memory.context(snapshot, ended)
        made_s = time.perf_counter()
        decisions = self._decider.decide(snapshot, self._rules.at(now_s), context) if cluster.waiting else ()
        decided_s = time.perf_counter()
        self._note(now_s, memory.decided(snapshot, decisions))
        n_started, is_full, wake_s = 0, False, inf
        for each in decisions:
            if isinstance(each, Start):
                self._start(each, now_s)
                n_started += 1
            elif isinstance(each, Reserve):
                if each.promise is not None and now_s < each.start_s < wake_s:
                    wake_s = each.start_s
            elif each.reason is Reason.CYCLE_FULL:
                is_full = True
        self._wake_s, self._last = wake_s, decisions
        took = self.took
        took.n_cycles += 1
        took.snapshot_s += made_s - began_s
        took.decide_s += decided_s - made_s
        if self._say is not None and took.n_cycles % _SAY_EVERY == 0:
            self._say(self._n_ended)
        return n_started, is_full

    def _start(self, start: Start, now_s: float) -> None:
        job = self._cluster.start(start.job, start.allocation, now_s)
        self._memory.started(start, job)
        place = self._place[job.id]
        self._courses[place].start_s = now_s
        n_run = self._runs[job.id] = job.start_count + 1000 * self.took.n_cycles
        heappush(self._ends, (now_s + self._site.jobs[place].length_s, place, job.id, n_run))

    def _note(self, now_s: float, changes: list[tuple[JobId, Change]]) -> None:
        for job_id, change in changes:
            place = self._place[job_id]
            course = self._courses[place]
            if course.first_promise_s is None:
                course.first_promise_s = change.to_s
            course.promise_s = change.to_s
            if change.kind not in (MADE, BETTER) and change.from_s is not None:
                after_s = inf if change.to_s is None else change.to_s - self._site.zero_s
                before_s = change.from_s - self._site.zero_s
                self._broken.append(
                    MovedPromise(place, now_s - self._site.zero_s, before_s, after_s, change.kind)
                )

    # -- what is left of it

    def result(self, wall_s: float) -> Schedule:
        """The schedule of the jobs that ran; the others are named."""
        site, zero_s = self._site, self._site.zero_s
        said = {each.job: each for each in self._last}
        never = tuple(
            (job.number, _words(said.get(job.job.id)))
            for job, course in zip(site.jobs, self._courses, strict=True)
            if course.start_s == inf
        )
        ran = [place for place, course in enumerate(self._courses) if course.start_s < inf]
        workload = site.workload
        if never:
            rejected = {**workload.rejected, Rejected.NEVER_STARTED: len(never)}
            jobs = tuple(workload.jobs[place] for place in ran)
            workload = replace(workload, jobs=jobs, rejected=rejected)
        places = {place: at for at, place in enumerate(ran)}
        courses = [self._courses[place] for place in ran]
        return Schedule(
            self._rules.name,
            workload,
            [_since(zero_s, course.start_s) for course in courses],
            [_maybe_since(zero_s, course.first_promise_s) for course in courses],
            [_maybe_since(zero_s, course.promise_s) for course in courses],
            tuple(replace(each, place=places[each.place]) for each in self._broken if each.place in places),
            self._next_job + self._n_ended,
            self.took.n_cycles,
            wall_s,
            self.took,
            never,
        )


def _with_standing(site: Site, rules: Rules) -> Rules:
    """The same with the standing reservations, until long after the last submission."""
    first_s = site.jobs[0].submit_s if site.jobs else 0.0
    last_s = max((job.submit_s for job in site.jobs), default=0.0) + _STANDING_S
    standing = rules.standing(first_s, last_s, [each.job for each in site.jobs])
    return replace(rules, reservations=(*rules.reservations, *standing))


def _edges(site: Site, rules: Rules) -> list[tuple[float, int, NodeName | None, bool]]:
    """When nodes fail and come back, and when nodes are kept, or time is dedicated, from or until."""
    found: set[tuple[float, int, NodeName | None, bool]] = set()
    for outage in site.outages:
        found.add((outage.start_s, 1, outage.node, False))
        found.add((outage.end_s, 0, outage.node, True))
    spans = [(each.start_s, each.end_s) for each in rules.reservations]
    spans += [(each.start_s, each.end_s) for each in rules.dedicated]
    found |= {(at_s, 2, None, False) for span in spans for at_s in span}
    first_s = site.jobs[0].submit_s if site.jobs else 0.0
    last_s = max((job.submit_s for job in site.jobs), default=0.0)
    if rules.changes_with_time:
        found |= {(at_s, 2, None, False) for at_s in _changes(rules, first_s, last_s)}
    return sorted(found, key=lambda edge: (edge[0], edge[1], edge[2] or ""))


def _changes(rules: Rules, first_s: float, last_s: float) -> Iterator[float]:
    """The minutes at which other settings come into force, up to a day after the last submission."""
    at_s = first_s - first_s % _MINUTE_S
    before = rules.at(at_s)
    while at_s < last_s + 86_400.0:
        at_s += _MINUTE_S
        now = rules.at(at_s)
        if now != before:
            yield at_s
            before = now


def _words(decision: Decision | None) -> str:
    return decision.comment if isinstance(decision, Hold | Reserve) else "nothing was decided about it"


def _since(zero_s: float, at_s: float) -> float:
    since_s = at_s - zero_s
    return int(since_s) if since_s == int(since_s) else since_s


def _maybe_since(zero_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else _since(zero_s, at_s)
