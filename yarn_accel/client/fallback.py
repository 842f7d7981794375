"""Compute a call on this very node, when no pipeline server answers.

The same reference operations as on the server, so the same results within the same tolerance, but with this
node's numpy and scipy, which it may not have. References are read from ``file://`` and, through WebHDFS,
``hdfs://``. Python 3.8; numpy is imported when the first call arrives.
"""

from __future__ import annotations

import errno
import math
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar

from yarn_accel import operations
from yarn_accel.client.calls import Call, Reference, Reply, Tensor, inputs_of, request_of
from yarn_accel.client.task_files import TaskFiles
from yarn_accel.client.webhdfs import DEFAULT_MAX_BYTES, WebHdfs
from yarn_accel.errors import LocalProtocolError, RejectedError, StorageError, UnavailableError
from yarn_accel.formats import (
    BytesInMemory,
    conversions,
    describe,
    is_array_file,
    load,
    name_plain_bytes,
)
from yarn_accel.formats.npz_writer import npz_parts
from yarn_accel.operations.models import ModelSource, digest_of, model_facts, model_uris, resolved_params
from yarn_accel.operations.operation import converted
from yarn_accel.uris import normalised, shown, split_member
from yarn_accel.wire import Request, TensorSpec, as_received

if TYPE_CHECKING:
    import numpy as np

DEVICE = "cpu:fallback"
SERVER = "local"
_T = TypeVar("_T")


