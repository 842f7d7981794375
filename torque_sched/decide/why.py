"""The reason of each job that waits: counted over the nodes, and in words for its comment."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo

from torque_sched.decide.needs import Fit, ResourceChunk, Shape, Wanted, wanted
from torque_sched.decide.node_ledger import NodeLedger, Refusal
from torque_sched.decide.search import Search, SearchConstraints
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import Decision, Hold, Reserve
from torque_sched.model.reasons import Reason
from torque_sched.model.texts import expected_words

_IN_WORDS_OF_C = frozenset(
    {
        Reason.NO_FREE_SLOTS,
        Reason.NO_FREE_GPUS,
        Reason.NO_EMPTY_NODES,
        Reason.NODES_UNUSABLE,
        Reason.NODES_BACK_OFF,
        Reason.NODES_TOO_LOADED,
        Reason.RESERVED_FOR_OTHERS,
    }
)
"""Reasons for which the C daemon only says that there are not enough of the right nodes."""

Answer = tuple[Reason, Mapping[str, str]]

_NOT_TOGETHER: Answer = (
    Reason.NO_FREE_SLOTS, {"why": "its pieces fit one by one, not all together"}
)  # fmt: skip


HasCapacity = Callable[[int, ResourceChunk], bool]


class Keepers:
    """Waiting jobs for which nodes are kept, in the order in which they were added."""

    def __init__(self) -> None:
        self.jobs: list[JobId] = []
        self._by_node: dict[NodeName, list[tuple[int, float]]] = {}

    def add(self, job: JobId, nodes: Iterable[NodeName], from_s: float) -> None:
        """These nodes are kept for the job from a time on."""
        place = len(self.jobs)
        self.jobs.append(job)
        for name in dict.fromkeys(nodes):
            self._by_node.setdefault(name, []).append((place, from_s))

    def of(self, nodes: Iterable[NodeLedger], until_s: float) -> list[JobId]:
        """Whose reservations on any of these nodes begin before this time."""
        places = {
            place
            for node in nodes
            for place, from_s in self._by_node.get(node.name, ())
            if from_s < until_s
        }  # fmt: skip
        return [self.jobs[place] for place in sorted(places)]


_NOBODY = Keepers()


def kept_words(n_jobs: int) -> str:
    """What is said of nodes that are kept for so many other jobs."""
    return f"kept for {n_jobs} {'job' if n_jobs == 1 else 'jobs'} before it"


def node_refusal(
    node: NodeLedger, piece: ResourceChunk, shape: Shape, who: SearchConstraints
) -> Refusal | None:
    """Why this job's piece does not go to a capable node; None: it fits by itself."""
    found = node.refusal(piece, shape)
    if found is not None:
        return found
    pause = who.pauses.get(node.name)
    if pause is not None and pause.until_s > who.now_s:
        return Refusal.JOB_BACK_OFF
    return Refusal.RESERVED if who.is_kept_out(node, piece) else None


