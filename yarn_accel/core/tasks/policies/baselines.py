"""The policies that the paper compares HDAS with.

`fifo`: applications in the order of their starts; each task takes a GPU where one is free, else a core.
`hadoop`: cores alone, in the same order; what the paper's speed-ups are relative to.
`model`: GPUs by the static affinity of equation (4), cores by dominant resource fairness. GPUs go to the
waiting application of the highest affinity, cores to the others; the last that waits uses both.
"""

from __future__ import annotations

import math

from yarn_accel.core.tasks.contention import affinity
from yarn_accel.core.tasks.policies.next_tasks import QueueingPolicy
from yarn_accel.core.tasks.policies.values import Key, OpenPlace, TaskChoice
from yarn_accel.core.tasks.records import PriorityLevel, ServedApp
from yarn_accel.core.tasks.values import Form

_NodeKind = tuple[str, int, float]


class FifoPolicy(QueueingPolicy):
    """First come, first served, within each priority."""

    name = "fifo"

    def keys(self, form: Form) -> tuple[Key, ...]:
        """The start of the application alone."""
        return (Key("earliest start", lambda app, place: app.start_s),)

    def choose(self, place: OpenPlace) -> TaskChoice | None:
        """The first application that can use anything here, on a GPU if it can."""
        resource = place.resource
        for level in self.table.levels:
            for app in level.in_order():
                if app.gpu_demand is not None and resource.fits(app.gpu_demand):
                    return TaskChoice(app, Form.GPU, "first in order, a GPU is free")
                if app.cpu_demand is not None and resource.fits(app.cpu_demand):
                    return TaskChoice(app, Form.CPU, "first in order, a core is free")
        return None


class HadoopPolicy(QueueingPolicy):
    """Hadoop without accelerators: first come, first served on cores."""

    name = "hadoop"
    uses_gpus = False

    def keys(self, form: Form) -> tuple[Key, ...]:
        """The start of the application alone."""
        return (Key("earliest start", lambda app, place: app.start_s),)

    def allowed(
        self, apps: list[ServedApp], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[ServedApp]:
        """All on cores, none on GPUs."""
        return apps if form is Form.CPU else []

    def withheld(self, app: ServedApp, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """That GPUs are not used."""
        return "Hadoop alone uses no GPU"


class ModelPolicy(QueueingPolicy):
    """The model-based policy that the paper compares with (its section 1.2)."""

    name = "model"
    needs_figures = True

    def keys(self, form: Form) -> tuple[Key, ...]:
        """Affinity for GPUs, the dominant share for cores; then the start."""
        start = Key("earliest start", lambda app, place: app.start_s)
        if form is Form.GPU:
            return (Key("highest affinity", self._affinity, is_most=True, has_tolerance=True), start)
        return (Key("least dominant share", self.dominant_share, has_tolerance=True), start)

    def allowed(
        self, apps: list[ServedApp], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[ServedApp]:
        """On cores all but the one that the GPUs are for, unless it is the only one that can use them."""
        if form is Form.GPU:
            return apps
        favourite = self._favourite(level, place)
        return [app for app in apps if app is not favourite] or apps

    def withheld(self, app: ServedApp, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """That it has the GPUs."""
        return "has the highest affinity: GPUs are for it, cores for the others"

    def dominant_share(self, app: ServedApp, place: OpenPlace) -> float:
        """The largest of its shares of cores, GPUs and memory; what nobody demands is skipped."""
        totals = self.table.totals
        used = (("cores", app.cores), ("gpus", app.gpus), ("memory_bytes", app.memory_bytes))
        return max((amount / totals[key] for key, amount in used if amount), default=0.0)

    def _favourite(self, level: PriorityLevel, place: OpenPlace) -> ServedApp | None:
        kind = self._kind_of(place)
        apps = level.with_form(Form.GPU)
        if kind is None or not apps:
            return None
        values = [self._affinity_on(app, kind) for app in apps]
        best = max(values) - self.options.tie_tolerance
        return min(
            (app for app, value in zip(apps, values, strict=True) if value >= best), key=lambda app: app.order
        )

    def _affinity(self, app: ServedApp, place: OpenPlace) -> float:
        kind = self._kind_of(place)
        return self._affinity_on(app, kind) if kind else 0.0

    def _affinity_on(self, app: ServedApp, kind: _NodeKind) -> float:
        """Equation (4); infinite for what only GPUs can do, 0 until both forms are measured."""
        known = app.beliefs.affinities.get(kind)
        if known is not None:
            return known
        accelerator, gpus, bandwidth = kind
        gpu = app.beliefs.gpu.get(accelerator)
        if app.cpu_demand is None:
            value = math.inf
        elif gpu is None or (cpu := app.beliefs.cpu) is None:
            value = 0.0
        else:
            value = affinity(cpu, gpu, gpus, bandwidth, self.options.affinity_mean)
        app.beliefs.affinities[kind] = value
        return value

    def _kind_of(self, place: OpenPlace) -> _NodeKind | None:
        """The node's own kind; for one without GPUs the most frequent that has some, None without any."""
        if place.node_kind is None:
            spec = place.resource.spec
            if spec.all_gpus:
                place.node_kind = spec.accelerator, spec.all_gpus, spec.bandwidth_bytes_per_s
            elif kinds := [(n, kind) for kind, n in self.table.node_kinds.items() if kind[1]]:
                place.node_kind = max(kinds)[1]
        return place.node_kind
