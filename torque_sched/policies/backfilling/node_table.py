"""The node-aware table: for a need, when and on which nodes it fits beside all that runs or is promised.

Theory of operation. A later start is a time at which something ends, rounded up to the resolution, so that
few times are different and a start some seconds late harms nobody. A question takes three steps, each on all
nodes at once: which spans are long enough on each node; at which time enough nodes are inside of such a
span (one sweep over their begins and ends); which nodes to take then. Within a pass free amounts only
shrink, so a need that cannot start before some time need not be asked about earlier times again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import NodeName
from torque_sched.policies.backfilling.node_steps import (
    BITS,
    GPUS,
    MEMORY,
    N_AMOUNTS,
    PLANNED,
    PLENTY,
    SLOTS,
    SWAP,
    Amounts,
    Indices,
    Mask,
    NodeSteps,
    Times,
)

_MOST_LEVELS = 16
_MOST_TRIES = 64


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Equal pieces of a need; compared by identity.

    Attributes:
        nodes: indices of the nodes that could take a piece when idle, the best for a later start first.
        ppn: slots of a piece; `gpus`, `mem_bytes` and `vmem_bytes` likewise.
        whole: nobody else may be on its nodes.
        may_share: several pieces may lie on one node.
        kept_slots: for each of `nodes`, slots that must stay free beside it (for idle GPUs).
    """

    nodes: Indices
    ppn: int = 1
    gpus: int = 0
    count: int = 1
    mem_bytes: int = 0
    vmem_bytes: int = 0
    whole: bool = False
    may_share: bool = False
    kept_slots: Amounts | None = None


@dataclass(frozen=True, eq=False, slots=True)
class NodeNeed:
    """What a job needs of the nodes; compared by identity.

    Attributes:
        kept_out_by: bits of the reservations whose nodes it may not use in their time.
        subject: whatever the caller's `now` needs to know of the job.
        key: equal in jobs that need the same; None: there is no other.
    """

    parts: tuple[Part, ...]
    kept_out_by: int = 0
    subject: object = None
    key: object = None


