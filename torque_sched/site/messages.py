"""What sites say to each other: JSON with exactly these keys, everything bounded."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from torque_sched.core.membership import LARGEST_INCARNATION, Claim, MemberState
from torque_sched.errors import DocumentError

__all__ = [
    "MOST_HOSTS",
    "Answer",
    "Engine",
    "EngineAnswer",
    "Gossip",
    "Message",
    "Offer",
    "Offered",
    "Said",
    "read_message",
]

MOST_HOSTS = 20_000
"""Nodes of one block."""
M = TypeVar("M", bound="Message")
_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


class Message(BaseModel):
    """Base of requests and answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(Message):
    """Base of answers."""


class Said(Message):
    """One claim of the gossip."""

    name: _Name
    incarnation: int = Field(ge=0, le=LARGEST_INCARNATION)
    state: MemberState

    @classmethod
    def of(cls, claim: Claim) -> Said:
        """As it travels."""
        return cls(name=claim.name, incarnation=claim.incarnation, state=claim.state)

    def claim(self) -> Claim:
        """As the state machine wants it."""
        return Claim(self.name, self.incarnation, self.state)


class Gossip(Answer):
    """What a site knows of the others; the answer is the same kind."""

    claims: tuple[Said, ...] = Field(max_length=1000)


class Offer(Message):
    """How many nodes could this user have, now and at once? It binds nobody."""

    user: _Name
    nodes: int = Field(ge=1, le=MOST_HOSTS)
    ppn: int = Field(ge=1, le=MOST_HOSTS)
    length_s: float = Field(gt=0, le=1e8, allow_inf_nan=False)


class Offered(Answer):
    """The answer to an `Offer`."""

    free: int = Field(ge=0, le=MOST_HOSTS)
    """Nodes free from now on for the whole time, as far as this user may have them."""
    earliest_s: float | None = Field(default=None, ge=0, le=1e11, allow_inf_nan=False)
    """When as many as were asked for are free at once; None: never."""
    why: Annotated[str, StringConstraints(max_length=500)] = ""


class Engine(Message):
    """One message between the engines of two sites; what it may be, `core.site` says and checks."""

    message: dict[str, Any]


class EngineAnswer(Answer):
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
        told = "; ".join(f"{'.'.join(map(str, item['loc']))[:80]}: {item['msg'][:120]}" for item in items)
        raise DocumentError(f"not a {kind.__name__} message: {told}") from None
