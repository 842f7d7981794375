"""One decision from what is carried: the same policy object, for callers that do not live on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from torque_sched.policies.backfilling.events import Event, JobKey, Outcome
from torque_sched.policies.backfilling.scheduler import Backfilling
from torque_sched.policies.backfilling.state import State
from torque_sched.policies.backfilling.table import Spot

__all__ = ["decide"]

N = TypeVar("N")
S = TypeVar("S", bound=Spot)


def decide(
    fresh: Backfilling[N, S],
    carried: State[N, S],
    events: Iterable[Event[N]],
    now_s: float,
    may_start: Callable[[JobKey], bool] | None = None,
) -> tuple[Outcome[S], State[N, S]]:
    """What the policy would have answered had it lived on since `carried`, and what is to be carried next.

    Args:
        fresh: a policy with the same settings over a table where nothing is taken.
        carried: `Backfilling.state` after the last instant.
        events: what happened since.
        now_s: as `Backfilling.apply`.
        may_start: as `Backfilling.apply`.
    """
    fresh.restore(carried)
    outcome = fresh.apply(events, now_s, may_start)
    return outcome, fresh.state()
