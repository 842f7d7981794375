"""What the server hands to its workers and what comes back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from yarn_accel.wire.tensors import TensorSpec


class Area(NamedTuple):
    """Where one tensor lies: byte ``offset`` in the segment of that id."""

    segment: int
    offset: int
    spec: TensorSpec


class Job(NamedTuple):
    """One computation.

    Attributes:
        id: unique among the jobs under way.
        inputs: in the order of the request.
        output_segment: where outputs go that do not reuse the memory of an input: ``output_bytes`` from byte
            ``output_offset`` on.
        may_overwrite: whether the operation may destroy its inputs.  When it may not and the operation works
            in place, the worker copies them into the output area first, which then needs space for both.
        likeness: equal for jobs of the same operation, parameters and descriptions of inputs, so that these
            need not be compared; None: they are.
        due_s: not begun after this, monotonic seconds; 0: no deadline.  It is answered by `EXPIRED` then.
        request: equal for every try of one request.
        is_alone: it may be what its last worker was lost by, so nothing is computed beside it.
    """

    id: int
    operation: str
    params: Mapping[str, Any]
    inputs: tuple[Area, ...]
    output_segment: int
    output_offset: int
    output_bytes: int
    may_overwrite: bool
    likeness: Hashable | None = None
    due_s: float = 0.0
    request: Hashable = None
    is_alone: bool = False


class JobFailure(NamedTuple):
    """Why a job has no result, in the words of the wire's ``Failed``."""

    kind: str
    code: str
    message: str
    cure: str = ""
    is_transient: bool = False


#: Of a job whose time was over before it began, wherever it waited.
EXPIRED = JobFailure("rejected", "deadline-exceeded", "the deadline passed before the computation began")


class JobDone(NamedTuple):
    """The answer to one job.

    Attributes:
        tensors: name and place of each output, inside the output area or inside an input.
        info: facts for the client, fit for JSON; shared between equal answers, so not to be changed.
        compute_s: seconds of the device the job is charged for; of a batch computed as one: an equal share,
            and half of the time in which the worker was at another batch too.
        kernel_s: seconds inside the operation, whatever else went on meanwhile.
        overwritten: whether the inputs are no longer what they were.
        error: set when there is no result.
    """

    job: int
    tensors: tuple[tuple[str, Area], ...]
    info: Mapping[str, Any]
    compute_s: float
    kernel_s: float
    overwritten: bool
    error: JobFailure | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """A job whose worker is gone.

    Attributes:
        overwritten: its inputs may no longer be what they were.
        is_suspect: the worker was at this job, so it may be the cause; others of its batch are innocent.
        request: as of `Job`.
    """

    job: int
    overwritten: bool
    is_suspect: bool
    request: Hashable = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a calibration found: the best of several runs of one problem on one device."""

    device: str
    operation: str
    flops: int
    n_bytes: int
    seconds: float