class LocalExecutor:
    """Answers calls in this process; one at a time.

    Args:
        hdfs: reads and writes ``hdfs://``; made from the task's environment when it is first needed, unless
            given.
        max_bytes: limit on the content of one referenced file.
    """

    def __init__(self, hdfs: Optional[WebHdfs] = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._files = TaskFiles(hdfs=hdfs)
        self._max_bytes = max_bytes
        self._models: Dict[str, ModelSource] = {}

    def call(self, call: Call) -> Reply:
        """Compute one call.

        Raises:
            RejectedError: the call is bad and will stay so.
            StorageError: a reference could not be read, or the output not be written.
            UnavailableError: this node has no numpy, scipy or Pillow.
        """
        arrived_s = time.monotonic()
        params = _received(call).params
        until_s = arrived_s + call.deadline_s if call.deadline_s else math.inf
        operation = operations.get(call.operation)
        for uri in _uris(call):
            normalised(uri)
        read_s, (arrays, read_changes) = _timed(lambda: _with_libraries(lambda: self._arrays(call)))
        if call.operation in operations.WITH_MODELS:
            params = self._with_models(call.operation, params)
        try:
            specs = operation.computed_specs([_spec(array) for array in arrays], params)
            operation.check(specs, params)
        except RejectedError as error:
            references = (item for item in call.inputs if isinstance(item, Reference))
            raise name_plain_bytes(error, (item.uri for item in references if item.spec is None)) from None
        n_bytes_in = sum(array.nbytes for array in arrays)
        given, changes = converted(arrays, specs)
        if time.monotonic() >= until_s:
            raise RejectedError("deadline-exceeded", "the deadline passed before the computation began")
        compute_s, outcome = _timed(lambda: _with_libraries(lambda: operation.run(given, params)))
        write_s, tensors = _timed(lambda: self._outputs(call, outcome.arrays))
        seconds = {"read": read_s, "queue": 0.0, "compute": compute_s, "write": write_s}
        seconds["total"] = sum(seconds.values())
        n_bytes_out = sum(array.nbytes for array in outcome.arrays.values())
        changes = "; ".join(each for each in (*read_changes, changes) if each)
        if changes:
            outcome.info["converted"] = changes
        return Reply(outcome.info, tensors, SERVER, DEVICE, seconds, n_bytes_in, n_bytes_out)

    def _arrays(self, call: Call) -> Tuple[List[np.ndarray[Any, Any]], List[str]]:
        arrays: List[np.ndarray[Any, Any]] = []
        read_changes: List[str] = []
        for position, item in enumerate(call.inputs):
            if isinstance(item, Reference):
                uri = item.uri if item.spec is not None else split_member(item.uri)[0]
                found, changes = _parse(self._read(uri), item, position, self._max_bytes)
                arrays += found
                read_changes.append(changes)
            else:
                # The caller's bytes are not ours to overwrite: operations copy what they may not change.
                array = _from_buffer(item.data, item.spec, "input {}".format(position))
                array.flags.writeable = False
                arrays.append(array)
        return arrays, read_changes

    def _with_models(self, operation: str, params: Mapping[str, Any]) -> Dict[str, Any]:
        """The parameters with the models that they name, each read once."""
        found = {}
        for uri in model_uris(operation, params):
            normalised(uri)
            if uri not in self._models:
                self._models.clear()
                files = {"": self._read(uri)}
                for name in model_facts(files[""], shown(uri)).external_files:
                    files[name] = self._read("{}/{}".format(uri.rpartition("/")[0], name))
                self._models[uri] = ModelSource(uri, digest_of(files), files)
            found[uri] = self._models[uri]._asdict()
        return resolved_params(operation, params, found)

    def _outputs(self, call: Call, arrays: Dict[str, np.ndarray[Any, Any]]) -> Dict[str, Tensor]:
        if not call.output_uri:
            return {name: Tensor.of(array) for name, array in arrays.items()}
        plain = {
            name: array if array.flags.c_contiguous or array.flags.f_contiguous else array.copy()
            for name, array in arrays.items()
        }
        self._files.write(call.output_uri, list(npz_parts(plain)))
        return {}

    def _read(self, uri: str) -> bytes:
        try:
            return self._files.read(uri, self._max_bytes)
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EFBIG:
                raise _too_large(uri, error.__cause__.strerror or "") from None
            raise


def _uris(call: Call) -> Iterator[str]:
    """The files that a call names, without the arrays that are meant in them."""
    for item in call.inputs:
        if isinstance(item, Reference):
            yield split_member(item.uri)[0]
    if call.output_uri:
        yield call.output_uri


def _received(call: Call) -> Request:
    """The request as a server would get it: what cannot be sent is refused here with the same code."""
    try:
        received = as_received(request_of(call, 1, inputs_of(call)[0]))
    except LocalProtocolError as error:
        raise RejectedError("cannot-be-sent", error.message) from None
    assert isinstance(received, Request)
    return received


def _timed(work: Callable[[], _T]) -> Tuple[float, _T]:
    started_s = time.perf_counter()
    result = work()
    return time.perf_counter() - started_s, result


def _with_libraries(work: Callable[[], _T]) -> _T:
    try:
        return work()
    except ImportError as error:
        raise UnavailableError(
            "no pipeline server answers, and this node cannot compute by itself: {}".format(error),
            cure="install numpy, scipy and Pillow on the node, or start a pipeline server",
        ) from error


def _parse(
    content: bytes, reference: Reference, position: int, max_bytes: int
) -> Tuple[List[np.ndarray[Any, Any]], str]:
    """The arrays of a file: as its spec says, or as the file itself does; and what reading them changed."""
    import numpy as np

    if reference.spec is not None:
        place = "input {} ({})".format(position, reference.uri)
        return [_from_buffer(content, reference.spec, place)], ""
    if not is_array_file(reference.uri):
        return [np.frombuffer(content, dtype=np.uint8)], ""
    source = BytesInMemory(content)
    stored = describe(source, reference.uri)
    n_bytes = sum(each.spec.nbytes for each in stored)
    if n_bytes > max_bytes:
        raise _too_large(reference.uri, "{} bytes, at most {} are read here".format(n_bytes, max_bytes))
    arrays = []
    for each in stored:
        order: Any = each.spec.order
        memory = np.empty(each.spec.nbytes, dtype=np.uint8)
        load(each, source, memory.data)
        arrays.append(memory.view(each.spec.dtype).reshape(each.spec.shape, order=order))
    return arrays, conversions(stored)


def _too_large(uri: str, text: str) -> RejectedError:
    return RejectedError(
        "request-too-large", "{}: {}".format(shown(uri), text), cure="let a server compute it"
    )


def _from_buffer(content: Any, spec: TensorSpec, place: str) -> np.ndarray[Any, Any]:
    import numpy as np

    n_bytes = memoryview(content).nbytes
    if n_bytes != spec.nbytes:
        raise RejectedError(
            "wrong-length",
            "{}: {} {} needs {} bytes, found {}".format(
                place, spec.dtype, "x".join(str(n) for n in spec.shape), spec.nbytes, n_bytes
            ),
        )
    order: Any = spec.order
    return np.frombuffer(content, dtype=spec.dtype).reshape(spec.shape, order=order)


def _spec(array: np.ndarray[Any, Any]) -> TensorSpec:
    try:
        return TensorSpec(array.dtype.str, tuple(int(n) for n in array.shape))
    except ValueError as error:
        raise RejectedError("wrong-dtype", str(error)) from None
