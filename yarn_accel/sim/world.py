"""WORLD.yaml: nodes, disks, applications, policy and options of a simulation; see docs/hdas-simulate.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from yarn_accel.adapters.settings_file import complaints, read_settings
from yarn_accel.core.tasks.values import (
    AppFigures,
    AppId,
    AppSpec,
    Form,
    FormDemand,
    FormFigures,
    ResourceId,
    ResourceSpec,
)
from yarn_accel.core.units import MAX_BYTES, MAX_SECONDS
from yarn_accel.errors import ConfigError

_MB = 1e6
_GB = 1e9
_MOST_TASKS = 1_000_000
_MOST_NODES = 10_000
_FORBID = ConfigDict(frozen=True, extra="forbid")
_LEAST_MB = 1e-6
_LEAST_TIME_S = 1e-6
_MOST_MB = MAX_BYTES / _MB
#: Shorter steps, and smaller pieces, make more events than a simulation gets through.
_LEAST_STEP_S = 1e-3
_MOST_PIECES = 1_000_000
_RATE_TOLERANCE = 0.1
_Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
_Rate = Annotated[float, Field(ge=_LEAST_MB, le=1e9)]
_Megabytes = Annotated[float, Field(ge=_LEAST_MB, le=_MOST_MB)]
_Gigabytes = Annotated[float, Field(ge=0, le=1e9)]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class DiskEntry(BaseModel):
    """A kind of disk, or of link to the storage; each node has one of its own."""

    model_config = _FORBID

    bandwidth_mb_s: _Rate = Field(description="B, what one reader gets at most; MB are 10^6 bytes")
    gamma: float = Field(
        0.0, ge=0, le=1000, description="capacity with n readers: bandwidth / (1 + gamma * (n - 1))"
    )
    declared_mb_s: _Rate | None = Field(
        None, description="the B that the policy believes in; default: bandwidth_mb_s"
    )


class NodeEntry(BaseModel):
    """Equal nodes."""

    model_config = _FORBID

    name: _Name = Field("node", description="nodes are called NAME-1, NAME-2, ...")
    count: int = Field(1, ge=1, le=_MOST_NODES, description="how many")
    cores: _Count = Field(ge=1, description="cores; each task takes at least one")
    gpus: _Count = Field(0, description="GPUs")
    memory_gb: _Gigabytes = Field(1e6, gt=0, description="memory for tasks; default: more than they need")
    accelerator: str = Field("", description="kind of the GPUs, for `accelerators` of applications")
    disk: str = Field("disk", description="which of `disks`")


class Times(BaseModel):
    """Seconds of one task that nobody disturbs."""

    model_config = _FORBID

    read_s: _Seconds = Field(0.0, description="t_d0: it reads its split, at split_mb / read_s")
    compute_s: _Seconds = Field(0.0, description="t_p0: after that; 0 for a form that reads all along")

    @model_validator(mode="after")
    def _takes_time(self) -> Times:
        if self.read_s + self.compute_s <= 0:
            raise ValueError("read_s and compute_s are both 0: a task takes time; give one of them")
        if self.read_s + self.compute_s < _LEAST_TIME_S:
            raise ValueError(f"read_s and compute_s are less than {_LEAST_TIME_S:g} s together; give more")
        return self

    @property
    def figures(self) -> FormFigures:
        """The same as a policy knows it."""
        return FormFigures(self.read_s, self.compute_s)


class CpuForm(Times):
    """The CPU form of an application's tasks."""

    cores: _Count = Field(1, ge=1, description="cores that a task takes")
    memory_gb: _Gigabytes = Field(0.0, description="memory that a task takes")

    @property
    def demand(self) -> FormDemand:
        """What a task occupies."""
        return FormDemand(self.cores, 0, round(self.memory_gb * _GB))


class GpuForm(CpuForm):
    """The GPU form of an application's tasks."""

    gpus: _Count = Field(1, ge=1, description="GPUs that a task takes, beside its cores")

    @property
    def demand(self) -> FormDemand:
        """What a task occupies."""
        return FormDemand(self.cores, self.gpus, round(self.memory_gb * _GB))


