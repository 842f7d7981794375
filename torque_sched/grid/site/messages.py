"""What sites say to each other: JSON with exactly these keys, everything bounded."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from torque_sched.errors import DocumentError
from torque_sched.grid.handshake.blocks import BLOCKS_CAP
from torque_sched.grid.membership import LARGEST_INCARNATION, Claim, MemberState

MOST_HOSTS = 20_000
"""Nodes of one block."""
MOST_STEPS = 512
"""Steps of one outlook."""
M = TypeVar("M", bound="Message")
_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
_Length = Annotated[float, Field(gt=0, le=1e8, allow_inf_nan=False)]
_Step = tuple[
    Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)], Annotated[int, Field(ge=0, le=MOST_HOSTS)]
]
Outlook: TypeAlias = Annotated[tuple[_Step, ...], Field(max_length=MOST_STEPS)]
"""(from when on, how many nodes could be had at once for the whole of a length), times ascending."""


class Message(BaseModel):
    """Base of requests and answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PeerAnswer(Message):
    """Base of answers."""


class GossipEntry(Message):
    """One claim of the gossip."""

    name: _Name
    incarnation: int = Field(ge=0, le=LARGEST_INCARNATION)
    state: MemberState

    @classmethod
    def of(cls, claim: Claim) -> GossipEntry:
        """As it travels."""
        return cls(name=claim.name, incarnation=claim.incarnation, state=claim.state)

    def claim(self) -> Claim:
        """As the state machine wants it."""
        return Claim(self.name, self.incarnation, self.state)


class Gossip(PeerAnswer):
    """What a site knows of the others; the answer is the same kind."""

    claims: tuple[GossipEntry, ...] = Field(max_length=1000)


class Offer(Message):
    """How many nodes could this user have at once, and from when on? It binds nobody."""

    job: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:@\[\]-]{1,128}$")]
    """What is kept for this job of the asker counts as free."""

    user: _Name
    nodes: int = Field(ge=1, le=MOST_HOSTS)
    ppn: int = Field(ge=1, le=MOST_HOSTS)
    gpus: int = Field(default=0, ge=0, le=MOST_HOSTS)
    properties: tuple[_Name, ...] = Field(default=(), max_length=32)
    lengths_s: tuple[_Length, ...] = Field(min_length=1, max_length=BLOCKS_CAP)
    """An outlook is asked for each: of one block, of two, ..."""


class Offered(PeerAnswer):
    """The answer to an `Offer`."""

    outlooks: tuple[Outlook, ...] = Field(max_length=BLOCKS_CAP)
    """For each length, from now on, as far as this user may have the nodes."""
    why: Annotated[str, StringConstraints(max_length=500)] = ""


class Engine(Message):
    """One message between the engines of two sites; `grid.handshake` reads and checks it."""

    message: dict[str, Any]


class EngineAnswer(PeerAnswer):
    """The answer of the other engine; None: it has nothing to say yet."""

    message: dict[str, Any] | None = None


def read_message(body: bytes, kind: type[M]) -> M:
    """The message of a kind in a body.

    Raises:
        DocumentError: it is none; says which key is wrong, and never repeats the value.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        items = error.errors(include_input=False, include_url=False)[:5]
        complaints = "; ".join(
            f"{'.'.join(map(str, item['loc']))[:80]}: {item['msg'][:120]}" for item in items
        )
        raise DocumentError(f"not a {kind.__name__} message: {complaints}") from None
