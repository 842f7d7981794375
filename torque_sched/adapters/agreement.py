"""Whether two looks at one cluster, taken by two ways right after each other, say the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from torque_sched.core.snapshot import Snapshot

__all__ = ["differences", "in_words"]

_PASSING = frozenset({"walltime_remaining_s", "used"})
"""What changes from second to second."""

Difference = tuple[str, str, str]
"""Kind, name and field."""


def differences(one: Snapshot, other: Snapshot) -> frozenset[Difference]:
    """Where the two disagree.

    What happened between them shows as well; it is not there when two more are compared.
    """
    found: set[Difference] = set()
    found |= _of("server", {"": one.server}, {"": other.server})
    found |= _of("queue", _named(one.queues, "name"), _named(other.queues, "name"))
    found |= _of("node", _named(one.nodes, "name"), _named(other.nodes, "name"))
    found |= _of("job", _named(one.jobs, "id"), _named(other.jobs, "id"))
    return frozenset(found)


def _named(values: Iterable[Any], key: str) -> dict[str, Any]:
    return {getattr(each, key): each for each in values}


def _of(kind: str, ones: Mapping[str, Any], others: Mapping[str, Any]) -> set[Difference]:
    found = {(kind, name, "there") for name in ones.keys() ^ others.keys()}
    for name in ones.keys() & others.keys():
        one, other = ones[name], others[name]
        if one == other:
            continue
        for field in dataclasses.fields(one):
            if field.name not in _PASSING and getattr(one, field.name) != getattr(other, field.name):
                found.add((kind, name, field.name))
    return found


def in_words(found: frozenset[Difference]) -> str:
    """The first of them, and how many more."""
    kind, name, field = min(found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{' '.join((kind, name)).strip()}: {field}{more}"
