"""SD of each DAG over time, as the policy had it at its decisions, or about once a second."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

#: So many decisions are kept at most.
_MOST_KEPT = 1000
#: Of a DAG that runs.
_MOST_LIVE = 240
_STEP_S = 1.0


class SlowdownSeries:
    """Keeps the slowdowns at each decision; once they are too many at every second, then every fourth, ...

    Args:
        most_kept: decisions.
    """

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        self._most_kept = most_kept
        self._stride = 1
        self._n_decisions = 0
        self._kept: list[tuple[float, Mapping[str, float]]] = []

    @property
    def is_next_kept(self) -> bool:
        """The next decision's slowdowns are worth computing."""
        return self._n_decisions % self._stride == 0

    def add(self, now_s: float, slowdowns: Mapping[str, float]) -> None:
        """A decision was made."""
        if self.is_next_kept:
            self._kept.append((now_s, slowdowns))
            if len(self._kept) > self._most_kept:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._n_decisions += 1

    def by_dag(self, dags: Iterable[str]) -> dict[str, list[tuple[float, float]]]:
        """Seconds and SD, of each DAG."""
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in dags}
        for now_s, slowdowns in self._kept:
            for name, value in slowdowns.items():
                found[name].append((now_s, value))
        return found


class LiveSlowdowns:
    """SD of DAGs while they run, about once a second, each at most at so many times."""

    def __init__(self) -> None:
        self._series: dict[str, SlowdownSeries] = {}
        self._noted_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """It is time to note all again."""
        return now_s >= self._noted_s + _STEP_S

    def note(self, now_s: float, slowdowns: Mapping[str, float], known: Iterable[str]) -> None:
        """These are the slowdowns now.

        Args:
            known: DAGs that are remembered, running or ended; what was noted of others is dropped.
        """
        self._noted_s = now_s
        for name, value in slowdowns.items():
            self._series.setdefault(name, SlowdownSeries(_MOST_LIVE)).add(now_s, {name: value})
        for name in self._series.keys() - set(known):
            del self._series[name]

    def of(self, dag: str) -> list[tuple[float, float]]:
        """Seconds and SD of a DAG; none where nothing was noted."""
        series = self._series.get(dag)
        return [] if series is None else series.by_dag([dag])[dag]
