"""Parts of a node that a job may have alone (vnodes of OpenPBS), and which of them take a piece of a job.

The accounts of a cycle and the order that is given afterwards ask the same functions, so that what was
decided can be ordered.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torque_sched.model.request import AccessPolicy

Amounts: TypeAlias = Mapping[str, int]
"""By resource: ``ncpus``, ``ngpus``, ``mem`` in bytes, and what the site counts besides."""
PartShare: TypeAlias = tuple[str, dict[str, int]]
"""A part's name, and what a piece takes of it."""


class Alone(enum.IntEnum):
    """Of what a job is to be the only user."""

    NOTHING = 0
    PART = 1
    NODE = 2


class Sharing(enum.Enum):
    """Who may use a part beside whoever uses it, as its administrator says."""

    DEFAULT_SHARED = "default_shared"
    DEFAULT_EXCL = "default_excl"
    DEFAULT_EXCLHOST = "default_exclhost"
    IGNORE_EXCL = "ignore_excl"
    FORCE_EXCL = "force_excl"
    FORCE_EXCLHOST = "force_exclhost"

    @property
    def is_exclusive(self) -> bool:
        """Whether a job that says nothing of it is alone here."""
        return self not in {Sharing.DEFAULT_SHARED, Sharing.IGNORE_EXCL}


_ASKED = {
    AccessPolicy.SHARED: Alone.NOTHING, AccessPolicy.SINGLE_PART: Alone.PART,
    AccessPolicy.SINGLE_JOB: Alone.NODE, AccessPolicy.SINGLE_TASK: Alone.NODE,
}  # fmt: skip
_UNASKED = {
    Sharing.DEFAULT_EXCL: Alone.PART, Sharing.DEFAULT_EXCLHOST: Alone.NODE, Sharing.FORCE_EXCL: Alone.PART,
}  # fmt: skip


def alone_on(sharing: Sharing, access: AccessPolicy | None) -> Alone:
    """Of what a job has sole use where the administrator and the job have each said something.

    >>> alone_on(Sharing.DEFAULT_EXCL, AccessPolicy.SHARED), alone_on(Sharing.DEFAULT_EXCL, None)
    (<Alone.NOTHING: 0>, <Alone.PART: 1>)
    """
    if sharing is Sharing.IGNORE_EXCL:
        return Alone.NOTHING
    if sharing is Sharing.FORCE_EXCLHOST:
        return Alone.NODE
    asked = _ASKED.get(access) if access is not None else None
    if sharing is Sharing.FORCE_EXCL:
        return Alone.NODE if asked is Alone.NODE else Alone.PART
    return _UNASKED.get(sharing, Alone.NOTHING) if asked is None else asked


@dataclass(frozen=True, slots=True)
class NodePart:
    """One part that takes jobs; parts that take none are left out.

    Attributes:
        has, free: amounts when idle, and of now.
        jobs: ids of those that are on it.
        is_taken: whether a job has it alone.
    """

    name: str
    has: Amounts
    free: Amounts
    properties: frozenset[str] = frozenset()
    sharing: Sharing = Sharing.DEFAULT_SHARED
    jobs: tuple[str, ...] = ()
    is_taken: bool = False


def taken_of(needs: Amounts, parts: Sequence[tuple[str, Amounts]], *, may_spread: bool) -> list[PartShare]:
    """What a piece takes of parts of one node: of a single one where one has all, else of several.

    Args:
        needs: of the piece.
        parts: names and what is free of those that may take it.
        may_spread: whether the piece may lie on several.

    Returns:
        The shares; empty: it fits on none.
    """
    single = [
        (name, free) for name, free in parts if all(free.get(each, 0) >= n for each, n in needs.items())
    ]
    if single:
        # GPUs are left for those who ask for them, and large gaps for large pieces.
        best, _ = min(single, key=lambda part: (part[1].get("ngpus", 0), part[1].get("ncpus", 0)))
        return [(best, dict(needs))]
    return _spread(needs, parts) if may_spread else []


def _spread(needs: Amounts, parts: Sequence[tuple[str, Amounts]]) -> list[PartShare]:
    """As much of each part as it has; empty: they have too little together."""
    left = {name: n for name, n in needs.items() if n}
    found: list[PartShare] = []
    for part, free in parts:
        here = {name: min(n, free.get(name, 0)) for name, n in left.items() if free.get(name, 0) > 0}
        # Memory alone would join a part whose processors are all taken.
        if not here or (left.get("ncpus") and not here.get("ncpus") and not here.get("ngpus")):
            continue
        found.append((part, here))
        left = {name: n - here.get(name, 0) for name, n in left.items() if n > here.get(name, 0)}
        if not left:
            return found
    return []
