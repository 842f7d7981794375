"""The vnodes of a start: one element of ``qrun -H`` for each chunk, and a refusal of what does not fit.

The server verifies nothing of an order: it starts a job on a vnode that is full, offline, stale or taken, and
one with fewer elements than its select has chunks falls back after a while (observed on 23.06.06). So what is
not free by the last look, less all that was ordered since, is refused here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torque_sched.batch.openpbs.parse.cluster import Vnode, by_host
from torque_sched.batch.openpbs.parse.select import AskedChunk, Kinds, VnodeShare, amount_of, property_of
from torque_sched.errors import ModelError
from torque_sched.model.cluster import Job, Queue, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.states import JobState
from torque_sched.model.units import DURATION_RESOURCES

Elements = tuple[tuple[VnodeShare, ...], ...]
_COUNTED = frozenset({"ncpus", "mem", "ngpus"})
_UNPLACED = frozenset({"mpiprocs", "ompthreads", "nchunk"})
_NOT_OF_SITE = _COUNTED | _UNPLACED | DURATION_RESOURCES | {"nodect"}


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
        self._free = {
            name: {resource: vnode.free(resource) for resource in vnode.available}
            for name, vnode in self.vnodes.items()
        }
        self._taken_alone = {name for name, vnode in self.vnodes.items() if vnode.is_taken_alone}
        self._in_use = {name for name, vnode in self.vnodes.items() if vnode.jobs}

    def take(self, elements: Elements, *, alone: bool) -> None:
        """This was ordered."""
        for share in (each for element in elements for each in element):
            free = self._free.setdefault(share.vnode, {})
            for name, text in share.words:
                free[name] = free.get(name, 0) - amount_of(text)
            vnode = self.vnodes.get(share.vnode)
            self._in_use.add(share.vnode)
            if alone or (vnode is not None and vnode.is_exclusive):
                self._taken_alone.add(share.vnode)

    def give_back(self, elements: Elements) -> None:
        """It was refused. A vnode that is kept for one job alone stays so until the next look."""
        for share in (each for element in elements for each in element):
            for name, text in share.words:
                self._free[share.vnode][name] += amount_of(text)

    def elements(
        self, select: Sequence[AskedChunk], allocation: Sequence[NodeShare], *, alone: bool, scattered: bool
    ) -> Elements:
        """One element for each chunk, on these hosts.

        Args:
            select: chunks of the job, in its order.
            allocation: what was decided, by host.
            alone: whether the job wants vnodes without another job.
            scattered: whether no two chunks may share a host.

        Raises:
            NotFreeError: it does not fit.
        """
        asked = [_CountedChunk(chunk, self._kinds) for chunk in select]
        as_asked = list(range(len(asked)))
        largest = sorted(as_asked, key=lambda i: (*(-n for n in reversed(asked[i].share)), i))
        trouble: NotFreeError | None = None
        for order in (as_asked, largest, list(reversed(largest))):
            try:
                return self._in_order(asked, order, allocation, alone, scattered)
            except NotFreeError as error:
                trouble = trouble or error
        assert trouble is not None
        raise trouble

    def _in_order(
        self,
        asked: Sequence[_CountedChunk],
        order: Sequence[int],
        allocation: Sequence[NodeShare],
        alone: bool,
        scattered: bool,
    ) -> Elements:
        """The chunks in an order, each on the first host whose share it fits into."""
        left = [[share.slots, share.gpus] for share in allocation]
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
                    element = self._on_host(str(allocation[first].node), chunk, free, alone)
                    if element is not None:
                        break
                if element is None:
                    raise NotFreeError(self._why(chunk, allocation, alone))
                left[first][0] -= slots
                left[first][1] -= gpus
                used[first] = True
                found.setdefault(place, []).append(element)
                first = 0 if scattered else first
        return tuple(element for place in sorted(found) for element in found[place])

    def _on_host(
        self, host: str, chunk: _CountedChunk, free: dict[str, dict[str, int]], alone: bool
    ) -> tuple[VnodeShare, ...] | None:
        """The chunk on one vnode of the host, else over several of them; taken from `free`."""
        fitting = [
            vnode for vnode in self.hosts.get(host, ())
            if not self._closed(vnode, alone) and chunk.properties <= set(vnode.properties)
        ]  # fmt: skip
        single = [
            vnode for vnode in fitting
            if all(free[vnode.name].get(name, 0) >= n for name, n in chunk.needs.items())
        ]  # fmt: skip
        if single:
            # GPUs are left for those who ask for them, and large gaps for large chunks.
            best = min(single, key=lambda v: (free[v.name].get("ngpus", 0), free[v.name].get("ncpus", 0)))
            parts = [(best.name, dict(chunk.needs))]
        else:
            parts = _spread(chunk.needs, [(vnode.name, free[vnode.name]) for vnode in fitting])
        if not parts:
            return None
        for name, amounts in parts:
            for resource, n in amounts.items():
                free[name][resource] = free[name].get(resource, 0) - n
        if single:
            return (VnodeShare(parts[0][0], tuple(chunk.texts.items())),)
        return tuple(VnodeShare(name, _words(amounts, chunk.texts)) for name, amounts in parts)

    def _closed(self, vnode: Vnode, alone: bool) -> bool:
        return not vnode.is_open or vnode.name in self._taken_alone or (alone and vnode.name in self._in_use)

    def _why(self, chunk: _CountedChunk, allocation: Sequence[NodeShare], alone: bool) -> str:
        """Which chunk fits nowhere, and what is against the first vnode."""
        for share in allocation:
            for vnode in self.hosts.get(share.node, ()):
                if not vnode.is_open:
                    words = (
                        ", ".join(sorted(state.value for state in vnode.states)) or f"of queue {vnode.queue}"
                    )
                    return f"vnode {vnode.name} takes no job: {words}"
                if self._closed(vnode, alone) and len(self.hosts[share.node]) == 1:
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


def _spread(
    needs: Mapping[str, int], vnodes: Sequence[tuple[str, dict[str, int]]]
) -> list[tuple[str, dict[str, int]]]:
    """The needs over several vnodes, as much as each has; empty: they have too little together."""
    left = {name: n for name, n in needs.items() if n}
    parts: list[tuple[str, dict[str, int]]] = []
    for vnode, free in vnodes:
        here = {name: min(n, free.get(name, 0)) for name, n in left.items() if free.get(name, 0) > 0}
        # Memory alone would join a vnode whose processors are all taken.
        if not here or (left.get("ncpus") and not here.get("ncpus") and not here.get("ngpus")):
            continue
        parts.append((vnode, here))
        left = {name: n - here.get(name, 0) for name, n in left.items() if n > here.get(name, 0)}
        if not left:
            return parts
    return parts if not left else []


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
    return "+".join(
        "(" + "+".join(
            ":".join([share.vnode, *(f"{name}={text}" for name, text in share.words or (("ncpus", "0"),))])
            for share in element
        ) + ")"
        for element in elements
    )  # fmt: skip
