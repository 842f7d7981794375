"""All that holds, closes or keeps the nodes over time and is no waiting job's, kept from cycle to cycle.

A job counts until its limit, and past its limit until now and a little more. What has no known end (no
walltime, slots in use by nobody known) counts for ever. What passes (busy, a stray process on a GPU) closes a
node for some minutes only, so that promises far ahead do not break by it.

Theory of operation. Every part is booked once, with absolute times: what each job holds of each node until
the job's end, what closes each node, advance reservations and dedicated time. The next cycle compares. Nodes
whose account is the same object did not change (`ledger.KeptAccounts`); of the others, what differs is given
back and booked anew. So are jobs whose end moved, and what lasts some minutes from now. Then the rows that
changed are cut at now, and equal neighbours are joined: a row has one form, whatever was booked before. A
cycle plans on a copy, so nothing that is planned stays behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

import numpy as np

from torque_sched.decide.admission import SitePool, site_pools
from torque_sched.decide.backfill import PlanningBackfill
from torque_sched.decide.context import Context, Lengths, Window
from torque_sched.decide.ledger import Ledger
from torque_sched.decide.node_ledger import Held, NodeLedger, Refusal
from torque_sched.decide.search import operating_system
from torque_sched.decide.steps import (
    BITS,
    GPUS,
    MEMORY,
    N_AMOUNTS,
    PLENTY,
    SLOTS,
    SWAP,
    Amounts,
    NodeSteps,
    rounded,
)
from torque_sched.decide.table import NodeTable, Rows
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.request import AccessPolicy
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.states import JobState

_PASSING_S = 600.0
_MOST_BITS = 58
_DEDICATED, _ORDINARY = 1 << 58, 1 << 59
"""Bits of the time in which only, or no, jobs of dedicated queues run."""

HeldAmounts = tuple[int, ...]
"""What a job holds of a node, in the order of `steps`."""
Closed = tuple[float, tuple[int, ...]]
"""Until when a node has less, and the amounts that are added to it, mostly negative."""
_Asked = tuple[bool, frozenset[NodeName], bool]
"""By what nodes differ: whether each has a row of its own, which have by name, whether systems count."""


class KeptOut:
    """Which bit stands for which reservation, dedicated time or user with a node alone.

    Where there are more than bits, those left over keep everybody out.
    """

    def __init__(self, reservations: Iterable[Reservation], dedicated: Iterable[Window]) -> None:
        self._reservations = tuple(reservations)
        # Those for the same users share a bit: some come again every day.
        bits = {
            users: place for place, users in enumerate(dict.fromkeys(r.users for r in self._reservations))
        }
        self._bits = [bits[reservation.users] for reservation in self._reservations]
        self._has_dedicated = bool(tuple(dedicated))
        self._users: dict[str, int] = {}

    def bit_of(self, place: int) -> int:
        """The bit of a reservation by its place in the list; 0: none left."""
        bit = self._bits[place]
        return 1 << bit if bit < _MOST_BITS // 2 else 0

    def bit_of_user(self, user: str) -> int:
        """The bit of nodes this user has alone; 0: none left."""
        if user not in self._users and len(self._users) < _MOST_BITS // 2:
            self._users[user] = 1 << (_MOST_BITS // 2 + len(self._users))
        return self._users.get(user, 0)

    def of(self, user: str, company: str, is_dedicated: bool) -> int:
        """The bits that keep a job of this user out; `company`: the user, if it may join its user's nodes."""
        bits = 0
        for place, reservation in enumerate(self._reservations):
            if user not in reservation.users:
                bits |= self.bit_of(place)
        for other, bit in self._users.items():
            if other != company:
                bits |= bit
        if is_dedicated:
            return bits | _ORDINARY
        return bits | _DEDICATED if self._has_dedicated else bits


@dataclass(slots=True)
class _Booked:
    """A job in the steps.

    Attributes:
        job: as the cycle saw it.
        raw_end_s: when it will be gone; `end_s` is the end in the steps.
        is_steady: `raw_end_s` is the same until then.
        parts: what it holds of each node, by the node's place; `in_steps` is that of the steps.
    """

    job: Job
    raw_end_s: float = 0.0
    end_s: float = 0.0
    is_steady: bool = False
    parts: dict[int, HeldAmounts] = field(default_factory=dict)
    in_steps: dict[int, HeldAmounts] = field(default_factory=dict)


