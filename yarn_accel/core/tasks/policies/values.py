"""What the parts of a policy hand each other while a resource is filled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from yarn_accel.core.tasks.records import ServedApp, TaskWorker
from yarn_accel.core.tasks.values import Form

#: In the order in which Algorithm 1 serves them.
FORMS = (Form.GPU, Form.CPU)


@dataclass(slots=True)
class OpenPlace:
    """A resource while it is filled: its TotalIO and #IOtask grow with each task placed.

    Attributes:
        accelerator: the kind of its GPUs.
        node_kind: kind of accelerator, GPUs and bandwidth that count for it; None: nobody asked yet.
    """

    resource: TaskWorker
    now_s: float
    io: float
    readers: int
    node_kind: tuple[str, int, float] | None = None
    accelerator: str = field(init=False)
    bandwidth_bytes_per_s: float = field(init=False)

    def __post_init__(self) -> None:
        spec = self.resource.spec
        self.accelerator, self.bandwidth_bytes_per_s = spec.accelerator, spec.bandwidth_bytes_per_s


class Key(NamedTuple):
    """What candidates are compared by.

    Attributes:
        label: what it is, for the reason of a start.
        value: of an application, for a place.
        is_most: the largest value wins, not the least.
        has_tolerance: values that differ by `tie_tolerance` are equal.
    """

    label: str
    value: Callable[[ServedApp, OpenPlace], float]
    is_most: bool = False
    has_tolerance: bool = False


class TaskChoice(NamedTuple):
    """The application whose next task gets a place; `is_probe` where it is to be measured."""

    app: ServedApp
    form: Form
    reason: str
    is_probe: bool = False
