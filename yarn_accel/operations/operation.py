"""The definition of an operation, for operations of this package and of others.

Forms and batches are given by name: ``"factorization.lu"`` is a function of a module of this package,
``"package.module:function"`` one of any other. They are imported when they are first used, because a server
that only checks requests needs neither numpy nor CuPy.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from yarn_accel.errors import StartupError
from yarn_accel.wire import TensorSpec
from yarn_accel.wire.messages import ALIGNMENT_BYTES

if TYPE_CHECKING:
    import numpy as np

SMALL_ORDER = 512
"""Up to this order a GPU computes matrices of several requests by one call."""
Params = Mapping[str, Any]
Array = Any
Place = Callable[[str, Tuple[int, ...], str, str], Array]
"""``place(name, shape, dtype, order)``: memory for the result of that name where the answer is sent from."""


@dataclass
class Outcome:
    """The results of one request.

    Attributes:
        arrays: the results by name; the order is the order on the wire and in a written file. Each is memory
            from ``place``, a contiguous part of an input, or an array of its own (which costs a copy).
        info: facts about the computation, in types that JSON has.
    """

    arrays: Dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    info: Dict[str, Any] = field(default_factory=dict)


RunFunction = Callable[..., Outcome]
"""``run(arrays, params, place=allocate)``."""
RunBatch = Callable[[Sequence[Tuple[List[Array], Params, Place]]], List[Any]]


def allocate(name: str, shape: Tuple[int, ...], dtype: str, order: str) -> Array:
    """New memory for a result, where there is no output area."""
    import numpy as np

    return np.empty(shape, dtype=dtype, order=order)  # type: ignore[call-overload]


def aligned_bytes(n_bytes: int) -> int:
    """``n_bytes`` rounded up to what one array takes in an output area."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _inputs_bytes(specs: Sequence[TensorSpec], params: Params) -> int:
    return sum(aligned_bytes(spec.nbytes) for spec in specs)


def _twice_inputs_bytes(specs: Sequence[TensorSpec], params: Params) -> int:
    return 2 * sum(spec.nbytes for spec in specs)


