"""The seam between the grid and the local scheduler: look under its lock, hold, commit, release.

A look shows what runs; the scheduler's history file shows what it has promised and reserved. A claim of the
grid is a reservation in that file, which the scheduler keeps its own jobs off. Nothing else of the grid
touches either.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from torque_sched.batch.cycle_lock import CycleLock
from torque_sched.batch.system import BatchSystem, Look
from torque_sched.errors import StartupError
from torque_sched.grid.handshake.holder import Grant
from torque_sched.grid.handshake.messages import Instant
from torque_sched.grid.site.offers import nodes_of
from torque_sched.learn.promises import KeptPromise
from torque_sched.learn.reservations import GRID_PREFIX, Reservations
from torque_sched.learn.store import Store
from torque_sched.model.snapshot import Reservation

_LOCK_S = 5.0
"""Longest wait for the end of a cycle."""
_LEASE_OF_COMMITTED_S = 5.0
"""A claim that is committed is held anew for so long, and committed at once."""


class LocalScheduler:
    """The scheduler of this site: its batch system, its cycle lock and its history file.

    Args:
        history: the file; made when the scheduler never ran.
        lock: the cycle lock.
        system: looked at.

    Raises:
        StartupError: the file cannot be used.
    """

    def __init__(self, history: Path, lock: Path, system: BatchSystem) -> None:
        self._history = history
        self._reservations = Reservations.open(history)
        self._lock = CycleLock(lock)
        self._system = system

    async def look(self) -> Look:
        """One look at the batch system.

        Raises:
            SnapshotError: there is none to be had now.
        """
        return await self._system.look()

    @asynccontextmanager
    async def look_alone(self) -> AsyncIterator[Look]:
        """One look, and until the end of the block no cycle of the scheduler.

        Raises:
            SnapshotError: there is none to be had now, or a cycle takes too long.
        """
        async with self._lock.taken_async(_LOCK_S):
            yield await self.look()

    def close(self) -> None:
        """Close the file."""
        self._reservations.close()

    def others(self) -> list[Reservation]:
        """Reservations that are not the grid's, and nodes the scheduler has promised to waiting jobs.

        Raises:
            StartupError: the file cannot be read.
        """
        live = self._reservations.live(time.time())
        kept = [each.value() for each in live if not each.name.startswith(GRID_PREFIX)]
        return kept + [_as_reservation(each) for each in self._promises() if not each.is_withdrawn]

    def _promises(self) -> tuple[KeptPromise, ...]:
        try:
            store = Store.read_only(self._history)
        except StartupError:
            return ()  # a scheduler of another release; what it promises is not known
        try:
            return store.promises()
        finally:
            store.close()

    def hold(self, grant: Grant, now: Instant) -> bool:
        """Reserve a grant's nodes as long as the grant is; False when somebody else has one of them."""
        claim, token = grant.claim, str(grant.token)
        lease_s = _LEASE_OF_COMMITTED_S if grant.committed else max(0.0, grant.lease_end_s - now.monotonic_s)
        is_held = self._reservations.hold(
            token, nodes_of(grant), claim.start_s, claim.end_s, lease_s=lease_s, now_s=now.wall_s,
            made_by=f"site {grant.token.home}",
        )  # fmt: skip
        return is_held and (not grant.committed or self._reservations.commit(token, now.wall_s))

    def release(self, token: str) -> None:
        """Give a grant's nodes back."""
        self._reservations.release(token)

    def keep_only(self, tokens: frozenset[str]) -> None:
        """Release what an earlier life has left."""
        for kept in self._reservations.live(time.time()):
            if kept.token is not None and kept.token not in tokens:
                self._reservations.release(kept.token)


def _as_reservation(kept: KeptPromise) -> Reservation:
    promise = kept.promise
    nodes = frozenset(share.node for share in promise.allocation)
    return Reservation(
        f"guaranteed start of {promise.job}",
        nodes,
        promise.start_s,
        promise.start_s + promise.length_s,
        frozenset(),
    )
