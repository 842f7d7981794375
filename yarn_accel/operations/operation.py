"""The shape every operation has, whoever computes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence

from yarn_accel.wire.tensors import TensorSpec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Operation", "Outcome", "Params"]

Params = Mapping[str, Any]


@dataclass
class Outcome:
    """What an operation computed.

    Attributes:
        arrays: the results by name; the order is the order on the wire and in a written file.
        info: facts about the computation, every value fit for JSON.
    """

    arrays: Dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    info: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """One entry of the table of operations.

    Attributes:
        name: how requests name it.
        summary: one line for people.
        n_inputs: how many arrays it takes; None when ``check`` decides.
        check: ``check(specs, params)`` looks at the description of the inputs before any memory is taken for
            them. Raises `RejectedError` with a code and the place of the fault.
        run: ``run(arrays, params)`` computes; it may overwrite its inputs. Raises `RejectedError` for bad
        values. flops: ``flops(specs, params)`` is the number of floating-point operations by the usual
            count, 0 when there is no usual count.
    """

    name: str
    summary: str
    n_inputs: Optional[int]
    check: Callable[[Sequence[TensorSpec], Params], None]
    run: Callable[[List[np.ndarray[Any, Any]], Params], Outcome]
    flops: Callable[[Sequence[TensorSpec], Params], int]
