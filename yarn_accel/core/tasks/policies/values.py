"""What the parts of a policy hand each other while a resource is filled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from yarn_accel.core.tasks.records import AppRecord, ResourceRecord
from yarn_accel.core.tasks.values import Form

#: In the order in which Algorithm 1 serves them.
FORMS = (Form.GPU, Form.CPU)


@dataclass(slots=True)
class OpenPlace:
    """A resource while it is filled: its TotalIO and #IOtask grow with each task placed."""

    resource: ResourceRecord
    now_s: float
    io: float
    readers: int

    @property
    def accelerator(self) -> str:
        """The kind of its GPUs."""
        return self.resource.spec.accelerator


class Key(NamedTuple):
    """What candidates are compared by.

    Attributes:
        label: what it is, for the reason of a start.
        value: of an application, for a place.
        is_most: the largest value wins, not the least.
        has_tolerance: values that differ by `tie_tolerance` are equal.
    """

    label: str
    value: Callable[[AppRecord, OpenPlace], float]
    is_most: bool = False
    has_tolerance: bool = False


class TaskChoice(NamedTuple):
    """The application whose next task gets a place; `is_probe` where it is to be measured."""

    app: AppRecord
    form: Form
    reason: str
    is_probe: bool = False
