"""One admitted request as the shell of the server knows it: its header, where its memory lies, when it was
where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from yarn_accel.core.requests.events import Failure
from yarn_accel.errors import AccelError, RejectedError, StorageError, UnavailableError
from yarn_accel.wire import payload_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from yarn_accel.pipeline.connections import Session
    from yarn_accel.pipeline.plans import Plan
    from yarn_accel.pipeline.workers.jobs import Area, JobDone
    from yarn_accel.wire import Request, Result

#: Up to here the bytes themselves are compared, which costs less than their digest.
_FEW_BYTES = 256
_MAX_MESSAGE = 2000
_MAX_CURE = 500


class Work:
    """A request on its way.

    Attributes:
        id: its number, given by the request machine.
        session: whose request it is; others may wait for its answer too.
        arrived_s: when its header arrived, monotonic seconds; so are `due_s` (0: no deadline), `ready_s` (its
            inputs are complete) and `started_s` (a worker has it).
        stamps: what its referenced files looked like.
        segment: where its inputs lie.
        inputs: where each of them lies.
        output_segment: where outputs go: `output_bytes` from `output_offset` on.
        bytes_in: of all inputs.
        device: what computes it.
        done: what its worker said.
        result: the message of its answer, once it was made; so is `payload`, what goes with it.
    """

    # Most requests never differ from these, and setting them takes time.
    id = 0
    stamps: Sequence[Any] = ()
    due_s = 0.0
    ready_s = 0.0
    started_s = 0.0
    read_s = 0.0
    write_s = 0.0
    segment = 0
    inputs: tuple[Area, ...] = ()
    output_segment = 0
    output_offset = 0
    output_bytes = 0
    device = ""
    done: JobDone | None = None
    result: Result | None = None
    payload: tuple[memoryview, ...] = ()

    def __init__(self, session: Session, request: Request, plan: Plan, arrived_s: float) -> None:
        self.session = session
        self.request = request
        self.plan = plan
        self.arrived_s = arrived_s
        self.bytes_in = plan.payload_bytes
        if request.deadline_s:
            self.due_s = arrived_s + request.deadline_s


def digest_of(parts: Sequence[memoryview], stamps: Sequence[object] = ()) -> bytes:
    """What tells the inputs of a request from others: their bytes, and what is known of files.

    A few bytes stand for themselves; which way it is depends on the header alone, which is compared too.
    """
    if stamps:
        return payload_digest([*parts, repr(stamps).encode()])
    if sum(map(len, parts)) <= _FEW_BYTES:
        return b"".join(parts)
    return payload_digest(parts)


def failure_of(error: Exception) -> Failure:
    """An error as the answer its client gets."""
    if isinstance(error, RejectedError):
        return Failure("rejected", error.code, error.message, error.cure)
    if isinstance(error, StorageError):
        return Failure("storage", error.code, error.message, error.cure, error.transient)
    if isinstance(error, UnavailableError):
        return Failure("unavailable", "unavailable", error.message, error.cure, True)
    if isinstance(error, MemoryError):
        return Failure("unavailable", "out-of-memory", "the server is out of memory", "", True)
    message = error.message if isinstance(error, AccelError) else f"{type(error).__name__}: {error}"
    return Failure("internal", "internal-error", f"the server broke: {message}")
