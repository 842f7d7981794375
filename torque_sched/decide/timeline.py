"""The present and the future of the nodes: the accounts of now, and the table of free amounts later.

A later start is planned by amounts alone. A start now must also please everything that decides now (load,
free memory as reported, stray processes, company): the search answers that, and picks the best nodes by score
among those that are free beside all that is planned. A start is booked in both, for the next to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import islice

import numpy as np

from torque_sched.decide.draining import DrainPlan, plan_start
from torque_sched.decide.needs import Candidate, Fit, ResourceChunk, Shape
from torque_sched.decide.node_ledger import NodeLedger
from torque_sched.decide.occupancy import Occupancy
from torque_sched.decide.search import Search, SearchConstraints, StartNow, merged
from torque_sched.decide.steps import SLOTS, Amounts, Indices
from torque_sched.decide.table import Booking, DemandPart, FreeResources, NodeTable, ResourceDemand, Rows
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import GuaranteedStart, NodeShare
from torque_sched.model.request import AccessPolicy


class Timeline:
    """What is free now and later; `take` and `begin` book, `give_back` undoes a booking.

    Args:
        table: of the future, filled with all that is no waiting job's.
        occupancy: by which it was filled.
        search: finds the nodes for a start now; its ledger is the account of now.
        needs: of this cycle.
        n_starts: so many jobs may start in this cycle.
        end_of: when a running job will be gone.
        expected_shape: a job's shape with what history expects it to use; asked only to choose its nodes.
    """

    def __init__(
        self,
        table: NodeTable,
        occupancy: Occupancy,
        search: Search,
        needs: Needs,
        n_starts: int,
        end_of: Callable[[Job], float],
        expected_shape: Callable[[Job], Shape],
    ) -> None:
        self.table, self.needs, self.starts_left = table, needs, n_starts
        self.now_s, self._rows = table.now_s, needs.rows
        self._occupancy, self._search, self._end_of = occupancy, search, end_of
        self._expected_shape = expected_shape
        #: key of a need -> the shortest length for which nothing was found now.
        self._hopeless: dict[object, float] = {}
        #: Free slots of each node at this instant; None: to be found.
        self._slots_now: Amounts | None = None

    # -- questions

    def now(self, one: Candidate) -> StartNow | None:
        """The best nodes for a start now; None also where all is free, but something else is against it."""
        return self._now(one, self.table.end_of(self.now_s, one.length_s), None)

    def later(self, one: Candidate, not_before_s: float, no_later_s: float = math.inf) -> Booking | None:
        """The first start after now."""
        after_s = max(not_before_s, math.nextafter(self.now_s, math.inf))
        return self.table.earliest(one.need, one.length_s, after_s, no_later_s)

    def sooner(self, one: Candidate, booking: Booking) -> StartNow | Booking | None:
        """The first start before its booking, as if that were given back."""
        with self._without(booking):
            found = self._now(one, self.table.end_of(self.now_s, one.length_s), booking)
            if found is not None:
                return found
            if one.is_refused:
                return None
            later = self.later(one, self.now_s, booking.start_s)
        return later if later is not None and later.start_s < booking.start_s else None

    def due(self, one: Candidate, booking: Booking) -> StartNow | None:
        """The best nodes for a booking whose time has come.

        A start somewhat late would run into others: then it ends as planned.
        """
        with self._without(booking):
            end_s = self.table.end_of(self.now_s, one.length_s)
            return self._now(one, end_s, booking) or self._now(one, booking.end_s, booking)

    def capacity_beside(self, one: Candidate) -> Callable[[int, ResourceChunk], bool]:
        """Whether the node of this index can take a piece of the job from now on beside all bookings."""
        end_s = self.now_s + one.length_s
        if one.booking is None:
            return self._has_capacity(one.need, self._free_resources(one.need, end_s))
        with self._without(one.booking):
            return self._has_capacity(one.need, self._free_resources(one.need, end_s))

    def _free_resources(self, need: ResourceDemand, end_s: float) -> FreeResources:
        return self.table.free_resources(self.now_s, end_s, need)

    def _now(self, one: Candidate, end_s: float, own: Booking | None) -> StartNow | None:
        """As `now`; `own` is a booking of the job that counts as given back."""
        one.is_refused = False
        need = one.need
        if not one.may_now:
            return None
        hopeless_s = None if own is not None else self._hopeless.get(need.key)
        if hopeless_s is not None and end_s >= hopeless_s:
            return None
        if not all(self._has_nodes_now(part) for part in need.parts):
            return None
        least = self._free_resources(need, end_s)
        if not all(least.fits(part) for part in need.parts):
            if need.key is not None and own is None:
                self._hopeless[need.key] = min(end_s, self._hopeless.get(need.key, math.inf))
            return None
        if not self.starts_left:
            one.is_refused = True
            return None
        who = self._search.who(one.job, end_s)
        asked = SearchConstraints(
            who.user, who.now_s, who.until_s, who.pauses, self._has_capacity(need, least)
        )
        placed = self._search.find_for(asked, self._expected_shape(one.job))
        if placed is None:
            one.is_refused = self.table.choose(need, self.now_s, end_s) is not None
            return None
        return StartNow(placed, self.needs.booking_now(self.table, need, self.now_s, end_s, placed.parts))

    def _has_nodes_now(self, part: DemandPart) -> bool:
        """A quick look: False only if there surely are too few nodes at this instant."""
        if part.may_share or part.whole:
            return True
        if self._slots_now is None:
            steps = self.table.steps
            at = np.where(steps.times(None) <= self.now_s, 1, 0).sum(axis=1) - 1
            self._slots_now = steps.free[SLOTS, np.arange(steps.n_nodes), at]
        slots = self._slots_now[part.nodes]
        if part.most is None:
            return int(np.count_nonzero(slots >= part.slots)) >= part.count
        return int(np.clip(slots // part.slots, 0, part.most).sum()) >= part.count

    def _has_capacity(
        self, need: ResourceDemand, least: FreeResources
    ) -> Callable[[int, ResourceChunk], bool]:
        """Whether a node has free resources for a piece, where its row has at least these."""
        slots, gpus = least.slots.tolist(), least.gpus.tolist()
        memory, swap = least.mem_bytes.tolist(), least.vmem_bytes.tolist()
        of_site = [amounts.tolist() for amounts in least.others]
        row_of, members = self._rows.of.tolist(), self._rows.members
        chosen: dict[int, Collection[int]] = {}

        def has_capacity(index: int, piece: ResourceChunk) -> bool:
            row = row_of[index]
            if len(members[row]) > 1:
                if row not in chosen:
                    chosen[row] = self._usable(need, row, slots[row])
                return index in chosen[row]
            mem, vmem = piece.mem_bytes, piece.with_swap_bytes
            wanted = [(piece.slots, slots), (piece.gpus, gpus), (mem, memory), (vmem, swap)]
            wanted += zip(self.needs.of_site(piece) if piece.others else (), of_site, strict=False)
            # What nobody asks for may be overdrawn: others start jobs, too, whatever they ask for.
            return all(not amount or amount <= free[row] for amount, free in wanted)

        return has_capacity

    def _usable(self, need: ResourceDemand, row: int, n: int) -> Collection[int]:
        """Of a row of several nodes, those that the job may use, where `n` are free for it."""
        members = self._rows.members[row]
        if sum(part.count for part in need.parts if part.has(row)) <= n:
            return set(members)
        nodes = self._search.ledger.nodes
        free = [index for index in members if nodes[index].slots_free and nodes[index].blocked is None]
        return free[: max(0, n)]

    # -- bookings

    def take(self, one: Candidate, booking: Booking) -> None:
        """Keep this for the job."""
        self._touch(booking)
        self.table.take(booking)
        one.booking = booking

    def put_off(self, one: Candidate, booking: Booking) -> None:
        """Keep this for the job in the place of what was, whether it is free or not."""
        self.give_back(one)
        self._touch(booking)
        self.table.force(booking)
        one.booking = booking

    def give_back(self, one: Candidate) -> Booking | None:
        """Keep nothing for the job any more; returns what was kept."""
        booking, one.booking = one.booking, None
        if booking is not None:
            self._touch(booking)
            self.table.give_back(booking)
        return booking

    def begin(self, one: Candidate, start: StartNow) -> None:
        """The job starts; what was kept for it is given back."""
        self.give_back(one)
        self._slots_now = None
        # The search has the last word: a user alone on a node may join it once more.
        self.table.force(start.booking)
        self.starts_left -= 1
        self._search.ledger.take(one.job, one.shape, start.placed.parts, self.now_s + one.length_s)

    def drain(self, one: Candidate) -> DrainPlan | None:
        """For want of walltimes nobody knows when its nodes are free: keep some from now on, if there are."""
        plan = plan_start(self._search, one.job, one.shape, self.now_s)
        if plan is None or plan.is_known:
            return None
        for node, piece in plan.parts:
            row = int(self._rows.of[node.index])
            of_site = (-amount for amount in self.needs.of_site(piece))
            less = (-piece.slots, -piece.gpus, -int(piece.mem_bytes), -int(piece.with_swap_bytes), *of_site)
            self.table.close(row, self.now_s, math.inf, less[:1] if self.table.has_many[row] else less)
        return plan

    def allocations(
        self, reserved: Sequence[Candidate], before: Mapping[JobId, GuaranteedStart]
    ) -> dict[JobId, tuple[NodeShare, ...]]:
        """The nodes of all bookings.

        Of rows of several nodes, in the order of starts: nodes that are free by then, those of the job's
        promise before others. A node that is free at a start stays free, so there always are enough.

        Args:
            reserved: candidates with bookings.
            before: what was promised to them.
        """
        free: dict[int, _FreeNodes] = {}
        by_start = sorted(
            ((one, one.booking) for one in reserved if one.booking is not None),
            key=lambda each: each[1].start_s,
        )
        found: dict[JobId, tuple[NodeShare, ...]] = {}
        for one, booking in by_start:
            shares: list[NodeShare] = []
            promise = before.get(one.job.id)
            wanted = (
                frozenset(share.node for share in promise.allocation) if promise is not None else frozenset()
            )
            for share in booking.shares:
                row = int(self._rows.of[self._search.ledger.by_name[share.node].index])
                if not self.table.has_many[row]:
                    shares.append(share)
                    continue
                if row not in free:
                    free[row] = _FreeNodes(self._free_s(row))
                names = free[row].take(share.slots, booking.start_s, booking.end_s, wanted)
                shares += [NodeShare(name, 1) for name in names]
            found[one.job.id] = merged(tuple(shares))
        return found

    def _free_s(self, row: int) -> dict[NodeName, float]:
        """When what runs now on the nodes of a row will be gone."""
        nodes, held = self._search.ledger.nodes, self._search.ledger.held
        free_s: dict[NodeName, float] = {}
        for index in self._rows.members[row]:
            entry = nodes[index]
            if entry.is_taken:
                last_s = max(self._end_of(each.job) for each in held[entry.name])
                free_s[entry.name] = self.table.rounded(last_s)
            else:
                free_s[entry.name] = self._occupancy.last_end_s(index)
        return free_s

    @contextmanager
    def _without(self, booking: Booking) -> Iterator[None]:
        self._touch(booking)
        with self.table.without(booking):
            yield
        self._touch(booking)

    def _touch(self, booking: Booking) -> None:
        if booking.start_s <= self.now_s:
            self._slots_now = None


class _FreeNodes:
    """Nodes of one row, and from when on each is free; jobs take them in the order of their starts."""

    def __init__(self, free_s: Mapping[NodeName, float]) -> None:
        self._coming = [(at_s, place, name) for place, (name, at_s) in enumerate(free_s.items())]
        heapify(self._coming)
        self._free: dict[NodeName, int] = {}

    def take(self, n: int, start_s: float, end_s: float, wanted: Set[NodeName]) -> list[NodeName]:
        """So many nodes from a time until another; too few are free only where the table was overdrawn."""
        coming, free = self._coming, self._free
        while coming and (coming[0][0] <= start_s or len(free) < n):
            _, place, name = heappop(coming)
            free[name] = place
        names = [name for name in free if name in wanted][:n]
        if len(names) < n:
            names += islice((name for name in free if name not in wanted), n - len(names))
        for name in names:
            heappush(coming, (end_s, free.pop(name), name))
        return names


class Needs:
    """From what a job needs (`Shape`) to what is asked of the table; alike jobs share all of it.

    Args:
        search: of the cycle.
        rows: of the table.
        resources: the site's own, in the order of the table.
    """

    def __init__(self, search: Search, rows: Rows, resources: Sequence[str] = ()) -> None:
        self._search, self.rows, self._resources = search, rows, resources
        self._parts: dict[Fit, tuple[DemandPart, ...]] = {}
        self._keys: dict[tuple[Fit, int, tuple[tuple[int, str, int], ...]], object] = {}
        #: By the nodes that could take a piece, and whether it needs GPUs.
        self._rows_of: dict[tuple[int, bool], tuple[list[NodeLedger], Indices, Amounts | None]] = {}

    def of(
        self,
        shape: Shape,
        kept_out_by: int,
        pauses: Iterable[NodeName] = (),
        of_pools: tuple[tuple[int, str, int], ...] = (),
    ) -> ResourceDemand:
        """The need of a job of this shape.

        Args:
            kept_out_by: bits, see `occupancy.KeptOut`.
            pauses: nodes that failed to start this very job lately.
            of_pools: of the site's pools, by the place among them: the resource, and how much.
        """
        parts = self._parts.get(shape.fit)
        if parts is None:
            # Planned on the nodes of one value of the group, the one with most of them.
            planned = next(iter(self._search.groups(shape)), shape) if shape.node_group else shape
            self._search.prepare(planned)
            parts = tuple(self._part(piece, planned) for piece in self._pieces(planned))
            self._parts[shape.fit] = parts
        names = frozenset(pauses)
        if names:
            parts = tuple(_without(part, self._indices(names)) for part in parts)
            return ResourceDemand((*parts, *map(self._pool_part, of_pools)), kept_out_by)
        key = self._keys.setdefault((shape.fit, kept_out_by, of_pools), object())
        return ResourceDemand((*parts, *map(self._pool_part, of_pools)), kept_out_by, key)

    def _pool_part(self, asked: tuple[int, str, int]) -> DemandPart:
        place, name, n = asked
        row = np.array([len(self.rows.members) + place], np.intp)
        return DemandPart(row, slots=0, others=tuple(n if name == each else 0 for each in self._resources))

    def of_site(self, piece: ResourceChunk) -> tuple[int, ...]:
        """What a piece asks for of the site's own resources, in the order of the table."""
        asked = dict(piece.others)
        return tuple(asked.get(name, 0) for name in self._resources)

    def _indices(self, names: frozenset[NodeName]) -> Indices:
        by_name = self._search.ledger.by_name
        return self.rows.of[[by_name[name].index for name in names if name in by_name]]

    def _pieces(self, shape: Shape) -> list[ResourceChunk]:
        """The shape's pieces, each for a node of its own; GPUs anywhere as pieces of their own."""
        pieces = list(self._search.apart(shape))
        if shape.gpus_anywhere and shape.procs:
            (piece,) = pieces
            n = min(piece.count, shape.gpus_anywhere)
            gpus = -(-shape.gpus_anywhere // n)
            pieces = [replace(piece, count=n, gpus=gpus)]
            if shape.procs > n:
                pieces.append(replace(piece, count=shape.procs - n))
        return pieces

    def _part(self, piece: ResourceChunk, shape: Shape) -> DemandPart:
        nodes, indices, most = self._rows_for(piece, shape)
        spares_parts = shape.access is AccessPolicy.SINGLE_PART
        whole = shape.empty or spares_parts or shape.access in _ALONE
        return DemandPart(
            indices,
            piece.slots,
            piece.gpus,
            piece.count,
            int(piece.mem_bytes),
            int(piece.with_swap_bytes),
            whole,
            bool(shape.procs) or shape.may_share,
            _kept_slots(nodes, piece, shape) if self._search.ledger.keeps_slots else None,
            _most_pieces(nodes, piece, most) if bool(shape.procs) or shape.may_share else most,
            shape.may_share and shape.mixes_tasks,
            spares_parts,
            self.of_site(piece),
        )

    def _rows_for(
        self, piece: ResourceChunk, shape: Shape
    ) -> tuple[list[NodeLedger], Indices, Amounts | None]:
        """The rows that could take the piece, the best first; of each its first node, and how many it has."""
        capable = self._search.capable(piece, shape)
        key = id(capable), bool(piece.gpus)
        found = self._rows_of.get(key)
        if found is not None:
            return found
        nodes, most = list(capable), None
        if any(node.node.gpus or node.reserved for node in nodes):
            nodes.sort(key=lambda node: _preference(node, piece))
        indices = self.rows.of[[node.index for node in nodes]]
        if len(self.rows.members) < len(self.rows.of):
            _, firsts, counts = np.unique(indices, return_index=True, return_counts=True)
            order = np.argsort(firsts)
            nodes = [nodes[place] for place in firsts[order].tolist()]
            indices, most = indices[firsts[order]], counts[order].astype(np.int64)
        self._rows_of[key] = nodes, indices, most
        return nodes, indices, most

    def booking(
        self,
        table: NodeTable,
        need: ResourceDemand,
        start_s: float,
        end_s: float,
        shares: tuple[NodeShare, ...],
    ) -> Booking | None:
        """The place promised before; None where its nodes are not what the job needs any more."""
        pieces: dict[int, tuple[DemandPart, int]] = {}
        for share in shares:
            entry = self._search.ledger.by_name.get(share.node)
            row = -1 if entry is None else int(self.rows.of[entry.index])
            part = None if entry is None else _part_for(need, row, share)
            if part is None:
                return None
            before = pieces.get(row, (part, 0))[1]
            pieces[row] = part, before + -(-share.slots // part.slots)
        if sum(share.slots for share in shares) != sum(part.slots * part.count for part in need.parts):
            return None
        n_nodes = len(pieces)
        pieces |= {int(part.nodes[0]): (part, 1) for part in need.parts if not part.slots}
        held = tuple(table.held(part, row, n) for row, (part, n) in pieces.items())
        if n_nodes < len(shares):
            shares = tuple(
                NodeShare(table.names[row], part.slots * n, part.gpus * n)
                for row, (part, n) in pieces.items()
                if part.slots
            )
        return Booking(start_s, end_s, tuple(pieces), held, shares, need.kept_out_by)

    def booking_now(
        self,
        table: NodeTable,
        need: ResourceDemand,
        start_s: float,
        end_s: float,
        placed: Iterable[tuple[NodeLedger, ResourceChunk]],
    ) -> Booking:
        """The place the search found for a start now; who wants to be alone gets all, whoever is there."""
        is_whole = need.parts[0].whole
        held: dict[int, tuple[int, ...]] = {}
        shares: list[NodeShare] = []
        for entry, piece in placed:
            row = int(self.rows.of[entry.index])
            if len(self.rows.members[row]) > 1:
                held[row] = held.get(row, (0,))[0] + 1, 0, 0, 0, *([0] * len(self._resources))
            else:
                slots = entry.slots if is_whole or entry.node.is_exclusive else piece.slots
                size = int(table.part_slots[row]) if need.parts[0].spares_parts else 0
                if size and not entry.node.is_exclusive:
                    slots = min(
                        slots, sum(each.count * -(-each.slots // size) * size for each in piece.made_of)
                    )
                memory = int(piece.mem_bytes), int(piece.with_swap_bytes)
                held[row] = slots, piece.gpus, *memory, *self.of_site(piece)
            shares.append(NodeShare(entry.name, piece.slots, piece.gpus))
        held |= {
            int(part.nodes[0]): table.held(part, int(part.nodes[0])) for part in need.parts if not part.slots
        }
        return Booking(start_s, end_s, tuple(held), tuple(held.values()), tuple(shares), need.kept_out_by)


_ALONE = frozenset({AccessPolicy.SINGLE_USER, AccessPolicy.UNIQUE_USER})
"""Who else will be there later is not known: planned as if they needed the node alone."""


def _preference(node: NodeLedger, piece: ResourceChunk) -> tuple[bool, bool, int]:
    """GPU nodes and reserved ones last, where they are not needed; else the server's order."""
    return bool(node.node.gpus) and not piece.gpus, bool(node.reserved), node.index


def _kept_slots(nodes: list[NodeLedger], piece: ResourceChunk, shape: Shape) -> Amounts | None:
    """Slots that must be left for idle GPUs, as `NodeLedger.refusal` has it when all are idle."""
    if piece.gpus or shape.wants_gpus or shape.fit.may_use_kept:
        return None
    kept = [min(node.kept_per_gpu * node.node.gpus, node.slots - 1) for node in nodes]
    return np.array(kept, np.int64) if any(kept) else None


def _most_pieces(nodes: list[NodeLedger], piece: ResourceChunk, most: Amounts | None) -> Amounts | None:
    """How many pieces a row takes whatever is free: of those that want parts of their own, one each."""
    if not piece.on_own_part:
        return None
    of_parts = np.array([max(1, len(node.node.parts)) for node in nodes], np.int64)
    return of_parts if most is None else np.maximum(most, of_parts)


def _without(part: DemandPart, nodes: Indices) -> DemandPart:
    stays = ~np.isin(part.nodes, nodes)
    kept = None if part.kept_slots is None else part.kept_slots[stays]
    most = None if part.most is None else part.most[stays]
    return replace(part, nodes=part.nodes[stays], kept_slots=kept, most=most)


def _part_for(need: ResourceDemand, node: int, share: NodeShare) -> DemandPart | None:
    """The part of the need this share is of."""
    for part in need.parts:
        if not part.slots:
            continue
        n = share.slots // part.slots
        is_alike = n * part.slots == share.slots and n * part.gpus == share.gpus
        if is_alike and (n == 1 or part.may_share) and part.has(node):
            return part
    return None