class Occupancy:
    """Keeps what is booked of the nodes; `update` makes it that of a cycle, `table` gives a copy to plan on.

    Attributes:
        rows: which row of the table is of which nodes.
        steps: what is free beside all that is booked.
        kept_out: who may not use which nodes when.
    """

    def __init__(self) -> None:
        self.rows = Rows([])
        self.steps = NodeSteps(np.zeros((0, N_AMOUNTS), np.int64))
        self.kept_out = KeptOut((), ())
        #: All that is booked beside nodes and jobs; None: nothing is booked.
        self._basis: tuple[object, ...] | None = None
        self._nodes: tuple[NodeLedger, ...] = ()
        #: The site's own resources, in the order of their amounts, and those that no node has.
        self.resources: tuple[str, ...] = ()
        self.pools: tuple[SitePool, ...] = ()
        self._n_amounts = N_AMOUNTS
        self._kinds: list[object] = []
        #: What the kinds of nodes were found by.
        self._asked: _Asked | None = None
        self._names: tuple[NodeName, ...] = ()
        self._capacity: Amounts = np.zeros((0, N_AMOUNTS), np.int64)
        self._row_of: list[int] = []
        self._has_many: list[bool] = []
        self._jobs: dict[JobId, _Booked] = {}
        #: What each job holds of each node; what else is closed of it; when its last job ends.
        self._on_node: list[dict[JobId, HeldAmounts]] = []
        self._closed: list[tuple[Closed, ...]] = []
        self._last_s: list[float] = []
        #: Places of nodes that are closed until a time that moves.
        self._passing: set[int] = set()
        self._resolution_s = 1.0
        self._now_s = 0.0
        #: Rows that changed in this cycle.
        self._touched: set[int] = set()

    # -- what a cycle asks

    def table(self, rule: PlanningBackfill) -> NodeTable:
        """A table to plan on by this rule."""
        first = [self._nodes[members[0]].node for members in self.rows.members]
        no = [False] * len(self.pools)
        return NodeTable(
            self._names,
            self._capacity,
            self._now_s,
            resolution_s=rule.resolution_s,
            window_s=rule.window_s,
            slack_s=rule.slack_s,
            n_nodes=np.append(self.rows.n_nodes, [1] * len(self.pools)).astype(np.int64),
            steps=self.steps.copy(),
            is_exclusive=np.array([node.is_exclusive for node in first] + no, bool),
            part_slots=np.array([_part_slots(node) for node in first] + no, np.int64),
            is_pool=np.array([False] * len(first) + [True] * len(self.pools), bool),
        )

    def end_s(self, job: JobId) -> float | None:
        """When a job that holds nodes will let them go; None: it holds none."""
        booked = self._jobs.get(job)
        return None if booked is None else booked.raw_end_s

    @property
    def has_unknown_ends(self) -> bool:
        """Whether anything runs of which nobody knows when it ends."""
        return any(booked.raw_end_s == math.inf for booked in self._jobs.values())

    def last_end_s(self, place: int) -> float:
        """When the last job on a node ends by the steps; 0: there is none."""
        return self._last_s[place]

    # -- the difference

    def update(
        self, snapshot: Snapshot, context: Context, ledger: Ledger, rule: PlanningBackfill, lengths: Lengths
    ) -> None:
        """Become that of a cycle.

        Args:
            snapshot: now.
            context: of the same moment.
            ledger: the accounts as the cycle begins.
            rule: in force.
            lengths: how long jobs are planned to run.
        """
        before, self._basis = self._basis, None  # Until all is booked, in case of an error.
        starting = (snapshot.job_by_id.get(start.job) for start in context.pending)
        holding = [*snapshot.running, *(job for job in starting if job and job.state is JobState.QUEUED)]
        pools = site_pools(snapshot, holding)
        names = {name for entry in ledger.nodes for name in entry.node.others} | {pool.name for pool in pools}
        resources = tuple(sorted(names))
        keys = tuple((pool.queue, pool.name) for pool in pools)
        basis = rule, context.reservations, context.dedicated, resources, keys
        is_good = before == basis and snapshot.now_s >= self._now_s
        self._now_s, self._resolution_s = snapshot.now_s, rule.resolution_s
        self.kept_out = KeptOut(context.reservations, context.dedicated)
        changed = self._changed(ledger) if is_good else None
        asked = _asked(snapshot, context, ledger)
        if changed is None or not self._find_kinds(ledger, asked, changed):
            self._kinds = [_kind(entry, *asked) for entry in ledger.nodes]
            self.resources, self.pools = resources, pools
            self._open(context, ledger)
            changed = list(range(len(ledger.nodes)))
        self._asked = asked
        self._nodes = ledger.nodes
        moved = self._see_nodes(ledger, changed)
        self._see_pools(pools, holding, moved)
        self._see_ends(lengths, moved)
        self._close_nodes(ledger, context, changed)
        self._tidy()
        self._basis = basis

    def _changed(self, ledger: Ledger) -> list[int] | None:
        """The places of nodes whose accounts are others than before; None: other nodes."""
        if len(ledger.nodes) != len(self._nodes):
            return None
        both = enumerate(zip(ledger.nodes, self._nodes, strict=True))
        changed = [place for place, (entry, was) in both if entry is not was]
        for place in changed:
            entry, was = ledger.nodes[place], self._nodes[place]
            if (entry.name, entry.slots, entry.node.gpus) != (was.name, was.slots, was.node.gpus):
                return None
        return changed

    def _find_kinds(self, ledger: Ledger, asked: _Asked, changed: Iterable[int]) -> bool:
        """Whether all nodes are of the kinds that they were of."""
        places = changed if asked == self._asked else range(len(ledger.nodes))
        return all(_kind(ledger.nodes[place], *asked) == self._kinds[place] for place in places)

    def _open(self, context: Context, ledger: Ledger) -> None:
        """Book nothing but advance reservations and dedicated time."""
        self.rows = rows = Rows(self._kinds)
        n_pools, n_rows = len(self.pools), len(rows.members)
        self._n_amounts = N_AMOUNTS + len(self.resources)
        # Pools come after the nodes, each with a row and a place of its own.
        self._row_of = [*rows.of.tolist(), *range(n_rows, n_rows + n_pools)]
        self._has_many = [*(len(each) > 1 for each in rows.members), *([False] * n_pools)]
        self._names = (
            *(ledger.nodes[members[0]].name for members in rows.members),
            *(NodeName(f"{pool.name} of {pool.queue or 'the server'}") for pool in self.pools),
        )
        of_nodes = [self._capacity_of(ledger.nodes[members[0]], len(members)) for members in rows.members]
        of_pools = [self._capacity_of_pool(pool) for pool in self.pools]
        self._capacity = np.array([*of_nodes, *of_pools], np.int64).reshape(-1, self._n_amounts)
        self.steps = NodeSteps(self._capacity)
        self._jobs = {}
        n_nodes = len(ledger.nodes)
        self._on_node, self._closed = [{} for _ in range(n_nodes + n_pools)], [()] * n_nodes
        self._last_s, self._passing = [0.0] * (n_nodes + n_pools), set()
        self._keep(ledger, context.reservations)
        self._dedicate(context.dedicated)
        self._touched = set(range(n_rows + n_pools))

    # -- nodes and jobs

    def _see_nodes(self, ledger: Ledger, changed: Iterable[int]) -> dict[JobId, _Booked]:
        """What jobs hold of the nodes that changed; returns the jobs that hold anything else than before."""
        moved: dict[JobId, _Booked] = {}
        for place in changed:
            entry = ledger.nodes[place]
            row = self._row_of[place]
            self._see_capacity(row, entry)
            is_one_of_many = self._has_many[row]
            held: dict[JobId, HeldAmounts] = {}
            for each in ledger.held.get(entry.name, ()):
                of_site = dict(each.others)
                amounts = (
                    (each.slots, *([0] * (self._n_amounts + BITS - 1)))
                    if is_one_of_many
                    else (*_held(entry, each), *(of_site.get(name, 0) for name in self.resources))
                )
                job_id = each.job.id
                had = held.get(job_id)
                held[job_id] = amounts if had is None else tuple(map(add, had, amounts))
                booked = self._jobs.get(job_id)
                if booked is None:
                    booked = self._jobs[job_id] = moved[job_id] = _Booked(each.job)
                booked.job, booked.is_steady = each.job, False
            before = self._on_node[place]
            if held != before:
                self._on_node[place] = held
                for job_id in {*held, *before}:
                    self._move(moved, job_id, place, before.get(job_id), held.get(job_id))
        return moved

    def _see_pools(
        self, pools: Sequence[SitePool], holding: Sequence[Job], moved: dict[JobId, _Booked]
    ) -> None:
        """What jobs hold of the site's pools, and how much these have."""
        n_nodes = len(self._nodes)
        for place, pool in enumerate(pools, n_nodes):
            row = self._row_of[place]
            capacity = np.array(self._capacity_of_pool(pool), np.int64)
            more = capacity - self._capacity[row]
            if more.any():
                self._capacity = self._capacity.copy()
                self._capacity[row] = capacity
                self._add(row, -math.inf, math.inf, more)
            held: dict[JobId, HeldAmounts] = {}
            for job in holding:
                n = pool.asked(job)
                if n:
                    held[job.id] = (0,) * 4 + tuple(n if name == pool.name else 0 for name in self.resources)
                    booked = self._jobs.get(job.id)
                    if booked is None:
                        self._jobs[job.id] = moved[job.id] = _Booked(job)
            before, self._on_node[place] = self._on_node[place], held
            for job_id in {*held, *before} if held != before else ():
                self._move(moved, job_id, place, before.get(job_id), held.get(job_id))

    def _capacity_of_pool(self, pool: SitePool) -> list[int]:
        of_site = (pool.available if name == pool.name else 0 for name in self.resources)
        return [0, 0, 0, 0, *of_site, 0, 0]

    def _move(
        self,
        moved: dict[JobId, _Booked],
        job_id: JobId,
        place: int,
        before: HeldAmounts | None,
        held: HeldAmounts | None,
    ) -> None:
        if held == before:
            return
        booked = moved[job_id] = self._jobs[job_id]
        if held is None:
            del booked.parts[place]
        else:
            booked.parts[place] = held

    def _see_capacity(self, row: int, entry: NodeLedger) -> None:
        """A node may report other memory than before."""
        members = self.rows.members[row]
        if members[0] != entry.index:
            return
        capacity = np.array(self._capacity_of(entry, len(members)), np.int64)
        more = capacity - self._capacity[row]
        if more.any():
            self._capacity = self._capacity.copy()
            self._capacity[row] = capacity
            self._add(row, -math.inf, math.inf, more)

    def _see_ends(self, lengths: Lengths, moved: Mapping[JobId, _Booked]) -> None:
        """Book what jobs hold now, until their ends."""
        now_s = self._now_s
        ends: set[int] = set()
        for job_id in list(self._jobs):
            booked = self._jobs[job_id]
            has_moved = job_id in moved
            if not has_moved and booked.is_steady and booked.raw_end_s > now_s:
                continue
            if not booked.parts:
                del self._jobs[job_id]
                ends.update(booked.in_steps)
                self._book(booked, booked.end_s, booked.end_s)
                continue
            booked.raw_end_s = lengths.end_s(booked.job)
            booked.is_steady = lengths.is_steady(booked.job)
            end_s = self._rounded(booked.raw_end_s)
            if has_moved or end_s != booked.end_s:
                ends.update(booked.in_steps, booked.parts)
                self._book(booked, booked.end_s, end_s)
        for place in ends:
            self._last_s[place] = max((self._jobs[job].end_s for job in self._on_node[place]), default=0.0)

    def _book(self, booked: _Booked, before_s: float, end_s: float) -> None:
        """Give back what the steps have of a job, and take what it holds now."""
        if booked.in_steps == booked.parts:
            if end_s > before_s:
                self._add_parts(booked.parts, before_s, end_s, -1)
            else:
                self._add_parts(booked.parts, end_s, before_s, 1)
        else:
            self._add_parts(booked.in_steps, -math.inf, before_s, 1)
            self._add_parts(booked.parts, -math.inf, end_s, -1)
            booked.in_steps = dict(booked.parts)
        booked.end_s = end_s

    def _add_parts(self, parts: Mapping[int, HeldAmounts], start_s: float, end_s: float, sign: int) -> None:
        if not parts:
            return
        by_row: dict[int, HeldAmounts] = {}
        for place, amounts in parts.items():
            row = self._row_of[place]
            had = by_row.get(row)
            by_row[row] = amounts if had is None else tuple(map(add, had, amounts))
        more = np.zeros((self._n_amounts, len(by_row)), np.int64)
        more[:BITS] = np.array(list(by_row.values()), np.int64).T * sign
        self.steps.add(np.array(list(by_row), np.intp), start_s, end_s, more)
        self._touched.update(by_row)

    # -- closed nodes

    def _close_nodes(self, ledger: Ledger, context: Context, changed: Iterable[int]) -> None:
        """Book what else is closed of the nodes that changed, or that are closed for a while."""
        for place in sorted({*changed, *self._passing}):
            entry = ledger.nodes[place]
            closed = tuple(self._closings(entry, ledger, context))
            if closed != self._closed[place]:
                row = self._row_of[place]
                for end_s, amounts in self._closed[place]:
                    self._add(row, -math.inf, end_s, [-amount for amount in amounts])
                for end_s, amounts in closed:
                    self._add(row, -math.inf, end_s, amounts)
                self._closed[place] = closed
            is_passing = entry.is_closed or entry.single_user or entry.blocked or not all(entry.gpus_clean)
            (self._passing.add if is_passing else self._passing.discard)(place)

    def _closings(self, entry: NodeLedger, ledger: Ledger, context: Context) -> Iterable[Closed]:
        held = self._on_node[entry.index].values()
        # Slots and GPUs in use of which no job is known: nobody knows until when.
        slots, gpus = (-n for n in entry.reserved_now)
        slots += entry.slots - entry.slots_free - sum(amounts[SLOTS] for amounts in held)
        gpus += entry.node.gpus - entry.gpus_free - sum(amounts[GPUS] for amounts in held)
        if slots > 0 or gpus > 0:
            yield math.inf, (-max(0, slots), -max(0, gpus))
        if self._has_many[self._row_of[entry.index]]:
            return
        if entry.is_closed or entry.single_user:
            yield self._closed_alone(entry, ledger)
        less = -entry.slots, -entry.node.gpus
        passing_s = self._rounded(self._now_s + _PASSING_S)
        if entry.blocked is Refusal.BACK_OFF:
            yield self._rounded(context.back_off.nodes[entry.name].until_s), less
        elif entry.blocked is Refusal.BUSY:
            yield passing_s, less
        elif entry.blocked is not None:
            yield math.inf, less
        if not all(entry.gpus_clean):
            yield passing_s, (0, -entry.node.gpus)

    def _closed_alone(self, entry: NodeLedger, ledger: Ledger) -> Closed:
        """A node that a job or a user has alone, until the last job that wants it so ends."""
        here = [held.job for held in ledger.held.get(entry.name, ())]
        jobs = [job for job in here if _wants_alone(job)] or here
        ends = [self._jobs[job.id].raw_end_s for job in jobs]
        end_s = self._rounded(max(ends, default=self._now_s + _PASSING_S))
        bit = self.kept_out.bit_of_user(entry.single_user) if entry.single_user and not entry.is_closed else 0
        return end_s, tuple(self._bit(bit)) if bit else (-entry.slots,)

    def _bit(self, bit: int) -> list[int]:
        """Amounts that add a bit alone."""
        return [0] * (self._n_amounts + BITS) + [bit]

    # -- kept for somebody

    def _keep(self, ledger: Ledger, reservations: Iterable[Reservation]) -> None:
        """Advance reservations."""
        for place, reservation in enumerate(reservations):
            bit = self.kept_out.bit_of(place)
            for name in reservation.nodes:
                entry = ledger.by_name.get(name)
                if entry is None:
                    continue
                less = self._bit(bit) if bit else [-entry.slots]
                if reservation.held:
                    of_node = dict(dict(reservation.held).get(name, ()))
                    mem = of_node.get("mem", 0)
                    of_site = (-of_node.get(name, 0) for name in self.resources)
                    less = [-of_node.get("ncpus", 0), -of_node.get("ngpus", 0), -mem, -mem, *of_site]
                begin_s = self._floor(reservation.start_s)
                end_s = self._rounded(reservation.end_s)
                self._add(self._row_of[entry.index], begin_s, end_s, less)

    def _dedicate(self, windows: Iterable[Window]) -> None:
        """Dedicated time keeps ordinary jobs out; all other time keeps those of dedicated queues out."""
        closed_s = open_s = -math.inf
        for window in sorted(windows, key=lambda window: window.start_s):
            start_s, end_s = max(closed_s, self._floor(window.start_s)), self._rounded(window.end_s)
            if end_s <= max(start_s, self._now_s):
                continue
            self._mark(start_s, end_s, _DEDICATED)
            self._mark(open_s, self._rounded(window.start_s), _ORDINARY)
            closed_s = end_s
            open_s = max(open_s, self._floor(window.end_s), self._rounded(window.start_s))
        self._mark(open_s, math.inf, _ORDINARY)

    def _mark(self, start_s: float, end_s: float, bit: int) -> None:
        rows = np.arange(self.steps.n_nodes)
        more = np.zeros((self._n_amounts, len(rows)), np.int64)
        more[BITS] = bit
        self.steps.add(rows, start_s, end_s, more)

    def _rounded(self, at_s: float) -> float:
        return rounded(at_s, self._resolution_s)

    def _floor(self, at_s: float) -> float:
        return math.floor(at_s / self._resolution_s) * self._resolution_s

    # -- steps

    def _add(self, row: int, start_s: float, end_s: float, amounts: Sequence[int] | Amounts) -> None:
        more = np.zeros((self._n_amounts, 1), np.int64)
        more[: len(amounts), 0] = amounts
        self.steps.add(np.array([row], np.intp), start_s, end_s, more)
        self._touched.add(row)

    def _capacity_of(self, entry: NodeLedger, n_nodes: int) -> list[int]:
        """What a row has, by its first node; of several nodes, their number."""
        capacity = [0] * self._n_amounts
        capacity[SLOTS] = entry.slots * n_nodes
        if n_nodes > 1:
            capacity[MEMORY] = capacity[SWAP] = PLENTY
            return capacity
        capacity[GPUS] = entry.node.gpus
        capacity[MEMORY] = _bounded(entry.most_mem_bytes, entry.mem_free_bytes)
        capacity[SWAP] = _bounded(entry.most_vmem_bytes, entry.vmem_free_bytes)
        for place, name in enumerate(self.resources, SWAP + 1):
            known = entry.node.others.get(name)
            capacity[place] = 0 if known is None else known.available
        return capacity

    def _tidy(self) -> None:
        """Forget what is over, and join equal neighbours."""
        self.steps.tidy(self._now_s, self._touched)
        self._touched = set()


