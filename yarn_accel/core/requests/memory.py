"""The memory of the server: reusable segments under one ceiling, who waits for some, and what clients share.

Freed segments are kept warm and reused last in, first out; free ones of another size go back to the system to
make space.  The sum of all segments, free or not, never passes the ceiling.

**Who is served next.**  The share of a tenant is its weight over the weights of all tenants that hold memory
or wait for some.  Who stays within its share comes before who would pass it; among equals the one that holds
least for its weight comes first; within a tenant it is first come, first served.  Where the first does not
fit, nobody behind it is served, so a large request never starves; only those that stay within their shares go
past one that asks for more than its own, until that has waited for `_LONG_WAIT_S`.

**Shared memory** belongs to one connection for as long as that lives, since its client may keep the mapping.
`MemoryPool` counts it, `Sharing` knows whose turn each segment is.
"""

from __future__ import annotations

from collections.abc import Hashable

from yarn_accel.core.requests.commands import CreateSegment, DestroySegment, GrantMemory, Release
from yarn_accel.core.requests.records import (
    ConnectionRecord,
    Failure,
    Grant,
    MachineState,
    SegmentRecord,
    SharedInputs,
    TenantRecord,
    WorkRecord,
    WorkState,
)
from yarn_accel.core.requests.settings import MachineSettings

#: The smallest segment.
LEAST_BYTES = 64 * 1024
#: Smaller inputs count in no share: the memory as a whole and `max_in_flight` bound them, at less cost.
SMALL_BYTES = 16 * 1024
_PAGE_BYTES = 4096
_MAX_SIZES = 1024
#: A request for more than its tenant's share lets others pass for so long.
_LONG_WAIT_S = 2.0
#: After a segment could not be made, another is tried so much later, or when one was freed.
_RETRY_S = 0.1
_NEVER = float("inf")
_ENDED = WorkState.ENDED


