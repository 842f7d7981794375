"""Calls and replies: the values that a caller asks for and gets, wherever they are computed.

A caller gives arrays, buffers, lists of numbers, URIs and paths; a call holds tensors and references. Numpy
is used where it is loaded already, or where nothing else knows an input; buffers and lists of numbers need
none. An input that cannot travel makes a `RejectedError`: ``wrong-dtype`` (no numbers), ``wrong-layout``
(ragged, masked, sparse) or ``wrong-shape`` (too many dimensions). What an input's own ``__array__`` raises is
the caller's and stays what it is. Standard library only, Python 3.8.
"""

from __future__ import annotations

import functools
import itertools
import sys
from array import array as typed_array
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from yarn_accel.errors import AccelError, LocalProtocolError, RejectedError, StartupError
from yarn_accel.uris import file_uri, shown, split_member
from yarn_accel.wire import ITEM_BYTES, MAX_DIMENSIONS, Buffer, Placement, RemoteInput, Request, TensorSpec

#: The description of an array, and its bytes in that order.
Parts = Tuple[TensorSpec, Any]
_CONVERT = "convert the array first, such as with a.astype('float64')"
_SEQUENCES = (list, tuple, range)
_PLAIN = frozenset((str, int, float, bool, type(None)))
#: Kinds of elements by the letters of Python's ``struct``; the size is the buffer's own.
_KINDS = {"?": "b", "c": "u", "e": "f", "f": "f", "d": "f", "Zf": "c", "Zd": "c"}
_KINDS.update(dict.fromkeys("bhilq", "i"), **dict.fromkeys("BHILQ", "u"))


@dataclass(frozen=True)
class Tensor:
    """An array by value: its description, and its bytes in that order (any flat buffer, not copied)."""

    spec: TensorSpec
    data: Any = field(repr=False)

    @classmethod
    def of(cls, array: Any) -> Tensor:
        """A numpy array as a tensor, without a copy when it is contiguous in either order and little-endian.

        Raises:
            RejectedError: ``wrong-dtype``, ``wrong-layout`` or ``wrong-shape``: it cannot travel.
        """
        return cls(*_of_array(array))

    @classmethod
    def of_buffer(cls, buffer: Any) -> Tensor:
        """Bytes, an ``array.array`` or a memoryview, without numpy, and without a copy if contiguous.

        Raises:
            RejectedError: ``wrong-dtype`` or ``wrong-shape``: it cannot travel.
            TypeError: it is no buffer.
        """
        return cls(*_of_buffer(buffer))

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
        inputs: tensors and references; numpy arrays, buffers and lists of numbers become tensors,
            texts and paths references.
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
            object.__setattr__(self, "params", _plain_params(self.params))
        if type(self.deadline_s) is not float or type(self.priority) is not int:
            object.__setattr__(self, "deadline_s", _plain_number(self.deadline_s))
            object.__setattr__(self, "priority", _plain_number(self.priority))
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
                object.__setattr__(self, "output_uri", uri_of(self.output_uri))
        except RejectedError as error:
            if not _is_own(error):
                raise  # what an input's __array__ raises, or a signal handler
            place = "input {}".format(len(inputs)) if len(inputs) < len(given) else "output"
            error.message = "{}: {}".format(place, error.message)
            object.__setattr__(self, "output_uri", "")
            object.__setattr__(self, "error", error)
        object.__setattr__(self, "inputs", tuple(inputs))


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


#: How a call ends.
Outcome = Union[Reply, AccelError]

# A call as a request


def inputs_of(call: Call) -> Tuple[Tuple[Union[TensorSpec, RemoteInput], ...], List[Buffer], int]:
    """The descriptions of a call's inputs, the bytes of those by value, and how many these are.

    Raises:
        LocalProtocolError: an input's data does not fit its description.
        RejectedError: an input cannot travel.
    """
    if call.error is not None:
        raise call.error
    specs: List[Union[TensorSpec, RemoteInput]] = []
    payload: List[Buffer] = []
    n_bytes = 0
    for item in call.inputs:
        if type(item) is Tensor:
            specs.append(item.spec)
            flat = item.flat()
            payload.append(flat)
            n_bytes += len(flat)
        else:
            assert isinstance(item, Reference)
            specs.append(RemoteInput(item.uri, item.spec))
    return tuple(specs), payload, n_bytes


def request_of(
    call: Call,
    request_id: int,
    specs: Tuple[Union[TensorSpec, RemoteInput], ...],
    placement: Optional[Placement] = None,
    is_kept: bool = False,
) -> Request:
    """A call as a request; `specs` are those of `inputs_of`."""
    return Request(
        request_id,
        call.key,
        call.operation,
        call.params,
        specs,
        call.output_uri,
        call.deadline_s,
        call.priority,
        placement,
        is_kept,
    )


