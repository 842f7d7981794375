"""The events of a binding policy and the changes that it returns: plain values without time.

A node has one role: it is an NNode (no accelerator) or an ANode (has one, and its server serves). Adding
what is known as just that changes nothing, and so does losing what is not known. Adding a node that is
known otherwise (in the other role, in another rack) is the newest fact: it counts as lost there first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class NNodeAdded:
    """A node without an accelerator joined (paper section 2.3, rule 1, part 1)."""

    node: str
    rack: str


@dataclass(frozen=True, slots=True)
class ANodeAdded:
    """The server of an accelerator node began to serve (paper section 2.3, rule 1, part 2).

    Attributes:
        weight: speed of its accelerators against the others', above 0; `paper` ignores it. For an ANode
        that is
            known in this rack it is not looked at: `WeightChanged` changes it.
    """

    node: str
    rack: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class NNodeLost:
    """A node without an accelerator is gone (paper section 2.3, rule 2, part 1)."""

    node: str


@dataclass(frozen=True, slots=True)
class ANodeLost:
    """A server is gone or ill (paper section 2.3, rule 2, part 2).

    Whether its node is an NNode from now on is for the caller to say, with `NNodeAdded`.
    """

    node: str


@dataclass(frozen=True, slots=True)
class NNodesReturned:
    """NNodes that were bound before we knew of them join together: who made the bindings was restarted.

    Each is bound where it was if an ANode of its rack has this name; the others join after them, and who
    keeps a balance restores it with the fewest moves. `paper` moves nobody, as after a loss; of its stacks
    only the sizes come back: each lists its NNodes in the order of this event.

    Attributes:
        nodes: (NNode, rack, its ANode before or None). One that is known in this rack is passed over.
    """

    nodes: tuple[tuple[str, str, str | None], ...]


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """The table of weights was edited, or an accelerator was measured (paper section 5)."""

    node: str
    weight: float


BindingEvent = NNodeAdded | ANodeAdded | NNodeLost | ANodeLost | NNodesReturned | WeightChanged


@dataclass(frozen=True, slots=True)
class Move:
    """An NNode's binding changed.

    Attributes:
        old: its ANode before; None: it had none.
        new: its ANode now; None: it has none, or the NNode itself is gone.
        reason: one sentence.
    """

    node: str
    old: str | None
    new: str | None
    reason: str


class BindingPolicy(Protocol):
    """Binds NNodes to ANodes; equal sequences of events give equal bindings."""

    @property
    def name(self) -> str:
        """Its name in the settings."""
        ...

    @property
    def crosses_racks(self) -> bool:
        """Whether nodes of a rack without an ANode use those of other racks."""
        ...

    def apply(self, event: BindingEvent) -> list[Move]:
        """Take note of an event; returns what changed, every NNode at most once.

        Raises:
            ValueError: a weight that is not a number above 0; nothing has changed then.
        """
        ...

    def bound(self) -> Mapping[str, str]:
        """The ANode of every bound NNode: a read-only view of the current state, to be copied if kept."""
        ...

    def loads(self) -> Mapping[str, float]:
        """Of every ANode the number of its NNodes, for weighted policies over its weight."""
        ...

    def explain(self, node: str) -> str:
        """One sentence or two: why the node is bound there, and what was refused."""
        ...

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            AssertionError: naming what is broken.
        """
        ...
