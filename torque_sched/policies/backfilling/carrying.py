"""Takes the promises of the cycle before into the table of this one, before anybody else gets anything.

A promise is kept where it is, or on other nodes at the same time, or up to the slack later: so much may
starts and ends be late. What cannot be kept is given the earliest start there is, before all jobs without a
promise; promises that can be kept never give way to one that cannot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torque_sched.core.decisions import Promise
from torque_sched.policies.backfilling.live_table import LiveTable
from torque_sched.policies.backfilling.node_needs import Needs
from torque_sched.policies.backfilling.node_table import NodeNeed, NodeSpot


@dataclass(eq=False, slots=True)
class Carried:
    """A job with its promise, in the order of turns; `spot` is where it is planned now, None: nowhere."""

    promise: Promise
    need: NodeNeed
    length_s: float
    spot: NodeSpot | None = None


def retake(table: LiveTable, needs: Needs, carried: Sequence[Carried], slack_s: float) -> None:
    """Find and take the spots of all carried promises."""
    # A job that is to run longer than it was promised for comes after those that are not.
    by_start = sorted(carried, key=lambda one: (one.length_s > one.promise.length_s, one.promise.start_s))
    for one in by_start:
        start_s = one.promise.start_s
        spot = needs.spot(
            table, one.need, start_s, table.end_of(start_s, one.length_s), one.promise.allocation
        )
        if spot is not None and table.fits(spot):
            table.take(spot)
            one.spot = spot
    late_s = max(slack_s, table.resolution_s)
    for one in by_start:
        if one.spot is None:
            start_s = one.promise.start_s
            _place(table, one, start_s, max(start_s, table.now_s) + late_s)
    for one in carried:
        if one.spot is None:
            _place(table, one, table.now_s, table.now_s + table.window_s)


def put_off(table: LiveTable, carried: Sequence[Carried], n_starts: int) -> None:
    """Of what is due, plan what is more than this cycle may start for the next time there is.

    Its place stays kept for it. Tried and refused now, it would lose its promise to a limit of ours.
    """
    for one in carried:
        if one.spot is None or one.spot.start_s > table.now_s or table.is_enacted(one.spot):
            continue
        n_starts -= 1
        if n_starts < 0:
            table.give_back(one.spot)
            one.spot = replace(one.spot, start_s=table.rounded(math.nextafter(table.now_s, math.inf)))
            table.force(one.spot)


def _place(table: LiveTable, one: Carried, not_before_s: float, no_later_s: float) -> None:
    spot = table.earliest(one.need, one.length_s, not_before_s, no_later_s)
    if spot is not None:
        table.take(spot)
        one.spot = spot
