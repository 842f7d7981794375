"""Fills the node-aware table from the accounts of a cycle: what runs until when, what is closed or kept.

A job counts until its limit, and past its limit until now and a little more. What has no known end (no
walltime, slots in use by nobody known) counts for ever. What passes (busy, a stray process on a GPU) closes a
node for some minutes only, so that promises far ahead do not break by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from torque_sched.core.model import Job, JobId
from torque_sched.core.request import AccessPolicy
from torque_sched.core.states import JobState
from torque_sched.policies.backfilling.node_steps import (
    BITS,
    GPUS,
    MEMORY,
    N_AMOUNTS,
    PLENTY,
    SLOTS,
    SWAP,
    Amounts,
    Indices,
)
from torque_sched.policies.backfilling.node_table import NodeTable
from torque_sched.policies.context import Context, Reservation, Window
from torque_sched.policies.ledger import Held, Ledger
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.refusals import Refusal

_PASSING_S = 600.0
_MOST_BITS = 58
_DEDICATED, _ORDINARY = 1 << 58, 1 << 59
"""Bits of the time in which only, or no, jobs of dedicated queues run."""


class KeptOut:
    """Which bit stands for which reservation, dedicated time or user with a node alone.

    Where there are more than bits, those left over keep everybody out.
    """

    def __init__(self, reservations: Iterable[Reservation], dedicated: Iterable[Window]) -> None:
        self._reservations = tuple(reservations)
        self._has_dedicated = bool(tuple(dedicated))
        self._users: dict[str, int] = {}

    def bit_of(self, place: int) -> int:
        """The bit of a reservation by its place in the list; 0: none left."""
        return 1 << place if place < _MOST_BITS // 2 else 0

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


def capacity_of(ledger: Ledger) -> Amounts:
    """(n_nodes, n_amounts): what each node has, nothing where it is down."""
    capacity = np.zeros((len(ledger.nodes), N_AMOUNTS), np.int64)
    for entry in ledger.nodes:
        capacity[entry.index, SLOTS] = entry.np
        capacity[entry.index, GPUS] = entry.node.gpus
        capacity[entry.index, MEMORY] = _bounded(entry.most_mem_bytes, entry.mem_free_bytes)
        capacity[entry.index, SWAP] = _bounded(entry.most_vmem_bytes, entry.vmem_free_bytes)
    return capacity


def _bounded(most: float, free: float) -> int:
    return PLENTY if math.isinf(most) or math.isinf(free) else int(most)


def occupy(
    table: NodeTable, ledger: Ledger, context: Context, kept_out: KeptOut, end_of: Callable[[Job], float]
) -> None:
    """Book into a fresh table all that is no waiting job's."""
    # Jobs of several nodes are booked at once: for each job, its nodes with what it holds there.
    by_job: dict[JobId, tuple[Job, list[tuple[NodeLedger, Held]]]] = {}
    for entry in ledger.nodes:
        for held in ledger.held.get(entry.name, ()):
            by_job.setdefault(held.job.id, (held.job, []))[1].append((entry, held))
    known = np.zeros((table.steps.n_nodes, N_AMOUNTS), np.int64)
    for job, parts in by_job.values():
        end_s = table.rounded(end_of(job))
        nodes = np.array([entry.index for entry, _ in parts], np.intp)
        amounts = np.array([_held(entry, held) for entry, held in parts], np.int64)
        known[nodes] += amounts
        table.steps.add(nodes, -math.inf, end_s, -amounts.T)
    _occupy_rest(table, ledger, known)
    _close_alone(table, ledger, kept_out, end_of)
    for entry in ledger.nodes:
        _close(table, entry, context)
    _keep(table, ledger, context, kept_out)


def _held(entry: NodeLedger, held: Held) -> tuple[int, ...]:
    mem = 0 if math.isinf(entry.mem_free_bytes) else held.mem_bytes
    vmem = 0 if math.isinf(entry.vmem_free_bytes) else held.with_swap_bytes
    # What a suspended job left is free by the accounts: `_occupy_rest` adds what they say it kept.
    slots = 0 if held.job.state is JobState.SUSPENDED else held.slots
    return slots, held.gpus, mem, vmem, 0, 0


