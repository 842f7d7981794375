"""The server's time of day, where this host's is far from it.

Starts, ends and reports bear the server's time. A host whose clock is ten minutes off would find all nodes
silent, jobs past their limits and starts overdue. So the newest report of a node that is up, and this host's
monotonic clock since it was seen, say what the server's time is at least; where this host's own time is far
from that, the server's counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torque_sched.model.cluster import Node

_AHEAD_S = 60.0
"""The server's time may be so much ahead of this host's: no report comes from the future."""
_BEHIND_S = 300.0
"""The newest report of a node that is up may be so old: a server calls a node down after 150 s of silence."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of both clocks of this host."""

    wall_s: float
    monotonic_s: float


class ClusterClock:
    """Seconds since the epoch for everything that is compared with what the server says.

    Args:
        wall: this host's time of day.
        monotonic: its clock that nobody sets.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._newest_s: float | None = None
        self._advanced_s = 0.0
        self._server_s = 0.0
        """What the server's time was at least when the monotonic clock was 0."""

    def __call__(self) -> float:
        """Now."""
        return self.time_of(self.moment())

    def moment(self) -> Moment:
        """Both clocks, to be asked for their time later."""
        return Moment(self._wall(), self._monotonic())

    def time_of(self, moment: Moment) -> float:
        """The time at a moment, by all that was seen since."""
        return moment.wall_s - self._far_ahead_s(moment)

    def _far_ahead_s(self, moment: Moment) -> float:
        if self._newest_s is None:
            return 0.0
        ahead_s = moment.wall_s - (self._server_s + moment.monotonic_s)
        return 0.0 if -_AHEAD_S <= ahead_s <= _BEHIND_S else ahead_s

    @property
    def ahead_s(self) -> float:
        """How far this host is ahead of the server; 0: not so far that it matters; below 0: behind."""
        return self._far_ahead_s(self.moment())

    def observe(self, nodes: Sequence[Node], moment: Moment) -> float:
        """Take in the reports of one look.

        Args:
            nodes: as the server shows them.
            moment: when it was asked.

        Returns:
            For how many seconds the newest report has been the same one.
        """
        times = [node.status.rectime_s for node in nodes if node.is_up and node.status]
        newest_s = max((each for each in times if each), default=None)
        if newest_s is None:
            return 0.0
        least_s = newest_s - moment.monotonic_s
        if self._newest_s is None or newest_s < self._newest_s:
            # The first report, or the server's clock was set back.
            self._server_s, self._advanced_s = least_s, moment.monotonic_s
        elif newest_s > self._newest_s:
            self._server_s, self._advanced_s = max(self._server_s, least_s), moment.monotonic_s
        self._newest_s = newest_s
        return moment.monotonic_s - self._advanced_s
