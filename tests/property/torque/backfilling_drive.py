"""A driver for backfilling policies over made-up workloads, and tables that know no short cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from hypothesis import strategies as st

from torque_sched.policies.backfilling.count_table import CountSpot, CountTable
from torque_sched.policies.backfilling.events import (
    BatchJob,
    Cancelled,
    Ended,
    Held,
    Outcome,
    Released,
    ReservationDropped,
    ReservationMade,
    Reshaped,
    Submitted,
)
from torque_sched.policies.backfilling.scheduler import Backfilling

CAPACITY = 8

JOBS = st.lists(
    st.tuples(
        st.integers(0, 6),  # seconds since the job before
        st.integers(1, CAPACITY),  # processors
        st.integers(1, 20),  # limit
        st.integers(1, 24),  # run time; past the limit it overruns
        st.sampled_from("abc"),  # user
    ),
    min_size=1,
    max_size=25,
)
ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 90),
        st.sampled_from(["cancel", "hold", "release", "shrink", "grow", "reserve", "force", "drop"]),
        st.integers(0, 7),
    ),
    max_size=8,
)


@dataclass
class Run:
    """What came of a drive."""

    outcomes: list[tuple[float, Outcome[Any]]] = field(default_factory=list)
    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    reserved: dict[str, tuple[int, float, float]] = field(default_factory=dict)


class PlainTable(CountTable):
    """Tries everybody, by really taking out and putting back."""

    def kinds(self, need: int) -> int:
        return -1

    def startable(self) -> int:
        return -1

    def startable_past(self) -> tuple[float, int]:
        return math.inf, -1

    def opened(self, spot: CountSpot, moved_to: CountSpot | None = None) -> int:
        return -1

    def earlier(self, need: int, length_s: float, spot: CountSpot, not_before_s: float) -> CountSpot | None:
        self.free.give_back(*spot)
        start_s = self.free.earliest(need, length_s, not_before_s)
        self.free.take(*spot)
        return CountSpot(need, start_s, start_s + length_s) if start_s < spot.start_s else None


class Forgetful:
    """Lives on only through `state`: a fresh object for every instant."""

    def __init__(self, make: Callable[[], Backfilling[int, CountSpot]]) -> None:
        self._make, self._state = make, make().state()
        self._capacity = CAPACITY
        self.waiting: tuple[Any, ...] = ()

    def apply(self, events: list[Any], now_s: float, may_start: Any = None) -> Outcome[CountSpot]:
        fresh = self._make()
        fresh.table.reshape(self._capacity)
        for event in events:
            if type(event) is Reshaped:
                self._capacity = event.change
        fresh.restore(self._state)
        outcome = fresh.apply(events, now_s, may_start)
        self._state = fresh.state()
        self.waiting = fresh.waiting
        return outcome


def drive(
    policy: Any, jobs: list[Any], actions: Sequence[Any] = (), *, refuses: bool = False, cycle_s: int = 1
) -> Run:
    """Run the jobs to their ends.

    Args:
        policy: fresh.
        jobs: see `JOBS`.
        actions: see `ACTIONS`.
        refuses: whether now and then a job may not start at its time.
        cycle_s: the policy is asked at multiples of this only.
    """
    run = Run()
    todo = sorted(
        [(at, 1, i, what, which) for i, (at, what, which) in enumerate(actions)]
        + [(100, 1, 98, "grow", 0), (100, 1, 99, "release", 0), (100, 1, 99, "drop", 0)] * bool(actions)
    )
    at = 0
    batch = []
    for key, (gap, n, limit, _, user) in enumerate(jobs):
        at += gap
        batch.append(BatchJob(key, n, float(limit), float(at), user, float(n % 3), n))
    ends: list[tuple[float, int]] = []
    held: set[Any] = set()
    i, wake = 0, math.inf
    may = (lambda key: (key + len(run.outcomes)) % 4 != 0 or len(run.outcomes) > 60) if refuses else None
    while True:
        next_s = min(
            wake,
            batch[i].submit_s if i < len(batch) else math.inf,
            ends[0][0] if ends else math.inf,
            todo[0][0] if todo else math.inf,
        )
        if next_s == math.inf:
            return run
        next_s = math.ceil(next_s / cycle_s) * cycle_s
        events: list[Any] = []
        while ends and ends[0][0] <= next_s:
            events.append(Ended(heappop(ends)[1]))
        while todo and todo[0][0] <= next_s:
            events.extend(_act(todo.pop(0), next_s, policy, held, run, events))
        while i < len(batch) and batch[i].submit_s <= next_s:
            events.append(Submitted(batch[i]))
            i += 1
        outcome = policy.apply(events, next_s, may)
        run.outcomes.append((next_s, outcome))
        assert outcome.wake_s > next_s
        wake = outcome.wake_s
        if refuses and wake == math.inf and policy.waiting and not ends:
            wake = next_s + 1
        for name in outcome.refused:
            run.reserved.pop(name, None)
        for started in outcome.starts:
            key = started.key
            assert key not in run.starts
            assert next_s >= batch[key].submit_s
            run.starts[key] = next_s
            run.ends[key] = next_s + jobs[key][3]
            heappush(ends, (run.ends[key], key))


def _act(action: Any, now_s: float, policy: Any, held: set[Any], run: Run, events: list[Any]) -> list[Any]:
    _, _, number, what, which = action
    gone = {event.key for event in events if type(event) is Cancelled}
    waiting = [key for key in policy.waiting if key not in gone]
    if what == "cancel" and waiting:
        key = waiting[which % len(waiting)]
        held.discard(key)
        return [Cancelled(key)]
    if what == "hold" and set(waiting) - held:
        key = sorted(set(waiting) - held)[which % len(set(waiting) - held)]
        held.add(key)
        return [Held(key)]
    if what == "release":
        released = sorted(held)
        held.clear()
        return [Released(key) for key in released]
    if what in ("shrink", "grow"):
        return [Reshaped(max(CAPACITY - which, 2) if what == "shrink" else CAPACITY)]
    if what in ("reserve", "force"):
        name, need, start_s = f"r{number}", which % CAPACITY + 1, now_s + which
        run.reserved[name] = (need, start_s, start_s + 5)
        return [ReservationMade(name, need, start_s, start_s + 5, what == "force")]
    if what == "drop":
        dropped = [name for name, (_, start_s, end_s) in run.reserved.items() if end_s > max(now_s, start_s)]
        known = [n for n in dropped if not any(getattr(e, "name", None) == n for e in events)]
        for name in known[:1]:
            _, start_s, _ = run.reserved[name]
            run.reserved[name] = (run.reserved[name][0], start_s, max(now_s, start_s))
        return [ReservationDropped(name) for name in known[:1]]
    return []


def used_at(run: Run, jobs: list[Any], at_s: float) -> int:
    """Processors of jobs that run then."""
    return sum(jobs[key][1] for key, start_s in run.starts.items() if start_s <= at_s < run.ends[key])
