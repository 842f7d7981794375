"""Parameters of the operations of linear algebra, their checks, and how large their answers are.

Standard library only. Every input may be one matrix ``(m, n)`` or a stack ``(b, m, n)`` of independent
problems. The parameters, all optional:

===============  ====================  ================================================================
lu, qr           ``form``              "packed": LAPACK's one array (the default of lu); "separate": the
                                       factors as matrices (the default of qr)
cholesky         ``triangle``          "full"; "lower": the matrix is one triangle, LAPACK's packed storage
                                       ``n (n + 1) / 2``, column after column
cholesky         ``form``              of the factor: "separate" (a matrix), "packed" (one triangle); the
                                       default is that of the input
gemm             ``transpose_a, _b``   read a or b transposed
solve            ``factors``           whose factors the inputs are: "lu" (default), "qr", "cholesky"
solve            ``form, triangle``    as the factorization gave them
linsolve, inv,   ``positive_definite`` true: the matrix is, and symmetric (Hermitian)
slogdet
svd, eigh        ``vectors``           false: values alone
all              ``compute``           "f64": compute in float64 (complex128) whatever the inputs are
all              ``reply``             "f32": send the results as float32 (complex64)
===============  ====================  ================================================================
"""

from __future__ import annotations

from math import isqrt
from typing import Any, NamedTuple, Sequence, Tuple

from yarn_accel.errors import RejectedError
from yarn_accel.operations.checks import count, floating, known, numeric, shape_text
from yarn_accel.operations.operation import Params, aligned_bytes
from yarn_accel.wire import ITEM_BYTES, TensorSpec

PRECISION = ("compute", "reply")
FORMS = ("packed", "separate")
TRIANGLES = ("full", "lower")
MAX_STACK = 1 << 20
_DOUBLE = {"<f4": "<f8", "<f8": "<f8", "<c8": "<c16", "<c16": "<c16"}
_SINGLE = {"<f4": "<f4", "<f8": "<f4", "<c8": "<c8", "<c16": "<c8"}
_MAX_ORDER = 1 << 31
"""LAPACK counts in 32 bits."""


class Sizes(NamedTuple):
    """``n_items`` problems of ``n_rows`` by ``n_columns``; ``is_stack`` tells (1, m, n) from (m, n)."""

    n_items: int
    n_rows: int
    n_columns: int
    is_stack: bool

    @property
    def n_least(self) -> int:
        """The number of pivots or reflectors."""
        return min(self.n_rows, self.n_columns)


def check_lu(specs: Sequence[TensorSpec], params: Params) -> None:
    """One matrix or stack."""
    _check_general(specs, params)


def check_qr(specs: Sequence[TensorSpec], params: Params) -> None:
    """One matrix or stack."""
    _check_general(specs, params)


def check_cholesky(specs: Sequence[TensorSpec], params: Params) -> None:
    """One square matrix, one triangle, or a stack of either."""
    count(specs, 1, "the matrix")
    known(params, ("form", "triangle", *PRECISION))
    _check_choices(params)
    if params.get("triangle") == "lower":
        numeric(specs[0], "input 0", 1, 2)
        triangle_order(specs[0].shape[-1], "input 0")
    else:
        numeric(specs[0], "input 0", 2, 3)
        _square(specs[0], "input 0")
    _check_stack(specs[0])


def check_gemm(specs: Sequence[TensorSpec], params: Params) -> None:
    """Matrices a and b, or stacks of as many, whose inner sizes agree."""
    count(specs, 2, "a, b")
    known(params, ("transpose_a", "transpose_b", *PRECISION))
    _check_choices(params)
    for name in ("transpose_a", "transpose_b"):
        _check_flag(params, name, False)
    for i, spec in enumerate(specs):
        numeric(spec, "input {} ({})".format(i, "ab"[i]), 2, 3)
        _check_stack(spec)
    _same_dtype(specs, (0, 1))
    _, inner, inner_b, _ = product_sizes(specs, params)
    if inner != inner_b or specs[0].shape[:-2] != specs[1].shape[:-2]:
        raise RejectedError(
            "wrong-shape",
            "input 1 (b): {} does not go with {}".format(shape_text(specs[1]), shape_text(specs[0])),
        )


