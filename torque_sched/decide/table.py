"""The node-aware table: for a need, when and on which nodes it fits beside all that runs or is promised.

Theory of operation. A later start is a time at which something ends, rounded up to the resolution, so that
few times are different and a start some seconds late harms nobody. A row is a node, or all nodes of one slot
that are alike (`Rows`): of these the number says all, and which of them a job gets is chosen afterwards, so
that no reservation is in another's way by its nodes. A question takes three steps, each on all rows at once:
which spans are long enough in each row; at which time enough rows are inside of such a span (one sweep over
their begins and ends); which rows to take then. Within a pass free amounts only shrink, so a need that cannot
start before some time need not be asked about earlier times again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from torque_sched.decide.steps import (
    BITS,
    PLANNED,
    PLENTY,
    SLOTS,
    Amounts,
    Indices,
    Mask,
    NodeSteps,
    Times,
    rounded,
)
from torque_sched.model.cluster import NodeName
from torque_sched.model.decisions import NodeShare

_MOST_LEVELS = 16
_MOST_TRIES = 64


@dataclass(frozen=True, eq=False, slots=True)
class DemandPart:
    """Equal pieces of a need; compared by identity.

    Attributes:
        nodes: rows of the nodes that could take a piece when idle, the best for a later start first.
        slots: of a piece; `gpus`, `mem_bytes` and `vmem_bytes` likewise.
        whole: nobody else may be on its nodes; of those with parts, on its parts if `spares_parts`.
        may_share: several pieces may lie on one node.
        kept_slots: for each of `nodes`, slots that must stay free beside it (for idle GPUs).
        most: for each of `nodes`, how many pieces it may take; None: one, or all that fit if they may share.
        mixes: its pieces may share nodes with those of other parts, too.
        others: of a piece, amounts of the site's own resources, in the order of the table.
    """

    nodes: Indices
    slots: int = 1
    gpus: int = 0
    count: int = 1
    mem_bytes: int = 0
    vmem_bytes: int = 0
    whole: bool = False
    may_share: bool = False
    kept_slots: Amounts | None = None
    most: Amounts | None = None
    mixes: bool = False
    spares_parts: bool = False
    others: tuple[int, ...] = ()
    _among: set[int] = field(default_factory=set, init=False, repr=False)

    def has(self, node: int) -> bool:
        """Whether a node is among `nodes`."""
        if not self._among:
            self._among.update(self.nodes.tolist())
        return node in self._among


@dataclass(frozen=True, eq=False, slots=True)
class ResourceDemand:
    """What a job needs of the nodes; compared by identity.

    Attributes:
        kept_out_by: bits of the reservations whose nodes it may not use in their time.
        key: equal in jobs that need the same; None: there is no other.
    """

    parts: tuple[DemandPart, ...]
    kept_out_by: int = 0
    key: object = None


@dataclass(frozen=True, slots=True)
class Booking:
    """Nodes held during [start_s, end_s).

    Attributes:
        nodes: their rows.
        held: of each row, slots, GPUs, memory, memory with swap, and the site's own resources.
        shares: by the name of each row; as many slots of a row of several nodes as nodes are held.
        kept_out_by: as in the need.
    """

    start_s: float
    end_s: float
    nodes: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    shares: tuple[NodeShare, ...]
    kept_out_by: int = 0


@dataclass(frozen=True, slots=True)
class FreeResources:
    """The least each node has free during a span, by index; all 0 where a reservation keeps the need out."""

    slots: Amounts
    gpus: Amounts
    mem_bytes: Amounts
    vmem_bytes: Amounts
    others: tuple[Amounts, ...] = ()

    def fits(self, part: DemandPart) -> bool:
        """Whether the free resources suffice for all pieces of a part, looked at alone."""
        nodes = part.nodes
        pieces = np.maximum(self.slots[nodes], 0) // max(1, part.slots)
        if not part.may_share:
            takes = self.slots[nodes] >= part.slots
            # What is not asked for may be overdrawn.
            if part.gpus:
                takes &= self.gpus[nodes] >= part.gpus
            if part.mem_bytes:
                takes &= self.mem_bytes[nodes] >= part.mem_bytes
            if part.vmem_bytes:
                takes &= self.vmem_bytes[nodes] >= part.vmem_bytes
            for free, wanted in zip(self.others, part.others, strict=False):
                if wanted:
                    takes &= free[nodes] >= wanted
            if part.most is None:
                return int(np.count_nonzero(takes)) >= part.count
            pieces = np.where(takes, np.minimum(pieces, part.most), 0)
        return int(pieces.sum()) >= part.count


class Rows:
    """Which nodes each row of a table stands for: a node, or all nodes of one slot that are alike.

    Args:
        kinds: of each node by its index, equal for nodes that are alike; None: it has a row of its own.
    """

    def __init__(self, kinds: Iterable[object]) -> None:
        self.members: list[list[int]] = []
        of: list[int] = []
        by_kind: dict[object, int] = {}
        for index, kind in enumerate(kinds):
            row = len(self.members) if kind is None else by_kind.setdefault(kind, len(self.members))
            if row == len(self.members):
                self.members.append([])
            self.members[row].append(index)
            of.append(row)
        #: The row of each node.
        self.of: Indices = np.array(of, np.intp)
        self.n_nodes: Amounts = np.array([len(each) for each in self.members], np.int64)


class NodeTable:
    """All nodes over time.

    Args:
        names: of the rows; of several nodes, the first one's.
        capacity: (n_rows, n_amounts), see `steps`.
        now_s: the present.
        resolution_s: later starts and all ends are multiples of it.
        window_s: starts later than this from now are not looked for.
        slack_s: added to each length: a job may start, and be ended at its limit, so much later.
        n_nodes: how many nodes each row stands for; None: one.
        is_exclusive: whether a job has each row's nodes alone; None: none.
        is_pool: rows of what the site has and no node: licences of the server.
        part_slots: of rows with parts that a job may have alone, the slots of one; 0: they have none.
        steps: what is free of the capacity; None: all.
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
        n_nodes: Amounts | None = None,
        steps: NodeSteps | None = None,
        is_exclusive: Mask | None = None,
        part_slots: Amounts | None = None,
        is_pool: Mask | None = None,
    ) -> None:
        self.names, self.capacity = names, capacity
        self.is_exclusive = np.zeros(len(capacity), bool) if is_exclusive is None else is_exclusive
        self.part_slots = np.zeros(len(capacity), np.int64) if part_slots is None else part_slots
        self.is_pool = np.zeros(len(capacity), bool) if is_pool is None else is_pool
        self.has_many = np.zeros(len(capacity), bool) if n_nodes is None else n_nodes > 1
        self.steps = NodeSteps(capacity) if steps is None else steps
        self.now_s, self.resolution_s, self.window_s, self.slack_s = now_s, resolution_s, window_s, slack_s
        #: key of a need -> (length, start): nothing at least so long begins earlier, starts now left out.
        self._bounds: dict[object, tuple[float, float]] = {}

    def rounded(self, at_s: float) -> float:
        """The next multiple of the resolution."""
        return rounded(at_s, self.resolution_s)

    def end_of(self, start_s: float, length_s: float) -> float:
        """Until when a job of this length is booked."""
        return self.rounded(start_s + length_s + self.slack_s)

    def earliest(
        self, need: ResourceDemand, length_s: float, not_before_s: float, no_later_s: float = math.inf
    ) -> Booking | None:
        """The first booking with ``not_before_s <= start_s <= no_later_s``; None: there is none."""
        if not_before_s <= self.now_s:
            booking = self.choose(need, self.now_s, self.end_of(self.now_s, length_s))
            if booking is not None or no_later_s <= self.now_s:
                return booking
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
            booking = self._start_later(need, length_s, not_before_s, no_later_s)
        finally:
            self.steps.width = width
        start_s = math.nextafter(no_later_s, math.inf) if booking is None else booking.start_s
        first_s = self.rounded(math.nextafter(self.now_s, math.inf))
        is_first = not_before_s <= first_s or (known is not None and not_before_s == known[1])
        if is_first and need.key is not None:
            self._bounds[need.key] = length_s, start_s
        return booking

    @contextmanager
    def without(self, booking: Booking) -> Iterator[None]:
        """The table as if this booking were given back, for a question."""
        bounds, self._bounds = self._bounds, {}
        self._change(booking, 1)
        try:
            yield
        finally:
            self._change(booking, -1)
            self._bounds = bounds

    def take(self, booking: Booking) -> None:
        """Nobody else gets it.

        Raises:
            ValueError: it is not free.
        """
        if not self.fits(booking):
            raise ValueError(f"not free during [{booking.start_s:g}, {booking.end_s:g}): {booking.shares}")
        self.force(booking)

    def give_back(self, booking: Booking) -> None:
        """What is left of it is free again."""
        self._bounds.clear()
        self._change(booking, 1)
        self.steps.join(np.array(booking.nodes, np.intp), self.now_s)

    def fits(self, booking: Booking) -> bool:
        """Whether exactly this is free."""
        nodes = np.array(booking.nodes, np.intp)
        held = np.array(booking.held, np.int64).T
        bad = self.steps.lacking(nodes, list(held), booking.kept_out_by)
        return not (bad & self.steps.during(nodes, max(booking.start_s, self.now_s), booking.end_s)).any()

    def force(self, booking: Booking) -> None:
        """Take it even where it is not free: a start is a fact."""
        self._change(booking, -1)

    def _change(self, booking: Booking, sign: int) -> None:
        more = np.zeros((len(self.steps.free), len(booking.nodes)), np.int64)
        more[:BITS] = np.array(booking.held, np.int64).T * sign
        more[PLANNED] = sign
        self.steps.add(np.array(booking.nodes, np.intp), booking.start_s, booking.end_s, more)

    def close(self, node: int, start_s: float, end_s: float, amounts: Iterable[int]) -> None:
        """Less (or bits more) on a node for a time: what is not a job of the policy."""
        more = np.zeros((len(self.steps.free), 1), np.int64)
        listed = list(amounts)
        more[: len(listed), 0] = listed
        self.steps.add(np.array([node], np.intp), start_s, end_s, more)

    # -- searching

    def free_resources(self, start_s: float, end_s: float, need: ResourceDemand) -> FreeResources:
        """What every node has free all the time; nothing where a job is planned, for one that is alone."""
        kept_out_by, first = need.kept_out_by, need.parts[0]
        # What begins after the end does not matter.
        width = self.steps.width_until(end_s)
        inside = self.steps.during(None, start_s, end_s)[:, :width]
        free = self.steps.free[:, :, :width]
        least = [np.where(inside, free[amount], PLENTY).min(axis=1) for amount in range(len(free) + BITS)]
        closed = None
        if kept_out_by:
            closed = (((free[BITS] & kept_out_by) != 0) & inside).any(axis=1)
        if first.whole:
            # Of a row of several nodes, the number of free ones says all.
            planned = ((free[PLANNED] < 0) & inside).any(axis=1) & ~(self.has_many | self.is_pool)
            if first.spares_parts:
                planned &= self.part_slots == 0
            closed = planned if closed is None else closed | planned
        if closed is not None:
            for amounts in least:
                amounts[closed] = 0
        slots, gpus, memory, swap, *others = least
        return FreeResources(slots, gpus, memory, swap, tuple(others))

    def _start_later(
        self, need: ResourceDemand, length_s: float, not_before_s: float, no_later_s: float
    ) -> Booking | None:
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
            booking = self.choose(need, found_s, found_s + length_s)
            if booking is not None:
                return booking
            at_s = self._next_step(need, found_s)
        return None

    def _next_step(self, need: ResourceDemand, after_s: float) -> float:
        """The parts want the same nodes: the next time at which anything changes."""
        nodes = np.concatenate([part.nodes for part in need.parts])
        at = self.steps.times(nodes)
        return float(np.where(at > after_s, at, np.inf).min(initial=np.inf))

    def _wanted(self, part: DemandPart, n: int = 1) -> list[int | Amounts]:
        """What `n` pieces need to be free on a node."""
        slots: int | Amounts = part.slots * n
        if part.kept_slots is not None:
            slots = part.kept_slots + part.slots * n
        alone = self.is_exclusive[part.nodes]
        if alone.any():
            slots = np.where(alone, np.maximum(self.capacity[part.nodes, SLOTS], slots), slots)
        if part.whole:
            own = np.where(self.has_many[part.nodes], 0, self.capacity[part.nodes, SLOTS])
            if part.spares_parts:
                size = self.part_slots[part.nodes]
                own = np.where(size > 0, -(-part.slots // np.maximum(size, 1)) * size * n, own)
            slots = np.maximum(own, slots)
        of_site = (amount * n for amount in part.others)
        return [slots, part.gpus * n, part.mem_bytes * n, part.vmem_bytes * n, *of_site]

    def _spans(
        self, part: DemandPart, n: int, bits: int, length_s: float, not_before_s: float
    ) -> tuple[Times, Times]:
        """The first and the last start of each span that is long enough."""
        bad = self.steps.lacking(part.nodes, self._wanted(part, n), bits)
        if part.most is not None and n > 1:
            bad |= (part.most < n)[:, None]
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

    def _first(self, part: DemandPart, bits: int, length_s: float, not_before_s: float) -> float:
        """The first time at which enough nodes have free resources for the part."""
        if part.count == 1 or (len(part.nodes) == 1 and (part.most is not None or part.may_share)):
            first, _ = self._spans(part, part.count, bits, length_s, not_before_s)
            return float(first.min(initial=np.inf))
        if not part.may_share and part.most is None:
            first, last = self._spans(part, 1, bits, length_s, not_before_s)
            return _sweep(first, last, np.ones(len(first), np.int64), part.count)
        firsts, lasts, weights = [], [], []
        before = 0
        for n in self._levels(part):
            first, last = self._spans(part, n, bits, length_s, not_before_s)
            firsts.append(first)
            lasts.append(last)
            weights.append(np.full(len(first), n - before, np.int64))
            before = n
        if not firsts:
            return math.inf
        return _sweep(np.concatenate(firsts), np.concatenate(lasts), np.concatenate(weights), part.count)

    def _levels(self, part: DemandPart) -> list[int]:
        """Numbers of pieces in one row that differ."""
        if not self.has_many[part.nodes].any():
            return _levels(
                min(int((self.capacity[part.nodes, SLOTS] // part.slots).max(initial=0)), part.count)
            )
        pieces = np.minimum(self.steps.free[SLOTS, part.nodes, : self.steps.width] // part.slots, part.count)
        if part.most is not None:
            pieces = np.minimum(pieces, part.most[:, None])
        return [n for n in np.unique(pieces).tolist() if n > 0]

    def choose(self, need: ResourceDemand, start_s: float, end_s: float) -> Booking | None:
        """The first nodes that have free resources during [start_s, end_s); None: too few."""
        inside = [self.steps.during(part.nodes, start_s, end_s) for part in need.parts]
        counts = [
            self._pieces(part, need.kept_out_by, now) for part, now in zip(need.parts, inside, strict=True)
        ]
        taken = np.zeros(len(self.names), np.int64)
        chosen: dict[int, list[tuple[int, int]]] = {}
        # The part with the fewest nodes chooses first.
        for place in sorted(range(len(counts)), key=lambda i: np.count_nonzero(counts[i])):
            part, left = need.parts[place], need.parts[place].count
            before = taken[part.nodes]
            beside: Amounts = np.zeros_like(counts[place])
            if part.mixes and before.any():
                beside = self._pieces(part, need.kept_out_by, inside[place], self._held_by(need, chosen))
            alone = np.where(before > 0, beside, counts[place])
            n_here = np.where(self.has_many[part.nodes], np.maximum(counts[place] - before, 0), alone)
            before = np.cumsum(n_here) - n_here
            for i in np.flatnonzero((n_here > 0) & (before < left)).tolist():
                chosen.setdefault(place, []).append((int(part.nodes[i]), min(int(n_here[i]), left)))
                left -= chosen[place][-1][1]
            if left > 0:
                return None
            for node, n in chosen[place]:
                taken[node] += n
        return self._booking(need, chosen, start_s, end_s)

    def _held_by(self, need: ResourceDemand, chosen: dict[int, list[tuple[int, int]]]) -> Amounts:
        """(n_amounts, n_rows): what the parts of a job that have chosen take."""
        held = np.zeros((len(self.steps.free) + BITS, len(self.names)), np.int64)
        for place, nodes in chosen.items():
            for node, n in nodes:
                held[:, node] += self.held(need.parts[place], node, n)
        return held

    def _pieces(self, part: DemandPart, bits: int, inside: Mask, held: Amounts | None = None) -> Amounts:
        """How many pieces fit on each of the part's nodes during the marked steps, beside what is `held`."""
        bad = (self.steps.lacking(part.nodes, self._wanted(part), bits) & inside).any(axis=1)
        if not part.may_share and part.most is None:
            return np.where(bad, 0, 1)
        width = self.steps.width
        pieces = np.full(len(part.nodes), part.count, np.int64)
        asked = (part.slots, part.gpus, part.mem_bytes, part.vmem_bytes, *part.others)
        for amount, each in enumerate(asked):
            if each:
                free = np.where(inside, self.steps.free[amount, part.nodes, :width], PLENTY).min(axis=1)
                if amount == SLOTS and part.kept_slots is not None:
                    free = free - part.kept_slots
                if held is not None:
                    free = np.maximum(free - held[amount, part.nodes], 0)
                pieces = np.minimum(pieces, free // each)
        if part.most is not None:
            pieces = np.minimum(pieces, part.most)
        return np.where(bad, 0, pieces)

    def _booking(
        self, need: ResourceDemand, chosen: dict[int, list[tuple[int, int]]], start_s: float, end_s: float
    ) -> Booking:
        nodes: list[int] = []
        held: list[tuple[int, ...]] = []
        shares: list[NodeShare] = []
        at: dict[int, int] = {}
        for place in sorted(chosen):
            part = need.parts[place]
            for node, n in chosen[place]:
                more = self.held(part, node, n)
                if self.is_pool[node]:
                    # No node; its parts come last.
                    nodes.append(node)
                    held.append(more)
                    continue
                share = NodeShare(self.names[node], part.slots * n, part.gpus * n)
                if node in at and part.mixes:
                    i = at[node]
                    had = held[i], shares[i]
                    is_alone = self.is_exclusive[node]
                    slots = had[0][0] if is_alone else had[0][0] + more[0]
                    held[i] = slots, *(a + b for a, b in zip(had[0][1:], more[1:], strict=True))
                    shares[i] = NodeShare(share.node, had[1].slots + share.slots, had[1].gpus + share.gpus)
                    continue
                at[node] = len(nodes)
                nodes.append(node)
                held.append(more)
                shares.append(share)
        return Booking(start_s, end_s, tuple(nodes), tuple(held), tuple(shares), need.kept_out_by)

    def held(self, part: DemandPart, node: int, n: int = 1) -> tuple[int, ...]:
        """What `n` pieces take of a row; of several nodes, only their number is counted."""
        if self.has_many[node]:
            return n, *([0] * (len(self.steps.free) + BITS - 1))
        is_alone = part.whole or bool(self.is_exclusive[node])
        slots = int(self.capacity[node, SLOTS]) if is_alone else part.slots * n
        size = int(self.part_slots[node])
        if size and part.spares_parts and not self.is_exclusive[node]:
            slots = min(slots, -(-part.slots // size) * size * n)
        of_site = (amount * n for amount in part.others or [0] * (len(self.steps.free) + BITS - 4))
        return slots, part.gpus * n, part.mem_bytes * n, part.vmem_bytes * n, *of_site


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
    """Numbers of pieces on one node that differ: all of few, steps of many."""
    if most <= _MOST_LEVELS:
        return list(range(1, most + 1))
    return sorted({max(1, round(most * (i + 1) / _MOST_LEVELS)) for i in range(_MOST_LEVELS)})
