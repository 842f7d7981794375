"""`hdas`: Algorithm 1 of the paper, ties decided by us; `guarded`: the same with two rules of ours.

GPUs go to the application whose next task is delayed least there now, so that readers meet those who compute.
Cores go to the application that is furthest behind. No rule refuses a task: a GPU is filled even where the
best candidate is delayed.
"""

from __future__ import annotations

import math

from yarn_accel.core.tasks.contention import PROGRESS, data_rate
from yarn_accel.core.tasks.policies.next_tasks import QueueingPolicy
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.core.tasks.policies.values import Key, OpenPlace
from yarn_accel.core.tasks.records import PriorityLevel, ServedApp
from yarn_accel.core.tasks.values import Form


class HdasPolicy(QueueingPolicy):
    """Keys of Algorithm 1, lines 6 and 14; where all are equal, the id decides."""

    name = "hdas"
    needs_figures = True

    def __init__(self, options: PolicyOptions | None = None) -> None:
        super().__init__(options)
        self._progress = PROGRESS[self.options.progress]
        self._gpu_keys = (
            Key("(a) least delay", self._gpu_delay, has_tolerance=True),
            Key("(b) fewest GPU tasks so far", lambda app, place: app.n_gpu),
            Key("(c) GPU only before mixed", lambda app, place: app.is_mixed),
            Key("(d) earliest start", lambda app, place: app.start_s),
        )
        self._cpu_keys: tuple[Key, ...] = (
            Key("(a) least relative progress", self._relative_progress, has_tolerance=True),
            Key("(b) largest share of its best rate", self._rate_share, is_most=True, has_tolerance=True),
            Key("(c) CPU only before mixed", lambda app, place: app.is_mixed),
            Key("(d) earliest start", lambda app, place: app.start_s),
        )

    def keys(self, form: Form) -> tuple[Key, ...]:
        """Line 6 for GPUs, line 14 for cores."""
        return self._gpu_keys if form is Form.GPU else self._cpu_keys

    def _gpu_delay(self, app: ServedApp, place: OpenPlace) -> float:
        profile = app.beliefs.gpu[place.accelerator]
        assert profile is not None
        return self.predict(profile, place) / profile.alone_s

    def _relative_progress(self, app: ServedApp, place: OpenPlace) -> float:
        cpu = app.beliefs.cpu
        assert cpu is not None
        return self._progress(app.n_alloc, cpu.alone_s, place.now_s, app.start_s)

    def _rate_share(self, app: ServedApp, place: OpenPlace) -> float:
        """Predicted dps of the next task on a core over the best dps of its application alone."""
        beliefs, cpu = app.beliefs, app.beliefs.cpu
        assert cpu is not None
        if beliefs.best_s is None:
            beliefs.best_s = min(cpu.alone_s, *(gpu.alone_s for gpu in beliefs.gpu.values() if gpu), math.inf)
        return data_rate(1.0, self.predict(cpu, place)) / data_rate(1.0, beliefs.best_s)


class GuardedHdasPolicy(HdasPolicy):
    """`hdas` with two additions of ours, both about cores.

    The tail guard: no task goes to a core for longer than the GPUs need for all that waits. The paper's rule
    starts a task of 40 minutes on a core near the end of a mix whose rest the GPUs do in one. Applications
    without a GPU form are exempt.

    Comparative advantage: a core goes to the application that a GPU speeds up least, first to those without a
    GPU form, the longest tasks first. The paper's rule gives cores to whoever is furthest behind, also to one
    that a GPU does forty times faster, while the GPUs do what cores could.
    """

    name = "guarded"
    withheld_later = (Form.CPU,)

    def __init__(self, options: PolicyOptions | None = None) -> None:
        super().__init__(options)
        self._cpu_keys = (
            Key("(+) least gain from a GPU, in doublings", self._gpu_gain),
            Key("(+) longest of those without a GPU form", _seconds_of_cpu_only, is_most=True),
            *self._cpu_keys,
        )

    def allowed(
        self, apps: list[ServedApp], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[ServedApp]:
        """On cores those whose T_CPU_base is at most `gpu_seconds_left`."""
        if form is Form.GPU:
            return apps
        mixed = [app.beliefs.cpu for app in apps if app.is_mixed]
        limit_s = self.gpu_seconds_left(max((cpu.alone_s for cpu in mixed if cpu), default=0.0))
        return [
            app
            for app in apps
            if not app.is_mixed or ((cpu := app.beliefs.cpu) is not None and cpu.alone_s <= limit_s)
        ]

    def withheld(self, app: ServedApp, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """The two times that were compared."""
        cpu = app.beliefs.cpu
        alone_s = cpu.alone_s if cpu else math.inf
        return f"tail guard: {alone_s:.4g} s on a core, GPUs end all in {self.gpu_seconds_left():.4g} s"

    def gpu_seconds_left(self, enough_s: float = math.inf) -> float:
        """Seconds in which all GPUs would do what has not begun; infinite where that is unknown.

        Of each application it is the number of such tasks over the tasks per second of all GPUs.

        Args:
            enough_s: whether it is more or less than this is of interest: counting ends there.
        """
        total_s = 0.0
        for app in self.table.apps.values():
            n_left = app.n_waiting
            if app.gpu_demand is None or not n_left:
                continue
            rate = app.beliefs.gpu_rate
            if rate is None:
                rate = self._gpu_rate(app)
            if not rate:
                return math.inf
            total_s += n_left * app.gpu_demand.gpus / rate
            if total_s >= enough_s:
                break
        return total_s

    def _gpu_gain(self, app: ServedApp, place: OpenPlace) -> float:
        """Log2 of T_CPU_base over what all GPUs together need for a task; least without a GPU form."""
        beliefs = app.beliefs
        if app.gpu_demand is None or beliefs.cpu is None:
            return -math.inf
        if beliefs.gpu_gain is None:
            gain = beliefs.cpu.alone_s * self._gpu_rate(app) / app.gpu_demand.gpus
            beliefs.gpu_gain = float(round(math.log2(gain))) if gain else math.inf
        return beliefs.gpu_gain

    def _gpu_rate(self, app: ServedApp) -> float:
        """Tasks per second of all GPUs together, each alone and on one GPU; 0 where that is unknown."""
        if app.beliefs.gpu_rate is None:
            app.beliefs.gpu_rate = self._compute_gpu_rate(app)
        return app.beliefs.gpu_rate

    def _compute_gpu_rate(self, app: ServedApp) -> float:
        rate = 0.0
        for (accelerator, n_gpus, _), n_nodes in self.table.node_kinds.items():
            if n_gpus:
                profile = app.beliefs.gpu.get(accelerator)
                if profile is None:
                    return 0.0
                rate += n_gpus * n_nodes / profile.alone_s
        return rate


def _seconds_of_cpu_only(app: ServedApp, place: OpenPlace) -> float:
    return app.beliefs.cpu.alone_s if app.gpu_demand is None and app.beliefs.cpu is not None else 0.0
