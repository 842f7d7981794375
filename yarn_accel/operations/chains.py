"""Several operations in one request: each takes what others gave, and only the last one's results travel.

A chain is the operation ``chain`` with the parameter ``steps``, a list of objects with ``operation``,
``params`` and ``inputs``. An input of a step is a number, of an input of the request; or a name, of a result
of the step before; or ``"2.u"``, the result ``u`` of step 2, counted from 0. Left out: the first step takes
the inputs of the request, each other one the results of the step before, as many as its operation has.

The request is checked before memory is taken: that steps are there, are known, and name what can be there;
and the first step with its inputs. The shapes of what lies between are known only when it is there, so each
step is checked again before it runs. Its error has the number and the name of the step.

On a GPU the results of one step stay there for the next one, see `cuda_streams.Residents`. A step that has no
form for GPUs is computed on the CPU, and what it needs is copied there.
"""

from __future__ import annotations

import importlib
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from yarn_accel.errors import RejectedError
from yarn_accel.operations import checks
from yarn_accel.operations.operation import (
    Operation,
    Outcome,
    Params,
    Place,
    aligned_bytes,
    allocate,
    converted,
)
from yarn_accel.wire import TensorSpec

Array = Any
MAX_STEPS = 32
MAX_RESULTS = 64
_SPARE_OUTPUT_BYTES = 64 * 1024
_MOST_OUTPUT_BYTES = 1 << 40
_MOST_BETWEEN_BYTES = 1 << 40
_KEYS = ("operation", "params", "inputs")
#: The operations whose forms for GPUs go through `cuda_streams.upload` and `download`.
_ON_DEVICE = ("lu", "qr", "cholesky", "gemm", "solve")
_CURE = "see docs/operations.md, `chain`"


class InputSource(NamedTuple):
    """Where an input of a step comes from.

    Attributes:
        step: its number; None: the inputs of the request.
        name: of the result; of the request's inputs the number; None: all.
    """

    step: Optional[int]
    name: Union[str, int, None]


class ChainStep(NamedTuple):
    """One step of a chain.

    Attributes:
        place: its number and name, for errors.
    """

    place: str
    operation: Operation
    params: Params
    sources: Tuple[InputSource, ...]


def check_chain(specs: Sequence[TensorSpec], params: Params) -> None:
    """The steps, as far as they can be judged before any has run.

    Raises:
        RejectedError: ``bad-chain``, with the number of the step; or as the first step's own check.
    """
    checks.known(params, ("steps", "output_bytes", "between_bytes"))
    checks.integer(params, "output_bytes", 1, 1, _MOST_OUTPUT_BYTES)
    checks.integer(params, "between_bytes", 1, 1, _MOST_BETWEEN_BYTES)
    steps = steps_of(params)
    for step in steps:
        for source in step.sources:
            if source.step is None and source.name is not None and int(source.name) >= len(specs):
                raise _bad(step.place, "input {} of {}".format(source.name, len(specs)))
    first = steps[0]
    given = [spec for source in first.sources for spec in _chosen(specs, first, source)]
    with _AtStep(first.place):
        _check(first, given)


def output_bytes(specs: Sequence[TensorSpec], params: Params) -> int:
    """An upper bound for the results of the last step, which are known only when it has run."""
    n_bytes = params.get("output_bytes") or _SPARE_OUTPUT_BYTES + 4 * sum([spec.nbytes for spec in specs])
    return aligned_bytes(int(n_bytes)) + aligned_bytes(1) * MAX_RESULTS


def steps_of(params: Params) -> List[ChainStep]:
    """The steps of a chain.

    Raises:
        RejectedError: ``bad-chain``.
    """
    written = params.get("steps")
    if not isinstance(written, (list, tuple)) or not 1 <= len(written) <= MAX_STEPS:
        found = len(written) if isinstance(written, (list, tuple)) else repr(written)[:40]
        raise _bad("steps", "expected from 1 to {} steps, found {}".format(MAX_STEPS, found))
    return [_step(number, each) for number, each in enumerate(written)]