@dataclass(frozen=True)
class Operation:
    """One entry of the table of operations.

    Attributes:
        name: how requests name it.
        summary: one line for people.
        n_inputs: how many arrays it takes; None when ``check`` decides.
        check: ``check(specs, params)`` checks the description of the inputs before any memory is taken for
            them. Raises `RejectedError` with a code and the place of the fault.
        run: ``run(arrays, params, place=allocate)``, the reference on the CPU. It writes into inputs only if
            ``overwrites``, and never into a read-only one. Raises `RejectedError` for bad values.
        flops: ``flops(specs, params)`` is the number of floating-point operations by the usual count, 0 when
            there is no usual count.
        bytes_moved: ``bytes_moved(specs, params)`` is how many bytes go in and out: what computing costs
            where ``flops`` is 0.
        output_bytes: ``output_bytes(specs, params)``, an upper bound for the results that do not lie in the
            inputs' memory, each rounded up to 64. Left out: as much as the inputs take.
        overwrites: after `run` the inputs hold something else.
        forms: by kind of device ("cpu", "cuda"), the name of a function with the signature of ``run``.
        batch: by kind of device, the name of ``run_batch(items)`` for a list of ``(arrays, params, place)``;
            it returns an `Outcome` or an `AccelError` for each. Without one, items are run one by one.
        computed: ``computed(specs, params)`` is the element type in which ``run`` gets each input; the caller
            converts them before (see `converted`). Left out: as they come. All other functions here get
            descriptions with these types.
        takes_stacks: several problems of one shape may come as one request: each input then has one more axis
            in front, along which the problems lie in C order, and so has each result. A fact of ``info`` that
            differs between them is a list with one entry for each. A client sends small calls together so.
    """

    name: str
    summary: str
    n_inputs: Optional[int]
    check: Callable[[Sequence[TensorSpec], Params], None]
    run: RunFunction
    flops: Callable[[Sequence[TensorSpec], Params], int]
    bytes_moved: Callable[[Sequence[TensorSpec], Params], int] = _twice_inputs_bytes
    output_bytes: Callable[[Sequence[TensorSpec], Params], int] = _inputs_bytes
    overwrites: bool = False
    forms: Mapping[str, str] = field(default_factory=dict)
    batch: Mapping[str, str] = field(default_factory=dict)
    takes_stacks: bool = False
    computed: Optional[Callable[[Sequence[TensorSpec], Params], Sequence[str]]] = None

    def computed_specs(self, specs: Sequence[TensorSpec], params: Params) -> Tuple[TensorSpec, ...]:
        """The inputs as ``run`` and ``check`` get them."""
        if self.computed is None:
            return tuple(specs)
        dtypes = self.computed(specs, params)
        return tuple(
            [
                spec if dtype == spec.dtype else TensorSpec(dtype, spec.shape, spec.order)
                for spec, dtype in zip(specs, dtypes)  # noqa: B905 -- Python 3.8
            ]
        )

    def area_bytes(self, specs: Sequence[TensorSpec], params: Params) -> int:
        """An upper bound for all that must lie in the output area, given the inputs as they come.

        A result in the place of an input that had to be converted lies in none of the inputs.
        """
        computed = self.computed_specs(specs, params)
        pairs = zip(specs, computed)  # noqa: B905 -- Python 3.8
        n_bytes = sum([aligned_bytes(new.nbytes) for old, new in pairs if new is not old])
        return n_bytes + self.output_bytes(computed, params)

    def form(self, device_kind: str) -> Optional[RunFunction]:
        """The function for that kind of device, imported now; None when there is none.

        Raises:
            StartupError: it is named but cannot be imported.
        """
        place = self.forms.get(device_kind)
        if place is None:
            return self.run if device_kind == "cpu" else None
        return resolve(place)

    def batch_form(self, device_kind: str) -> Optional[RunBatch]:
        """The function for many at once on that kind of device, imported now; None when there is none."""
        place = self.batch.get(device_kind)
        return None if place is None else resolve(place)


def converted(arrays: Sequence[Array], specs: Sequence[TensorSpec]) -> Tuple[List[Array], str]:
    """Arrays in the element types of these descriptions, and what was changed for ``info["converted"]``.

    What is converted is new memory; integers beyond 2^53 are rounded as numpy rounds them.
    """
    found, changes = [], []
    for i, (array, spec) in enumerate(zip(arrays, specs)):  # noqa: B905 -- Python 3.8
        if array.dtype.str != spec.dtype:
            changes.append("input {}: {} to {}".format(i, array.dtype.str, spec.dtype))
            array = array.astype(spec.dtype, order="K")
        found.append(array)
    return found, "; ".join(changes)


def resolve(place: str) -> Callable[..., Any]:
    """The function named ``module.function`` (of this package) or ``package.module:function``.

    Raises:
        StartupError: there is no such module or function, or something it needs is missing.
    """
    module, _, name = place.partition(":") if ":" in place else place.rpartition(".")
    if ":" not in place:
        module = "yarn_accel.operations." + module
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise StartupError("{}: {}".format(place, error)) from error
    return found


def late(place: str) -> RunFunction:
    """A function of this package that is imported (with numpy) when it is first called.

    Raises (when called):
        ImportError: as the import raises it, so that a caller can do without.
    """
    module, _, name = place.rpartition(".")

    def run(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
        function = getattr(importlib.import_module("yarn_accel.operations." + module), name)
        outcome: Outcome = function(arrays, params, place)
        return outcome

    return run


def echo(arrays: List[np.ndarray[Any, Any]], params: Params, place: Place = allocate) -> Outcome:
    """The operation that computes nothing, for probes and measurements.

    It returns the inputs as ``input_0``, ``input_1`` and so on, and the parameters in ``info["params"]``.
    """
    return Outcome({"input_{}".format(i): array for i, array in enumerate(arrays)}, {"params": dict(params)})
