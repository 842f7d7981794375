"""What a caller gives by value as an array's description and bytes: arrays, buffers, lists, parameters.

Numpy is used where it is loaded already, or where nothing else knows the item; buffers and lists of numbers
need none. Each function raises `RejectedError` for what cannot travel: ``wrong-dtype`` (no numbers),
``wrong-layout`` (ragged, masked, sparse) or ``wrong-shape`` (too many dimensions). What an item's own
``__array__`` raises is the caller's and stays what it is. Standard library only, Python 3.8.
"""

from __future__ import annotations

import functools
import itertools
import sys
from array import array as typed_array
from typing import Any, List, Mapping, Optional, Sequence, Set, Tuple, Union

from yarn_accel.errors import RejectedError, StartupError
from yarn_accel.wire import TensorSpec
from yarn_accel.wire.tensors import ITEM_BYTES, MAX_DIMENSIONS

#: The description of an array, and its bytes in that order.
Parts = Tuple[TensorSpec, Any]
_CONVERT = "convert the array first, such as with a.astype('float64')"
_SEQUENCES = (list, tuple, range)
_PLAIN = frozenset((str, int, float, bool, type(None)))
#: Kinds of elements by the letters of Python's ``struct``; the size is the buffer's own.
_KINDS = {"?": "b", "c": "u", "e": "f", "f": "f", "d": "f", "Zf": "c", "Zd": "c"}
_KINDS.update(dict.fromkeys("bhilq", "i"), **dict.fromkeys("BHILQ", "u"))


def by_value(item: Any) -> Parts:
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
        return of_array(item)
    found: Optional[Parts] = None
    if isinstance(item, (*_SEQUENCES, int, float, complex)):
        found = _of_numbers(item)
    else:
        try:
            return of_buffer(item)
        except TypeError:
            pass
    return _through_numpy(item) if found is None else found


def is_own(error: BaseException) -> bool:
    """Whether this package raised it, not something of the caller's that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("yarn_accel.")


def of_array(item: Any) -> Parts:
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


def of_buffer(buffer: Any) -> Parts:
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


def plain_params(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters with numpy's scalars and arrays as the numbers and lists that they are, at any depth."""
    if all(type(value) in _PLAIN for value in params.values()):
        return params
    return {name: _plain(value) for name, value in params.items()}


def plain_number(value: Any) -> Any:
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
    return plain_number(value)


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
    return of_array(array)


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