# What a caller gives, as tensors and references


def _as_input(item: Any) -> Union[Tensor, Reference]:
    if isinstance(item, (Tensor, Reference)):
        return item
    if isinstance(item, str):
        return Reference(item)
    if hasattr(item, "__fspath__"):
        return Reference(uri_of(item))
    return Tensor(*_by_value(item))


def uri_of(path: Any) -> str:
    """The URI of a file of this machine by its path."""
    uri = file_uri(Path(path))
    if split_member(uri)[1]:
        raise RejectedError(
            "forbidden-uri",
            "{}: '.npz#' in a path names an array of an .npz".format(shown(uri)),
            cure="rename the file or folder, or give a Reference with its spec",
        )
    return uri


def _by_value(item: Any) -> Parts:
    """Whatever a caller gives as an array.

    Args:
        item: a numpy array, a buffer, a number, a list of numbers (of lists for more dimensions), or what
            `numpy.asarray` reads, such as a pandas Series.

    Raises:
        StartupError: only numpy could read it, which this node does not have.
    """
    # Another thread may be importing numpy just now; whoever has an array of it has imported it.
    numpy = sys.modules.get("numpy")
    ndarray, generic = getattr(numpy, "ndarray", None), getattr(numpy, "generic", None)
    if ndarray is not None and type(item) is ndarray:
        return _of_plain_array(item)
    if ndarray is not None and generic is not None and isinstance(item, (ndarray, generic)):
        return _of_array(item)
    found: Optional[Parts] = None
    if isinstance(item, (*_SEQUENCES, int, float, complex)):
        found = _of_numbers(item)
    else:
        try:
            return _of_buffer(item)
        except TypeError:
            pass
    return _through_numpy(item) if found is None else found


def _is_own(error: BaseException) -> bool:
    """Whether this package raised it, not something of the caller's that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("yarn_accel.")


def _of_array(item: Any) -> Parts:
    """A numpy array, without a copy where it is contiguous in either order and little-endian."""
    import numpy as np

    return _of_plain_array(item if type(item) is np.ndarray else _unmasked(np, item))


def _of_plain_array(array: Any) -> Parts:
    if array.dtype.str[0] == ">":
        is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        array = array.astype(array.dtype.newbyteorder("<"), order="F" if is_fortran else "C")
    flags = array.flags
    is_plain = flags.c_contiguous
    order = "F" if flags.f_contiguous and not is_plain else "C"
    spec = _spec_of(array.dtype.str, array.shape, order)
    flat = array if is_plain and array.ndim == 1 else array.reshape(-1, order=order)
    if not is_plain and not flat.flags.c_contiguous:
        flat = flat.copy()
    return spec, flat.view("u1") if flat.size else b""


def _of_buffer(buffer: Any) -> Parts:
    """Bytes, an ``array.array`` or a memoryview, without a copy where it is contiguous, else with one.

    Raises:
        TypeError: it is no buffer.
    """
    view = memoryview(buffer)
    letters = view.format.lstrip("@=<" if sys.byteorder == "little" else "@")
    kind = _KINDS.get(letters, "")
    dtype = "{}{}{}".format("|" if view.itemsize == 1 else "<", kind, view.itemsize) if kind else view.format
    spec = _spec_of(dtype, tuple(view.shape or ()), "C")
    if not view.nbytes:
        return spec, b""
    return spec, view.cast("B") if view.c_contiguous else view.tobytes()


def _plain_params(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters with numpy's scalars and arrays as the numbers and lists that they are, at any depth."""
    if all(type(value) in _PLAIN for value in params.values()):
        return params
    return {name: _plain(value) for name, value in params.items()}