class MemoryPool:
    """All segments of a server, what each work and tenant holds, and the queue of those who wait.

    Attributes:
        bytes, free_bytes: of all segments, and of those that are free.
        kept_bytes: of answers that are remembered where they lie and that nobody is being sent.
        leaked_bytes: that workers which could not be ended may still write to.
        n_waiting: works in the queue.
        must_serve: something changed that may let one of them go on.
        reading_bytes: inputs that no worker has yet, of all tenants.
        retry_s: when a segment that could not be made is tried again.
    """

    def __init__(self, settings: MachineSettings, state: MachineState) -> None:
        self.bound_bytes = settings.pool_bytes
        self.bytes = 0
        self.free_bytes = 0
        self.peak_bytes = 0
        self.kept_bytes = 0
        self.leaked_bytes = 0
        self.n_waiting = 0
        self.must_serve = False
        self.reading_bytes = 0
        self.peak_reading_bytes = 0
        self.retry_s = _NEVER
        self.sharing = Sharing(settings, self, state)
        self._state = state
        self._queue_bytes = settings.queue_bytes
        self._share_bytes = settings.queue_bytes // 2
        self._sizes: dict[int, int] = {}
        self._free: dict[int, list[SegmentRecord]] = {}
        #: Segments that are being made for works.
        self._pending: set[SegmentRecord] = set()
        self._leaked: dict[Hashable, list[SegmentRecord]] = {}
        self._n_made = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use, those of kept answers among them."""
        return self.bytes - self.free_bytes

    def size_of(self, n_bytes: int) -> int:
        """The size of the segment that serves `n_bytes`."""
        size = self._sizes.get(n_bytes)
        if size is None:
            size = class_bytes(n_bytes)
            if size > self.bound_bytes:
                size = -(-n_bytes // _PAGE_BYTES) * _PAGE_BYTES
            if len(self._sizes) >= _MAX_SIZES:
                self._sizes.clear()
            self._sizes[n_bytes] = size
        return size

    # Taking

    def take_at_once(self, work: WorkRecord) -> bool:
        """The short way: nobody waits, a free segment is there, and the inputs count in no share."""
        is_shared = work.shared is not None
        is_counted = not is_shared and work.needs.input_bytes > SMALL_BYTES
        if self.n_waiting or is_counted:
            return False
        n_bytes = work.output_bytes if is_shared else work.memory_bytes
        free = self._free.get(self._sizes.get(n_bytes) or self.size_of(n_bytes))
        if not free:
            return False
        segment = work.arena = free.pop()
        size = segment.n_bytes
        self.free_bytes -= size
        work.owner.held_bytes += size
        work.is_charged = True
        return True

    def wait(self, work: WorkRecord) -> None:
        """Let a work wait for its memory; it may be served within the same event."""
        if not work.waits_since_s:
            work.waits_since_s = self._state.now_s
        work.state = WorkState.WAITING
        work.owner.waiting.append(work)
        self.n_waiting += 1
        self.must_serve = True

    def stop_waiting(self, work: WorkRecord) -> None:
        """Take a work out of the queue."""
        work.owner.waiting.remove(work)
        self.n_waiting -= 1
        self.must_serve = True

    def next_waiting(self, is_any_stalled: bool) -> WorkRecord | None:
        """Who gets memory now; None: nobody can.

        Args:
            is_any_stalled: some connection holds memory and does not move, so waiting for all memory to come
                back could take long.
        """
        within, beyond = self._first_waiting()
        if beyond and not is_any_stalled:
            oldest = min(beyond, key=lambda each: each.waits_since_s)
            if self.waits_long(oldest):
                return oldest if self.fits(oldest) else None
        for work in within:
            if self.fits(work):
                return work
        if within or not beyond:
            return None
        return beyond[0] if self.fits(beyond[0]) else None

    def blocked(self) -> WorkRecord | None:
        """Who is kept from memory: the first within the share of its tenant, else who waits for long."""
        within, beyond = self._first_waiting()
        candidates = [*within, *(work for work in beyond if self.waits_long(work))]
        return next((work for work in candidates if not self.fits(work)), None)

    def is_hopeless(self, work: WorkRecord) -> bool:
        """Whether a work waits for long, and will do so until clients let go of shared memory they use."""
        size = self.size_of(self._wanted(work))
        is_kept_from_it = size + self.sharing.n_bytes > self.bound_bytes - self.leaked_bytes
        return self.waits_long(work) and is_kept_from_it

    def waits_long(self, work: WorkRecord) -> bool:
        """Whether a work has waited for so long that it lets nobody pass any more."""
        return self._state.now_s - work.waits_since_s >= _LONG_WAIT_S

    def share_per_weight(self) -> float:
        """The bytes that are a tenant's own while others want memory, too, for a weight of 1."""
        tenants = self._state.tenants.values()
        total = sum(each.settings.weight for each in tenants if each.held_bytes or each.waiting)
        return self.bound_bytes / total if total else float(self.bound_bytes)

    def fits(self, work: WorkRecord) -> bool:
        """Whether there is memory for a work, if kept answers are let go of for it."""
        size = self.size_of(self._wanted(work))
        if self._free.get(size):
            return True
        return self.retry_s == _NEVER and self.lacking(work) <= self.kept_bytes

    def lacking(self, work: WorkRecord) -> int:
        """Bytes that must come back before a work can have its memory; 0 or less: none."""
        size = self.size_of(self._wanted(work))
        return 0 if self._free.get(size) else self.used_bytes + size - self.bound_bytes

    def grant(self, work: WorkRecord) -> bool:
        """Give memory to a work that waits and for which there is some; False: it must be made first."""
        work.owner.waiting.remove(work)
        self.n_waiting -= 1
        self._count(work)
        segment = self._take(self._wanted(work))
        work.owner.held_bytes += segment.n_bytes
        work.is_charged = True
        if segment.is_created:
            work.arena = segment
            return True
        segment.wanted_by = work
        self._pending.add(segment)
        work.pending += 1
        self._state.out.append(CreateSegment(segment))
        return False

    def created(self, segment: SegmentRecord) -> WorkRecord | None:
        """A segment is there; returns the work that waits for nothing more now."""
        work = self._settle_pending(segment)
        segment.is_created = True
        work.arena = segment
        return None if work.pending else work

    def failed(self, segment: SegmentRecord) -> None:
        """A segment could not be made: as good as full, until something is freed or some time is over."""
        work = self._settle_pending(segment)
        self.bytes -= segment.n_bytes
        work.owner.held_bytes -= segment.n_bytes
        work.is_charged = False
        self.leave_share(work)
        self.stop_reading(work)
        self.retry_s = self._state.now_s + _RETRY_S
        if work.state is WorkState.WAITING:
            work.owner.waiting.appendleft(work)
            self.n_waiting += 1
        else:
            self.settle(work)

    # Giving back

    def leave_share(self, work: WorkRecord) -> None:
        """The answer has left: the connection may go on, even if the memory is kept for who asks again."""
        n_bytes, work.share_bytes = work.share_bytes, 0
        if n_bytes:
            work.connection.held_bytes -= n_bytes
            self.must_serve = True

    def stop_reading(self, work: WorkRecord) -> None:
        """A worker has the inputs, or nobody wants them any more."""
        n_bytes, work.reading_bytes = work.reading_bytes, 0
        if n_bytes:
            work.owner.reading_bytes -= n_bytes
            self.reading_bytes -= n_bytes
            self.must_serve = True

    def hold(self, work: WorkRecord) -> None:
        """Let one more reply hold the memory of a work."""
        work.n_holders += 1
        if work.is_kept and not work.is_charged and work.arena is not None:
            n_bytes = work.segment_bytes
            self.kept_bytes -= n_bytes
            work.owner.held_bytes += n_bytes
            work.is_charged = True

    def settle(self, work: WorkRecord) -> None:
        """Free the memory of a work that has ended, if nothing holds it any more."""
        if work.n_holders or work.state is not _ENDED or work.pending:
            return
        n_bytes = work.segment_bytes if work.is_charged else 0
        if work.is_charged:
            work.is_charged = False
            work.owner.held_bytes -= n_bytes
            self.must_serve = True
        if work.is_kept:
            self.kept_bytes += n_bytes
        else:
            self.free(work)

    def unkeep(self, work: WorkRecord) -> None:
        """The answer of a work is not remembered any more."""
        work.is_kept = False
        if not work.is_charged:
            self.kept_bytes -= work.segment_bytes
            self.free(work)

    def give_up(self, work: WorkRecord) -> None:
        """Free the memory of a work that goes on and will need some again."""
        if work.is_charged:
            work.is_charged = False
            work.owner.held_bytes -= work.segment_bytes
        self._free_segment(work)
        self.leave_share(work)
        self.stop_reading(work)
        work.is_placed = work.is_read = False

    def leak(self, work: WorkRecord, worker: Hashable) -> bool:
        """A worker that could not be ended may write to the memory of a work: keep it from everybody.

        Returns:
            whether some of it is shared with a client, which keeps it until its connection ends.
        """
        grants = [grant for grant in (work.input_grant, work.output_grant) if grant is not None]
        segments: list[SegmentRecord] = [*grants]
        arena = work.arena
        if arena is not None:
            self.leaked_bytes += arena.n_bytes
            segments.append(arena)
            if work.is_charged:
                work.is_charged = False
                work.owner.held_bytes -= arena.n_bytes
            work.arena = None
        for segment in segments:
            segment.n_leaks += 1
            self._leaked.setdefault(worker, []).append(segment)
        return bool(grants)

    def reclaim(self, worker: Hashable) -> None:
        """A worker has ended after all: free what it might have written to."""
        for segment in self._leaked.pop(worker, ()):
            segment.n_leaks -= 1
            is_held = isinstance(segment, Grant) and segment.id in segment.connection.grants
            if not segment.n_leaks and not is_held:
                self.leaked_bytes -= segment.n_bytes
                self._destroy(segment)

    def free(self, work: WorkRecord) -> None:
        """Nothing of a work is needed any more."""
        self._free_segment(work)
        if work.share_bytes:
            self.leave_share(work)
        if work.reading_bytes:
            self.stop_reading(work)
        if work.input_grant is not None or work.output_grant is not None:
            self.sharing.end_work(work)
        state = self._state
        del state.works[work.id]
        work.owner.n_works -= 1
        if work.is_announced:
            state.out.append(Release(work))

    def create_shared(self, size: int, connection: ConnectionRecord) -> Grant | None:
        """Begin to make a segment for a connection; None: there is no memory now, or others wait."""
        if self.n_waiting or self.used_bytes + size > self.bound_bytes or self.retry_s < _NEVER:
            return None
        grant = Grant(self._number_for(size), size, connection=connection, is_pending=True)
        self._state.out.append(CreateSegment(grant))
        return grant

    def destroy_shared(self, grant: Grant) -> None:
        """A segment of a connection is not needed any more, or could not be made."""
        if grant.n_leaks:
            self.leaked_bytes += grant.n_bytes
        else:
            self._destroy(grant)

    # Below

    def _destroy(self, segment: SegmentRecord) -> None:
        self.bytes -= segment.n_bytes
        self.must_serve = True
        if segment.is_created:
            self.retry_s = _NEVER
            self._state.out.append(DestroySegment(segment))

    def _free_segment(self, work: WorkRecord) -> None:
        segment, work.arena = work.arena, None
        if segment is not None:
            self._give(segment)

    def _give(self, segment: SegmentRecord) -> None:
        size = segment.n_bytes
        free = self._free.get(size)
        if free is None:
            free = self._free[size] = []
        free.append(segment)
        self.free_bytes += size
        self.must_serve = True
        if self.retry_s < _NEVER:
            self.retry_s = _NEVER

    def _take(self, n_bytes: int) -> SegmentRecord:
        """A free segment, or one that is still to be made."""
        size = self.size_of(n_bytes)
        free = self._free.get(size)
        if free:
            self.free_bytes -= size
            return free.pop()
        return SegmentRecord(self._number_for(size), size)

    def _settle_pending(self, segment: SegmentRecord) -> WorkRecord:
        """A segment is made, or cannot be; returns the work it was made for."""
        work, segment.wanted_by = segment.wanted_by, None
        assert work is not None
        self._pending.remove(segment)
        work.pending -= 1
        return work

    def _number_for(self, size: int) -> int:
        """Make space for one more segment of that size, and number it."""
        self._make_space(size)
        self.bytes += size
        if self.bytes > self.peak_bytes:
            self.peak_bytes = self.bytes
        self._n_made += 1
        return self._n_made

    def _make_space(self, size: int) -> None:
        """Drop free segments until `size` more bytes fit."""
        for free in self._free.values():
            while free and self.bytes + size > self.bound_bytes:
                segment = free.pop(0)
                self.free_bytes -= segment.n_bytes
                self.bytes -= segment.n_bytes
                self._state.out.append(DestroySegment(segment))

    def _wanted(self, work: WorkRecord) -> int:
        return work.output_bytes if work.shared is not None else work.memory_bytes

    def _counted(self, work: WorkRecord) -> int:
        """Bytes that a work counts in the share of its connection and in the inputs of its tenant."""
        n_bytes = work.needs.input_bytes
        return n_bytes if n_bytes > SMALL_BYTES and work.shared is None else 0

    def _count(self, work: WorkRecord) -> None:
        n_bytes = self._counted(work)
        work.share_bytes = work.reading_bytes = n_bytes
        work.connection.held_bytes += n_bytes
        work.owner.reading_bytes += n_bytes
        self.reading_bytes += n_bytes
        self.peak_reading_bytes = max(self.peak_reading_bytes, self.reading_bytes)

    def _first_waiting(self) -> tuple[list[WorkRecord], list[WorkRecord]]:
        """The first work of each tenant that waits for memory alone, in the order in which they are served.

        First those that stay within the shares of their tenants, then those that would pass them.
        """
        tenants = [tenant for tenant in self._state.tenants.values() if tenant.waiting]
        tenants.sort(key=lambda tenant: tenant.held_bytes / tenant.settings.weight)
        share = self.share_per_weight()
        within: list[WorkRecord] = []
        beyond: list[WorkRecord] = []
        for tenant in tenants:
            work = self._first(tenant)
            if work is not None:
                size = self.size_of(self._wanted(work))
                is_within = tenant.held_bytes + size <= share * tenant.settings.weight
                (within if is_within else beyond).append(work)
        return within, beyond

    def _first(self, tenant: TenantRecord) -> WorkRecord | None:
        """The first work of a tenant whose inputs fit its bounds; what is larger than these goes alone."""
        full: set[ConnectionRecord] = set()
        for work in tenant.waiting:
            n_bytes = self._counted(work)
            connection = work.connection
            if connection in full:
                continue
            if n_bytes and tenant.reading_bytes and tenant.reading_bytes + n_bytes > self._queue_bytes:
                return None
            if n_bytes and connection.held_bytes and connection.held_bytes + n_bytes > self._share_bytes:
                full.add(connection)
                continue
            return work
        return None

    def snapshot(self) -> dict[str, int]:
        """All that there is to know about it, fit for JSON."""
        return {
            "bytes": self.bytes,
            "free_bytes": self.free_bytes,
            "used_bytes": self.used_bytes,
            "shared_bytes": self.sharing.n_bytes,
            "leaked_bytes": self.leaked_bytes,
            "peak_bytes": self.peak_bytes,
            "bound_bytes": self.bound_bytes,
            "waiting": self.n_waiting,
        }

    def validate(self) -> None:
        """Check that every byte is accounted for.

        Raises:
            AssertionError: one is not.
        """
        free_bytes = sum(segment.n_bytes for free in self._free.values() for segment in free)
        assert free_bytes == self.free_bytes
        held = {work: work.segment_bytes for work in self._state.works.values()}
        for segment in self._pending:
            assert segment.wanted_by is not None
            held[segment.wanted_by] += segment.n_bytes
        leaked = {segment for segments in self._leaked.values() for segment in segments}
        leaked -= {
            grant for grant in leaked if isinstance(grant, Grant) and grant.id in grant.connection.grants
        }
        assert self.leaked_bytes == sum(segment.n_bytes for segment in leaked)
        used_bytes = sum(held.values()) + self.sharing.n_bytes + self.leaked_bytes
        assert self.bytes == free_bytes + used_bytes <= self.bound_bytes
        kept = [work for work in held if work.is_kept and not work.is_charged]
        assert self.kept_bytes == sum(held[work] for work in kept)
        for tenant in self._state.tenants.values():
            mine = [work for work in held if work.owner is tenant]
            charged = sum(held[work] for work in mine if work.is_charged)
            shared = self.sharing.bytes_of(tenant)
            assert tenant.held_bytes == charged + shared
            assert tenant.reading_bytes == sum(work.reading_bytes for work in mine)
            assert all(work.state is WorkState.WAITING for work in tenant.waiting)
        assert self.n_waiting == sum(len(tenant.waiting) for tenant in self._state.tenants.values())
        for connection in self._state.connections:
            mine = [work for work in held if work.connection is connection]
            assert connection.held_bytes == sum(work.share_bytes for work in mine)


