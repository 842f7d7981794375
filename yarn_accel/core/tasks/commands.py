"""What a policy orders from a task service, and the protocol of policies.

A service journals a command before it takes effect. It may be unable to carry one out, since the world moved
on: then an event says what is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from yarn_accel.core.dags.model import DagFacts
from yarn_accel.core.tasks.events import TaskEvent
from yarn_accel.core.tasks.values import AppId, Form, ResourceId, TaskId


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task now.

    Attributes:
        reason: one line for its owner: the key that decided, and its value.
        predicted_s: what it is expected to take there; None: nothing is known of it.
    """

    task: TaskId
    resource: ResourceId
    form: Form
    reason: str
    predicted_s: float | None = None


@dataclass(frozen=True, slots=True)
class EnqueueTask:
    """Put a task into a worker's queue at `position` (0 is next).

    Whenever something ends there, the first of the queue that fits starts, without a further order.
    """

    task: TaskId
    resource: ResourceId
    form: Form
    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class TakeBackTask:
    """Take a queued task back. `TaskEnded` (taken-back) confirms; `TaskStarted` says it was too late."""

    task: TaskId
    resource: ResourceId
    reason: str


@dataclass(frozen=True, slots=True)
class EndTask:
    """End a running attempt; what it made is dropped."""

    task: TaskId
    resource: ResourceId
    reason: str


TaskCommand = StartTask | EnqueueTask | TakeBackTask | EndTask


@dataclass(frozen=True, slots=True)
class Candidate:
    """An application that could have had a place, for `explain`: its keys, the first decides first."""

    app: AppId
    keys: tuple[tuple[str, float], ...]
    predicted_delay: float | None
    excluded: str = ""


class TaskPolicy(Protocol):
    """Decides which task runs where and in which form. Live and simulated services drive the same object."""

    def apply(self, event: TaskEvent) -> tuple[TaskCommand, ...]:
        """Take one fact in; commands come from `Decide` alone, in the order to carry them out."""

    def candidates(self, resource: ResourceId, form: Form) -> tuple[Candidate, ...]:
        """What would be considered for a place in this form now, best first, each with its keys."""

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""


@runtime_checkable
class PlanningPolicy(TaskPolicy, Protocol):
    """A policy that plans DAGs, and takes nothing else."""

    def facts(self, app: AppId) -> DagFacts | None:
        """What it knows of a DAG that has not ended; None: there was no machine yet to plan it for."""

    def own_makespan_s(self, app: AppId) -> float | None:
        """M_own of a DAG whose last task has just ended, with what is known by now; None: nobody knows."""

    def slowdowns(self) -> Mapping[str, float]:
        """SD of each DAG that is planned, now."""

    def explain(self, task: TaskId) -> str:
        """Where a task that waits is planned, and why there; empty: nowhere."""