def _plain_number(value: Any) -> Any:
    """A scalar of numpy, or an array of no dimensions, as a number of Python's; all else as it is."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    make = {"b": bool, "i": int, "u": int, "f": float}.get(kind)
    return value if make is None or getattr(value, "ndim", None) != 0 else make(value)


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if getattr(value, "ndim", 0) and hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()
    return _plain_number(value)


@functools.lru_cache(1024)
def _spec_of(dtype: str, shape: Tuple[int, ...], order: str) -> TensorSpec:
    """The same object for equal descriptions, since equal ones are distinguished from others by identity."""
    if dtype not in ITEM_BYTES:
        known = ", ".join(ITEM_BYTES)
        raise RejectedError("wrong-dtype", "dtype {!r} is not one of {}".format(dtype, known), cure=_CONVERT)
    try:
        return TensorSpec(dtype, tuple([int(n) for n in shape]), order)
    except ValueError as error:
        raise RejectedError("wrong-shape", str(error)) from None


def _unmasked(np: Any, item: Any) -> Any:
    """An array of a subclass as a plain one on the same memory; with masked elements it is refused."""
    if isinstance(item, np.ma.MaskedArray) and np.ma.is_masked(item):
        raise RejectedError(
            "wrong-layout",
            "a masked array of which {} element(s) are masked".format(int(np.ma.getmaskarray(item).sum())),
            cure="give the masked elements a value, a.filled(0.0), or leave them out, a.compressed()",
        )
    return np.asarray(item)


def _through_numpy(item: Any) -> Parts:
    if hasattr(item, "toarray") and not hasattr(item, "__array__"):
        raise RejectedError(
            "wrong-layout", "a sparse {}".format(type(item).__name__), cure="pass its .toarray()"
        )
    try:
        import numpy as np
    except ImportError:
        # The record is as good as on a node that has numpy.
        raise StartupError(
            "an input of type {} needs numpy, which this node does not have".format(type(item).__name__),
            cure="install numpy there, or pass a list of numbers or a buffer, such as array.array",
        ) from None
    try:
        array = np.asarray(item)
    except ValueError as error:
        trace = error.__traceback__
        if trace is None or trace.tb_next is not None:
            raise  # of the item's own __array__
        raise RejectedError("wrong-layout", "{}: {}".format(type(item).__name__, error)) from None
    if array.dtype.kind == "O":
        what = "an input of type {} holds no numbers".format(type(item).__name__)
        raise RejectedError("wrong-dtype", what, cure="pass an array or a list of numbers")
    return _of_array(array)


# Lists of numbers


def _of_numbers(item: Any) -> Optional[Parts]:
    """A number or a list of numbers, as `numpy.asarray` reads it; None where only numpy can tell."""
    shape: List[int] = []
    level: Sequence[Any] = [item]
    while level and all(isinstance(each, _SEQUENCES) for each in level):
        if len(shape) == MAX_DIMENSIONS:
            raise RejectedError("wrong-shape", "a list of more than {} dimensions".format(MAX_DIMENSIONS))
        _check_even(level)
        shape.append(len(level[0]))
        level = list(itertools.chain.from_iterable(level))
    types = set(map(type, level))
    if types & set(_SEQUENCES) and types & {int, float, bool, complex, type(None)}:
        raise RejectedError(
            "wrong-layout", "a ragged list: at depth {} are numbers and lists".format(len(shape))
        )
    for kind in types:
        if issubclass(kind, (str, type(None))):
            raise RejectedError("wrong-dtype", "an element of type {} is no number".format(kind.__name__))
    return _packed(level, types, tuple(shape))


def _check_even(rows: Sequence[Any]) -> None:
    n_first = len(rows[0])
    for position, row in enumerate(rows):
        if len(row) != n_first:
            text = "a ragged list: row {} has {} element(s), row 0 has {}".format(position, len(row), n_first)
            raise RejectedError("wrong-layout", text, cure="make all rows equally long")


def _packed(numbers: Sequence[Any], types: Set[type], shape: Tuple[int, ...]) -> Optional[Parts]:
    dtype: str
    data: Union[bytes, typed_array[Any]]
    try:
        if types == {bool}:
            dtype, data = "|b1", bytes(numbers)
        elif types and types <= {int, bool}:
            dtype = _integers(numbers)
            data = typed_array({"<i8": "q", "<u8": "Q", "<f8": "d"}[dtype], numbers)
        elif types <= {int, bool, float}:
            dtype, data = "<f8", typed_array("d", numbers)
        elif types <= {int, bool, float, complex}:
            parts = itertools.chain.from_iterable([(each.real, each.imag) for each in numbers])
            dtype, data = "<c16", typed_array("d", parts)
        else:
            return None
    except OverflowError:
        raise RejectedError("wrong-dtype", "an integer of more than 64 bits") from None
    return _spec_of(dtype, shape, "C"), memoryview(data).cast("B") if len(data) else b""


def _integers(numbers: Sequence[int]) -> str:
    """The element type that numpy gives whole numbers; both signs beyond int64 become floats."""
    least, most = min(numbers), max(numbers)
    if most < 2**63:
        return "<i8"
    if most >= 2**64 or least < -(2**63):
        raise OverflowError
    return "<u8" if least >= 2**63 else "<f8"
