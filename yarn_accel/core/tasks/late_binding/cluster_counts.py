"""#Alloc and start of applications in the whole cluster: each agent says its own counts and gets the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from yarn_accel.core.tasks.late_binding.values import ClusterCount
from yarn_accel.core.tasks.values import AppId

_KEEP_S = 3600.0
_MOST_APPS = 10_000
_Key = tuple[str, int]


@dataclass(slots=True)
class _CountedApp:
    """Attributes: start_s; used_s, when it was last reported; by node and agent what each dispatched."""

    start_s: float
    used_s: float
    by_agent: dict[_Key, tuple[int, int]] = field(default_factory=dict)
    n_alloc: int = 0
    n_gpu: int = 0


class ClusterCounts:
    """Of all nodes; an agent that was replaced counts from 0 again, and what it had counted stays."""

    def __init__(self) -> None:
        self._apps: dict[AppId, _CountedApp] = {}

    def report(
        self, node: str, epoch: int, counts: Mapping[AppId, ClusterCount], now_s: float
    ) -> dict[AppId, tuple[int, int, float]]:
        """Take an agent's counts in; what others dispatched of the same applications, and their ages.

        Args:
            epoch: of the agent: another one for each process.
            now_s: of the master alone, so that the clocks of nodes do not matter.
        """
        for app, count in counts.items():
            known = self._apps.get(app)
            if known is None:
                self._make_space(now_s)
                known = self._apps[app] = _CountedApp(now_s - count.age_s, now_s)
            known.start_s = min(known.start_s, now_s - count.age_s)
            known.used_s = now_s
            before = known.by_agent.get((node, epoch), (0, 0))
            known.by_agent[node, epoch] = (count.n_alloc, count.n_gpu)
            known.n_alloc += count.n_alloc - before[0]
            known.n_gpu += count.n_gpu - before[1]
        return {app: self._elsewhere(app, (node, epoch), now_s) for app in counts}

    def _elsewhere(self, app: AppId, own: _Key, now_s: float) -> tuple[int, int, float]:
        known = self._apps[app]
        n_alloc, n_gpu = known.by_agent[own]
        return known.n_alloc - n_alloc, known.n_gpu - n_gpu, now_s - known.start_s

    def _make_space(self, now_s: float) -> None:
        if len(self._apps) < _MOST_APPS:
            return
        old = [app for app, known in self._apps.items() if now_s - known.used_s > _KEEP_S]
        for app in old or [min(self._apps, key=lambda each: self._apps[each].used_s)]:
            del self._apps[app]
