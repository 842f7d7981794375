"""What both sides of the confirm handshake speak about: a token, the pieces of nodes, two clocks.

A token names one attempt to place one grid job. Attempts of a job are numbered upwards and never used
again, so a site may forget all about attempt 3 as soon as it hears of attempt 4 (a fence).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NewType

from torque_sched.errors import ModelError

SiteId = NewType("SiteId", str)

ATTEMPT_CAP = 1_000_000
"""More attempts than this for one job mean a fault, not bad luck."""
PIECES_CAP = 20_000
"""Nodes one site may give to one job."""

_PROPERTIES_CAP = 32
_NAME = re.compile(r"[A-Za-z0-9_.\-\[\]:@]{1,128}")


def checked_text(what: str, text: str) -> None:
    """Raise ModelError unless the text is a short name of letters, digits and ``_ . - [ ] : @``."""
    if not _NAME.fullmatch(text):
        raise ModelError(f"{what} {text[:40]!r} is no name of at most 128 letters, digits and _.-[]:@")


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """One attempt of one grid job of one home site; everything in the handshake is idempotent by it."""

    home: SiteId
    job: str
    attempt: int

    def __post_init__(self) -> None:
        checked_text("home site", self.home)
        checked_text("job", self.job)
        if not 1 <= self.attempt <= ATTEMPT_CAP:
            raise ModelError(f"attempt {self.attempt} of {self.job} is not within 1..{ATTEMPT_CAP}")

    def __str__(self) -> str:
        return f"{self.home}/{self.job}/{self.attempt}"


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Slots (and GPUs) of one node; a count-based site uses the name of its cluster as node.

    Without a node's name it asks for ``count`` nodes of the site's choice, so much of each.
    """

    node: str
    slots: int
    gpus: int = 0
    count: int = 1
    properties: tuple[str, ...] = ()
    """Every node must have them."""

    def __post_init__(self) -> None:
        if self.node:
            checked_text("node", self.node)
        for name in self.properties[:_PROPERTIES_CAP]:
            checked_text("property", name)
        if len(self.properties) > _PROPERTIES_CAP:
            raise ModelError(f"a piece with {len(self.properties)} properties, of {_PROPERTIES_CAP} allowed")
        if self.slots < 1 or self.gpus < 0 or not 1 <= self.count <= PIECES_CAP:
            raise ModelError(f"a piece of {self.node or 'any node'} needs slots >= 1, gpus >= 0, count >= 1")
        if self.node and self.count != 1:
            raise ModelError(f"{self.count} pieces of the one node {self.node}")


@dataclass(frozen=True, slots=True)
class Claim:
    """Pieces during ``[start_s, start_s + length_s)``, seconds since the epoch on the wall clock."""

    pieces: tuple[Piece, ...]
    start_s: float
    length_s: float

    def __post_init__(self) -> None:
        if not 1 <= len(self.pieces) <= PIECES_CAP:
            raise ModelError(f"a claim has 1 to {PIECES_CAP} pieces, not {len(self.pieces)}")
        named = [piece.node for piece in self.pieces if piece.node]
        if len(set(named)) != len(named):
            raise ModelError("a claim names a node twice")
        if not (math.isfinite(self.start_s) and math.isfinite(self.length_s) and self.length_s > 0):
            raise ModelError(f"a claim from {self.start_s} for {self.length_s} s is no time")

    @property
    def end_s(self) -> float:
        """First instant after the claim."""
        return self.start_s + self.length_s


@dataclass(frozen=True, slots=True)
class Instant:
    """Now, on both clocks of one machine: leases run on the monotonic one, claims on the wall clock."""

    monotonic_s: float
    wall_s: float
