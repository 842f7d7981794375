"""The figures that this node sends to the master, and those of other nodes that it gets from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yarn_accel.core.tasks.late_binding.shared_figures import (
    MAX_FIGURES,
    MAX_FIGURES_AGE_S,
    figures_document,
    parse_figures,
)
from yarn_accel.core.tasks.learning import FigureStore, SharedFigure
from yarn_accel.core.tasks.values import Form

#: Of which figures are sent: those that were measured last.
_MOST_NAMES = MAX_FIGURES // 2
_MOST_SENT = 4 * MAX_FIGURES
_Key = tuple[str, Form, str]


class SharedFigures:
    """What was sent and received. All is sent again to a new master, which knows nothing."""

    def __init__(self) -> None:
        self._sent: dict[_Key, int] = {}
        self._pending: tuple[SharedFigure, ...] = ()
        self._seen = [0, 0]
        self._n_observed = -1

    def heartbeat(self, figures: FigureStore) -> dict[str, Any]:
        """This node's part of a heartbeat: what it measured since the last one that was answered."""
        if figures.n_observed != self._n_observed:
            self._n_observed = figures.n_observed
            last = figures.measured_last(_MOST_NAMES)
            news = [row for row in last if self._sent.get(_key(row)) != row.n_measured]
            self._pending = tuple(news[:MAX_FIGURES])
        return {"figures": figures_document(self._pending), "figures_seen": self._seen}

    def answered(self, document: Mapping[str, Any], figures: FigureStore, now_s: float) -> frozenset[str]:
        """Take the master's answer in; the names of which other figures are believed now."""
        seen = document.get("figures_seen")
        if not isinstance(seen, list) or len(seen) != 2 or not all(isinstance(each, int) for each in seen):
            return frozenset()
        if self._seen[0] in (0, seen[0]):
            sent = self._sent | {_key(row): row.n_measured for row in self._pending}
            self._sent = dict(list(sent.items())[-_MOST_SENT:])
            self._pending = ()
        else:
            self._sent, self._n_observed = {}, -1
        self._seen = seen
        figures.forget_others(now_s)
        return figures.believe_others(parse_figures(document.get("figures")), now_s + MAX_FIGURES_AGE_S)


def _key(row: SharedFigure) -> _Key:
    return row.name, row.form, row.accelerator
