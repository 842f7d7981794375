"""What a caller asks for and what it gets: plain values, shared by the client and the CPU fallback."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from yarn_accel.errors import LocalProtocolError, RejectedError, StartupError
from yarn_accel.uris import file_uri, shown, split_member
from yarn_accel.wire import Buffer, TensorSpec

__all__ = ["Call", "Reference", "Reply", "SharedLocation", "Tensor"]


@dataclass(frozen=True)
class SharedLocation:
    """Where a tensor of `Client.allocate` lies in memory shared with the server.

    Attributes:
        memory: the shared memory of one connection; on another connection the tensor travels like any other.
    """

    memory: Any
    segment: int
    offset: int


@dataclass(frozen=True)
class Tensor:
    """An array by value: its description, and its bytes in that order (any flat buffer, not copied).

    Attributes:
        location: set by `Client.allocate`; the tensor then needs no copy to be an input.
    """

    spec: TensorSpec
    data: Any = field(repr=False)
    location: Optional[SharedLocation] = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, array: Any) -> Tensor:
        """A numpy array as a tensor, without a copy when it is contiguous in either order and little-endian.

        Raises:
            RejectedError: ``wrong-dtype``: elements of this type do not travel.
        """
        if array.dtype.str[0] == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        flags = array.flags
        is_plain = flags.c_contiguous
        order = "F" if flags.f_contiguous and not is_plain else "C"
        spec = _spec_of(array.dtype.str, array.shape, order)
        flat = array if is_plain and array.ndim == 1 else array.reshape(-1, order=order)
        if not is_plain and not flat.flags.c_contiguous:
            flat = flat.copy()
        return cls(spec, flat.view("u1") if flat.size else b"")

    @classmethod
    def of_buffer(cls, buffer: Any) -> Tensor:
        """Bytes, an ``array.array`` or a memoryview as a tensor, without a copy and without numpy.

        Raises:
            RejectedError: ``wrong-dtype``, or ``wrong-layout``: not contiguous.
        """
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise RejectedError("wrong-layout", "a buffer of shape {} is not contiguous".format(view.shape))
        spec = _spec_of(_BUFFER_DTYPES.get(view.format, view.format), view.shape, "C")
        return cls(spec, view.cast("B") if view.nbytes else b"")

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
        n_bytes = view.nbytes
        if n_bytes != self.spec.nbytes:
            raise LocalProtocolError(
                "a tensor of {} has {} bytes, its data {}".format(self.spec, self.spec.nbytes, n_bytes)
            )
        if not n_bytes:
            return b""
        if not view.c_contiguous:
            raise LocalProtocolError(
                "tensor data is not a flat buffer; make the tensor with Tensor.of(array)"
            )
        return view if view.format == "B" and view.ndim == 1 else view.cast("B")


@functools.lru_cache(1024)
def _spec_of(dtype: str, shape: Tuple[int, ...], order: str) -> TensorSpec:
    """The same object for equal descriptions, since equal ones are distinguished from others by identity."""
    try:
        return TensorSpec(dtype, tuple(int(n) for n in shape), order)
    except ValueError as error:
        raise RejectedError("wrong-dtype", str(error), cure="convert the array first") from None


#: Formats of buffers, as Python's ``struct`` names native ones, on a little-endian machine.
_BUFFER_DTYPES = {
    "?": "|b1",
    "b": "|i1",
    "B": "|u1",
    "c": "|u1",
    "h": "<i2",
    "H": "<u2",
    "i": "<i4",
    "I": "<u4",
    "l": "<i8",
    "L": "<u8",
    "q": "<i8",
    "Q": "<u8",
    "e": "<f2",
    "f": "<f4",
    "d": "<f8",
}


@dataclass(frozen=True)
class Reference:
    """An array the server reads itself.

    With a spec the file holds exactly the bytes of that array.  Without one it describes itself: an ``.npz``
    (compressed or not) contributes all its arrays in order, or with ``#name`` behind its URI that one; an
    ``.npy`` its array; anything else its bytes as one array of u1.
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
            and then renamed, and the reply carries no tensors.
        inputs: tensors and references; numpy arrays and buffers become tensors without a copy, texts and
            paths references, and lists of numbers arrays, for which numpy must be there.
        deadline_s: seconds after which the answer is useless; 0: none.
        priority: from -8 to 7; among the calls of one tenant the higher goes first.
        tag: anything of the caller's own, such as the line of a manifest; it stays on this node.
    """

    key: str
    operation: str
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Tuple[Union[Tensor, Reference], ...] = ()
    output_uri: str = ""
    deadline_s: float = 0.0
    priority: int = 0
    tag: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        operation: str,
        /,
        *inputs: Any,
        output: str = "",
        key: str = "",
        deadline_s: float = 0.0,
        priority: int = 0,
        tag: Any = None,
        **params: Any,
    ) -> Call:
        """A call as one writes it; without a key it gets one when it is sent (see `Accelerator`).

        >>> Call.of("lu", "hdfs:///in/A.npy", output="hdfs:///out/A.npz", form="packed").params
        {'form': 'packed'}

        Raises:
            RejectedError: ``wrong-dtype`` or ``wrong-layout``: an input cannot travel.
            StartupError: a list needs numpy, which is not there.
        """
        return cls(key, operation, params, inputs, output, deadline_s, priority, tag)

    def __post_init__(self) -> None:
        if type(self.inputs) is tuple:
            for item in self.inputs:
                if type(item) is not Tensor and type(item) is not Reference:
                    break
            else:
                return
        object.__setattr__(self, "inputs", tuple(map(_as_input, self.inputs)))


def _as_input(item: Any) -> Union[Tensor, Reference]:
    if isinstance(item, (Tensor, Reference)):
        return item
    if hasattr(item, "dtype") and hasattr(item, "flags"):
        is_native = item.dtype.byteorder != ">"
        return Tensor.of(item if is_native else item.astype(item.dtype.newbyteorder("<")))
    if isinstance(item, str):
        return Reference(item)
    if isinstance(item, Path):
        return Reference(_uri_of(item))
    try:
        return Tensor.of_buffer(item)
    except TypeError:
        pass
    try:
        import numpy as np
    except ImportError:
        # The record is as good as on a node that has numpy.
        raise StartupError(
            "an input of type {} needs numpy, which this node does not have".format(type(item).__name__),
            cure="install numpy there, or pass a buffer, such as array.array",
        ) from None
    return Tensor.of(np.asarray(item))


def _uri_of(path: Path) -> str:
    uri = file_uri(path)
    if split_member(uri)[1]:
        raise RejectedError(
            "forbidden-uri",
            "{}: '.npz#' in a path names an array of an .npz".format(shown(uri)),
            cure="rename the file or folder, or give a Reference with its spec",
        )
    return uri


@dataclass(frozen=True)
class Reply:
    """The answer to a call.

    Attributes:
        info: facts about the computation.
        tensors: outputs by name, in the operation's order.  Large ones are views of memory that is used again
            when the last view is dropped, so keep the arrays and not their addresses.
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

    def arrays(self) -> Dict[str, Any]:
        """The outputs as numpy arrays on the same memory; needs numpy."""
        return {name: tensor.array() for name, tensor in self.tensors.items()}

    def npz(self) -> bytes:
        """The outputs as one ``.npz``, as the server writes it to an ``output``; numpy is not needed."""
        from yarn_accel.formats.npz_writer import tensor_npz_parts

        named = ((name, tensor.spec, memoryview(tensor.flat())) for name, tensor in self.tensors.items())
        return b"".join(tensor_npz_parts(named))
