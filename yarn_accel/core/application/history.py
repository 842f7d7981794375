"""The last events with their reasons, for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One event; an empty `node` means all nodes."""

    at_s: float
    node: str
    what: str
    reason: str


class EventHistory:
    """The last entries, oldest first; bounded."""

    def __init__(self, n_history: int) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=n_history)

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(self._entries)

    def add(self, at_s: float, node: str, what: str, reason: str = "") -> None:
        """Add an entry."""
        self._entries.append(HistoryEntry(at_s, node, what, reason))

    def about(self, node: str, n_history: int) -> list[HistoryEntry]:
        """The last entries about a node, oldest first."""
        return [note for note in self._entries if note.node == node][-n_history:]
