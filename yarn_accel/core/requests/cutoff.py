"""Who is cut off when memory is waited for: those who hold some and do not move."""

from __future__ import annotations

from yarn_accel.core.requests.commands import Disconnect
from yarn_accel.core.requests.memory import MemoryPool
from yarn_accel.core.requests.replies import Replies
from yarn_accel.core.requests.settings import MachineSettings
from yarn_accel.core.requests.work import ConnectionRecord, MachineState, TenantRecord, WorkRecord, WorkState

_NEVER = float("inf")
#: A worker or a thread is at these: their memory comes back when that is over, whoever waits for it.
_BUSY = frozenset({WorkState.RUNNING, WorkState.WRITING, WorkState.READING, WorkState.LOOKING})


class CutOff:
    """Ends connections that keep others from memory.

    When a work waits that stays within the share of its tenant, connections of tenants above theirs are
    ended that have replies to read, a payload to send, or shared memory to use, and have not moved for
    `unread_grace_s`: the one that stands still for longest first, until the work fits.  When a work has
    waited for long, connections that only have shared memory they do not use are ended, whosever they are.
    """

    def __init__(
        self, settings: MachineSettings, memory: MemoryPool, replies: Replies, state: MachineState
    ) -> None:
        self._grace_s = settings.unread_grace_s
        self._memory = memory
        self._replies = replies
        self._state = state

    def is_any_stalled(self) -> bool:
        """Whether a connection holds memory and does not move."""
        now_s = self._state.now_s
        return any(
            (_owes(connection) or _is_idle(connection)) and now_s - connection.moved_s >= self._grace_s
            for connection in self._state.connections.values()
        )

    def free_memory(self, work: WorkRecord) -> float:
        """Cut off whom a work need not wait for; returns when to look again, infinity: never."""
        now_s = self._state.now_s
        excess = self._excess()
        excess.pop(work.owner, None)
        is_long = self._memory.waits_long(work)
        lacking = self._memory.lacking(work) - self._memory.kept_bytes
        candidates = []
        for connection in self._state.connections.values():
            is_above = excess.get(connection.tenant, 0.0) > 0.0
            if connection.is_cut:
                lacking -= self._held(connection)
            elif (_is_idle(connection) and (is_long or is_above)) or (_owes(connection) and is_above):
                candidates.append(connection)
        candidates.sort(key=lambda connection: connection.moved_s)
        for connection in candidates:
            if lacking <= 0:
                return _NEVER
            tenant, freed = connection.tenant, self._held(connection)
            is_above = excess.get(tenant, 0.0) > 0.0
            if not freed or not (is_above or (is_long and _is_idle(connection))):
                continue
            due_s = connection.moved_s + self._grace_s
            if due_s > now_s:
                return due_s
            self._end(connection)
            lacking -= freed
            excess[tenant] = excess.get(tenant, 0.0) - freed
        return _NEVER

    def _excess(self) -> dict[TenantRecord, float]:
        """What each tenant holds above its share, when the connections that are being ended are gone."""
        share = self._memory.share_per_weight()
        tenants = self._state.tenants.values()
        excess = {each: each.held_bytes - share * each.settings.weight for each in tenants}
        for connection in self._state.connections.values():
            if connection.is_cut:
                excess[connection.tenant] -= self._held(connection)
        return excess

    def _end(self, connection: ConnectionRecord) -> None:
        connection.is_cut = True
        self._state.counts["cut_off"] += 1
        reason = "others wait for the memory that this connection holds and does not use"
        self._state.out.append(Disconnect(connection.id, "memory-held", reason))

    def _held(self, connection: ConnectionRecord) -> int:
        """Bytes that come back soon after a connection is gone."""
        works = {work for work in connection.works.values() if work.state not in _BUSY}
        works |= {each[0] for each in self._replies.leaving.values() if each[0] and each[1] is connection}
        granted = sum(grant.n_bytes for grant in connection.grants.values() if not grant.n_users)
        return granted + sum(work.segment_bytes for work in works)


def _owes(connection: ConnectionRecord) -> bool:
    """Whether it is the client's turn, and memory is held until it does something."""
    return connection.n_leaving > 0 or connection.receiving is not None


def _is_idle(connection: ConnectionRecord) -> bool:
    """Whether a client has shared memory and asks for nothing."""
    return bool(connection.grants) and not (connection.waits or connection.works or connection.n_leaving)
