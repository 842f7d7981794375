"""The messages of the confirm handshake, the claims they are about, and their form as plain JSON data.

::

    coordinator -> site     Confirm    Commit            Release
    site -> coordinator     Ready      Committed         Released
                            NotReady   Gone

A token names one attempt to place one grid job. Attempts of a job are numbered upwards and never used again,
so a site may forget attempt 3 as soon as it hears of attempt 4 (a fence). Every message may be lost, doubled,
late or out of order. ``sent_s`` is the sender's wall clock: each side refuses a message whose ``sent_s`` is
more than ``SKEW_CAP_S`` off its own clock, so a claim means the same time on both sites.

`Codec` reads and writes messages on the wire and states in the store. It reads listed classes alone, checks
every field against its type, and each class checks its own bounds; any other input is a `ModelError` that
names the field.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

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


VERSION = 1
SKEW_CAP_S = 1.0
_LEASE_CAP_S = 3600.0
_DETAIL_CAP = 300


class Refusal(Enum):
    """Why a site said no, or why what it kept is gone."""

    BUSY = "busy"
    """A node of the claim is not free for the whole time."""
    SKEW = "skew"
    """The clocks of the two sites differ by more than a second, or the message was that late."""
    SUPERSEDED = "superseded"
    """A later attempt of the same job came first."""
    EXPIRED = "expired"
    """The hold's lease ran out before the commit."""
    RELEASED = "released"
    """The coordinator released it."""
    RESTARTED = "restarted"
    """The machine was booted again: leases of the former boot count as run out."""
    OVER = "over"
    """The claim's time has passed, or its block has ended."""
    UNKNOWN = "unknown"
    """A commit for a token that was never confirmed here."""
    CONFLICT = "conflict"
    """The token is in use here for another claim."""
    NOT_YOURS = "not yours"
    """The token belongs to another home site than the one that sent it."""
    WRONG_SITE = "wrong site"
    """The message was meant for another site."""
    VERSION = "version"
    """The sender uses another version of the handshake."""
    LIMIT = "limit"
    """The site keeps as many claims for others as it allows."""
    BAD_TIME = "bad time"
    """The claim lies in the past, or too far ahead, or is too long."""
    DENIED = "denied"
    """The site's rules do not let this user or this peer in."""


@dataclass(frozen=True, slots=True)
class TokenMessage:
    """Base of all messages."""

    token: Token
    site: SiteId
    """The site asked, in both directions."""
    sent_s: float
    """The sender's wall clock, seconds since the epoch."""
    version: int = field(default=VERSION, kw_only=True)

    def __post_init__(self) -> None:
        checked_text("site", self.site)
        if not math.isfinite(self.sent_s):
            raise ModelError(f"a message sent at {self.sent_s} has no time")


@dataclass(frozen=True, slots=True)
class Confirm(TokenMessage):
    """Is all of this still ready? Then hold it for me."""

    claim: Claim
    user: str = ""
    """The job's owner at home; the site's own rules say who that is here."""

    def __post_init__(self) -> None:
        TokenMessage.__post_init__(self)
        if self.user:
            checked_text("user", self.user)


@dataclass(frozen=True, slots=True)
class Commit(TokenMessage):
    """All sites are ready: what you hold is taken."""


@dataclass(frozen=True, slots=True)
class Release(TokenMessage):
    """Drop this attempt and all earlier ones of its job, held or committed."""


@dataclass(frozen=True, slots=True)
class Ready(TokenMessage):
    """Held for ``lease_s`` more seconds from now."""

    lease_s: float

    def __post_init__(self) -> None:
        # Not super(): a slotted dataclass is a second class, and the zero-argument form looks for the first.
        TokenMessage.__post_init__(self)
        if not 0 <= self.lease_s <= _LEASE_CAP_S:
            raise ModelError(f"a lease of {self.lease_s} s is not within 0..{_LEASE_CAP_S:g}")


@dataclass(frozen=True, slots=True)
class NotReady(TokenMessage):
    """Not held, and why."""

    reason: Refusal
    detail: str = ""
    """For people; at most 300 characters."""

    def __post_init__(self) -> None:
        TokenMessage.__post_init__(self)
        if len(self.detail) > _DETAIL_CAP:
            raise ModelError(f"a detail of {len(self.detail)} characters")


@dataclass(frozen=True, slots=True)
class Committed(TokenMessage):
    """Taken, until it is released or over."""