def _occupy_rest(table: NodeTable, ledger: Ledger, known: Amounts) -> None:
    """Slots and GPUs in use of which no job is known: nobody knows until when."""
    nodes, amounts = [], []
    for entry in ledger.nodes:
        slots = entry.np - entry.slots_free - int(known[entry.index, SLOTS])
        gpus = entry.node.gpus - entry.gpus_free - int(known[entry.index, GPUS])
        if slots > 0 or gpus > 0:
            nodes.append(entry.index)
            amounts.append((max(0, slots), max(0, gpus), 0, 0, 0, 0))
    if nodes:
        less = -np.array(amounts, np.int64).T
        table.steps.add(np.array(nodes, np.intp), -math.inf, math.inf, less)


def _close_alone(table: NodeTable, ledger: Ledger, kept_out: KeptOut, end_of: Callable[[Job], float]) -> None:
    """Nodes that a job or a user has alone, until the last job that wants it so ends."""
    for entry in ledger.nodes:
        if not (entry.is_closed or entry.single_user):
            continue
        here = [held.job for held in ledger.held.get(entry.name, ())]
        ends = [end_of(job) for job in here if _wants_alone(job)] or [end_of(job) for job in here]
        end_s = table.rounded(max(ends, default=table.now_s + _PASSING_S))
        bit = kept_out.bit_of_user(entry.single_user) if entry.single_user and not entry.is_closed else 0
        less = [0] * BITS + [bit] if bit else [-entry.np]
        table.close(entry.index, -math.inf, end_s, less)


def _wants_alone(job: Job) -> bool:
    return job.request.wants_empty_nodes or job.request.access is AccessPolicy.SINGLE_USER


def _close(table: NodeTable, entry: NodeLedger, context: Context) -> None:
    """A node that takes no job, for as long as that is known to last."""
    less = [-entry.np, -entry.node.gpus]
    passing_s = table.rounded(table.now_s + _PASSING_S)
    if entry.blocked is Refusal.BACK_OFF:
        pause = context.back_off.nodes[entry.name]
        table.close(entry.index, -math.inf, table.rounded(pause.until_s), less)
    elif entry.blocked is Refusal.BUSY:
        table.close(entry.index, -math.inf, passing_s, less)
    elif entry.blocked is not None:
        table.close(entry.index, -math.inf, math.inf, less)
    if not all(entry.gpus_clean):
        table.close(entry.index, -math.inf, passing_s, [0, -entry.node.gpus])


def _keep(table: NodeTable, ledger: Ledger, context: Context, kept_out: KeptOut) -> None:
    """Advance reservations and dedicated time."""
    for place, reservation in enumerate(context.reservations):
        bit = kept_out.bit_of(place)
        for name in reservation.nodes:
            entry = ledger.by_name.get(name)
            if entry is None:
                continue
            less = [0] * BITS + [bit] if bit else [-entry.np]
            table.close(
                entry.index, _floor(table, reservation.start_s), table.rounded(reservation.end_s), less
            )
    _dedicate(table, context.dedicated)


def _dedicate(table: NodeTable, windows: Iterable[Window]) -> None:
    """Dedicated time keeps ordinary jobs out; all other time keeps those of dedicated queues out."""
    everywhere = np.arange(table.steps.n_nodes)
    closed_s = open_s = -math.inf
    for window in sorted(windows, key=lambda window: window.start_s):
        start_s, end_s = max(closed_s, _floor(table, window.start_s)), table.rounded(window.end_s)
        if end_s <= max(start_s, table.now_s):
            continue
        _mark(table, everywhere, start_s, end_s, _DEDICATED)
        _mark(table, everywhere, open_s, table.rounded(window.start_s), _ORDINARY)
        closed_s, open_s = end_s, max(open_s, _floor(table, window.end_s), table.rounded(window.start_s))
    _mark(table, everywhere, open_s, math.inf, _ORDINARY)


def _mark(table: NodeTable, nodes: Indices, start_s: float, end_s: float, bit: int) -> None:
    more = np.zeros((N_AMOUNTS, len(nodes)), np.int64)
    more[BITS] = bit
    table.steps.add(nodes, start_s, end_s, more)


def _floor(table: NodeTable, at_s: float) -> float:
    return math.floor(at_s / table.resolution_s) * table.resolution_s
