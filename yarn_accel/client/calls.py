"""What a caller asks for and what it gets: plain values, shared by the client and the CPU fallback."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from yarn_accel.errors import LocalProtocolError
from yarn_accel.wire import Buffer, TensorSpec

__all__ = ["Call", "Reference", "Reply", "Tensor"]


@dataclass(frozen=True)
class Tensor:
    """An array by value: its description, and its bytes in that order (any flat buffer, not copied)."""

    spec: TensorSpec
    data: Any = field(repr=False)

    @classmethod
    def of(cls, array: Any) -> Tensor:
        """A numpy array as a tensor, without a copy when it is contiguous in either order."""
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        spec = TensorSpec(array.dtype.str, tuple(int(n) for n in array.shape), order)
        flat = array.reshape(-1, order=order)
        if not flat.flags.c_contiguous:
            flat = flat.copy()
        return cls(spec, flat.view("u1") if flat.size else b"")

    def array(self) -> Any:
        """The tensor as a numpy array on the same memory; needs numpy."""
        import numpy as np

        order: Any = self.spec.order
        return np.frombuffer(self.data, dtype=self.spec.dtype).reshape(self.spec.shape, order=order)

    def flat(self) -> Buffer:
        """The data as a flat view of bytes.

        Raises:
            LocalProtocolError: the buffer is not flat, or has another length than the spec says.
        """
        view = memoryview(self.data)
        if view.nbytes != self.spec.nbytes:
            raise LocalProtocolError(
                "a tensor of {} has {} bytes, its data {}".format(self.spec, self.spec.nbytes, view.nbytes)
            )
        if view.nbytes == 0:
            return b""
        if not view.c_contiguous:
            raise LocalProtocolError(
                "tensor data is not a flat buffer; make the tensor with Tensor.of(array)"
            )
        return view.cast("B")


@dataclass(frozen=True)
class Reference:
    """An array the server reads itself.

    With a spec the file holds exactly the bytes of that array.  Without one it describes itself: an ``.npz``
    contributes all its arrays in order, an ``.npy`` its array, anything else its bytes as one array of u1.
    """

    uri: str
    spec: Optional[TensorSpec] = None


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        key: idempotency key: a call that is sent again (another attempt, a reconnect) carries the same one.
        operation: a name of the table of operations.
        output_uri: when set, the server writes all outputs as one ``.npz`` there, first to a temporary name
            and
            then renamed, and the reply carries no tensors.
        deadline_s: seconds after which the answer is useless; 0: none.
    """

    key: str
    operation: str
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Tuple[Union[Tensor, Reference], ...] = ()
    output_uri: str = ""
    deadline_s: float = 0.0


@dataclass(frozen=True)
class Reply:
    """The answer to a call.

    Attributes:
        info: facts about the computation.
        tensors: outputs by name, in the operation's order.
        server: name of the server that answered.
        device: what computed it, such as ``cpu``, or ``cpu:fallback`` on the caller's own node.
        seconds: time in ``read``, ``queue``, ``compute``, ``write`` and ``total``, as the server saw it.
        bytes_in: bytes of the inputs, wherever they came from.
        bytes_out: bytes of the outputs, wherever they went.
    """

    info: Mapping[str, Any]
    tensors: Dict[str, Tensor]
    server: str
    device: str
    seconds: Mapping[str, float]
    bytes_in: int
    bytes_out: int
