"""The node-aware table of one live cycle: a start now must also please everything that decides now.

Later starts are planned by amounts alone. For a start now the search asks all the rest (load, memory free by
the mom, stray processes, company) and picks the best nodes by score, among those with room beside all plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torque_sched.core.model import Job, NodeName
from torque_sched.policies.backfilling.node_needs import Needs
from torque_sched.policies.backfilling.node_steps import SLOTS, Amounts
from torque_sched.policies.backfilling.node_table import NodeNeed, NodeSpot, NodeTable, Part, Room
from torque_sched.policies.needs import Piece, Shape
from torque_sched.policies.search import Placed, Search, Who


@dataclass(eq=False, slots=True)
class Candidate:
    """A job that is planned in this cycle.

    Attributes:
        length_s: how long it is planned to run; infinite: nobody knows.
        may_now: whether it may start in this cycle.
        is_refused: its nodes are free by the plans, but what decides now is against it.
    """

    job: Job
    shape: Shape
    length_s: float
    may_now: bool = True
    is_refused: bool = False


class LiveTable(NodeTable):
    """`NodeTable` for jobs as `Candidate` (the `subject` of their needs).

    Args:
        search: finds the nodes for a start now.
        needs: of this cycle.
        may_start_more: whether this cycle may start one more job.
        enact: told of every start.
        unplanned: told of every job for which there is no start within the window.
    """

    def __init__(
        self,
        names: tuple[NodeName, ...],
        capacity: Amounts,
        now_s: float,
        *,
        resolution_s: float,
        window_s: float,
        slack_s: float,
        search: Search,
        needs: Needs,
        may_start_more: Callable[[], bool],
        enact: Callable[[Candidate, Placed], None],
        unplanned: Callable[[Candidate], None],
    ) -> None:
        super().__init__(
            names, capacity, now_s, resolution_s=resolution_s, window_s=window_s, slack_s=slack_s
        )
        self._search, self._needs = search, needs
        self._may_start_more, self._enact, self._unplanned = may_start_more, enact, unplanned
        #: By the identity of the spot: equal ones may be of different jobs.
        self._answers: dict[int, tuple[NodeSpot, Candidate, Placed]] = {}
        self._enacted: dict[int, NodeSpot] = {}
        #: key of a need -> the shortest length for which nothing was found now.
        self._hopeless: dict[object, float] = {}
        self._is_own_free = False
        #: Free slots of each node at this instant; None: to be found.
        self._slots_now: Amounts | None = None
        #: While a policy is restored: its spots are in the table already.
        self.is_restoring = False

    def fits(self, spot: NodeSpot) -> bool:
        """As `Table.fits`."""
        return self.is_restoring or super().fits(spot)

    def earliest(
        self, need: NodeNeed, length_s: float, not_before_s: float, no_later_s: float = math.inf
    ) -> NodeSpot | None:
        """As `Table.earliest`; None also where all is free, but something else is against a start now."""
        if not_before_s > self.now_s:
            return super().earliest(need, length_s, not_before_s, no_later_s)
        one = _candidate(need)
        spot = self._start_now(need, self.end_of(self.now_s, length_s))
        if spot is not None or one.is_refused or no_later_s <= self.now_s:
            return spot
        after_s = math.nextafter(self.now_s, math.inf)
        spot = super().earliest(need, length_s, after_s, no_later_s)
        if spot is None and one.may_now and no_later_s >= self.now_s + self.window_s:
            self._unplanned(one)
        return spot

    def earlier(
        self, need: NodeNeed, length_s: float, spot: NodeSpot, not_before_s: float
    ) -> NodeSpot | None:
        """As `Table.earlier`."""
        self._is_own_free = True
        try:
            return super().earlier(need, length_s, spot, not_before_s)
        finally:
            self._is_own_free = False

    def settle(self, need: NodeNeed, length_s: float, spot: NodeSpot) -> NodeSpot | None:
        """As `Table.settle`: the best nodes at the moment of the start."""
        if self.is_enacted(spot):
            return spot
        self._is_own_free = True
        try:
            return super().settle(need, length_s, spot)
        finally:
            self._is_own_free = False

    def has_room(self, need: NodeNeed, end_s: float) -> Callable[[int, Piece], bool]:
        """Whether a node, by its index, has room for a piece from now on beside all that is planned."""
        return _asked(self.room(self.now_s, end_s, need.kept_out_by, need.parts[0].whole))

    def is_enacted(self, spot: NodeSpot) -> bool:
        """Whether the spot is that of a start of this cycle."""
        return id(spot) in self._enacted

    def take(self, spot: NodeSpot) -> None:
        """As `Table.take`; a spot that begins now is a start."""
        if self.is_restoring:
            return
        answer = self._answers.pop(id(spot), None)
        if answer is None:
            super().take(spot)
            return
        # The search has the last word: a user alone on a node may join it once more.
        self.force(spot)
        self._enacted[id(spot)] = spot
        self._enact(*answer[1:])

    def _start_now(self, need: NodeNeed, end_s: float) -> NodeSpot | None:
        one = _candidate(need)
        one.is_refused = False
        if not one.may_now:
            return None
        hopeless_s = None if self._is_own_free else self._hopeless.get(need.key)
        if hopeless_s is not None and end_s >= hopeless_s:
            return None
        if not all(self._has_nodes_now(part) for part in need.parts):
            return None
        room = self.room(self.now_s, end_s, need.kept_out_by, need.parts[0].whole)
        if not all(room.fits(part) for part in need.parts):
            if need.key is not None and not self._is_own_free:
                self._hopeless[need.key] = min(end_s, self._hopeless.get(need.key, math.inf))
            return None
        if not self._may_start_more():
            one.is_refused = True
            return None
        who = self._search.who(one.job, end_s)
        asked = Who(who.user, who.now_s, who.until_s, who.pauses, _asked(room))
        placed = self._search.find_for(asked, one.shape)
        if placed is None:
            one.is_refused = self.choose(need, self.now_s, end_s) is not None
            return None
        spot = self._needs.spot_now(need, self.now_s, end_s, placed.parts)
        self._answers[id(spot)] = spot, one, placed
        return spot

    def _has_nodes_now(self, part: Part) -> bool:
        """A quick look: False only if there surely are too few nodes at this instant."""
        if self._slots_now is None:
            at = np.where(self.steps.times(None) <= self.now_s, 1, 0).sum(axis=1) - 1
            self._slots_now = self.steps.free[SLOTS, np.arange(self.steps.n_nodes), at]
        slots = self._slots_now[part.nodes]
        if part.may_share or part.whole:
            return True
        return int(np.count_nonzero(slots >= part.ppn)) >= part.count

    def _change(self, spot: NodeSpot, sign: int) -> None:
        if spot.start_s <= self.now_s:
            self._slots_now = None
        super()._change(spot, sign)


def _candidate(need: NodeNeed) -> Candidate:
    if not isinstance(need.subject, Candidate):
        raise TypeError("a need without its job")
    return need.subject


def _asked(room: Room) -> Callable[[int, Piece], bool]:
    slots, gpus = room.slots.tolist(), room.gpus.tolist()
    memory, swap = room.mem_bytes.tolist(), room.vmem_bytes.tolist()

    def has_room(index: int, piece: Piece) -> bool:
        mem, vmem = piece.mem_bytes, piece.with_swap_bytes
        wanted = ((piece.ppn, slots), (piece.gpus, gpus), (mem, memory), (vmem, swap))
        # What nobody asks for may be overdrawn: others start jobs, too, whatever they ask for.
        return all(not amount or amount <= free[index] for amount, free in wanted)

    return has_room