class Why:
    """The answers of one cycle; jobs of one shape share theirs."""

    def __init__(self, search: Search, words_of_c: bool) -> None:
        self._search, self._words_of_c = search, words_of_c
        self._answers: dict[tuple[Fit, float, int, str], Answer] = {}
        self._blocked: dict[int, Counter[Refusal | None]] = {}
        self._refused: dict[
            tuple[int, Wanted, int], tuple[Counter[Refusal | None], Sequence[NodeLedger]]
        ] = {}

    def never(self, shape: Shape) -> str:
        """Why not even an idle cluster could run the job; empty: it could."""
        if shape.fit.never is None:
            shape.fit.never = self._never_of(shape)
        return shape.fit.never

    def _never_of(self, shape: Shape) -> str:
        if shape.node_group:
            groups = self._search.groups(shape)
            whys = [self._never_of(each) for each in groups]
            return f"no node has a value of {shape.node_group}" if not whys else "" if "" in whys else whys[0]
        for piece in shape.pieces:
            capable = self._search.capable(piece, shape)
            if shape.procs or shape.may_share:
                fits = sum(node.most_ever(piece, piece.count) for node in capable)
                gpus = sum(node.node.gpus for node in capable)
                if gpus < shape.gpus_anywhere:
                    return f"asks for {shape.gpus_anywhere} GPUs, the nodes that fit have {gpus}"
            else:
                fits = len(capable)
            if fits < piece.count:
                return lacking(piece, shape, self._search.matching(piece, shape), fits)
        if len(shape.pieces) == 1:
            return ""
        if shape.is_scattered and not self._search.has_nodes_apart(shape):
            return f"asks for {shape.n_shares} different nodes, and fewer fit its chunks"
        return self._too_much_of_a_node(shape) or self._too_much_of_all(shape)

    def _too_much_of_all(self, shape: Shape) -> str:
        """Pieces of different elements may share nodes, so only the sums can be asked."""
        nodes = {node.index: node for piece in shape.pieces for node in self._search.capable(piece, shape)}
        slots = sum(piece.count * piece.slots for piece in shape.pieces)
        gpus = sum(piece.count * piece.gpus for piece in shape.pieces)
        has_slots = sum(node.slots for node in nodes.values())
        has_gpus = sum(node.node.gpus for node in nodes.values())
        if slots <= has_slots and gpus <= has_gpus:
            return ""
        return (
            f"asks for {slots} processors and {gpus} GPUs, the nodes that fit have {has_slots} and {has_gpus}"
        )

    def _too_much_of_a_node(self, shape: Shape) -> str:
        """Pieces that name the same node lie there together."""
        by_name = self._search.ledger.by_name
        for name, node in (
            (name, by_name.get(NodeName(name))) for name in {p.name or "" for p in shape.pieces}
        ):
            slots = sum(piece.slots for piece in shape.pieces if piece.name == name)
            gpus = sum(piece.gpus for piece in shape.pieces if piece.name == name)
            if node is not None and (slots > node.slots or gpus > node.node.gpus):
                has = f"{node.slots} and {node.node.gpus}"
                return f"asks for {slots} processors and {gpus} GPUs of {name}, which has {has}"
        return ""

    def fits_alone(self, shape: Shape) -> bool:
        """Whether the nodes can take each piece by itself now, as far as the accounts say."""
        may_share = bool(shape.procs) or shape.may_share
        return all(
            len(self._search.candidates(shape, place)) >= (1 if may_share else piece.count)
            for place, piece in enumerate(shape.pieces)
        )

    def hold(
        self,
        job: Job,
        shape: Shape,
        until_s: float,
        keepers: Keepers = _NOBODY,
        has_capacity: HasCapacity | None = None,
    ) -> Hold:
        """The answer for a job that fits the cluster but found no nodes.

        Args:
            job: the job.
            shape: what it needs.
            until_s: when it would end.
            keepers: the jobs that have nodes kept for them; the first of those in its way is the detail
                ``job``, which is ``-`` where advance reservations alone are in its way.
            has_capacity: see `SearchConstraints`.
        """
        who = self._search.who(job, until_s)
        if has_capacity is not None:
            who = replace(who, has_capacity=has_capacity)
        end_s = until_s if has_capacity or until_s == float("inf") else 0.0
        key = (shape.fit, end_s, len(keepers.jobs), job.user if has_capacity else "")
        answer = None if who.pauses else self._answers.get(key)
        if answer is None:
            answer = self._count(shape, who, keepers)
            if not who.pauses:
                self._answers[key] = answer
        reason, details = answer
        if self._words_of_c and reason in _IN_WORDS_OF_C:
            reason = Reason.NOT_ENOUGH_NODES
        return Hold(job.id, reason, details)

    def _count(self, shape: Shape, who: SearchConstraints, keepers: Keepers) -> Answer:
        """The first thing that leaves too few nodes, in the order in which nodes are asked."""
        if shape.procs or shape.may_share:
            return self._count_pieces(shape, who, keepers)
        for piece in shape.pieces:
            refusals, takers = self._by_accounts(piece, shape)
            reserved: list[tuple[NodeLedger, int]] = []
            for node in takers:
                refusal = node_refusal(node, piece, shape, who)
                refusals[refusal] += 1
                if refusal is Refusal.RESERVED:
                    reserved.append((node, 1))
            if refusals[None] < piece.count:
                return _name(piece, refusals, "", _Kept(reserved, keepers, who.until_s))
        if shape.n_shares == 1:
            return Reason.NO_FREE_SLOTS, {"why": "there is room now, but not for as long as it runs"}
        return _NOT_TOGETHER

    def _count_pieces(self, shape: Shape, who: SearchConstraints, keepers: Keepers) -> Answer:
        """The same for pieces that may share a node: what is counted is how many of them fit."""
        for piece in shape.pieces:
            refusals: Counter[Refusal | None] = Counter()
            reserved: list[tuple[NodeLedger, int]] = []
            for node in self._search.capable(piece, shape):
                most = node.slots // piece.slots
                refusal = node_refusal(node, piece, shape, who)
                free = 0 if refusal else min(most, node.slots_free // piece.slots)
                refusals[None] += free
                refusals[refusal or Refusal.NO_SLOTS] += most - free
                if refusal is Refusal.RESERVED:
                    reserved.append((node, most - free))
            if refusals[None] < piece.count:
                kept = _Kept(reserved, keepers, who.until_s)
                return _name(piece, refusals, " processors" if shape.procs else " tasks", kept)
        return self._too_few_gpus(shape) or _NOT_TOGETHER

    def _too_few_gpus(self, shape: Shape) -> Answer | None:
        """Of ``-l procs=N,gpus=M`` the GPUs."""
        nodes = (node for piece in shape.pieces for node in self._search.capable(piece, shape))
        free = sum(node.gpus_free for node in nodes if node.blocked is None)
        if free >= shape.gpus_anywhere:
            return None
        return Reason.NO_FREE_GPUS, {"why": f"needs {shape.gpus_anywhere} GPUs, {free} are free"}

    def _by_accounts(
        self, piece: ResourceChunk, shape: Shape
    ) -> tuple[Counter[Refusal | None], Sequence[NodeLedger]]:
        """How many nodes refuse a piece by their accounts, by cause, and those that do not."""
        search = self._search
        capable = search.capable(piece, shape)
        key = (id(capable), wanted(piece, shape), len(search.ledger.changed))
        known = self._refused.get(key)
        if known is None:
            refusals = self._closed(capable)
            open_nodes = search.with_free_slots(piece, shape)
            refusals[Refusal.NO_SLOTS] = len(capable) - refusals.total() - len(open_nodes)
            takers = []
            for node in open_nodes:
                refusal = node.refusal(piece, shape)
                if refusal is None:
                    takers.append(node)
                else:
                    refusals[refusal] += 1
            known = self._refused[key] = refusals, takers
        return known[0].copy(), known[1]

    def _closed(self, capable: tuple[NodeLedger, ...]) -> Counter[Refusal | None]:
        """How many of these nodes take no job at all, by cause."""
        found = self._blocked.get(id(capable))
        if found is None:
            found = self._blocked[id(capable)] = Counter(
                node.blocked for node in capable if node.blocked is not None
            )
        return found.copy()


class _Kept:
    """Of nodes that are free and kept for others: how much is kept for waiting jobs, and for which."""

    def __init__(self, reserved: Sequence[tuple[NodeLedger, int]], keepers: Keepers, until_s: float) -> None:
        by_jobs = [(node, count) for node, count in reserved if keepers.of((node,), until_s)]
        self.jobs = keepers.of((node for node, _ in by_jobs), until_s)
        self.n_by_jobs = sum(count for _, count in by_jobs)
        self.n_else = sum(count for _, count in reserved) - self.n_by_jobs

    def words(self) -> list[str]:
        """Each part with its number."""
        found = [f"{self.n_by_jobs} {kept_words(len(self.jobs))}"] if self.n_by_jobs else []
        return [*found, f"{self.n_else} {Refusal.RESERVED.value}"] if self.n_else else found


def _name(piece: ResourceChunk, refusals: Counter[Refusal | None], of_what: str, kept: _Kept) -> Answer:
    n = refusals.total()
    left = n
    words = []
    reason: Reason | None = None
    for refusal in Refusal:
        count = refusals[refusal]
        if not count:
            continue
        words += kept.words() if refusal is Refusal.RESERVED else [f"{count} {refusal.value}"]
        left -= count
        if reason is None and left < piece.count:
            reason = refusal.reason
    reason = reason or Reason.NO_FREE_SLOTS
    why = f"needs {piece.count} of {n}{of_what}: " + ", ".join(words)
    is_by_jobs = reason is Reason.RESERVED_FOR_OTHERS and refusals[None] + kept.n_else < piece.count
    return reason, {"why": why, "job": kept.jobs[0] if is_by_jobs and kept.jobs else "-"}


_MAX_NAMES = 3

_UNITS = (("tb", 1024**4), ("gb", 1024**3), ("mb", 1024**2), ("kb", 1024), ("b", 1))


def lacking(piece: ResourceChunk, shape: Shape, kind: Sequence[NodeLedger], n_fitting: int) -> str:
    """One sentence: what is asked, and what too few nodes have.

    Args:
        piece: too few nodes could take it.
        shape: of the job.
        kind: nodes of the right name and properties, whatever their size.
        n_fitting: pieces that fit on the idle cluster.
    """
    if shape.procs or shape.may_share:
        what = "processors" if shape.procs else f"tasks of {_amounts(piece) or '1 slot'}"
        return f"{piece.count} {what}: all nodes together take {n_fitting}"
    return f"{_asked(piece)}: {_why(piece, shape, kind)}"


def _asked(piece: ResourceChunk) -> str:
    amounts = _amounts(piece)
    names = sorted(piece.properties) + ([piece.name] if piece.name is not None else [])
    if piece.count == 1 and not names and " and " not in amounts and amounts:
        return amounts
    nodes = "1 node" if piece.count == 1 else f"{piece.count} nodes"
    return nodes + (f" of {':'.join(names)}" if names else "") + (f" with {amounts}" if amounts else "")


def _amounts(piece: ResourceChunk) -> str:
    words = [f"gpus={piece.gpus}"] if piece.gpus else []
    words += [f"{piece.slots} slots"] if piece.slots > 1 else []
    words += [_memory("mem", piece.mem_bytes, piece.slots if piece.is_pmem else 0)] if piece.mem_bytes else []
    words += [f"{name}={amount}" for name, amount in piece.others]
    words += (
        [_memory("vmem", piece.vmem_bytes, piece.slots if piece.is_pvmem else 0)] if piece.vmem_bytes else []
    )
    return " and ".join(words)


def _memory(name: str, amount: int, n_procs: int) -> str:
    """Memory by the name it was asked: for each of ``n_procs`` processors, or (0) for the whole share."""
    return f"p{name}={_in_bytes(amount // n_procs)}" if n_procs else f"{name}={_in_bytes(amount)}"


def _in_bytes(amount: int) -> str:
    """As qsub takes it: 900gb."""
    unit, size = next((unit, size) for unit, size in _UNITS if not amount % size)
    return f"{amount // size}{unit}"


def _why(piece: ResourceChunk, shape: Shape, kind: Sequence[NodeLedger]) -> str:
    if len(kind) < piece.count:
        names = [*sorted(piece.properties), *([piece.name] if piece.name is not None else [])]
        names += [f"host={shape.host}"] if shape.host is not None else []
        names += [f"opsys={shape.opsys}"] if shape.opsys else []
        of_kind = f"of {':'.join(names)}" if names else "in the cluster"
        return f"{_only(kind, 'is', 'are')} {of_kind}" if kind else f"there is no node {of_kind}"
    for asked, most, words in _resources(piece):
        able = [node for node in kind if most(node) >= asked]
        if not able:
            largest = max(map(most, kind))
            return f"the largest node has {words(largest)}" if largest else f"no node has {words(0)}"
        if len(able) < piece.count:
            return f"{_only(able, 'has', 'have')} {words(asked if asked > 1 else 0)}"
    able = [node for node in kind if not node.too_small(piece)]
    together = "both" if _amounts(piece).count(" and ") == 1 else "all of it"
    return f"{_only(able, 'has', 'have')} {together}" if able else f"no node has {together}"


Most = Callable[[NodeLedger], float]

Words = Callable[[float], str]
"""An amount of a resource as it is read; of 0 only its name."""


def _resources(piece: ResourceChunk) -> Iterator[tuple[float, Most, Words]]:
    """What is asked of a node, how much of it an idle node has, and the words for it."""
    if piece.gpus:
        yield piece.gpus, lambda node: node.node.gpus, lambda n: _counted(n, "GPU")
    yield piece.slots, lambda node: node.slots, lambda n: _counted(n, "slot")
    if piece.mem_bytes:
        yield piece.mem_bytes, lambda node: node.most_mem_bytes, _gib
    if piece.vmem_bytes:
        yield piece.vmem_bytes, lambda node: node.most_vmem_bytes, lambda n: f"{_gib(n)} with swap"
    for name, amount in piece.others:
        yield amount, functools.partial(_available, name), functools.partial(_named, name)


def _available(name: str, node: NodeLedger) -> float:
    return node.node.others[name].available if name in node.node.others else 0


def _named(name: str, n: float) -> str:
    return f"{name}={n:.0f}" if n else name


def _counted(n: float, what: str) -> str:
    return f"{what}s" if not n else f"1 {what}" if n == 1 else f"{n:.0f} {what}s"


def _gib(amount: float) -> str:
    return f"{amount / 1024**3:.1f} GiB"


def _only(nodes: Sequence[NodeLedger], one: str, several: str) -> str:
    if len(nodes) > _MAX_NAMES:
        return f"only {len(nodes)} nodes {several}"
    return f"only {' and '.join(node.name for node in nodes)} {one if len(nodes) == 1 else several}"


def with_expected(
    decisions: Iterable[Decision], expected: Mapping[JobId, float], zone: tzinfo
) -> tuple[Decision, ...]:
    """The decisions with the expected start in the words to each job that has a guaranteed one."""
    return tuple(_with_expected(decision, expected.get(decision.job), zone) for decision in decisions)


def _with_expected(decision: Decision, at_s: float | None, zone: tzinfo) -> Decision:
    if at_s is None or not isinstance(decision, Reserve) or decision.promise is None:
        return decision
    words = expected_words(min(at_s, decision.start_s), zone)
    return replace(decision, details={**decision.details, "expected": words})
