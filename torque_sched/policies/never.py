"""Why not even an idle cluster could run a piece of a job: what is lacking, and the most that a node has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torque_sched.policies.needs import Piece, Shape
from torque_sched.policies.node_ledger import NodeLedger

_MAX_NAMES = 3
_UNITS = (("tb", 1024**4), ("gb", 1024**3), ("mb", 1024**2), ("kb", 1024), ("b", 1))


def lacking(piece: Piece, shape: Shape, kind: Sequence[NodeLedger], n_fitting: int) -> str:
    """One sentence: what is asked, and what too few nodes have.

    Args:
        piece: too few nodes could take it.
        shape: of the job.
        kind: nodes of the right name and properties, whatever their size.
        n_fitting: pieces for which there is room on the idle cluster.
    """
    if shape.procs or shape.may_share:
        what = "processors" if shape.procs else f"tasks of {_amounts(piece) or '1 slot'}"
        return f"{piece.count} {what}: all nodes together take {n_fitting}"
    return f"{_asked(piece)}: {_why(piece, shape, kind)}"


def _asked(piece: Piece) -> str:
    amounts = _amounts(piece)
    names = sorted(piece.properties) + ([piece.name] if piece.name is not None else [])
    if piece.count == 1 and not names and " and " not in amounts and amounts:
        return amounts
    nodes = "1 node" if piece.count == 1 else f"{piece.count} nodes"
    return nodes + (f" of {':'.join(names)}" if names else "") + (f" with {amounts}" if amounts else "")


def _amounts(piece: Piece) -> str:
    words = [f"gpus={piece.gpus}"] if piece.gpus else []
    words += [f"{piece.ppn} slots"] if piece.ppn > 1 else []
    words += [_memory("mem", piece.mem_bytes, piece.ppn if piece.is_pmem else 0)] if piece.mem_bytes else []
    words += (
        [_memory("vmem", piece.vmem_bytes, piece.ppn if piece.is_pvmem else 0)] if piece.vmem_bytes else []
    )
    return " and ".join(words)


def _memory(name: str, amount: int, n_procs: int) -> str:
    """Memory by the name it was asked: for each of ``n_procs`` processors, or (0) for the whole share."""
    return f"p{name}={_in_bytes(amount // n_procs)}" if n_procs else f"{name}={_in_bytes(amount)}"


def _in_bytes(amount: int) -> str:
    """As qsub is told it: 900gb."""
    unit, size = next((unit, size) for unit, size in _UNITS if not amount % size)
    return f"{amount // size}{unit}"


def _why(piece: Piece, shape: Shape, kind: Sequence[NodeLedger]) -> str:
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


def _resources(piece: Piece) -> Iterator[tuple[float, Most, Words]]:
    """What is asked of a node, how much of it an idle node has, and the words for it."""
    if piece.gpus:
        yield piece.gpus, lambda node: node.node.gpus, lambda n: _counted(n, "GPU")
    yield piece.ppn, lambda node: node.np, lambda n: _counted(n, "slot")
    if piece.mem_bytes:
        yield piece.mem_bytes, lambda node: node.most_mem_bytes, _gib
    if piece.vmem_bytes:
        yield piece.vmem_bytes, lambda node: node.most_vmem_bytes, lambda n: f"{_gib(n)} with swap"


def _counted(n: float, what: str) -> str:
    return f"{what}s" if not n else f"1 {what}" if n == 1 else f"{n:.0f} {what}s"


def _gib(amount: float) -> str:
    return f"{amount / 1024**3:.1f} GiB"


def _only(nodes: Sequence[NodeLedger], one: str, several: str) -> str:
    if len(nodes) > _MAX_NAMES:
        return f"only {len(nodes)} nodes {several}"
    return f"only {' and '.join(node.name for node in nodes)} {one if len(nodes) == 1 else several}"
