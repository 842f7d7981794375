"""How long the cores of a service's workers were there."""

from __future__ import annotations

from yarn_accel.core.tasks.values import ResourceId


class CoreSeconds:
    """Adds up cores times seconds, from worker to worker and from master to master."""

    def __init__(self) -> None:
        self._cores: dict[ResourceId, int] = {}
        self._sum = self._until_s = 0.0

    def resume(self, core_s: float, now_s: float) -> None:
        """Go on from what an earlier master had noted."""
        self._sum, self._until_s = core_s, now_s

    def at(self, now_s: float) -> float:
        """All until now, to the millisecond."""
        seconds = max(0.0, now_s - self._until_s)
        self._sum += seconds * sum(self._cores.values())
        self._until_s += seconds
        return round(self._sum, 3)

    def joined(self, worker: ResourceId, n_cores: int, now_s: float) -> None:
        """A worker is there from now on."""
        self.at(now_s)
        self._cores[worker] = n_cores

    def left(self, worker: ResourceId, now_s: float) -> None:
        """A worker is there no more, if it was."""
        self.at(now_s)
        self._cores.pop(worker, None)
