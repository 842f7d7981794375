"""Checks of a request by the description of its inputs alone, before memory is taken for them.

Standard library only. Each function raises `RejectedError` with a stable code and the place of the fault:
``wrong-inputs`` (number of arrays), ``wrong-dtype``, ``wrong-shape``, ``bad-parameter``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from yarn_accel.errors import RejectedError
from yarn_accel.operations.operation import Params
from yarn_accel.wire import TensorSpec

Check = Callable[[Sequence[TensorSpec], Params], None]

REAL = ("<f4", "<f8")
COMPLEX = ("<c8", "<c16")
NEAREST = {
    **dict.fromkeys(("|b1", "|i1", "|u1", "<i2", "<u2", "<f2"), "<f4"),
    **dict.fromkeys(("<i4", "<u4", "<i8", "<u8"), "<f8"),
}
"""The element type that inputs of another one are converted to, where floating-point numbers are computed."""
LBP_BINS = (59, 256)
DEFAULT_TEXTURE_BINS = LBP_BINS[0]
DEFAULT_COLOUR_BINS = (16, 4, 4)
"""Of hue, saturation and value."""
DEFAULT_ITERATIONS = 300
DEFAULT_TOLERANCE = 1e-4
DEFAULT_RESTARTS = 10
DEFAULT_NEIGHBOURS = 5
MAX_IMAGES = 1 << 20
MAX_HSV_BINS = 4096
MAX_ITERATIONS = 100_000

_BATCH_PARAMS = ("max_pixels", "root")
_KMEANS_PARAMS = ("k", "seed", "max_iterations", "tolerance", "restarts")
_FACTORS: Dict[str, Tuple[Tuple[str, int], ...]] = {
    "lu": (("lu", 2), ("piv", 1)),
    "qr": (("q", 2), ("r", 2)),
    "cholesky": (("l", 2),),
    "svd": (("u", 2), ("s", 1), ("vh", 2)),
    "eigh": (("w", 1), ("v", 2)),
}
_SQUARE = ("cholesky", "eigh")


def count(specs: Sequence[TensorSpec], n_inputs: int, what: str) -> None:
    """Exactly ``n_inputs`` arrays."""
    if len(specs) != n_inputs:
        raise RejectedError(
            "wrong-inputs", "expected {} input(s) ({}), found {}".format(n_inputs, what, len(specs))
        )


def known(params: Params, names: Sequence[str]) -> None:
    """No parameter but these."""
    for name in params:
        if name not in names:
            raise RejectedError(
                "bad-parameter",
                "unknown parameter {!r}; known: {}".format(name, ", ".join(names) or "none"),
            )


def integer(params: Params, name: str, default: Optional[int], low: int, high: int) -> int:
    """The whole number ``params[name]`` from ``low`` to ``high``; without a default it must be given."""
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RejectedError(
            "bad-parameter",
            "{}: expected a whole number from {} to {}, found {!r}".format(name, low, high, value),
        )
    return value


def number(params: Params, name: str, default: float, low: float, high: float) -> float:
    """The number ``params[name]`` between ``low`` and ``high``."""
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise RejectedError(
            "bad-parameter",
            "{}: expected a number from {} to {}, found {!r}".format(name, low, high, value),
        )
    return float(value)


def floating(specs: Sequence[TensorSpec], params: Params, fixed: Optional[int] = None) -> Tuple[str, ...]:
    """The element types of inputs as floating-point numbers: integers and float16 are converted.

    They become what the first input is that has such a type already, else the nearest one.

    Args:
        fixed: the number of an input that stays as it is.
    """
    dtypes = [spec.dtype for spec in specs]
    known = [dtype for dtype in dtypes if dtype in REAL or dtype in COMPLEX]
    others = [NEAREST[dtype] for i, dtype in enumerate(dtypes) if dtype in NEAREST and i != fixed]
    usual = known[0] if known else max(others, default="")
    return tuple([usual if dtype in NEAREST and i != fixed else dtype for i, dtype in enumerate(dtypes)])


def floating_factors(specs: Sequence[TensorSpec], params: Params) -> Tuple[str, ...]:
    """As `floating`, for a matrix and its factors; pivots stay whole numbers."""
    names = [name for name, _ in _FACTORS.get(str(params.get("operation")), ())]
    return floating(specs, params, 1 + names.index("piv") if "piv" in names else None)


def numeric(spec: TensorSpec, place: str, least_axes: int, most_axes: int) -> None:
    """A real or complex array with so many axes, none of them empty."""
    real(spec, place, least_axes, most_axes, REAL + COMPLEX)


def real(
    spec: TensorSpec, place: str, least_axes: int, most_axes: int, dtypes: Tuple[str, ...] = REAL
) -> None:
    """A float32 or float64 array (or one of other element types) with so many axes, none of them empty."""
    if spec.dtype not in dtypes:
        raise RejectedError(
            "wrong-dtype", "{}: expected {}, found {}".format(place, " or ".join(dtypes), spec.dtype)
        )
    if not least_axes <= len(spec.shape) <= most_axes or min(spec.shape, default=0) < 1:
        axes = " or ".join(str(n) for n in sorted({least_axes, most_axes}))
        raise RejectedError(
            "wrong-shape",
            "{}: expected {} axes of at least 1, found shape {}".format(place, axes, shape_text(spec)),
        )


def shape_text(spec: TensorSpec) -> str:
    """A shape as people write it: 3x4."""
    return "x".join(str(n) for n in spec.shape) or "()"


def factors(specs: Sequence[TensorSpec], params: Params) -> None:
    """The matrix and then the factors that ``params["operation"]`` yields, in their order."""
    known(params, ("operation",))
    names = _FACTORS.get(str(params.get("operation")))
    if names is None:
        raise RejectedError(
            "bad-parameter",
            "operation: expected one of {}, found {!r}".format(", ".join(_FACTORS), params.get("operation")),
        )
    count(specs, 1 + len(names), "the matrix, then " + ", ".join(name for name, _ in names))
    numeric(specs[0], "input 0", 2, 2)
    if params["operation"] in _SQUARE:
        _square(specs[0])
    n_rows, n_columns = specs[0].shape
    expected = _factor_shapes(params["operation"], n_rows, n_columns)
    for i, (name, n_axes) in enumerate(names):
        spec, place = specs[i + 1], "input {} ({})".format(i + 1, name)
        if name == "piv":
            if spec.dtype not in ("<i4", "<i8"):
                raise RejectedError(
                    "wrong-dtype", "{}: expected <i4 or <i8, found {}".format(place, spec.dtype)
                )
        else:
            numeric(spec, place, n_axes, n_axes)
        if tuple(spec.shape) != expected[i]:
            raise RejectedError(
                "wrong-shape",
                "{}: expected shape {}, found {}".format(
                    place, "x".join(str(n) for n in expected[i]), shape_text(spec)
                ),
            )


def batch(*names: str) -> Check:
    """A check for encoded images: all their bytes in one array, and the length of each.

    Args:
        names: the parameters of the operation besides ``max_pixels`` and ``root``; ``bins`` and ``hsv_bins``
        are known here.
    """

    def check(specs: Sequence[TensorSpec], params: Params) -> None:
        known(params, _BATCH_PARAMS + names)
        count(specs, 2, "the bytes of all images, the length of each")
        for i, dtypes in enumerate((("|u1", "<u1", "u1"), ("<i8",))):
            if specs[i].dtype not in dtypes:
                raise RejectedError(
                    "wrong-dtype", "input {}: expected {}, found {}".format(i, dtypes[0], specs[i].dtype)
                )
            if len(specs[i].shape) != 1:
                raise RejectedError(
                    "wrong-shape", "input {}: expected 1 axis, found shape {}".format(i, shape_text(specs[i]))
                )
        if not 1 <= specs[1].shape[0] <= MAX_IMAGES:
            raise RejectedError(
                "wrong-shape",
                "input 1: expected from 1 to {} images, found {}".format(MAX_IMAGES, specs[1].shape[0]),
            )
        integer(params, "max_pixels", 1, 1, 1 << 28)
        if not isinstance(params.get("root", False), bool):
            raise RejectedError(
                "bad-parameter", "root: expected true or false, found {!r}".format(params["root"])
            )
        if params.get("bins", DEFAULT_TEXTURE_BINS) not in LBP_BINS:
            raise RejectedError(
                "bad-parameter", "bins: expected 59 or 256, found {!r}".format(params.get("bins"))
            )
        if "hsv_bins" in params:
            _hsv_bins(params["hsv_bins"])

    return check


def points(specs: Sequence[TensorSpec], params: Params) -> None:
    """Real points ``(n, d)``, with ``k`` not above n."""
    known(params, _KMEANS_PARAMS)
    count(specs, 1, "the points")
    real(specs[0], "input 0", 2, 2)
    if integer(params, "k", None, 1, 1 << 20) > specs[0].shape[0]:
        raise RejectedError(
            "bad-parameter", "k: {} clusters for {} points".format(params["k"], specs[0].shape[0])
        )
    integer(params, "seed", 0, 0, (1 << 63) - 1)
    integer(params, "max_iterations", DEFAULT_ITERATIONS, 1, MAX_ITERATIONS)
    integer(params, "restarts", DEFAULT_RESTARTS, 1, 1000)
    number(params, "tolerance", DEFAULT_TOLERANCE, 0.0, 1.0)


def centroids(specs: Sequence[TensorSpec], params: Params) -> None:
    """Real points ``(n, d)`` and centroids ``(k, d)``, no parameters."""
    known(params, ())
    count(specs, 2, "the points, the centroids")
    for i in range(2):
        real(specs[i], "input {}".format(i), 2, 2)
    if specs[0].shape[1] != specs[1].shape[1]:
        raise RejectedError(
            "wrong-shape",
            "input 1: centroids of {} values for points of {}".format(specs[1].shape[1], specs[0].shape[1]),
        )


def neighbours(specs: Sequence[TensorSpec], params: Params) -> None:
    """Real points ``(n, d)``, reference points ``(m, d)``, perhaps their labels ``(m,)``; ``k`` up to m."""
    known(params, ("k",))
    if len(specs) not in (2, 3):
        raise RejectedError(
            "wrong-inputs",
            "expected the points, the reference points and perhaps their labels, found {} input(s)".format(
                len(specs)
            ),
        )
    for i in range(2):
        real(specs[i], "input {}".format(i), 2, 2)
    if specs[0].shape[1] != specs[1].shape[1]:
        raise RejectedError(
            "wrong-shape",
            "input 1: reference points of {} values for points of {}".format(
                specs[1].shape[1], specs[0].shape[1]
            ),
        )
    if len(specs) == 3:
        real(specs[2], "input 2", 1, 1, ("<i8",))
        if specs[2].shape[0] != specs[1].shape[0]:
            raise RejectedError(
                "wrong-shape",
                "input 2: {} labels for {} reference points".format(specs[2].shape[0], specs[1].shape[0]),
            )
    if integer(params, "k", DEFAULT_NEIGHBOURS, 1, 1 << 10) > specs[1].shape[0]:
        raise RejectedError(
            "bad-parameter",
            "k: {} neighbours of {} reference points".format(
                params.get("k", DEFAULT_NEIGHBOURS), specs[1].shape[0]
            ),
        )


def floating_points(specs: Sequence[TensorSpec], params: Params) -> Tuple[str, ...]:
    """As `floating`, for points, reference points, and labels, which become int64."""
    dtypes = floating(specs[:2], params)
    whole = ["<i8" if spec.dtype[1] in "iu" and spec.dtype != "<u8" else spec.dtype for spec in specs[2:]]
    return (*dtypes, *whole)


def _factor_shapes(operation: str, n_rows: int, n_columns: int) -> Tuple[Tuple[int, ...], ...]:
    n_least = min(n_rows, n_columns)
    if operation == "lu":
        return ((n_rows, n_columns), (n_least,))
    if operation == "qr":
        return ((n_rows, n_least), (n_least, n_columns))
    if operation == "svd":
        return ((n_rows, n_least), (n_least,), (n_least, n_columns))
    if operation == "eigh":
        return ((n_rows,), (n_rows, n_rows))
    return ((n_rows, n_rows),)


def _hsv_bins(value: Any) -> None:
    product = 1
    is_list = isinstance(value, (list, tuple)) and len(value) == 3
    for item in value if is_list else ():
        product *= item if isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= 256 else 0
    if not is_list or not 1 <= product <= MAX_HSV_BINS:
        raise RejectedError(
            "bad-parameter",
            "hsv_bins: expected three numbers from 1 to 256 with a product up to {}, found {!r}".format(
                MAX_HSV_BINS, value
            ),
        )


def _square(spec: TensorSpec) -> None:
    if spec.shape[0] != spec.shape[1]:
        raise RejectedError(
            "wrong-shape", "input 0: expected a square matrix, found {}".format(shape_text(spec))
        )
