"""Memory that several hold at once, and that returns when the last of them lets go."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Lease"]


class Lease:
    """Counts who holds some memory; safe to use from several threads.

    Args:
        on_gone: called once, when everyone has given it back, by whoever was last.
        n_bytes: the memory that returns then.
        n_holders: how many hold it now.
    """

    __slots__ = ("_lock", "_n_holders", "_on_gone", "n_bytes")

    def __init__(self, on_gone: Callable[[], None], n_bytes: int = 0, n_holders: int = 1) -> None:
        self.n_bytes = n_bytes
        self._on_gone = on_gone
        self._n_holders = n_holders
        self._lock = threading.Lock()

    @property
    def n_holders(self) -> int:
        """How many hold it now."""
        return self._n_holders

    def take(self, n_holders: int = 1) -> None:
        """Let more hold it; only while somebody does.

        Raises:
            ValueError: the memory has returned already.
        """
        with self._lock:
            if self._n_holders <= 0:
                raise ValueError("nobody holds this memory any more")
            self._n_holders += n_holders

    def give_back(self) -> None:
        """Let one of the holders go.

        Raises:
            ValueError: nobody holds it.
        """
        with self._lock:
            if self._n_holders <= 0:
                raise ValueError("nobody holds this memory any more")
            self._n_holders -= 1
            is_last = self._n_holders == 0
        if is_last:
            self._on_gone()
