"""What a task scheduler knows of applications, their tasks and the resources that run them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

from yarn_accel.errors import ConfigError

AppId = NewType("AppId", str)
TaskId = NewType("TaskId", str)
ResourceId = NewType("ResourceId", str)


class Form(Enum):
    """How a task computes: an application has its tasks in one form or in both."""

    CPU = "cpu"
    GPU = "gpu"

    # Members are the same objects for ever; the hash of `Enum` costs as much as a whole look-up.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class FormFigures:
    """How long one task takes in one form, alone on a node (HDAS section 1.1, eq 2).

    Attributes:
        read_s: t_d0, the seconds in which it reads its split; 0 for a task that reads nothing.
        compute_s: t_p0, the seconds after that, in which nothing is read. A form that reads all along, as a
            streaming mapper on a CPU does, has 0 here.
    """

    read_s: float
    compute_s: float

    def __post_init__(self) -> None:
        for name, value in (("read_s", self.read_s), ("compute_s", self.compute_s)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name}: expected seconds from 0, found {value!r}")
        if self.alone_s <= 0:
            raise ConfigError("read_s and compute_s are both 0: a task takes time; give one of them")

    @property
    def alone_s(self) -> float:
        """T_base: seconds of one task that nobody disturbs."""
        return self.read_s + self.compute_s


@dataclass(frozen=True, slots=True)
class AppFigures:
    """What is believed of an application's tasks: declared by its owner, or learned.

    Attributes:
        split_bytes: V, what one task reads, above 0.
        forms: the figures of each form; a form that is not measured yet is absent.
        accelerators: kind of accelerator -> figures of the GPU form there, where they differ from `forms`.
    """

    split_bytes: float
    forms: Mapping[Form, FormFigures]
    accelerators: Mapping[str, FormFigures] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.split_bytes < math.inf:
            raise ConfigError(f"split_bytes: expected bytes above 0, found {self.split_bytes!r}")

    def of(self, form: Form, accelerator: str = "") -> FormFigures | None:
        """The figures of a form on a node with this kind of accelerator, None if not known."""
        if form is Form.GPU and accelerator in self.accelerators:
            return self.accelerators[accelerator]
        return self.forms.get(form)

    def request_bytes_per_s(self, figures: FormFigures) -> float:
        """The rate of a task that reads its split undisturbed (V / t_d0); 0 if it reads nothing."""
        return self.split_bytes / figures.read_s if figures.read_s else 0.0


@dataclass(frozen=True, slots=True)
class FormDemand:
    """What one task of a form occupies while it runs; a task on a GPU takes a core, too.

    Attributes:
        is_served: its GPUs are those of a pipeline server, not of the worker.
    """

    cores: int = 1
    gpus: int = 0
    memory_bytes: int = 0
    is_served: bool = False


@dataclass(frozen=True, slots=True)
class AppSpec:
    """An application as it was submitted.

    Attributes:
        app: unique while the service runs.
        name: under which figures are learned; the same for each run of the same program.
        priority: higher ones are served first, whatever the policy.
        n_tasks: how many tasks it has in all, ready or not.
        demands: the forms it can run in, and what a task of each occupies.
        declared: the owner's figures; None where they are to be learned.
    """

    app: AppId
    name: str
    priority: int
    n_tasks: int
    demands: Mapping[Form, FormDemand]
    declared: AppFigures | None = None

    def __post_init__(self) -> None:
        place = f"application {self.app}"
        if not self.demands:
            raise ConfigError(f"{place}: has no form; give cpu, gpu or both")
        for form, demand in self.demands.items():
            if demand.cores < 1 or demand.memory_bytes < 0:
                raise ConfigError(f"{place}, {form.value}: a task takes a core or more, found {demand}")
            if (demand.gpus > 0) is not (form is Form.GPU):
                raise ConfigError(
                    f"{place}, {form.value}: only tasks of the form gpu take GPUs, found {demand.gpus}"
                )


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """A place that runs tasks: the worker of one node.

    Attributes:
        bandwidth_bytes_per_s: B, what the node's disk, or its link to the storage, gives its readers.
        gpus: of the worker itself.
        accelerator: the kind of its GPUs, for `AppFigures.accelerators`.
        server_gpus: GPUs of a pipeline server that its tasks may use.
    """

    resource: ResourceId
    node: str
    cores: int
    gpus: int
    memory_bytes: int
    bandwidth_bytes_per_s: float
    accelerator: str = ""
    server_gpus: int = 0

    @property
    def all_gpus(self) -> int:
        """Its own and the server's."""
        return self.gpus + self.server_gpus

    def fits(self, demand: FormDemand) -> bool:
        """Whether a task can start here when nothing else runs."""
        return (
            demand.cores <= self.cores
            and demand.gpus <= (self.server_gpus if demand.is_served else self.gpus)
            and demand.memory_bytes <= self.memory_bytes
        )

    def __post_init__(self) -> None:
        place = f"resource {self.resource}"
        if min(self.cores, self.gpus, self.server_gpus, self.memory_bytes) < 0:
            raise ConfigError(f"{place}: cores, gpus and memory_bytes are from 0, found {self}")
        bandwidth = self.bandwidth_bytes_per_s
        if not 0 < bandwidth < math.inf:
            raise ConfigError(
                f"{place}: bandwidth_bytes_per_s: expected a number above 0, found {bandwidth!r}"
            )
