"""Several small calls as one request: their inputs stacked along a new first axis, the reply cut up again.

A small matrix costs less to compute than a request costs to send, so consecutive calls of the same form
(operation, params, specs) may travel together.  Bytes of arrays in C order are simply put one behind the
other; arrays in F order are brought into C order first, for which numpy must be there.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.operations import OPERATIONS
from yarn_accel.wire import TensorSpec
from yarn_accel.wire.tensors import MAX_DIMENSIONS

_LARGEST_ITEM_BYTES = 256 * 1024
_AUTO_PACK_BYTES = 512 * 1024
#: Most calls in a pack of automatic size.
MAX_CALLS = 64


def is_packable(call: Call, takes_stacks: Callable[[str], bool]) -> bool:
    """Whether a call may travel in a pack: a small one, all by value, of an operation that takes stacks.

    Args:
        takes_stacks: whether the servers say so of an operation that this process does not know.
    """
    if call.output_uri or not call.inputs or call.error is not None:
        return False
    operation = OPERATIONS.get(call.operation)
    if not (takes_stacks(call.operation) if operation is None else operation.takes_stacks):
        return False
    n_bytes = 0
    for item in call.inputs:
        if type(item) is not Tensor or len(item.spec.shape) >= MAX_DIMENSIONS:
            return False
        if item.spec.order == "F" and len(item.spec.shape) > 1 and "numpy" not in sys.modules:
            return False
        n_bytes += item.spec.nbytes
    return 0 < n_bytes <= _LARGEST_ITEM_BYTES


def pack_size(call: Call, pack: Any) -> int:
    """How many calls of this form travel together.

    Args:
        pack: a number, or "auto".
    """
    if pack != "auto":
        return int(pack)
    n_bytes = sum(item.spec.nbytes for item in call.inputs if type(item) is Tensor)
    return max(1, min(MAX_CALLS, _AUTO_PACK_BYTES // max(1, n_bytes)))


def same_form(first: Call, other: Call) -> bool:
    """Whether two calls differ in nothing but their keys and the content of their inputs."""
    if (
        other.operation != first.operation
        or len(other.inputs) != len(first.inputs)
        or other.output_uri
        or other.error is not None
        or other.deadline_s != first.deadline_s
        or other.priority != first.priority
        or (other.params is not first.params and other.params != first.params)
    ):
        return False
    for one, two in zip(first.inputs, other.inputs):  # noqa: B905 -- Python 3.8
        if type(two) is not Tensor or (two.spec is not one.spec and two.spec != one.spec):
            return False
    return True


def pack(calls: Sequence[Call]) -> Call:
    """Calls of the same form as one call; its key follows from theirs, so sending it again computes nothing.

    Raises:
        LocalProtocolError: the data of an input does not fit its spec.
    """
    first = calls[0]
    inputs = []
    for position, item in enumerate(first.inputs):
        assert type(item) is Tensor
        spec = TensorSpec(item.spec.dtype, (len(calls), *item.spec.shape))
        parts: List[Any] = [call.inputs[position] for call in calls]
        inputs.append(Tensor(spec, b"".join([_in_c_order(part) for part in parts])))
    return Call(
        _key_of(calls), first.operation, first.params, tuple(inputs), "", first.deadline_s, first.priority
    )


def split(reply: Reply, n_calls: int) -> List[Reply]:
    """The reply to a pack, one for each call, on the same memory; time and bytes are shared out evenly."""
    seconds = {stage: spent_s / n_calls for stage, spent_s in reply.seconds.items()}
    columns = [(name, _slices(tensor, n_calls)) for name, tensor in reply.tensors.items()]
    infos = _infos(reply.info, n_calls)
    bytes_in, bytes_out = reply.bytes_in // n_calls, reply.bytes_out // n_calls
    replies = []
    for position in range(n_calls):
        tensors = {name: column[position] for name, column in columns}
        replies.append(
            Reply(infos[position], tensors, reply.server, reply.device, seconds, bytes_in, bytes_out)
        )
    return replies


def _key_of(calls: Sequence[Call]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for call in calls:
        key = call.key.encode("utf-8", "surrogatepass")
        digest.update(len(key).to_bytes(4, "big") + key)
    return "pack/" + digest.hexdigest()


def _in_c_order(tensor: Tensor) -> Any:
    flat = tensor.flat()
    if tensor.spec.order == "C" or len(tensor.spec.shape) < 2:
        return flat
    return tensor.array().tobytes(order="C")


def _slices(tensor: Tensor, n_calls: int) -> List[Tensor]:
    spec = tensor.spec
    inner = spec.shape[1:]
    if spec.order == "F" and len(spec.shape) > 1:
        return [Tensor.of(array) for array in tensor.array()]
    item_spec = TensorSpec(spec.dtype, inner)
    step = item_spec.nbytes
    view = memoryview(tensor.data)
    if view.ndim != 1 or view.itemsize != 1:
        view = view.cast("B")
    return [Tensor(item_spec, view[at * step : at * step + step]) for at in range(n_calls)]


def _infos(info: Mapping[str, Any], n_calls: int) -> List[Dict[str, Any]]:
    """A list as long as the pack holds one fact per call; everything else is true of each."""
    lists: List[Tuple[str, List[Any]]] = []
    common: Dict[str, Any] = {}
    for name, value in info.items():
        if isinstance(value, (list, tuple)) and len(value) == n_calls:
            lists.append((name, list(value)))
        else:
            common[name] = value
    return [{**common, **{name: values[at] for name, values in lists}} for at in range(n_calls)]
