"""What a caller asks for and what it gets: plain values, shared by the client and the CPU fallback."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from yarn_accel.client.inputs import by_value, is_own, of_array, of_buffer, plain_number, plain_params
from yarn_accel.errors import LocalProtocolError, RejectedError
from yarn_accel.uris import file_uri, shown, split_member
from yarn_accel.wire import Buffer, TensorSpec


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
            RejectedError: ``wrong-dtype``, ``wrong-layout`` or ``wrong-shape``: it cannot travel.
        """
        return cls(*of_array(array))

    @classmethod
    def of_buffer(cls, buffer: Any) -> Tensor:
        """Bytes, an ``array.array`` or a memoryview, without numpy, and without a copy if contiguous.

        Raises:
            RejectedError: ``wrong-dtype`` or ``wrong-shape``: it cannot travel.
            TypeError: it is no buffer.
        """
        return cls(*of_buffer(buffer))

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
        inputs: tensors and references; numpy arrays, buffers and lists of numbers become tensors (see
            `inputs.by_value`), texts and paths references.
        deadline_s: seconds after which the answer is useless; 0: none.
        priority: from -8 to 7; among the calls of one tenant the higher goes first.
        tag: anything of the caller's own, such as the line of a manifest; it stays on this node.
        error: why it cannot be sent: an input of it cannot travel. It is the outcome of the call, so that a
            bad record does not end the generator that makes the calls.
    """

    key: str
    operation: str
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Tuple[Union[Tensor, Reference], ...] = ()
    output_uri: str = ""
    deadline_s: float = 0.0
    priority: int = 0
    tag: Any = field(default=None, compare=False, repr=False)
    error: Optional[RejectedError] = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        operation: str,
        /,
        *inputs: Any,
        output: Union[str, PurePath] = "",
        key: str = "",
        deadline_s: float = 0.0,
        priority: int = 0,
        tag: Any = None,
        **params: Any,
    ) -> Call:
        """A call as one writes it; without a key it gets one when it is sent (see `Accelerator`).

        >>> Call.of("lu", "hdfs:///in/A.npy", output="hdfs:///out/A.npz", form="packed").params
        {'form': 'packed'}

        An input that cannot travel is the call's `error`, and so its outcome; nothing is raised here.

        Args:
            output: the URI or path of the one ``.npz`` with the results.

        Raises:
            StartupError: an input needs numpy, which is not there.
        """
        return cls(key, operation, params, inputs, output, deadline_s, priority, tag)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if self.params:
            object.__setattr__(self, "params", plain_params(self.params))
        if type(self.deadline_s) is not float or type(self.priority) is not int:
            object.__setattr__(self, "deadline_s", plain_number(self.deadline_s))
            object.__setattr__(self, "priority", plain_number(self.priority))
        if type(self.inputs) is tuple and isinstance(self.output_uri, str):
            for item in self.inputs:
                if type(item) is not Tensor and type(item) is not Reference:
                    break
            else:
                return
        given: Tuple[Any, ...] = tuple(self.inputs)
        inputs: List[Union[Tensor, Reference]] = []
        try:
            # `extend` keeps what came before a failure, so the length is the number of the bad one.
            inputs.extend(map(_as_input, given))
            if hasattr(self.output_uri, "__fspath__"):
                object.__setattr__(self, "output_uri", _uri_of(self.output_uri))
        except RejectedError as error:
            if not is_own(error):
                raise  # what an input's __array__ raises, or a signal handler
            place = "input {}".format(len(inputs)) if len(inputs) < len(given) else "output"
            error.message = "{}: {}".format(place, error.message)
            object.__setattr__(self, "output_uri", "")
            object.__setattr__(self, "error", error)
        object.__setattr__(self, "inputs", tuple(inputs))


def _as_input(item: Any) -> Union[Tensor, Reference]:
    if isinstance(item, (Tensor, Reference)):
        return item
    if isinstance(item, str):
        return Reference(item)
    if hasattr(item, "__fspath__"):
        return Reference(_uri_of(item))
    return Tensor(*by_value(item))


def _uri_of(path: Any) -> str:
    uri = file_uri(Path(path))
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