@dataclass(frozen=True, slots=True)
class Gone(TokenMessage):
    """There is nothing to commit, and why."""

    reason: Refusal


@dataclass(frozen=True, slots=True)
class Released(TokenMessage):
    """Nothing of this attempt is left here."""


Query = Confirm | Commit | Release
Reply = Ready | NotReady | Committed | Gone | Released
Message = Query | Reply


@dataclass(frozen=True, slots=True)
class From:
    """Event: this message came from this peer, whose identity the link has proved."""

    peer: SiteId
    message: TokenMessage


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: look at the clock."""


_TEXT_CAP = 300_000
_ITEMS_CAP = 100_000


class Codec:
    """Reads and writes the listed dataclasses; each is named by its class name under ``kind``."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = {cls.__name__: cls for cls in classes}
        self._hints = {cls: get_type_hints(cls) for cls in self._classes.values()}

    def plain(self, value: Any) -> Any:
        """The value as dicts, lists, texts and numbers."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: self.plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return {"kind": type(value).__name__, **fields}
        if isinstance(value, Enum):
            return [type(value).__name__, value.value]
        if isinstance(value, tuple):
            return [self.plain(item) for item in value]
        return value

    def value(self, plain: Any) -> Any:
        """The dataclass that `plain` made.

        Raises:
            ModelError: an unknown kind, a missing or unknown field, a wrong type or a value out of bounds.
        """
        if not isinstance(plain, dict) or not isinstance(plain.get("kind"), str):
            raise ModelError("a value without a kind")
        cls = self._classes.get(plain["kind"])
        if cls is None:
            raise ModelError(f"unknown kind {plain['kind'][:40]!r}")
        fields = {f.name: f for f in dataclasses.fields(cls)}
        unknown = set(plain) - set(fields) - {"kind"}
        required = {n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING}
        if unknown or required - set(plain):
            names = sorted(str(name)[:40] for name in unknown | (required - set(plain)))
            raise ModelError(f"{cls.__name__} with unknown or missing fields {', '.join(names[:5])}")
        hints = self._hints[cls]
        values = {
            name: self._read(hints[name], plain[name], f"{cls.__name__}.{name}")
            for name in fields
            if name in plain
        }
        return cls(**values)

    def _read(self, hint: Any, plain: Any, where: str) -> Any:
        if isinstance(hint, NewType):
            return self._read(hint.__supertype__, plain, where)
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return self._one_of(get_args(hint), plain, where)
        if origin is tuple:
            return self._items(get_args(hint), plain, where)
        if dataclasses.is_dataclass(hint):
            value = self.value(plain)
            if isinstance(hint, type) and isinstance(value, hint):
                return value
        elif isinstance(hint, type) and issubclass(hint, Enum):
            return _member(hint, plain, where)
        elif _fits(hint, plain):
            return float(plain) if hint is float else plain
        raise ModelError(f"{where} is no {getattr(hint, '__name__', hint)}")

    def _items(self, hints: tuple[Any, ...], plain: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(plain, list) or len(plain) > _ITEMS_CAP:
            raise ModelError(f"{where} is no list of at most {_ITEMS_CAP} values")
        if len(hints) == 2 and hints[1] is Ellipsis:
            return tuple(self._read(hints[0], item, where) for item in plain)
        if len(hints) != len(plain):
            raise ModelError(f"{where} has {len(plain)} values instead of {len(hints)}")
        return tuple(self._read(hint, item, where) for hint, item in zip(hints, plain, strict=True))

    def _one_of(self, hints: tuple[Any, ...], plain: Any, where: str) -> Any:
        if plain is None and type(None) in hints:
            return None
        for hint in hints[:-1]:
            try:
                return self._read(hint, plain, where)
            except ModelError:
                continue
        return self._read(hints[-1], plain, where)


def _member(cls: type[Enum], plain: Any, where: str) -> Enum:
    if isinstance(plain, list) and len(plain) == 2 and plain[0] == cls.__name__:
        for member in cls:
            if member.value == plain[1]:
                return member
    raise ModelError(f"{where} is no {cls.__name__}")


def _fits(hint: Any, plain: Any) -> bool:
    if hint is bool:
        return isinstance(plain, bool)
    if isinstance(plain, bool):
        return False
    if hint is int:
        return isinstance(plain, int) and abs(plain) < 2**53
    if hint is float:
        return isinstance(plain, int | float) and math.isfinite(plain)
    return hint is str and isinstance(plain, str) and len(plain) <= _TEXT_CAP
