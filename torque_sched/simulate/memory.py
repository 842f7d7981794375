"""All that the daemon remembers from cycle to cycle, held in memory alone.

It is made of the very parts that the daemon's history is made of: promises, usage, predictors. Only their
file is missing, so a simulation writes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torque_sched.decide.context import Context, Remembered, Window
from torque_sched.decide.fair_share import DEFAULT_GPU_WEIGHT
from torque_sched.decide.settings import Settings
from torque_sched.learn.figures import amounts_of
from torque_sched.learn.predictions import LearnedPredictions
from torque_sched.learn.promises import Change, PromiseBook
from torque_sched.learn.rows import EndedJob, said_text
from torque_sched.learn.usage import ACCOUNT, GROUP, USER, Usage
from torque_sched.model.cluster import Job, JobId
from torque_sched.model.decisions import Decision, Start
from torque_sched.model.snapshot import Reservation, Snapshot

_FORGET_EVERY = 200


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of one run, and of what the scheduler remembers.

    Attributes:
        name: a column's heading.
        at: the settings in force at a time.
        changes_with_time: whether `at` gives others at another time of day.
        reservations: nodes kept for somebody.
        dedicated: dedicated time.
        predictors: names of the predictors of what a job uses.
        min_similar: memory is bounded only where so many jobs of the same script ended.
        half_life_s: after which fair-share usage counts half.
        gpu_weight: so many processor seconds a GPU second counts in it.
        document: what a reader of the results wants to know of them.
        standing: gives the standing reservations between two times, for the users of these jobs' groups.
        planned_s: so far ahead reservations are looked at.
    """

    name: str
    at: Callable[[float], Settings]
    changes_with_time: bool = False
    reservations: tuple[Reservation, ...] = ()
    dedicated: tuple[Window, ...] = ()
    predictors: tuple[str, ...] = ("chain", "seed")
    min_similar: int = 3
    half_life_s: float = 86_400.0
    gpu_weight: float = DEFAULT_GPU_WEIGHT
    document: Mapping[str, object] = field(default_factory=dict)
    standing: Callable[[float, float, Iterable[Job]], tuple[Reservation, ...]] = lambda *_: ()
    planned_s: float = 15 * 86_400.0


class Memory:
    """What the scheduler knows beside the snapshot."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._learned = LearnedPredictions(rules.predictors, rules.min_similar)
        self._used = Usage(rules.half_life_s, rules.gpu_weight)
        self._promises = PromiseBook()
        self._said: dict[JobId, str] = {}
        self._remembered = Remembered()
        self._n_cycles = 0

    def context(self, snapshot: Snapshot, ended: Iterable[Job]) -> Context:
        """Everything beside the snapshot that a decision may look at; learns from what ended."""
        self._remembered.see(snapshot)
        rows = [row for job in ended if (row := self._row(job)) is not None]
        if rows:
            self._learned.learn(rows)
            self._used.add(rows, snapshot.now_s)
        self._promises.observe(snapshot, {})
        self._promises.saved()
        self._n_cycles += 1
        if self._n_cycles % _FORGET_EVERY == 0:
            self._learned.forget_all_but(job.id for job in snapshot.jobs)
        usage = functools.cache(lambda: self._usage(snapshot))
        return Context(
            predictions=self._learned,
            usage=_UsageWhenAsked(usage, USER),
            group_usage=_UsageWhenAsked(usage, GROUP),
            account_usage=_UsageWhenAsked(usage, ACCOUNT),
            gpu_weight=self._rules.gpu_weight,
            reservations=self._reservations(snapshot.now_s),
            dedicated=self._rules.dedicated,
            last_node=self._remembered.last_node,
            kept=self._remembered.kept,
            gpu_work_s=self._remembered.gpu_work_s,
            promises=self._promises.carried(snapshot),
        )

    def _reservations(self, now_s: float) -> tuple[Reservation, ...]:
        until_s = now_s + self._rules.planned_s
        return tuple(
            each for each in self._rules.reservations if each.end_s > now_s and each.start_s < until_s
        )

    def _usage(self, snapshot: Snapshot) -> dict[str, dict[str, float]]:
        self._used.see(snapshot)
        return self._used.by_kind(snapshot.now_s)

    def decided(self, snapshot: Snapshot, decisions: Iterable[Decision]) -> list[tuple[JobId, Change]]:
        """Keep what is promised and what nodes are kept for; returns what changed."""
        self._remembered.decided(decisions)
        return self._promises.decided(snapshot, decisions)

    def started(self, start: Start, job: Job) -> None:
        """The job runs; what is expected of it is checked when it ends."""
        self._remembered.started(start)
        self._said[job.id] = said_text(self._learned.said(job))

    def _row(self, job: Job) -> EndedJob | None:
        used, predicted = amounts_of(job), self._said.pop(job.id, "")
        return None if used is None else EndedJob.of(job, used, "accounting", predicted)


class _UsageWhenAsked(Mapping[str, float]):
    """Usage of one kind, summed up when the first one asks: most orders never do."""

    def __init__(self, by_kind: Callable[[], Mapping[str, Mapping[str, float]]], kind: str) -> None:
        self._by_kind, self._kind = by_kind, kind

    def _found(self) -> Mapping[str, float]:
        return self._by_kind()[self._kind]

    def __getitem__(self, name: str) -> float:
        return self._found()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())
