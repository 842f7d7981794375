"""Why a job that no limit holds finds no nodes: counted over the nodes, told in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from torque_sched.core.decisions import Hold
from torque_sched.core.model import Job, NodeName
from torque_sched.core.reasons import Reason
from torque_sched.policies.needs import Fit, Piece, Shape
from torque_sched.policies.never import lacking
from torque_sched.policies.node_ledger import NodeLedger
from torque_sched.policies.refusals import Refusal
from torque_sched.policies.search import Search, Who

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


HasRoom = Callable[[int, Piece], bool]


def kept_words(n_jobs: int) -> str:
    """What is said of nodes that are kept for so many other jobs."""
    return f"kept for {n_jobs} {'job' if n_jobs == 1 else 'jobs'} before it"


def node_refusal(node: NodeLedger, piece: Piece, shape: Shape, who: Who) -> Refusal | None:
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

    def never(self, shape: Shape) -> str:
        """Why not even an idle cluster could run the job; empty: it could."""
        if shape.fit.never is None:
            shape.fit.never = self._never_of(shape)
        return shape.fit.never

    def _never_of(self, shape: Shape) -> str:
        for piece in shape.pieces:
            capable = self._search.capable(piece, shape)
            if shape.procs or shape.may_share:
                fits = sum(
                    min(node.np // piece.ppn, node.node.gpus // piece.gpus if piece.gpus else node.np)
                    for node in capable
                )
                gpus = sum(node.node.gpus for node in capable)
                if gpus < shape.gpus_anywhere:
                    return f"asks for {shape.gpus_anywhere} GPUs, the nodes that fit have {gpus}"
            else:
                fits = len(capable)
            if fits < piece.count:
                return lacking(piece, shape, self._search.matching(piece, shape), fits)
        if len(shape.pieces) == 1:
            return ""
        return self._too_much_of_a_node(shape) or self._too_much_of_all(shape)

    def _too_much_of_all(self, shape: Shape) -> str:
        """Pieces of different elements may share nodes, so only the sums can be asked."""
        nodes = {node.index: node for piece in shape.pieces for node in self._search.capable(piece, shape)}
        slots = sum(piece.count * piece.ppn for piece in shape.pieces)
        gpus = sum(piece.count * piece.gpus for piece in shape.pieces)
        has_slots = sum(node.np for node in nodes.values())
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
            slots = sum(piece.ppn for piece in shape.pieces if piece.name == name)
            gpus = sum(piece.gpus for piece in shape.pieces if piece.name == name)
            if node is not None and (slots > node.np or gpus > node.node.gpus):
                has = f"{node.np} and {node.node.gpus}"
                return f"asks for {slots} processors and {gpus} GPUs of {name}, which has {has}"
        return ""

    def fits_alone(self, shape: Shape) -> bool:
        """Whether the nodes have room now for each piece by itself, as long as only accounts are asked."""
        may_share = bool(shape.procs) or shape.may_share
        return all(
            len(self._search.candidates(shape, place)) >= (1 if may_share else piece.count)
            for place, piece in enumerate(shape.pieces)
        )

    def hold(
        self, job: Job, shape: Shape, until_s: float, n_kept: int = 0, has_room: HasRoom | None = None
    ) -> Hold:
        """The answer for a job that fits the cluster but found no nodes.

        Args:
            job: the job.
            shape: what it needs.
            until_s: when it would end.
            n_kept: so many jobs before it have nodes kept for them.
            has_room: whether a node has room beside what is planned there (`Who.has_room`).
        """
        who = replace(self._search.who(job, until_s), has_room=has_room)
        end_s = until_s if has_room or until_s == float("inf") else 0.0
        key = (shape.fit, end_s, n_kept, job.user if has_room else "")
        answer = None if who.pauses else self._answers.get(key)
        if answer is None:
            answer = self._count(shape, who, n_kept)
            if not who.pauses:
                self._answers[key] = answer
        reason, details = answer
        if self._words_of_c and reason in _IN_WORDS_OF_C:
            reason = Reason.NOT_ENOUGH_NODES
        return Hold(job.id, reason, details)

    def _count(self, shape: Shape, who: Who, n_kept: int) -> Answer:
        """The first thing that leaves too few nodes, in the order in which nodes are asked."""
        if shape.procs or shape.may_share:
            return self._count_pieces(shape, who, n_kept)
        for piece in shape.pieces:
            capable = self._search.capable(piece, shape)
            refusals = self._closed(capable)
            roomy = self._search.roomy(piece, shape)
            refusals[Refusal.NO_SLOTS] = len(capable) - refusals.total() - len(roomy)
            for node in roomy:
                refusals[node_refusal(node, piece, shape, who)] += 1
            if refusals[None] < piece.count:
                return self._name(piece, refusals, "", n_kept)
        return _NOT_TOGETHER

    def _count_pieces(self, shape: Shape, who: Who, n_kept: int) -> Answer:
        """The same for pieces that may share a node: what is counted is how many of them have room."""
        for piece in shape.pieces:
            refusals: Counter[Refusal | None] = Counter()
            for node in self._search.capable(piece, shape):
                most = node.np // piece.ppn
                refusal = node_refusal(node, piece, shape, who)
                free = 0 if refusal else min(most, node.slots_free // piece.ppn)
                refusals[None] += free
                refusals[refusal or Refusal.NO_SLOTS] += most - free
            if refusals[None] < piece.count:
                return self._name(piece, refusals, " processors" if shape.procs else " tasks", n_kept)
        return self._too_few_gpus(shape) or _NOT_TOGETHER

    def _too_few_gpus(self, shape: Shape) -> Answer | None:
        """Of ``-l procs=N,gpus=M`` the GPUs."""
        nodes = (node for piece in shape.pieces for node in self._search.capable(piece, shape))
        free = sum(node.gpus_free for node in nodes if node.blocked is None)
        if free >= shape.gpus_anywhere:
            return None
        return Reason.NO_FREE_GPUS, {"why": f"needs {shape.gpus_anywhere} GPUs, {free} are free"}

    def _closed(self, capable: tuple[NodeLedger, ...]) -> Counter[Refusal | None]:
        """How many of these nodes take no job at all, by cause."""
        found = self._blocked.get(id(capable))
        if found is None:
            found = self._blocked[id(capable)] = Counter(
                node.blocked for node in capable if node.blocked is not None
            )
        return found.copy()

    @staticmethod
    def _name(piece: Piece, refusals: Counter[Refusal | None], of_what: str, n_kept: int) -> Answer:
        n = refusals.total()
        left = n
        words = []
        reason: Reason | None = None
        for refusal in Refusal:
            count = refusals[refusal]
            if not count:
                continue
            is_kept = refusal is Refusal.RESERVED and n_kept
            words.append(f"{count} {kept_words(n_kept) if is_kept else refusal.value}")
            left -= count
            if reason is None and left < piece.count:
                reason = refusal.reason
        reason = reason or Reason.NO_FREE_SLOTS
        why = f"needs {piece.count} of {n}{of_what}: " + ", ".join(words)
        return reason, {"why": why, "job": "-"}
