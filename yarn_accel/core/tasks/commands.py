"""The orders of a policy, each with its reason. A service journals an order before it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

    Attributes:
        why: its reason, or what writes it: few of many orders are ever read.
    """

    task: TaskId
    resource: ResourceId
    form: Form
    position: int
    why: str | Callable[[], str]

    @property
    def reason(self) -> str:
        """One line for its owner."""
        return self.why if isinstance(self.why, str) else self.why()


@dataclass(frozen=True, slots=True)
class TakeBackTask:
    """Take a queued task back, unless its worker has started it."""

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
#: Those that give a task to a worker; a union would be made anew for each `isinstance`.
PLACING = (StartTask, EnqueueTask)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An application that could have had a place, for `explain`: its keys, the first decides first."""

    app: AppId
    keys: tuple[tuple[str, float], ...]
    predicted_delay: float | None
    excluded: str = ""