def class_bytes(n_bytes: int) -> int:
    """The size of the segments that serve `n_bytes`: a power of two or three quarters of one."""
    if n_bytes <= LEAST_BYTES:
        return LEAST_BYTES
    power = 1 << (n_bytes - 1).bit_length()
    middle = power // 4 * 3
    return middle if n_bytes <= middle else power


#: A segment the client returned serves a request of at least this part of it.
_MOST_WASTE = 4


class Sharing:
    """All shared memory.

    At most `max_shared_bytes` for one connection, and half of all memory together.

    Attributes:
        n_bytes: of all of it.
    """

    def __init__(self, settings: MachineSettings, memory: MemoryPool, state: MachineState) -> None:
        self.n_bytes = 0
        self._memory = memory
        self._state = state
        self._connection_bytes = settings.max_shared_bytes
        self._bound_bytes = settings.pool_bytes // 2
        self._grants: set[Grant] = set()

    def want(self, connection: ConnectionRecord, request_id: int, n_bytes: int) -> bool:
        """A client wants shared memory; whether it gets some, now or when it was made."""
        grant = self._returned(connection, n_bytes)
        if grant is None:
            grant = self._create(connection, n_bytes)
            if grant is None:
                return False
            grant.request_id = request_id
            return True
        grant.is_returned = False
        self._show(grant, request_id)
        return True

    def use(self, connection: ConnectionRecord, place: SharedInputs, is_exclusive: bool) -> Grant | Failure:
        """Begin a request whose inputs lie in shared memory; a failure says why it cannot be."""
        number, n_bytes = place
        grant = connection.grants.get(number)
        if grant is None or grant.is_returned or not grant.is_created:
            return _bad(f"segment {number} is not shared with this connection")
        if n_bytes > grant.n_bytes:
            return _bad(f"segment {number} has {grant.n_bytes} bytes, {n_bytes} are named")
        if grant.is_exclusive or (is_exclusive and grant.n_users):
            return _bad(f"segment {number} is used by another request")
        grant.n_users += 1
        grant.is_exclusive = is_exclusive
        return grant

    def take_for_result(self, work: WorkRecord, n_bytes: int) -> Grant | None:
        """Shared memory for the result of a work; None: there is none now.

        It may still have to be made: then it counts in `work.pending`.
        """
        connection = work.connection
        grant = self._returned(connection, n_bytes) or self._create(connection, n_bytes)
        if grant is None:
            return None
        if grant.is_pending:
            grant.wanted_by = work
            work.pending += 1
        grant.is_returned = False
        grant.n_users += 1
        grant.is_exclusive = True
        return grant

    def show_result(self, work: WorkRecord, grant: Grant) -> None:
        """Let the client have the memory its result lies in, before it gets the message about the result."""
        work.is_shown = True
        if not grant.is_known:
            self._show(grant, 0)

    def free_inputs(self, work: WorkRecord) -> None:
        """A request is about to be answered: its client may name the memory of its inputs from now on."""
        grant = work.input_grant
        if grant is not None and not work.is_input_free:
            work.is_input_free = True
            grant.n_leaving += 1
            _user_gone(grant)

    def end_work(self, work: WorkRecord) -> None:
        """A work, and all that leaves from its memory, is over."""
        inputs, work.input_grant = work.input_grant, None
        outputs, work.output_grant = work.output_grant, None
        if inputs is not None:
            if work.is_input_free:
                inputs.n_leaving -= 1
            else:
                _user_gone(inputs)
            self._drop_if_over(inputs)
        if outputs is not None:
            _user_gone(outputs)
            if not work.is_shown:
                outputs.is_returned = True
            self._drop_if_over(outputs)

    def give_back(self, connection: ConnectionRecord, number: int) -> None:
        """The client reads a segment no more; unknown numbers are ignored."""
        grant = connection.grants.get(number)
        if grant is not None:
            grant.is_returned = True

    def end(self, connection: ConnectionRecord) -> None:
        """A connection is over: destroy what is not in use now, the rest when its use ends."""
        for grant in tuple(connection.grants.values()):
            self._drop_if_over(grant)

    def created(self, grant: Grant) -> WorkRecord | None:
        """A segment is there; returns the work that waits for nothing more now."""
        grant.is_created, grant.is_pending = True, False
        work, grant.wanted_by = grant.wanted_by, None
        if work is not None:
            work.pending -= 1
            return None if work.pending else work
        if grant.connection.is_open:
            self._show(grant, grant.request_id)
        self._drop_if_over(grant)
        return None

    def failed(self, grant: Grant) -> WorkRecord | None:
        """A segment could not be made; returns the work whose result it was for, None: a client wanted it."""
        grant.is_pending = False
        work, grant.wanted_by = grant.wanted_by, None
        if work is not None:
            work.pending -= 1
            work.output_grant = None
        self._drop(grant)
        return work

    def bytes_of(self, tenant: TenantRecord) -> int:
        """Shared memory of all connections of a tenant."""
        return sum(each.n_bytes for each in self._grants if each.connection.tenant is tenant)

    def validate(self) -> None:
        """Check that users and bytes agree with the works.

        Raises:
            AssertionError: they do not.
        """
        assert self.n_bytes == sum(grant.n_bytes for grant in self._grants) <= self._bound_bytes
        works = self._state.works.values()
        for grant in self._grants:
            assert grant.connection.grants[grant.id] is grant
            inputs = [work for work in works if work.input_grant is grant]
            n_users = sum(not work.is_input_free for work in inputs)
            n_users += sum(work.output_grant is grant for work in works)
            assert grant.n_users == n_users
            assert grant.n_leaving == sum(work.is_input_free for work in inputs)
            assert grant.connection.is_open or inputs or n_users or grant.is_pending

    # Below

    def _show(self, grant: Grant, request_id: int) -> None:
        grant.is_known = True
        self._state.out.append(GrantMemory(grant.connection, request_id, grant))

    def _returned(self, connection: ConnectionRecord, n_bytes: int) -> Grant | None:
        """A segment the client returned, of about the right size."""
        for grant in connection.grants.values():
            is_idle = grant.is_created and not (grant.n_users or grant.n_leaving)
            if grant.is_returned and is_idle and n_bytes <= grant.n_bytes <= _MOST_WASTE * n_bytes:
                return grant
        return None

    def _create(self, connection: ConnectionRecord, n_bytes: int) -> Grant | None:
        """Begin to make fresh memory: used one would show the client what others left in it."""
        memory = self._memory
        size = memory.size_of(n_bytes)
        is_full = connection.granted_bytes + size > self._connection_bytes
        if is_full or self.n_bytes + size > self._bound_bytes or not connection.is_open:
            return None
        grant = memory.create_shared(size, connection)
        if grant is None:
            return None
        self._grants.add(grant)
        connection.grants[grant.id] = grant
        connection.granted_bytes += size
        connection.tenant.held_bytes += size
        self.n_bytes += size
        return grant

    def _drop_if_over(self, grant: Grant) -> None:
        is_used = grant.n_users or grant.n_leaving or grant.is_pending
        if not grant.connection.is_open and not is_used:
            self._drop(grant)

    def _drop(self, grant: Grant) -> None:
        connection = grant.connection
        self._grants.remove(grant)
        del connection.grants[grant.id]
        connection.granted_bytes -= grant.n_bytes
        connection.tenant.held_bytes -= grant.n_bytes
        self.n_bytes -= grant.n_bytes
        self._memory.destroy_shared(grant)


def _user_gone(grant: Grant) -> None:
    grant.n_users -= 1
    if not grant.n_users:
        grant.is_exclusive = False


def _bad(message: str) -> Failure:
    return Failure("rejected", "bad-placement", message)