def check_solve(specs: Sequence[TensorSpec], params: Params) -> None:
    """The factors that ``params["factors"]`` names, in the form the factorization gave them, and then b."""
    known(params, ("factors", "form", "triangle", *PRECISION))
    _check_choices(params)
    names = solve_inputs(params)
    count(specs, len(names), ", ".join(names))
    packed_axes = int(names[0] == "l" and factor_form("cholesky", params) == "packed")
    numeric(specs[0], "input 0 ({})".format(names[0]), 2 - packed_axes, 3 - packed_axes)
    _check_stack(specs[0])
    expected = _solve_shapes(specs[0], params, specs[-1])
    for i, name in enumerate(names):
        place, spec = "input {} ({})".format(i, name), specs[i]
        if name == "piv":
            if spec.dtype not in ("<i4", "<i8"):
                raise RejectedError(
                    "wrong-dtype", "{}: expected <i4 or <i8, found {}".format(place, spec.dtype)
                )
        else:
            numeric(spec, place, len(spec.shape), len(spec.shape))
        if tuple(spec.shape) != expected[i]:
            raise RejectedError(
                "wrong-shape",
                "{}: expected shape {}, found {}".format(
                    place, "x".join(str(n) for n in expected[i]), shape_text(spec)
                ),
            )
    _same_dtype(specs, tuple(i for i, name in enumerate(names) if name != "piv"))


def check_linsolve(specs: Sequence[TensorSpec], params: Params) -> None:
    """A square matrix or a stack, and right-hand sides."""
    known(params, ("positive_definite", *PRECISION))
    _check_flag(params, "positive_definite", False)
    _check_system(specs, params)
    _square(specs[0], "input 0 (a)")


def check_lstsq(specs: Sequence[TensorSpec], params: Params) -> None:
    """A matrix or stack with at least as many rows as columns, and right-hand sides."""
    known(params, PRECISION)
    _check_system(specs, params)
    n_rows, n = specs[0].shape[-2:]
    if n_rows < n:
        raise RejectedError("wrong-shape", "input 0 (a): {} equations for {} unknowns".format(n_rows, n))


def check_square(specs: Sequence[TensorSpec], params: Params) -> None:
    """One square matrix or a stack, of inv and slogdet."""
    count(specs, 1, "the matrix")
    known(params, ("positive_definite", *PRECISION))
    _check_flag(params, "positive_definite", False)
    _check_choices(params)
    numeric(specs[0], "input 0", 2, 3)
    _check_stack(specs[0])
    _square(specs[0], "input 0")


def _check_system(specs: Sequence[TensorSpec], params: Params) -> None:
    count(specs, 2, "a, b")
    _check_choices(params)
    numeric(specs[0], "input 0 (a)", 2, 3)
    _check_stack(specs[0])
    n_axes = len(specs[0].shape)
    numeric(specs[1], "input 1 (b)", n_axes - 1, n_axes)
    if tuple(specs[1].shape[: n_axes - 1]) != tuple(specs[0].shape[: n_axes - 1]):
        raise RejectedError(
            "wrong-shape",
            "input 1 (b): {} does not go with {}".format(shape_text(specs[1]), shape_text(specs[0])),
        )
    _same_dtype(specs, (0, 1))


def _check_flag(params: Params, name: str, default: bool) -> None:
    if not isinstance(params.get(name, default), bool):
        raise RejectedError(
            "bad-parameter", "{}: expected true or false, found {!r}".format(name, params[name])
        )


def solve_inputs(params: Params) -> Tuple[str, ...]:
    """The names of the inputs of solve, in their order."""
    factors = params.get("factors", "lu")
    if factors == "cholesky":
        return ("l", "b")
    if factor_form(factors, params) == "packed":
        return ("lu", "piv", "b") if factors == "lu" else ("qr", "tau", "b")
    return ("l", "u", "piv", "b") if factors == "lu" else ("q", "r", "b")


def factor_form(operation: str, params: Params) -> str:
    """The form in which that factorization gives its factors: "packed" or "separate"."""
    default = {"lu": "packed", "qr": "separate", "cholesky": "separate"}[operation]
    if operation == "cholesky" and params.get("triangle") == "lower":
        default = "packed"
    form: str = params.get("form", default)
    return form


def compute_dtype(spec: TensorSpec, params: Params) -> str:
    """The element type of the computation."""
    return _DOUBLE[spec.dtype] if params.get("compute") == "f64" else spec.dtype


def reply_dtype(spec: TensorSpec, params: Params) -> str:
    """The element type of the results."""
    dtype = compute_dtype(spec, params)
    return _SINGLE[dtype] if params.get("reply") == "f32" else dtype


def real_dtype(dtype: str) -> str:
    """The element type of absolute values."""
    return {"<c8": "<f4", "<c16": "<f8"}.get(dtype, dtype)


def floating_solve(specs: Sequence[TensorSpec], params: Params) -> Tuple[str, ...]:
    """As `floating`, for the inputs of solve; pivots stay whole numbers."""
    try:
        names = solve_inputs(params)
    except (KeyError, TypeError):
        names = ()
    return floating(specs, params, names.index("piv") if "piv" in names else None)


def check_svd(specs: Sequence[TensorSpec], params: Params) -> None:
    """One matrix or stack."""
    count(specs, 1, "the matrix")
    known(params, ("vectors", *PRECISION))
    _check_choices(params)
    _check_flag(params, "vectors", True)
    numeric(specs[0], "input 0", 2, 3)
    _check_stack(specs[0])