class AppEntry(BaseModel):
    """One application: equal tasks, in one form or in both."""

    model_config = _FORBID

    name: _Name
    tasks: int = Field(ge=1, le=_MOST_TASKS, description="how many")
    start_s: _Seconds | None = Field(
        None, description="when it is submitted; default: apps_start_every_s after the one before"
    )
    priority: int = Field(0, ge=-(10**6), le=10**6, description="higher ones are served first")
    split_mb: _Megabytes = Field(description="V, what one task reads")
    cpu: CpuForm | None = Field(None, description="its CPU form")
    gpu: GpuForm | None = Field(None, description="its GPU form")
    accelerators: dict[str, Times] = Field(
        default_factory=dict, description="kind of accelerator -> times of the GPU form there"
    )
    is_learned: bool = Field(False, description="the policy gets no figures and learns them from the tasks")

    @model_validator(mode="after")
    def _has_a_form(self) -> AppEntry:
        if self.cpu is None and self.gpu is None:
            raise ValueError(f"application {self.name} has no form; give `cpu`, `gpu` or both")
        if self.accelerators and self.gpu is None:
            raise ValueError(f"application {self.name} has `accelerators` and no GPU form; give `gpu`, too")
        return self

    @property
    def forms(self) -> Mapping[Form, CpuForm]:
        """The forms it has."""
        both = {Form.CPU: self.cpu, Form.GPU: self.gpu}
        return {form: each for form, each in both.items() if each is not None}

    @property
    def figures(self) -> AppFigures:
        """What is true of its tasks."""
        return AppFigures(
            self.split_mb * _MB,
            {form: each.figures for form, each in self.forms.items()},
            {kind: each.figures for kind, each in self.accelerators.items()},
        )

    @property
    def spec(self) -> AppSpec:
        """It as it is submitted."""
        demands = {form: each.demand for form, each in self.forms.items()}
        declared = None if self.is_learned else self.figures
        return AppSpec(AppId(self.name), self.name, self.priority, self.tasks, demands, declared)


class Options(BaseModel):
    """How the simulated service behaves."""

    model_config = _FORBID

    apps_start_every_s: _Seconds = Field(1.0, description="between applications without a start_s")
    overhead_s: _Seconds = Field(0.0, description="per task, before it reads; its place is taken meanwhile")
    heartbeat_s: _Seconds = Field(
        0.0, description="ends and samples are reported, and decisions taken, so often; 0: at once"
    )
    samples: Literal["requested", "given"] = Field(
        "requested", description="TotalIO is what a node's readers could use, or what its disk gives them"
    )
    sample_interval_s: _Seconds = Field(
        0.0, description="TotalIO is the mean of so long, of whose middle it is known; 0: always as it is"
    )
    read_piece_mb: float = Field(
        0.0,
        ge=0,
        le=_MOST_MB,
        description="splits are read in pieces of so much, each as fast as the disk gives it; 0: evenly",
    )

    @model_validator(mode="after")
    def _steps_are_not_too_short(self) -> Options:
        for key in ("heartbeat_s", "sample_interval_s"):
            if 0 < getattr(self, key) < _LEAST_STEP_S:
                raise ValueError(
                    f"{key}: must be 0 or at least {_LEAST_STEP_S:g}, not {getattr(self, key):g}"
                )
        return self


