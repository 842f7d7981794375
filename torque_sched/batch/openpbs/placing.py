"""The vnodes of a start: one element of ``qrun -H`` for each chunk, and a refusal of what does not fit.

The server verifies nothing of an order: it starts a job on a vnode that is full, offline, stale or taken, and
one with fewer elements than its select has chunks falls back after a while (observed on 23.06.06). So what is
not free by the last look, less all that was ordered since, is refused here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from torque_sched.batch.openpbs.parse.cluster import Vnode, by_host
from torque_sched.batch.openpbs.parse.reservations import ordered_name
from torque_sched.batch.openpbs.parse.select import AskedChunk, Kinds, VnodeShare, amount_of, property_of
from torque_sched.errors import ModelError
from torque_sched.model.cluster import Job, Queue, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.parts import Alone, alone_on, taken_of
from torque_sched.model.request import AccessPolicy, Request
from torque_sched.model.states import JobState
from torque_sched.model.units import DURATION_RESOURCES

Elements = tuple[tuple[VnodeShare, ...], ...]
_COUNTED = frozenset({"ncpus", "mem", "ngpus"})
_UNPLACED = frozenset({"mpiprocs", "ompthreads", "nchunk"})
_NOT_OF_SITE = _COUNTED | _UNPLACED | DURATION_RESOURCES | {"nodect"}


@dataclass(frozen=True, slots=True)
class ChunkRules:
    """How the chunks of a job are to lie.

    Attributes:
        access: who else may be on its vnodes.
        own_hosts: no two chunks share a host.
        own_vnodes: each chunk has one vnode, and no two chunks share it.
    """

    access: AccessPolicy | None = None
    own_hosts: bool = False
    own_vnodes: bool = False

    @classmethod
    def of(cls, request: Request) -> ChunkRules:
        """Those of a job."""
        own_vnodes = any(piece.on_own_part for piece in request.pieces)
        return cls(request.access, request.is_scattered, own_vnodes)


class NotFreeError(ModelError):
    """What was to be ordered is not free; the message says which chunk, or why the vnode takes none."""


class _CountedChunk:
    """A chunk by what is counted of it, in the order asked, and what its vnodes must be."""

    def __init__(self, chunk: AskedChunk, kinds: Kinds) -> None:
        counted = kinds.counted | _COUNTED
        self.count = chunk.count
        self.texts = {name: text for name, text in chunk.words if name in counted}
        self.needs = {name: amount_of(text) for name, text in self.texts.items()}
        self.properties = frozenset(
            property_of(name, text, kinds)
            for name, text in chunk.words
            if name not in counted and name not in _UNPLACED
        )
        self.words = ":".join(f"{name}={text}" for name, text in chunk.words) or "a chunk"

    @property
    def share(self) -> tuple[int, int]:
        """Slots and GPUs as the decision counts them."""
        return max(1, self.needs.get("ncpus", 0)), self.needs.get("ngpus", 0)


class VnodeAccounts:
    """What is free of each vnode by a look, less what was ordered since.

    Args:
        vnodes: of the look.
        kinds: of the site's resources.
    """

    def __init__(self, vnodes: Iterable[Vnode], kinds: Kinds) -> None:
        self._kinds = kinds
        self.vnodes = {vnode.name: vnode for vnode in vnodes}
        self.hosts: Mapping[str, Sequence[Vnode]] = by_host(self.vnodes.values())
        self._host_of = {vnode.name: host for host, members in self.hosts.items() for vnode in members}
        self._free = {
            name: {resource: vnode.free(resource) for resource in vnode.available}
            for name, vnode in self.vnodes.items()
        }
        self._taken_alone = {name for name, vnode in self.vnodes.items() if vnode.is_taken_alone}
        self._in_use = {name for name, vnode in self.vnodes.items() if vnode.jobs}

    def take(self, elements: Elements, access: AccessPolicy | None = None) -> None:
        """This was ordered for a job of this kind."""
        for share in (each for element in elements for each in element):
            free = self._free.setdefault(share.vnode, {})
            for name, text in share.words:
                free[name] = free.get(name, 0) - amount_of(text)
            vnode = self.vnodes.get(share.vnode)
            self._in_use.add(share.vnode)
            alone = Alone.NOTHING if vnode is None else alone_on(vnode.sharing, access)
            if alone is not Alone.NOTHING:
                self._taken_alone.add(share.vnode)
            if vnode is not None and alone is Alone.NODE:
                self._taken_alone.update(each.name for each in self._on_host_of(vnode))

    def give_back(self, elements: Elements) -> None:
        """It was refused. A vnode that is kept for one job alone stays so until the next look."""
        for share in (each for element in elements for each in element):
            for name, text in share.words:
                self._free[share.vnode][name] += amount_of(text)

    def elements(
        self, select: Sequence[AskedChunk], allocation: Sequence[NodeShare], how: ChunkRules
    ) -> Elements:
        """One element for each chunk, on these hosts.

        Args:
            select: chunks of the job, in its order.
            allocation: what was decided, by host.
            how: the job is placed.

        Raises:
            NotFreeError: it does not fit.
        """
        asked = [_CountedChunk(chunk, self._kinds) for chunk in select]
        as_asked = list(range(len(asked)))
        largest = sorted(as_asked, key=lambda i: (*(-n for n in reversed(asked[i].share)), i))
        trouble: NotFreeError | None = None
        for order in (as_asked, largest, list(reversed(largest))):
            try:
                return self._in_order(asked, order, allocation, how)
            except NotFreeError as error:
                trouble = trouble or error
        assert trouble is not None
        raise trouble

    def _in_order(
        self,
        asked: Sequence[_CountedChunk],
        order: Sequence[int],
        allocation: Sequence[NodeShare],
        how: ChunkRules,
    ) -> Elements:
        """The chunks in an order, each on the first host whose share it fits into."""
        scattered = how.own_hosts
        left = [[share.slots, share.gpus] for share in allocation]
        own: set[str] = set()
        used = [False] * len(allocation)
        free = {
            vnode.name: dict(self._free[vnode.name])
            for share in allocation
            for vnode in self.hosts.get(share.node, ())
        }
        found: dict[int, list[tuple[VnodeShare, ...]]] = {}
        for place in order:
            chunk = asked[place]
            slots, gpus = chunk.share
            first = 0
            for _ in range(chunk.count):
                # Equal chunks go on from the host that took the last one.
                hosts = [i for i in range(first, len(left)) if left[i][0] >= slots and left[i][1] >= gpus]
                hosts = [i for i in hosts if not (scattered and used[i])]
                hosts.sort(key=lambda i: (left[i] != [slots, gpus], i)) if scattered else None
                element = None
                for first in hosts:
                    element = self._on_host(str(allocation[first].node), chunk, free, own, how)
                    if element is not None:
                        break
                if element is None:
                    raise NotFreeError(self._why(chunk, allocation, how.access))
                left[first][0] -= slots
                left[first][1] -= gpus
                used[first] = True
                own.update(share.vnode for share in element)
                found.setdefault(place, []).append(element)
                first = 0 if scattered else first
        return tuple(element for place in sorted(found) for element in found[place])

    def _on_host(
        self, host: str, chunk: _CountedChunk, free: dict[str, dict[str, int]], own: Set[str], how: ChunkRules
    ) -> tuple[VnodeShare, ...] | None:
        """The chunk on one vnode of the host, else over several of them; taken from `free`.

        Args:
            host: by its node.
            chunk: one of the job.
            free: amounts by vnode.
            own: vnodes that the job's chunks before are on.
            how: it is placed.
        """
        fitting = [
            vnode for vnode in self.hosts.get(host, ())
            if not self._closed(vnode, how.access) and chunk.properties <= set(vnode.properties)
            and not (how.own_vnodes and vnode.name in own)
        ]  # fmt: skip
        parts = taken_of(
            chunk.needs, [(vnode.name, free[vnode.name]) for vnode in fitting], may_spread=not how.own_vnodes
        )
        if not parts:
            return None
        for name, amounts in parts:
            for resource, n in amounts.items():
                free[name][resource] = free[name].get(resource, 0) - n
        if len(parts) == 1:
            return (VnodeShare(parts[0][0], tuple(chunk.texts.items())),)
        return tuple(VnodeShare(name, _words(amounts, chunk.texts)) for name, amounts in parts)

    def _closed(self, vnode: Vnode, access: AccessPolicy | None) -> bool:
        if not vnode.is_open or vnode.name in self._taken_alone:
            return True
        alone = alone_on(vnode.sharing, access)
        beside = self._on_host_of(vnode) if alone is Alone.NODE else (vnode,)
        return alone is not Alone.NOTHING and any(each.name in self._in_use for each in beside)

    def _on_host_of(self, vnode: Vnode) -> Sequence[Vnode]:
        """All vnodes of its host."""
        return self.hosts.get(self._host_of[vnode.name], ())

    def _why(self, chunk: _CountedChunk, allocation: Sequence[NodeShare], access: AccessPolicy | None) -> str:
        """Which chunk fits nowhere, and what is against the first vnode."""
        for share in allocation:
            for vnode in self.hosts.get(share.node, ()):
                if not vnode.is_open:
                    words = (
                        ", ".join(sorted(state.value for state in vnode.states)) or f"of queue {vnode.queue}"
                    )
                    return f"vnode {vnode.name} takes no job: {words}"
                if self._closed(vnode, access) and len(self.hosts[share.node]) == 1:
                    return f"vnode {vnode.name} is in use, and one job has it alone"
        where = ", ".join(str(share.node) for share in allocation[:3])
        return f"{chunk.words} is not free on {where} any more"


class SiteAccounts:
    """What is left of resources that the server or a queue has and no vnode, such as floating licences.

    Of each the server's figure or the sum of what runs counts as assigned, whichever is more: a resource
    without the flag ``q`` is not added up there.

    Args:
        server: of the look.
        queues: of the look.
        jobs: of the look; those that run hold what they asked for.
    """

    def __init__(self, server: Server, queues: Iterable[Queue], jobs: Iterable[Job]) -> None:
        sources: list[tuple[str, Server | Queue]] = [("", server)]
        sources += [(str(queue.name), queue) for queue in queues]
        self._left = {
            (place, name): has
            for place, source in sources for name in source.resources_available.texts
            if name not in _NOT_OF_SITE and (has := source.resources_available.amount(name)) is not None
        }  # fmt: skip
        held = Counter[tuple[str, str]]()
        for job in jobs if self._left else ():
            if job.state is JobState.RUNNING and not job.is_array_parent:
                held.update(self._asked(job))
        for place, source in sources:
            for name in source.resources_assigned.texts:
                held[place, name] = max(held[place, name], int(source.resources_assigned.amount(name) or 0))
        for key in self._left:
            self._left[key] -= held[key]

    def _asked(self, job: Job) -> dict[tuple[str, str], int]:
        """By place and resource, of those that are counted here."""
        asked = Counter[str]({each.name: each.count for each in job.request.gres})
        for chunk in job.request.pieces:
            asked.update({name: n * chunk.count for name, n in chunk.others})
        return {
            (place, name): n
            for place in ("", str(job.queue)) for name, n in asked.items()
            if (place, name) in self._left
        }  # fmt: skip

    def check(self, job: Job) -> None:
        """That what the job asks for is left.

        Raises:
            NotFreeError: it is not.
        """
        for (place, name), n in self._asked(job).items() if self._left else ():
            left = self._left[place, name]
            if n > left:
                where = f"queue {place}" if place else "the server"
                raise NotFreeError(f"{name}={n} is not free at {where} any more: {max(0, left):g} left")

    def take(self, job: Job, sign: int = 1) -> None:
        """The job was ordered; with a sign of -1, that was refused."""
        for key, n in self._asked(job).items() if self._left else ():
            self._left[key] -= sign * n


def _words(amounts: Mapping[str, int], texts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Amounts of a part of a chunk: sizes in kb, as the server itself writes them."""
    return tuple(
        (name, str(n) if texts[name].isdigit() and name != "mem" else f"{-(-n // 1024)}kb")
        for name, n in amounts.items()
    )


def hosts_argument(elements: Elements) -> str:
    """The ``-H`` argument of qrun.

    >>> hosts_argument((((VnodeShare("n1", (("ncpus", "2"), ("mem", "1gb")))),), (VnodeShare("n2", ()),)))
    '(n1:ncpus=2:mem=1gb)+(n2:ncpus=0)'
    """
    return "+".join("(" + "+".join(map(_words_of, element)) + ")" for element in elements)


def _words_of(share: VnodeShare) -> str:
    words = share.words or (("ncpus", "0"),)
    return ":".join([ordered_name(share.vnode), *(f"{name}={text}" for name, text in words)])
