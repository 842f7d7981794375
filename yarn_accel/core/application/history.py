"""The last things that happened, with reasons, for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["History", "Note"]


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that happened; an empty `node`: it concerns all."""

    at_s: float
    node: str
    what: str
    reason: str


class History:
    """The last notes, oldest first; bounded."""

    def __init__(self, n_notes: int) -> None:
        self._notes: deque[Note] = deque(maxlen=n_notes)

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes)

    def add(self, at_s: float, node: str, what: str, reason: str = "") -> None:
        """Note something."""
        self._notes.append(Note(at_s, node, what, reason))

    def about(self, node: str, n_notes: int) -> list[Note]:
        """The last notes about a node, oldest first."""
        return [note for note in self._notes if note.node == node][-n_notes:]
