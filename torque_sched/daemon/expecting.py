"""Expected starts in service: renewed as often as their cost allows, and kept in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from torque_sched.core.decisions import Decision, Start
from torque_sched.core.model import JobId
from torque_sched.core.snapshot import Snapshot
from torque_sched.errors import ConfigError
from torque_sched.policies.context import Context
from torque_sched.policies.expected import EXPECTED_JOBS, expected_starts
from torque_sched.policies.settings import Settings

_EVERY_S = 30.0
_CHANGED_S = 10.0
"""Where other jobs run than before: one that ends early moves the starts of all behind it."""
_SHARE = 0.05
"""Of the time at most so much goes into them."""


class Expecting:
    """Expected starts of the jobs that are next.

    Args:
        clock: seconds that nobody sets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: Mapping[JobId, float] = {}
        self._running: frozenset[JobId] = frozenset()
        self._renewed_s = self._rests_until_s = float("-inf")

    def starts(
        self, snapshot: Snapshot, settings: Settings, context: Context, decided: Iterable[Decision]
    ) -> Mapping[JobId, float]:
        """What is expected; renewed every 30 s, every 10 s where other jobs run than before.

        It is renewed sooner where one of the first jobs has none.

        Args:
            snapshot: now.
            settings: in force.
            context: of the same moment.
            decided: about this snapshot.
        """
        began_s = self._clock()
        if began_s < self._rests_until_s:
            return self._known
        is_new = any(job.id not in self._known for job in snapshot.queued[:EXPECTED_JOBS])
        running = frozenset(job.id for job in snapshot.running)
        every_s = _EVERY_S if running == self._running else _CHANGED_S
        if not is_new and began_s < self._renewed_s + every_s:
            return self._known
        self._running = running
        try:
            starts = (each for each in decided if isinstance(each, Start))
            self._known = expected_starts(snapshot, settings, context, starts)
        except ConfigError:
            self._known = {}
        self._renewed_s = self._clock()
        self._rests_until_s = self._renewed_s + (self._renewed_s - began_s) / _SHARE
        return self._known
