"""What the local scheduler plans, and what it must keep off: the promises and reservations in its file."""

from __future__ import annotations

import time
from pathlib import Path

from torque_sched.adapters.cycle_lock import CycleLock
from torque_sched.core.handshake import Grant, Instant
from torque_sched.errors import StartupError
from torque_sched.learning.promises import KeptPromise
from torque_sched.learning.reservations import GRID_PREFIX, Reservations
from torque_sched.learning.store import Store
from torque_sched.policies.context import Reservation
from torque_sched.site.books import nodes_of

_LEASE_OF_COMMITTED_S = 5.0
"""A claim that is committed is held anew for so long, and committed at once."""


class LocalPlans:
    """The scheduler's history file and its cycle lock, as the site needs them.

    Args:
        history: the file; made when the scheduler never ran.
        lock: the cycle lock.

    Raises:
        StartupError: the file cannot be used.
    """

    def __init__(self, history: Path, lock: Path) -> None:
        self._history = history
        self._reservations = Reservations.open(history)
        self.lock = CycleLock(lock)

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