def check_eigh(specs: Sequence[TensorSpec], params: Params) -> None:
    """One square matrix or a stack."""
    check_svd(specs, params)
    _square(specs[0], "input 0")


def sizes(spec: TensorSpec, params: Params) -> Sizes:
    """How many problems of which size one checked input of a factorization holds."""
    if params.get("triangle") == "lower":
        order = triangle_order(spec.shape[-1], "input 0")
        is_stack = len(spec.shape) == 2
        return Sizes(spec.shape[0] if is_stack else 1, order, order, is_stack)
    is_stack = len(spec.shape) == 3
    return Sizes(spec.shape[0] if is_stack else 1, spec.shape[-2], spec.shape[-1], is_stack)


def product_sizes(specs: Sequence[TensorSpec], params: Params) -> Tuple[int, int, int, int]:
    """Rows of the product, the inner size as a has it, as b has it, columns of the product."""
    rows, inner = specs[0].shape[-2:]
    if params.get("transpose_a", False):
        rows, inner = inner, rows
    inner_b, columns = specs[1].shape[-2:]
    if params.get("transpose_b", False):
        inner_b, columns = columns, inner_b
    return rows, inner, inner_b, columns


def triangle_order(n_elements: int, place: str) -> int:
    """The n for which ``n (n + 1) / 2`` elements are one triangle."""
    n = (isqrt(8 * n_elements + 1) - 1) // 2
    if n * (n + 1) // 2 != n_elements:
        raise RejectedError(
            "wrong-shape", "{}: {} elements are no triangle n (n + 1) / 2".format(place, n_elements)
        )
    return n


def array_bytes(shape: Tuple[int, ...], dtype: str) -> int:
    """The bytes that an array of that shape takes in the output area."""
    n_bytes = ITEM_BYTES[dtype]
    for n in shape:
        n_bytes *= n
    return aligned_bytes(n_bytes)


def _check_general(specs: Sequence[TensorSpec], params: Params) -> None:
    count(specs, 1, "the matrix")
    known(params, ("form", *PRECISION))
    _check_choices(params)
    numeric(specs[0], "input 0", 2, 3)
    _check_stack(specs[0])


def _check_choices(params: Params) -> None:
    choices = (
        ("form", FORMS),
        ("triangle", TRIANGLES),
        ("factors", ("lu", "qr", "cholesky")),
        ("compute", ("f64",)),
        ("reply", ("f32",)),
    )
    for name, allowed in choices:
        if name in params and params[name] not in allowed:
            raise RejectedError(
                "bad-parameter",
                "{}: expected {}, found {!r}".format(name, " or ".join(allowed), params[name]),
            )


def _check_stack(spec: TensorSpec) -> None:
    if max(spec.shape) >= _MAX_ORDER or (len(spec.shape) == 3 and spec.shape[0] > MAX_STACK):
        raise RejectedError("wrong-shape", "{} is more than LAPACK counts".format(shape_text(spec)))


def _square(spec: TensorSpec, place: str) -> None:
    if spec.shape[-2] != spec.shape[-1]:
        raise RejectedError(
            "wrong-shape", "{}: expected a square matrix, found {}".format(place, shape_text(spec))
        )


def _same_dtype(specs: Sequence[TensorSpec], indices: Tuple[int, ...]) -> None:
    for i in indices:
        if specs[i].dtype != specs[indices[0]].dtype:
            raise RejectedError(
                "wrong-dtype",
                "input {}: expected {}, found {}".format(i, specs[indices[0]].dtype, specs[i].dtype),
            )


def _solve_shapes(first: TensorSpec, params: Params, b: TensorSpec) -> Tuple[Tuple[int, ...], ...]:
    """The shape every input must have, given that of the first factor and the width of b."""
    factors = params.get("factors", "lu")
    is_packed = factor_form(factors, params) == "packed"
    stack: Tuple[Any, ...]
    if factors == "cholesky" and is_packed:
        stack, n = first.shape[:-1], triangle_order(first.shape[-1], "input 0 (l)")
        leading: Tuple[Tuple[int, ...], ...] = (tuple(first.shape),)
        n_rows = n
    else:
        stack, (n_rows, n) = first.shape[:-2], first.shape[-2:]
        square = (*stack, n, n)
        leading = {
            ("lu", True): (square, (*stack, n)),
            ("lu", False): (square, square, (*stack, n)),
            ("qr", True): ((*stack, n_rows, n), (*stack, n)),
            ("qr", False): ((*stack, n_rows, n), square),
            ("cholesky", False): (square,),
        }[factors, is_packed]
    if n_rows < n:
        raise RejectedError("wrong-shape", "input 0: {} equations for {} unknowns".format(n_rows, n))
    is_vector = len(b.shape) == len(stack) + 1
    return (*leading, (*stack, n_rows) if is_vector else (*stack, n_rows, *b.shape[-1:]))
