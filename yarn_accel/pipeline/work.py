"""One request on its way through the stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from yarn_accel.errors import AccelError, RejectedError, StorageError, UnavailableError
from yarn_accel.pipeline.arrays import Array, flat_bytes
from yarn_accel.pipeline.ledger import Answer, Entry
from yarn_accel.wire import Failed, RemoteInput, Request

if TYPE_CHECKING:
    from yarn_accel.operations.operation import Operation, Outcome

__all__ = ["Work", "check_size", "failure"]


@dataclass(slots=True, eq=False)
class Work:
    """A request that was admitted.

    Attributes:
        arrays: the inputs; None where a reference is still to be read.
        arrived_s: when its header arrived, monotonic seconds; so is `due_s`, 0: no deadline.
        entered_s: when it entered the queue it is in.
        reserved_bytes: what it holds of the budget of the queue it is in.
        seconds: time spent per stage so far.
    """

    entry: Entry
    request: Request
    operation: Operation
    arrays: list[Array | None]
    arrived_s: float
    due_s: float = 0.0
    entered_s: float = 0.0
    reserved_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    outcome: Outcome | None = None
    seconds: dict[str, float] = field(
        default_factory=lambda: {"read": 0.0, "queue": 0.0, "compute": 0.0, "write": 0.0}
    )

    @property
    def references(self) -> list[RemoteInput]:
        """The inputs to be read from storage."""
        return [item for item in self.request.inputs if isinstance(item, RemoteInput)]

    def payload_views(self) -> list[memoryview]:
        """Where the payload of the request belongs: the memory of the inputs that come by value."""
        return [
            flat_bytes(array)
            for array, item in zip(self.arrays, self.request.inputs, strict=True)
            if array is not None and not isinstance(item, RemoteInput)
        ]


def check_size(n_bytes: int, limit_bytes: int) -> None:
    """Refuse inputs that are too large together.

    Raises:
        RejectedError: ``request-too-large``.
    """
    if n_bytes > limit_bytes:
        raise RejectedError(
            "request-too-large", f"{n_bytes} bytes of inputs, at most {limit_bytes} are taken"
        )


def failure(error: Exception) -> Answer:
    """An error as the answer its client gets."""
    if isinstance(error, RejectedError):
        return _failed("rejected", error.code, error, False)
    if isinstance(error, StorageError):
        return _failed("storage", "storage", error, error.transient)
    if isinstance(error, UnavailableError):
        return _failed("unavailable", "unavailable", error, True)
    if isinstance(error, MemoryError):
        return _failed("unavailable", "out-of-memory", UnavailableError("the server is out of memory"), True)
    text = f"the operation broke: {type(error).__name__}: {error}"
    return _failed("internal", "internal-error", AccelError(text), False)


def _failed(kind: str, code: str, error: AccelError, transient: bool) -> Answer:
    message = "".join(char if char.isprintable() else " " for char in error.message)
    return Answer(Failed(0, kind, code, message[:2000], error.cure[:500], transient))