def chain(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """Compute the steps, each on the CPU.

    Raises:
        RejectedError: the first that a step raises, with the step; ``bad-chain``, ``output-too-large``.
    """
    return _run(arrays, params, place, "cpu")


def chain_on_gpu(arrays: List[Array], params: Params, place: Place = allocate) -> Outcome:
    """Compute the steps on the GPU, what lies between two of them staying there."""
    cuda_streams = importlib.import_module("yarn_accel.operations.cuda_streams")
    with cuda_streams.residents() as residents:
        return _run(arrays, params, place, "cuda", residents)


def _run(arrays: List[Array], params: Params, place: Place, kind: str, residents: Any = None) -> Outcome:
    steps = steps_of(params)
    results: List[Mapping[str, Array]] = []
    infos: List[Any] = []
    left_bytes = limit_bytes = params.get("between_bytes", _MOST_BETWEEN_BYTES)
    for number, step in enumerate(steps):
        with _AtStep(step.place):
            given = [array for source in step.sources for array in _taken(arrays, results, step, source)]
            specs = _check(step, [_spec(array) for array in given])
            if number < len(steps) - 1:
                left_bytes -= step.operation.area_bytes(specs, step.params)
            if left_bytes < 0:
                raise RejectedError(
                    "request-too-large",
                    "{} bytes of results between steps, at most {} are held".format(
                        limit_bytes - left_bytes, limit_bytes
                    ),
                    cure="raise max_request_bytes of the server",
                )
            is_last = number == len(steps) - 1
            outcome = _computed(step, given, specs, kind, residents, is_last)
        results.append(outcome.arrays)
        infos.append(outcome.info)
    return _placed(steps[-1], results[-1], infos, arrays, params, place)


def _computed(
    step: ChainStep,
    given: List[Array],
    specs: Sequence[TensorSpec],
    kind: str,
    residents: Any,
    is_last: bool,
) -> Outcome:
    """The outcome of one step; what a later step on the GPU needs stays there."""
    for array in given:
        # It may be an input of several steps, so no step may write over it.
        array.flags.writeable = False
    form = step.operation.form(kind)
    stays = residents is not None and form is not None and step.operation.name in _ON_DEVICE
    if residents is not None and not stays:
        residents.fetch(given)
    given, changes = converted(given, specs)
    run = form or step.operation.form("cpu") or step.operation.run
    outcome: Outcome = run(given, step.params, residents.place if stays and not is_last else allocate)
    if changes:
        outcome.info["converted"] = changes
    return outcome


def _placed(
    last: ChainStep,
    results: Mapping[str, Array],
    infos: List[Any],
    arrays: List[Array],
    params: Params,
    place: Place,
) -> Outcome:
    """The results of the last step where they are sent from."""
    n_bytes = sum([array.nbytes for array in results.values()])
    specs = [_spec(array) for array in arrays]
    if n_bytes > output_bytes(specs, params):
        raise RejectedError(
            "output-too-large",
            "{}: {} bytes of results, {} are reserved".format(
                last.place, n_bytes, output_bytes(specs, params)
            ),
            cure="pass output_bytes={}".format(n_bytes),
        )
    found = {}
    for name, array in results.items():
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        found[name] = place(name, array.shape, array.dtype.str, order)
        found[name][...] = array
    return Outcome(found, {"steps": infos})


def _check(step: ChainStep, specs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    """The inputs of a step as its operation gets them.

    Raises:
        RejectedError: they do not fit it.
    """
    operation = step.operation
    if operation.n_inputs is not None and len(specs) != operation.n_inputs:
        raise RejectedError(
            "wrong-inputs", "expected {} input(s), found {}".format(operation.n_inputs, len(specs))
        )
    found = operation.computed_specs(specs, step.params)
    operation.check(found, step.params)
    return found


def _taken(
    arrays: List[Array], results: List[Mapping[str, Array]], step: ChainStep, source: InputSource
) -> Sequence[Array]:
    if source.step is None:
        return _chosen(arrays, step, source)
    known = results[source.step]
    if source.name is None:
        return _chosen(list(known.values()), step, source)
    if source.name not in known:
        raise _bad(
            step.place,
            "step {} gives no {!r}; it gives {}".format(
                source.step, source.name, ", ".join(known) or "nothing"
            ),
        )
    return [known[str(source.name)]]


def _chosen(all_of: Sequence[Any], step: ChainStep, source: InputSource) -> Sequence[Any]:
    return all_of[: step.operation.n_inputs] if source.name is None else [all_of[int(source.name)]]


def _spec(array: Array) -> TensorSpec:
    flags = array.flags
    order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    return TensorSpec(array.dtype.str, tuple(array.shape), order)


def _step(number: int, written: Any) -> ChainStep:
    # The table names this module; so it is asked for when a step is read.
    known_operations = importlib.import_module("yarn_accel.operations.registry").OPERATIONS
    place = "step {}".format(number)
    if not isinstance(written, Mapping):
        raise _bad(place, "expected an object with the key operation, found {}".format(repr(written)[:40]))
    for key in written:
        if key not in _KEYS:
            raise _bad(place, "unknown key {!r}; known: {}".format(key, ", ".join(_KEYS)))
    name = written.get("operation")
    operation = known_operations.get(name) if isinstance(name, str) else None
    if operation is None or name == "chain":
        known = ", ".join(sorted(set(known_operations) - {"chain"}))
        raise _bad(place, "unknown operation {!r}; known: {}".format(name, known))
    place = "step {} ({})".format(number, name)
    params, inputs = written.get("params", {}), written.get("inputs")
    if not isinstance(params, Mapping):
        raise _bad(place, "params: expected an object, found {}".format(repr(params)[:40]))
    if inputs is None:
        return ChainStep(place, operation, params, (InputSource(number - 1 if number else None, None),))
    if not isinstance(inputs, (list, tuple)) or len(inputs) > MAX_RESULTS:
        raise _bad(place, "inputs: expected a list, found {}".format(repr(inputs)[:40]))
    return ChainStep(place, operation, params, tuple([_source(number, place, each) for each in inputs]))


def _source(number: int, place: str, written: Any) -> InputSource:
    if isinstance(written, int) and not isinstance(written, bool) and written >= 0:
        return InputSource(None, written)
    if isinstance(written, str) and written:
        step, dot, name = written.partition(".")
        if not dot and number:
            return InputSource(number - 1, written)
        if dot and name and step.isascii() and step.isdigit() and int(step) < number:
            return InputSource(int(step), name)
    raise _bad(
        place,
        "inputs: {!r} is no number of an input, no name of a result of the step before, and no "
        "'STEP.NAME' of an earlier one".format(written),
    )


def _bad(place: str, text: str) -> RejectedError:
    return RejectedError("bad-chain", "{}: {}".format(place, text), cure=_CURE)


class _AtStep:
    """Names the step in the error that its computation raises."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        if isinstance(error, RejectedError) and not error.message.startswith(self._place):
            error.message = "{}: {}".format(self._place, error.message)