class World(BaseModel):
    """One simulation."""

    model_config = _FORBID

    disks: dict[str, DiskEntry] = Field(description="name -> kind of disk")
    nodes: tuple[NodeEntry, ...] = Field(description="kinds of nodes")
    apps: tuple[AppEntry, ...] = Field(description="applications, in the order in which they start")
    policy: str = Field("hdas", description="who decides")
    settings: dict[str, Any] = Field(default_factory=dict, description="the policy's own options")
    options: Options = Field(default_factory=lambda: Options.model_validate({}))

    @model_validator(mode="after")
    def _fits_together(self) -> World:
        for what, names in (("nodes", [n.name for n in self.nodes]), ("apps", [a.name for a in self.apps])):
            if not names:
                raise ValueError(f"{what}: there are none; give at least one")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what}: the name {twice[0]} is given twice; names tell them apart")
        for node in self.nodes:
            if node.disk not in self.disks:
                known = ", ".join(sorted(self.disks)) or "none"
                raise ValueError(f"nodes: {node.name} has disk {node.disk!r}; known disks: {known}")
        if sum(app.tasks for app in self.apps) > _MOST_TASKS:
            raise ValueError(f"apps: more than {_MOST_TASKS} tasks in all; give fewer")
        if sum(node.count for node in self.nodes) > _MOST_NODES:
            raise ValueError(f"nodes: more than {_MOST_NODES} in all; give fewer")
        self._check_reads()
        for app in self.apps:
            if not any(self._serves(node, each.demand) for node in self.nodes for each in app.forms.values()):
                raise ValueError(_nobody_serves(app, self.nodes))
        return self

    def _check_reads(self) -> None:
        """A task alone reads no faster than the fastest disk, and in no more pieces than can be simulated."""
        fastest_mb_s = max(self.disks[node.disk].bandwidth_mb_s for node in self.nodes)
        piece_mb = self.options.read_piece_mb
        for app in self.apps:
            if piece_mb and app.split_mb / piece_mb > _MOST_PIECES:
                raise ValueError(
                    f"options.read_piece_mb: {app.name} reads {app.split_mb:g} MB in more than "
                    f"{_MOST_PIECES} pieces of {piece_mb:g} MB; give at least "
                    f"{app.split_mb / _MOST_PIECES:g}, or 0"
                )
            for form, times in (*app.forms.items(), *app.accelerators.items()):
                least_s = app.split_mb / fastest_mb_s
                # Rates are often given in few digits.
                if 0 < times.read_s < least_s * (1 - _RATE_TOLERANCE):
                    place = form.value if isinstance(form, Form) else f"accelerators.{form}"
                    raise ValueError(
                        f"apps: {app.name}: {place}.read_s: {app.split_mb:g} MB in {times.read_s:g} s is "
                        f"faster than every disk of the nodes, {fastest_mb_s:g} MB/s at most; "
                        f"give at least {least_s:.6g}"
                    )

    @staticmethod
    def _serves(node: NodeEntry, demand: FormDemand) -> bool:
        return (
            demand.cores <= node.cores
            and demand.gpus <= node.gpus
            and demand.memory_bytes <= node.memory_gb * _GB
        )

    def resources(self) -> Iterator[tuple[ResourceSpec, DiskEntry]]:
        """Each node as a policy knows it, and its disk."""
        for kind in self.nodes:
            disk = self.disks[kind.disk]
            declared_mb_s = disk.bandwidth_mb_s if disk.declared_mb_s is None else disk.declared_mb_s
            for number in range(1, kind.count + 1):
                name = f"{kind.name}-{number}"
                spec = ResourceSpec(
                    ResourceId(name),
                    name,
                    kind.cores,
                    kind.gpus,
                    round(kind.memory_gb * _GB),
                    declared_mb_s * _MB,
                    kind.accelerator,
                )
                yield spec, disk

    def starts_s(self) -> tuple[float, ...]:
        """When each application is submitted."""
        starts: list[float] = []
        for app in self.apps:
            after_s = starts[-1] + self.options.apps_start_every_s if starts else 0.0
            starts.append(after_s if app.start_s is None else app.start_s)
        return tuple(starts)


def _nobody_serves(app: AppEntry, nodes: Sequence[NodeEntry]) -> str:
    wanted = " or ".join(
        f"{each.demand.cores} cores, {each.demand.gpus} GPUs and {each.memory_gb:g} GB of memory"
        for each in app.forms.values()
    )
    there = "; ".join(f"{n.name}: {n.cores}, {n.gpus} and {n.memory_gb:g}" for n in nodes)
    return (
        f"apps: no node can serve {app.name}: a task needs {wanted} of one node ({there}); "
        "give it a form that fits, or larger nodes"
    )


def world_of(values: Mapping[str, Any], place: str) -> World:
    """A world from what a file says.

    Raises:
        ConfigError: names the place and what is wrong there, and for an unknown key the known ones.
    """
    try:
        return World.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{place}: {complaints(error, World, values)}") from None


def load_world(path: Path) -> World:
    """Read WORLD.yaml.

    Raises:
        ConfigError: as `world_of`, or it cannot be read.
    """
    return world_of(read_settings(path), str(path))
