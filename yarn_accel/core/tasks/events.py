"""What is said of attempts and workers: how they end, what they took, what a node reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.errors import ConfigError


class EndReason(Enum):
    """Why a task is no longer where it was."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    TAKEN_BACK = "taken-back"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskMeasurement:
    """What an attempt really took.

    Attributes:
        read_bytes: read from the input; the split's size where all of it was.
        read_s: seconds of the read phase; for a form that reads all along, of the whole task.
        compute_s: seconds after the read phase.
        alone: nobody else read on that node while it did.
    """

    read_bytes: float
    read_s: float
    compute_s: float
    alone: bool

    def __post_init__(self) -> None:
        if 0 <= self.read_bytes < math.inf and 0 <= self.read_s < math.inf and 0 <= self.compute_s < math.inf:
            return
        for name in ("read_bytes", "read_s", "compute_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"measured {name}: expected a number from 0, found {value!r}")


@dataclass(frozen=True, slots=True)
class IoSampled:
    """A node measured its I/O: the heartbeat of HDAS section 2.1.2.

    Attributes:
        io_bytes_per_s: TotalIO, of everybody on the node, other tenants too.
        readers: #IOtask.
        sampled_s: when. What was ordered after this event came, or began after `sampled_s`, is accounted for
            by its figures until the next sample; so is what has ended since.
    """

    resource: ResourceId
    io_bytes_per_s: float
    readers: int
    sampled_s: float
    now_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.io_bytes_per_s < math.inf or self.readers < 0:
            raise ConfigError(f"I/O of {self.resource}: expected numbers from 0, found {self}")
