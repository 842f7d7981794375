"""`model`: GPUs by the static affinity of equation (4), cores by dominant resource fairness.

GPUs go to the waiting application of the highest affinity, cores to the others; the last that waits uses
both.
"""

from __future__ import annotations

import math

from yarn_accel.core.tasks.contention import affinity
from yarn_accel.core.tasks.policies.next_tasks import QueueingPolicy
from yarn_accel.core.tasks.policies.values import Key, OpenPlace
from yarn_accel.core.tasks.records import AppRecord, PriorityLevel
from yarn_accel.core.tasks.values import Form

_NodeKind = tuple[str, int, float]


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
        self, apps: list[AppRecord], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[AppRecord]:
        """On cores all but the one that the GPUs are for, unless it is the only one that can use them."""
        if form is Form.GPU:
            return apps
        favourite = self._favourite(level, place)
        return [app for app in apps if app is not favourite] or apps

    def withheld(self, app: AppRecord, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """That it has the GPUs."""
        return "has the highest affinity: GPUs are for it, cores for the others"

    def dominant_share(self, app: AppRecord, place: OpenPlace) -> float:
        """The largest of its shares of cores, GPUs and memory; what nobody demands is skipped."""
        totals = self.state.totals
        used = (("cores", app.cores), ("gpus", app.gpus), ("memory_bytes", app.memory_bytes))
        return max((amount / totals[key] for key, amount in used if amount), default=0.0)

    def _favourite(self, level: PriorityLevel, place: OpenPlace) -> AppRecord | None:
        kind = self._kind_of(place)
        apps = level.with_form(Form.GPU)
        if kind is None or not apps:
            return None
        values = [self._affinity_on(app, kind) for app in apps]
        best = max(values) - self.options.tie_tolerance
        return min(
            (app for app, value in zip(apps, values, strict=True) if value >= best), key=lambda app: app.order
        )

    def _affinity(self, app: AppRecord, place: OpenPlace) -> float:
        kind = self._kind_of(place)
        return self._affinity_on(app, kind) if kind else 0.0

    def _affinity_on(self, app: AppRecord, kind: _NodeKind) -> float:
        """Equation (4); infinite for what only GPUs can do, 0 until both forms are measured."""
        known = app.affinities.get(kind)
        if known is not None:
            return known
        accelerator, gpus, bandwidth = kind
        gpu = app.gpu.get(accelerator)
        if app.cpu_demand is None:
            value = math.inf
        elif gpu is None or app.cpu is None:
            value = 0.0
        else:
            value = affinity(app.cpu, gpu, gpus, bandwidth, self.options.affinity_mean)
        app.affinities[kind] = value
        return value

    def _kind_of(self, place: OpenPlace) -> _NodeKind | None:
        """The node's own kind; for one without GPUs the most frequent that has some, None without any."""
        spec = place.resource.spec
        if spec.all_gpus:
            return spec.accelerator, spec.all_gpus, spec.bandwidth_bytes_per_s
        kinds = [(n, kind) for kind, n in self.state.node_kinds.items() if kind[1]]
        return max(kinds)[1] if kinds else None
