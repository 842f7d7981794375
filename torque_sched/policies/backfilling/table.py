"""Where jobs are planned: what the policies ask of a table of free capacity over time.

`CountTable` counts processors (traces); a node-aware table plans nodes, GPUs and memory (live). A policy does
not know which it has.
"""

from __future__ import annotations

from typing import Protocol, TypeVar


class Spot(Protocol):
    """A place in the table: what is held, and during [start_s, end_s). A value, equal if all is equal."""

    @property
    def start_s(self) -> float:
        """Its begin."""
        ...

    @property
    def end_s(self) -> float:
        """Its expected end, not part of it."""
        ...


N = TypeVar("N", contravariant=True)
S = TypeVar("S", bound=Spot)


class Table(Protocol[N, S]):
    """Free capacity from now on; the past is forgotten, whatever is taken or given back there."""

    def advance(self, now_s: float) -> None:
        """Time passed."""
        ...

    def earliest(self, need: N, length_s: float, not_before_s: float, no_later_s: float = ...) -> S | None:
        """The first spot for the need with `not_before_s <= start_s <= no_later_s`; None if there is none.

        With both times equal to now this is the question "can it start now?", and among several places the
        table picks the best one.
        """
        ...

    def startable(self) -> int:
        """A quick look: the bits (`kinds`) of all needs that may be able to start now; -1 for all."""
        ...

    def startable_past(self) -> tuple[float, int]:
        """A closer look, (a time, bits): of the startable, only these kinds may run beyond that time."""
        ...

    def earlier(self, need: N, length_s: float, spot: S, not_before_s: float) -> S | None:
        """The first spot that begins before `spot`, as if `spot` were given back; None: there is none.

        The table is not changed.
        """
        ...

    def opened(self, spot: S, moved_to: S | None = None) -> int:
        """Asked after `spot` was given back (and `moved_to` was taken for it): whom this may help.

        A set of bits, one for each kind of need that may fit somewhere now and did not before; -1 for all.
        Compression asks `earlier` only for jobs one of whose `kinds` was opened since they were tried.
        """
        ...

    def kinds(self, need: N) -> int:
        """The bits of a need; -1 belongs to all kinds."""
        ...

    def settle(self, need: N, length_s: float, spot: S) -> S | None:
        """Asked when a promised job is about to start, its spot taken: the spot to start at now.

        Another than `spot` must be free as if `spot` were given back. None: it cannot start now after all.
        """
        ...

    def take(self, spot: S) -> None:
        """Nobody else gets it. Raises ValueError where it is not free."""
        ...

    def give_back(self, spot: S) -> None:
        """What is left of it is free again."""
        ...

    def fits(self, spot: S) -> bool:
        """Whether exactly this spot is free."""
        ...

    def lasting(self, spot: S, start_s: float, end_s: float) -> S:
        """The same place at other times. The table is not changed."""
        ...

    def force(self, spot: S) -> None:
        """Take it even where it is not free: a running job is a fact."""
        ...

    def reshape(self, change: object) -> None:
        """The machine changed (`events.Reshaped`); all promises have been given back before."""
        ...
