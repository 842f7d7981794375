"""Who is cut off when memory is waited for: those who hold some and do not move."""

from __future__ import annotations

from yarn_accel.core.requests.commands import Disconnect
from yarn_accel.core.requests.memory import Memory
from yarn_accel.core.requests.replies import Replies
from yarn_accel.core.requests.settings import MachineSettings
from yarn_accel.core.requests.work import Connection, State, Work, WorkState

__all__ = ["CutOff"]

_NEVER = float("inf")
#: A worker or a thread is at these: their memory comes back when that is over, whoever waits for it.
_BUSY = frozenset({WorkState.RUNNING, WorkState.WRITING, WorkState.READING, WorkState.LOOKING})


class CutOff:
    """Ends connections that keep others from memory.

    When a work that stays within the share of its tenant waits, connections of tenants above theirs are ended
    that have replies to read, a payload to send, or shared memory to use, and have not moved for
    `unread_grace_s`: the one that stands still for longest first, until the work fits.
    """

    def __init__(self, settings: MachineSettings, memory: Memory, replies: Replies, state: State) -> None:
        self._grace_s = settings.unread_grace_s
        self._memory = memory
        self._replies = replies
        self._state = state

    def is_any_stalled(self) -> bool:
        """Whether a connection holds memory and does not move."""
        now_s = self._state.now_s
        return any(
            _waits_for_client(connection) and now_s - connection.moved_s >= self._grace_s
            for connection in self._state.connections.values()
        )

    def make_room(self, work: Work) -> float:
        """Cut off whom a work need not wait for; returns when to look again, infinity: never."""
        now_s = self._state.now_s
        share = self._memory.share_per_weight()
        excess = {
            tenant: tenant.held_bytes - share * tenant.settings.weight
            for tenant in self._state.tenants.values()
            if tenant is not work.owner
        }
        lacking = self._memory.lacking(work) - self._memory.kept_bytes
        candidates = []
        for connection in self._state.connections.values():
            if excess.get(connection.tenant, 0.0) <= 0.0 or not _waits_for_client(connection):
                continue
            if connection.is_cut:
                freed = self._held(connection)
                lacking -= freed
                excess[connection.tenant] -= freed
            else:
                candidates.append(connection)
        candidates.sort(key=lambda connection: connection.moved_s)
        for connection in candidates:
            if lacking <= 0:
                return _NEVER
            freed = self._held(connection)
            if not freed or excess[connection.tenant] <= 0.0:
                continue
            due_s = connection.moved_s + self._grace_s
            if due_s > now_s:
                return due_s
            self._end(connection)
            lacking -= freed
            excess[connection.tenant] -= freed
        return _NEVER

    def _end(self, connection: Connection) -> None:
        connection.is_cut = True
        self._state.counts["cut_off"] += 1
        reason = "others wait for the memory that this connection holds and does not use"
        self._state.out.append(Disconnect(connection.id, "memory-held", reason))

    def _held(self, connection: Connection) -> int:
        """Bytes that come back soon after a connection is gone."""
        works = {work for work in connection.works.values() if work.state not in _BUSY}
        works |= {each[0] for each in self._replies.leaving.values() if each[0] and each[1] is connection}
        granted = sum(grant.n_bytes for grant in connection.grants.values() if not grant.n_users)
        return granted + sum(work.segment_bytes for work in works)


def _waits_for_client(connection: Connection) -> bool:
    """Whether it is the client's turn, and memory is held until it does something."""
    if connection.n_leaving or connection.receiving is not None:
        return True
    return bool(connection.grants) and not connection.waits and not connection.works