def _asked(snapshot: Snapshot, context: Context, ledger: Ledger) -> _Asked:
    if not any(entry.slots == 1 for entry in ledger.nodes):
        return True, frozenset(), False
    requests = [job.request for job in snapshot.queued]
    if any(asked.host is not None for asked in requests):
        return True, frozenset(), False
    own = {name for pauses in context.back_off.pairs.values() for name in pauses}
    own |= {name for kept in context.reservations for name in kept.nodes}
    own |= {NodeName(chunk.name) for asked in requests for chunk in asked.chunks if chunk.name is not None}
    own |= {part.node for job in snapshot.suspended for part in job.allocated_slots}
    return False, frozenset(own), any(asked.opsys for asked in requests)


def _kind(entry: NodeLedger, all_apart: bool, own: frozenset[NodeName], has_system: bool) -> object:
    """Equal for nodes of one slot that no waiting job can tell apart, as far as is known now; None: alone."""
    is_common = entry.slots == 1 and entry.blocked is None and not (entry.node.gpus or entry.is_closed)
    is_common = is_common and not (entry.node.others or entry.node.only_for)
    if all_apart or not is_common or entry.single_user or entry.reserved or entry.name in own:
        return None
    system = operating_system(entry) if has_system else ""
    return entry.properties, entry.most_mem_bytes, entry.most_vmem_bytes, system


def _bounded(most: float, free: float) -> int:
    return PLENTY if math.isinf(most) or math.isinf(free) else int(most)


def _held(entry: NodeLedger, held: Held) -> HeldAmounts:
    mem = 0 if math.isinf(entry.mem_free_bytes) else held.mem_bytes
    vmem = 0 if math.isinf(entry.vmem_free_bytes) else held.with_swap_bytes
    # What a suspended job left is free by the accounts: `_closings` adds what they say it kept.
    slots = 0 if held.job.state is JobState.SUSPENDED else held.slots
    return slots, held.gpus, mem, vmem


def _wants_alone(job: Job) -> bool:
    alone = {AccessPolicy.SINGLE_USER, AccessPolicy.SINGLE_PART}
    return job.request.wants_empty_nodes or job.request.access in alone


def _part_slots(node: Node) -> int:
    """Slots of the largest part of a node; 0: it has none."""
    return max((part.has.get("ncpus", 0) for part in node.parts), default=0)
