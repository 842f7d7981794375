"""`hdas`: Algorithm 1 of the paper, ties decided by us; `hdas+`: the same with a tail guard, which is ours.

GPUs go to the application whose next task is delayed least there now, so that readers meet those who compute.
Cores go to the application that is furthest behind. No rule refuses a task: a GPU is filled even where the
best candidate is delayed.
"""

from __future__ import annotations

import math

from yarn_accel.core.tasks.contention import PROGRESS, data_rate
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.next_tasks import QueueingPolicy
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.core.tasks.policies.values import Key, OpenPlace
from yarn_accel.core.tasks.records import AppRecord, PriorityLevel
from yarn_accel.core.tasks.values import Form


class HdasPolicy(QueueingPolicy):
    """Keys of Algorithm 1, lines 6 and 14; where all are equal, the id decides."""

    name = "hdas"
    needs_figures = True

    def __init__(self, options: PolicyOptions | None = None, figures: FigureStore | None = None) -> None:
        super().__init__(options, figures)
        self._progress = PROGRESS[self.options.progress]
        self._gpu_keys = (
            Key("(a) least delay", self._gpu_delay, has_tolerance=True),
            Key("(b) fewest GPU tasks so far", lambda app, place: app.n_gpu),
            Key("(c) GPU only before mixed", lambda app, place: app.is_mixed),
            Key("(d) earliest start", lambda app, place: app.start_s),
        )
        self._cpu_keys = (
            Key("(a) least relative progress", self._relative_progress, has_tolerance=True),
            Key("(b) largest share of its best rate", self._rate_share, is_most=True, has_tolerance=True),
            Key("(c) CPU only before mixed", lambda app, place: app.is_mixed),
            Key("(d) earliest start", lambda app, place: app.start_s),
        )

    def keys(self, form: Form) -> tuple[Key, ...]:
        """Line 6 for GPUs, line 14 for cores."""
        return self._gpu_keys if form is Form.GPU else self._cpu_keys

    def _gpu_delay(self, app: AppRecord, place: OpenPlace) -> float:
        profile = app.gpu[place.accelerator]
        assert profile is not None
        return self.predict(profile, place) / profile.alone_s

    def _relative_progress(self, app: AppRecord, place: OpenPlace) -> float:
        assert app.cpu is not None
        return self._progress(app.n_alloc, app.cpu.alone_s, place.now_s, app.start_s)

    def _rate_share(self, app: AppRecord, place: OpenPlace) -> float:
        """Predicted dps of the next task on a core over the best dps of its application alone."""
        assert app.cpu is not None
        best_s = min(app.cpu.alone_s, *(gpu.alone_s for gpu in app.gpu.values() if gpu), math.inf)
        return data_rate(1.0, self.predict(app.cpu, place)) / data_rate(1.0, best_s)


class GuardedHdasPolicy(HdasPolicy):
    """`hdas`, but no task goes to a core for longer than the GPUs need for all that waits.

    The tail guard is our addition: the paper's rule starts a task of 40 minutes on a core near the end of a
    mix whose rest the GPUs do in one. Applications without a GPU form are exempt.
    """

    name = "hdas+"
    withheld_later = (Form.CPU,)

    def allowed(
        self, apps: list[AppRecord], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[AppRecord]:
        """On cores those whose T_CPU_base is at most `gpu_seconds_left`."""
        if form is Form.GPU:
            return apps
        longest_s = max((app.cpu.alone_s for app in apps if app.is_mixed and app.cpu), default=0.0)
        limit_s = self.gpu_seconds_left(longest_s)
        return [app for app in apps if not app.is_mixed or (app.cpu and app.cpu.alone_s <= limit_s)]

    def withheld(self, app: AppRecord, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """The two times that were compared."""
        alone_s = app.cpu.alone_s if app.cpu else math.inf
        return f"tail guard: {alone_s:.4g} s on a core, GPUs end all in {self.gpu_seconds_left():.4g} s"

    def gpu_seconds_left(self, enough_s: float = math.inf) -> float:
        """Seconds in which all GPUs would do what has not begun; infinite where that is unknown.

        Of each application it is the number of such tasks over the tasks per second of all GPUs.

        Args:
            enough_s: whether it is more or less than this is of interest: counting ends there.
        """
        total_s = 0.0
        for app in self.state.apps.values():
            n_left = len(app.ready) + len(app.queued)
            if app.gpu_demand is None or not n_left:
                continue
            rate = app.gpu_rate
            if rate is None:
                app.gpu_rate = rate = self._gpu_rate(app)
            if not rate:
                return math.inf
            total_s += n_left * app.gpu_demand.gpus / rate
            if total_s >= enough_s:
                break
        return total_s

    def _gpu_rate(self, app: AppRecord) -> float:
        """Tasks per second of all GPUs together, each alone; 0 where that is unknown."""
        rate = 0.0
        for (accelerator, n_gpus, _), n_nodes in self.state.node_kinds.items():
            if n_gpus:
                profile = app.gpu.get(accelerator)
                if profile is None:
                    return 0.0
                rate += n_gpus * n_nodes / profile.alone_s
        return rate
