"""What a module of this package provides, and what its client gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Address = Mapping[str, Any]
"""What a server says when it is ready; fit for JSON, its keys are the module's own business."""

More = Callable[[], bool]
"""Whether another request shall be sent; a client asks before each and drains when it is false."""


@dataclass(frozen=True, slots=True)
class Route:
    """How the bytes shall travel.

    Attributes:
        carrier: ``unix``, ``tcp`` or ``memory``; a candidate without one of them takes its best.
        checksum: ``none``, ``xxh3``, ``crc32`` or empty for the candidate's default.
    """

    carrier: str
    checksum: str = ""


class EchoClient(Protocol):
    """One connection to an echo service."""

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """Send `payload` again and again, `window` of them under way; yield every answer's bytes."""

    def close(self) -> None:
        """End the connection."""