@dataclass(frozen=True, slots=True)
class NodeSpot:
    """Nodes held during [start_s, end_s).

    Attributes:
        nodes: their indices.
        held: of each node, slots, GPUs, memory and memory with swap.
        shares: what the job is told of it.
        kept_out_by: as in the need.
    """

    start_s: float
    end_s: float
    nodes: tuple[int, ...]
    held: tuple[tuple[int, int, int, int], ...]
    shares: tuple[NodeShare, ...]
    kept_out_by: int = 0


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """Nodes failed, or came back (`is_back`)."""

    nodes: tuple[int, ...]
    is_back: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """The least each node has free during a span, by index; all 0 where a reservation keeps the need out."""

    slots: Amounts
    gpus: Amounts
    mem_bytes: Amounts
    vmem_bytes: Amounts

    def fits(self, part: Part) -> bool:
        """Whether there is room for all pieces of a part, looked at alone."""
        nodes = part.nodes
        if not part.may_share:
            takes = self.slots[nodes] >= part.ppn
            # What is not asked for may be overdrawn.
            if part.gpus:
                takes &= self.gpus[nodes] >= part.gpus
            if part.mem_bytes:
                takes &= self.mem_bytes[nodes] >= part.mem_bytes
            if part.vmem_bytes:
                takes &= self.vmem_bytes[nodes] >= part.vmem_bytes
            return int(np.count_nonzero(takes)) >= part.count
        return int((np.maximum(self.slots[nodes], 0) // part.ppn).sum()) >= part.count


Now = Callable[[NodeNeed, float], NodeSpot | None]


class NodeTable:
    """All nodes over time; a `policies.backfilling.table.Table`.

    Args:
        names: of the nodes, in the order of their indices.
        capacity: (n_nodes, n_amounts), see `node_steps`.
        now_s: the present.
        resolution_s: later starts and all ends are multiples of it.
        window_s: starts later than this from now are not looked for.
        slack_s: added to each length: a job may start, and be ended at its limit, so much later.
        now: finds the best nodes for a start now that ends at the time given; None: the first that fit.
    """

    def __init__(
        self,
        names: tuple[NodeName, ...],
        capacity: Amounts,
        now_s: float,
        *,
        resolution_s: float = 60.0,
        window_s: float = math.inf,
        slack_s: float = 0.0,
        now: Now | None = None,
    ) -> None:
        self.names, self.capacity = names, capacity
        self.steps = NodeSteps(capacity)
        self.now_s, self.resolution_s, self.window_s, self.slack_s = now_s, resolution_s, window_s, slack_s
        self.now = now
        self.n_questions = 0
        #: key of a need -> (length, start): nothing at least so long begins earlier, starts now left out.
        self._bounds: dict[object, tuple[float, float]] = {}

    def rounded(self, at_s: float) -> float:
        """The next multiple of the resolution."""
        return at_s if math.isinf(at_s) else math.ceil(at_s / self.resolution_s) * self.resolution_s

    def end_of(self, start_s: float, length_s: float) -> float:
        """Until when a job of this length is booked."""
        return self.rounded(start_s + length_s + self.slack_s)

    # -- as Table

    def advance(self, now_s: float) -> None:
        """As `Table.advance`."""
        if now_s > self.now_s:
            self.now_s = now_s
            self._bounds.clear()
            self.steps.join(np.arange(self.steps.n_nodes), now_s)

    def earliest(
        self, need: NodeNeed, length_s: float, not_before_s: float, no_later_s: float = math.inf
    ) -> NodeSpot | None:
        """As `Table.earliest`."""
        self.n_questions += 1
        if not_before_s <= self.now_s:
            spot = self._start_now(need, self.end_of(self.now_s, length_s))
            if spot is not None or no_later_s <= self.now_s:
                return spot
            not_before_s = math.nextafter(self.now_s, math.inf)
        no_later_s = min(no_later_s, self.now_s + self.window_s)
        # At a multiple of the resolution every length is the same.
        length_s = self.end_of(0.0, length_s)
        not_before_s = self.rounded(not_before_s)
        known = self._bounds.get(need.key)
        if known is not None and length_s < known[0]:
            # It says nothing of a shorter one.
            known = None
        if known is not None:
            not_before_s = max(not_before_s, known[1])
        # What begins after the last possible end does not matter.
        width, self.steps.width = self.steps.width, self.steps.width_until(no_later_s + length_s)
        try:
            spot = self._start_later(need, length_s, not_before_s, no_later_s)
        finally:
            self.steps.width = width
        start_s = math.nextafter(no_later_s, math.inf) if spot is None else spot.start_s
        first_s = self.rounded(math.nextafter(self.now_s, math.inf))
        is_first = not_before_s <= first_s or (known is not None and not_before_s == known[1])
        if is_first and need.key is not None:
            self._bounds[need.key] = length_s, start_s
        return spot

    def startable(self) -> int:
        """As `Table.startable`: needs are not told apart."""
        return -1

    def startable_past(self) -> tuple[float, int]:
        """As `Table.startable_past`: neither are run times."""
        return math.inf, -1

    def earlier(
        self, need: NodeNeed, length_s: float, spot: NodeSpot, not_before_s: float
    ) -> NodeSpot | None:
        """As `Table.earlier`."""
        bounds, self._bounds = self._bounds, {}
        self._change(spot, 1)
        try:
            found = self.earliest(need, length_s, not_before_s, spot.start_s)
        finally:
            self._change(spot, -1)
            self._bounds = bounds
        return found if found is not None and found.start_s < spot.start_s else None

    def kinds(self, need: NodeNeed) -> int:
        """As `Table.kinds`: needs are not told apart."""
        return -1

    def opened(self, spot: NodeSpot, moved_to: NodeSpot | None = None) -> int:
        """As `Table.opened`."""
        return -1

    def settle(self, need: NodeNeed, length_s: float, spot: NodeSpot) -> NodeSpot | None:
        """As `Table.settle`; where a late start would be in the way of others, its end stays as planned."""
        self._change(spot, 1)
        try:
            end_s = self.end_of(self.now_s, length_s)
            return self._start_now(need, end_s) or self._start_now(need, spot.end_s)
        finally:
            self._change(spot, -1)

    def take(self, spot: NodeSpot) -> None:
        """As `Table.take`."""
        if not self.fits(spot):
            raise ValueError(f"not free during [{spot.start_s:g}, {spot.end_s:g}): {spot.shares}")
        self.force(spot)

    def give_back(self, spot: NodeSpot) -> None:
        """As `Table.give_back`."""
        self._bounds.clear()
        self._change(spot, 1)
        self.steps.join(np.array(spot.nodes, np.intp), self.now_s)

    def fits(self, spot: NodeSpot) -> bool:
        """As `Table.fits`."""
        nodes = np.array(spot.nodes, np.intp)
        held = np.array(spot.held, np.int64).T
        bad = self.steps.lacking(nodes, list(held), spot.kept_out_by)
        return not (bad & self.steps.during(nodes, max(spot.start_s, self.now_s), spot.end_s)).any()

    def lasting(self, spot: NodeSpot, start_s: float, end_s: float) -> NodeSpot:
        """As `Table.lasting`."""
        return replace(spot, start_s=start_s, end_s=self.rounded(end_s))

    def force(self, spot: NodeSpot) -> None:
        """As `Table.force`."""
        self._change(spot, -1)

    def reshape(self, change: object) -> None:
        """As `Table.reshape`; the change is a `NodesChanged`."""
        if not isinstance(change, NodesChanged):
            raise TypeError(f"not a change of nodes: {change!r}")
        nodes = np.array(change.nodes, np.intp)
        amounts = self.capacity[nodes].T * (1 if change.is_back else -1)
        self._bounds.clear()
        self.steps.add(nodes, -math.inf, math.inf, amounts)

    def _change(self, spot: NodeSpot, sign: int) -> None:
        more = np.zeros((N_AMOUNTS, len(spot.nodes)), np.int64)
        more[:BITS] = np.array(spot.held, np.int64).T * sign
        more[PLANNED] = sign
        self.steps.add(np.array(spot.nodes, np.intp), spot.start_s, spot.end_s, more)

    def close(self, node: int, start_s: float, end_s: float, amounts: Iterable[int]) -> None:
        """Less (or bits more) on a node for a time: what is not a job of the policy."""
        more = np.zeros((N_AMOUNTS, 1), np.int64)
        listed = list(amounts)
        more[: len(listed), 0] = listed
        self.steps.add(np.array([node], np.intp), start_s, end_s, more)

    # -- searching

    def room(self, start_s: float, end_s: float, kept_out_by: int, is_alone: bool = False) -> Room:
        """What every node has free all the time; nothing where a job is planned, for one that `is_alone`."""
        # What begins after the end does not matter.
        width = self.steps.width_until(end_s)
        inside = self.steps.during(None, start_s, end_s)[:, :width]
        free = self.steps.free[:, :, :width]
        least = [np.where(inside, free[amount], PLENTY).min(axis=1) for amount in range(BITS)]
        closed = None
        if kept_out_by:
            closed = (((free[BITS] & kept_out_by) != 0) & inside).any(axis=1)
        if is_alone:
            planned = ((free[PLANNED] < 0) & inside).any(axis=1)
            closed = planned if closed is None else closed | planned
        if closed is not None:
            for amounts in least:
                amounts[closed] = 0
        return Room(*least)

    def _start_now(self, need: NodeNeed, end_s: float) -> NodeSpot | None:
        if self.now is not None:
            return self.now(need, end_s)
        return self.choose(need, self.now_s, end_s)

    def _start_later(
        self, need: NodeNeed, length_s: float, not_before_s: float, no_later_s: float
    ) -> NodeSpot | None:
        at_s = not_before_s
        for _ in range(_MOST_TRIES):
            found_s = at_s
            for part in need.parts:
                found_s = max(found_s, self._first(part, need.kept_out_by, length_s, found_s))
                if found_s > no_later_s or math.isinf(found_s):
                    return None
            if found_s > at_s and len(need.parts) > 1:
                at_s = found_s
                continue
            spot = self.choose(need, found_s, found_s + length_s)
            if spot is not None:
                return spot
            at_s = self._next_step(need, found_s)
        return None

    def _next_step(self, need: NodeNeed, after_s: float) -> float:
        """The parts want the same nodes: the next time at which anything changes."""
        nodes = np.concatenate([part.nodes for part in need.parts])
        at = self.steps.times(nodes)
        return float(np.where(at > after_s, at, np.inf).min(initial=np.inf))

    def _wanted(self, part: Part, n: int = 1) -> list[int | Amounts]:
        """What `n` pieces need to be free on a node."""
        slots: int | Amounts = part.ppn * n
        if part.kept_slots is not None:
            slots = part.kept_slots + part.ppn * n
        if part.whole:
            slots = np.maximum(self.capacity[part.nodes, SLOTS], slots)
        return [slots, part.gpus * n, part.mem_bytes * n, part.vmem_bytes * n]

    def _spans(
        self, part: Part, n: int, bits: int, length_s: float, not_before_s: float
    ) -> tuple[Times, Times]:
        """The first and the last start of each span that is long enough."""
        bad = self.steps.lacking(part.nodes, self._wanted(part, n), bits)
        at = self.steps.times(part.nodes)
        ends = np.minimum.accumulate(np.where(bad, at, np.inf)[:, ::-1], axis=1)[:, ::-1]
        begins = ~bad
        begins[:, 1:] &= bad[:, :-1]
        begins &= at < np.inf
        ends = ends[begins]
        first = np.maximum(at[begins], not_before_s)
        last = np.where(ends == np.inf, np.inf, -np.inf) if math.isinf(length_s) else ends - length_s
        is_long = last >= first
        return first[is_long], last[is_long]

    def _first(self, part: Part, bits: int, length_s: float, not_before_s: float) -> float:
        """The first time at which enough nodes have room for the part."""
        if not part.may_share:
            first, last = self._spans(part, 1, bits, length_s, not_before_s)
            if part.count == 1:
                return float(first.min(initial=np.inf))
            return _sweep(first, last, np.ones(len(first), np.int64), part.count)
        most = int((self.capacity[part.nodes, SLOTS] // part.ppn).max(initial=0))
        firsts, lasts, weights = [], [], []
        before = 0
        for n in _levels(min(most, part.count)):
            first, last = self._spans(part, n, bits, length_s, not_before_s)
            firsts.append(first)
            lasts.append(last)
            weights.append(np.full(len(first), n - before, np.int64))
            before = n
        if not firsts:
            return math.inf
        return _sweep(np.concatenate(firsts), np.concatenate(lasts), np.concatenate(weights), part.count)

    def choose(self, need: NodeNeed, start_s: float, end_s: float) -> NodeSpot | None:
        """The first nodes that have room during [start_s, end_s); None: too few."""
        inside = [self.steps.during(part.nodes, start_s, end_s) for part in need.parts]
        rooms = [
            self._pieces(part, need.kept_out_by, now) for part, now in zip(need.parts, inside, strict=True)
        ]
        taken = np.zeros(len(self.names), bool)
        chosen: dict[int, list[tuple[int, int]]] = {}
        # The part with the fewest nodes chooses first.
        for place in sorted(range(len(rooms)), key=lambda i: np.count_nonzero(rooms[i])):
            part, left = need.parts[place], need.parts[place].count
            room = np.where(taken[part.nodes], 0, rooms[place])
            before = np.cumsum(room) - room
            for i in np.flatnonzero((room > 0) & (before < left)).tolist():
                chosen.setdefault(place, []).append((int(part.nodes[i]), min(int(room[i]), left)))
                left -= chosen[place][-1][1]
            if left > 0:
                return None
            taken[[node for node, _ in chosen[place]]] = True
        return self._spot(need, chosen, start_s, end_s)

    def _pieces(self, part: Part, bits: int, inside: Mask) -> Amounts:
        """How many pieces fit on each of the part's nodes during the marked steps."""
        bad = (self.steps.lacking(part.nodes, self._wanted(part), bits) & inside).any(axis=1)
        if not part.may_share:
            return np.where(bad, 0, 1)
        width = self.steps.width
        pieces = np.full(len(part.nodes), part.count, np.int64)
        for amount, each in zip(
            (SLOTS, GPUS, MEMORY, SWAP), (part.ppn, part.gpus, part.mem_bytes, part.vmem_bytes), strict=True
        ):
            if each:
                free = np.where(inside, self.steps.free[amount, part.nodes, :width], PLENTY).min(axis=1)
                if amount == SLOTS and part.kept_slots is not None:
                    free = free - part.kept_slots
                pieces = np.minimum(pieces, free // each)
        return np.where(bad, 0, pieces)

    def _spot(
        self, need: NodeNeed, chosen: dict[int, list[tuple[int, int]]], start_s: float, end_s: float
    ) -> NodeSpot:
        nodes: list[int] = []
        held: list[tuple[int, int, int, int]] = []
        shares: list[NodeShare] = []
        for place in sorted(chosen):
            part = need.parts[place]
            for node, n in chosen[place]:
                nodes.append(node)
                held.append(self.held(part, node, n))
                shares.append(NodeShare(self.names[node], part.ppn * n, part.gpus * n))
        return NodeSpot(start_s, end_s, tuple(nodes), tuple(held), tuple(shares), need.kept_out_by)

    def held(self, part: Part, node: int, n: int = 1) -> tuple[int, int, int, int]:
        """What `n` pieces take of a node."""
        slots = int(self.capacity[node, SLOTS]) if part.whole else part.ppn * n
        return slots, part.gpus * n, part.mem_bytes * n, part.vmem_bytes * n


def _sweep(first: Times, last: Times, weights: Amounts, count: int) -> float:
    """The first time at which the spans around it weigh at least `count` together."""
    if int(weights.sum()) < count:
        return math.inf
    by_first, by_last = np.argsort(first, kind="stable"), np.argsort(last, kind="stable")
    times = first[by_first]
    begun = np.cumsum(weights[by_first])
    over = np.concatenate([[0], np.cumsum(weights[by_last])])
    inside = begun - over[np.searchsorted(last[by_last], times, side="left")]
    enough = inside >= count
    return float(times[int(enough.argmax())]) if enough.any() else math.inf


def _levels(most: int) -> list[int]:
    """Numbers of pieces on one node that are told apart: all of few, steps of many."""
    if most <= _MOST_LEVELS:
        return list(range(1, most + 1))
    return sorted({max(1, round(most * (i + 1) / _MOST_LEVELS)) for i in range(_MOST_LEVELS)})
