"""The calls behind the methods of `Accelerator`, and their results: named tuples, the arrays by their names.

The arrays of a result are numpy's where numpy is there, else `Tensor`; they are None when the call had an
``output``, to which the server wrote them. Such a result may itself be an input: its arrays are then read
from there.
"""

from __future__ import annotations

import functools
import os
import struct
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Generic, List, Mapping, NamedTuple, Sequence, Tuple, TypeVar, Union

from yarn_accel.client.calls import Call, Reference, Reply, Tensor, uri_of
from yarn_accel.errors import RejectedError
from yarn_accel.wire import TensorSpec

R = TypeVar("R")
Options = Dict[str, Any]


class LU(NamedTuple):
    """PA = LU of ``(m, n)``; k = min(m, n).

    Attributes:
        lu: ``(m, n)``: U in the upper triangle, L below it (its unit diagonal is not stored).
        piv: ``(k,)``: row i was swapped with row ``piv[i]``, counted from 0.
        singular_at: the first k with U[k, k] = 0, counted from 1; 0: there is none.
        output: where they were written instead.
        reply: server, device and seconds.
    """

    lu: Any
    piv: Any
    singular_at: Any
    output: str
    reply: Reply


class SeparateLU(NamedTuple):
    """PA = LU with ``form="separate"``: ``l`` (m, k), ``u`` (k, n), the rest as in `LU`."""

    l: Any  # noqa: E741 -- the name of the factor
    u: Any
    piv: Any
    singular_at: Any
    output: str
    reply: Reply


class QR(NamedTuple):
    """A = QR of ``(m, n)``: ``q`` (m, k) with orthonormal columns, ``r`` (k, n) upper triangular."""

    q: Any
    r: Any
    output: str
    reply: Reply


class PackedQR(NamedTuple):
    """A = QR with ``form="packed"``: R above Householder's vectors in ``qr``, their scalars in ``tau``."""

    qr: Any
    tau: Any
    output: str
    reply: Reply


class CholeskyFactor(NamedTuple):
    """A = LL': ``l`` (n, n) lower triangular, or one triangle ``n (n + 1) / 2`` in packed storage."""

    l: Any  # noqa: E741 -- the name of the factor
    output: str
    reply: Reply


class SVD(NamedTuple):
    """A = USV' of ``(m, n)``, k = min(m, n).

    Attributes:
        u: ``(m, k)`` with orthonormal columns; None with ``vectors=False``, as is vh.
        s: ``(k,)`` real, the largest first.
        vh: ``(k, n)`` with orthonormal rows.
    """

    u: Any
    s: Any
    vh: Any
    output: str
    reply: Reply


class EigenDecomposition(NamedTuple):
    """A = VWV' of a symmetric or Hermitian ``(n, n)``.

    Attributes:
        w: ``(n,)`` real, the smallest first.
        v: ``(n, n)``, a vector in each column; None with ``vectors=False``.
    """

    w: Any
    v: Any
    output: str
    reply: Reply


class MatrixProduct(NamedTuple):
    """C = AB: ``c`` (m, n)."""

    c: Any
    output: str
    reply: Reply


class Solution(NamedTuple):
    """x of Ax = b: ``x`` (n,) or (n, n_right)."""

    x: Any
    output: str
    reply: Reply


class Inverse(NamedTuple):
    """The inverse of a square matrix: ``inv`` (n, n)."""

    inv: Any
    output: str
    reply: Reply


class Determinant(NamedTuple):
    """``sign * exp(logdet)``: arrays ``(1,)``, of a stack of b matrices ``(b, 1)``; 0, -inf if singular."""

    sign: Any
    logdet: Any
    output: str
    reply: Reply


class ResidualCheck(NamedTuple):
    """How exact factors are, in LAPACK's ratios.

    Attributes:
        residual: the largest ratio.
        residuals: all of them by name.
        limit: LAPACK's own tests accept ratios below this.
        passed: it is below.
    """

    residual: float
    residuals: Mapping[str, float]
    limit: float
    passed: bool
    reply: Reply


class ImageFeatures(NamedTuple):
    """A row of features for each image.

    Attributes:
        features: float32 ``(n_images, n_values)``; zeros for a rejected image.
        rejected: by the number of the image, counted from 0, why it has none.
    """

    features: Any
    rejected: Mapping[int, RejectedError]
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> ImageFeatures:
        """The result that a reply to ``features``, ``lbp`` or ``colour`` holds."""
        return cls(_array(reply, "features"), _rejected(reply), output, reply)


class Clusters(NamedTuple):
    """k clusters of points.

    Attributes:
        labels: int32 ``(n,)``: the cluster of each point.
        centroids: float64 ``(k, d)``.
        inertia: sum of squared distances of the points to their centroids.
        iterations: how many the best start took.
    """

    labels: Any
    centroids: Any
    inertia: float
    iterations: int
    output: str
    reply: Reply


class Neighbours(NamedTuple):
    """The nearest reference points of points.

    Attributes:
        neighbours: int32 ``(n, k)``: numbers of reference points, the nearest first.
        distances: float64 ``(n, k)``.
        labels: int64 ``(n,)``: the most frequent label of the neighbours; None without labels.
    """

    neighbours: Any
    distances: Any
    labels: Any
    output: str
    reply: Reply


class Inference(NamedTuple):
    """The outputs of a model.

    Attributes:
        outputs: by the model's own names, or by those that were asked for; of images a row of zeros for each
            rejected one.
        rejected: of images, by the number of the image, counted from 0, why it has no row.
    """

    outputs: Mapping[str, Any]
    rejected: Mapping[int, RejectedError]
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> Inference:
        """The result that a reply to ``infer`` holds."""
        names = reply.info["outputs"]
        outputs = {name: _array(reply, "output_{}".format(at)) for at, name in enumerate(names)}
        return cls(outputs, _rejected(reply), output, reply)


class ChainResult(NamedTuple):
    """The results of the last step of a chain.

    Attributes:
        outputs: by their names.
        steps: of each step the facts that its own reply would have in ``info``.
    """

    outputs: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> ChainResult:
        """The result that a reply to ``chain`` holds."""
        outputs = {name: _array(reply, name) for name in reply.tensors}
        return cls(outputs, reply.info["steps"], output, reply)


Factorization = Union[LU, SeparateLU, QR, PackedQR, CholeskyFactor]
Factors = Union[Factorization, SVD, EigenDecomposition]
_FACTORS: Mapping[type, Tuple[str, str, Tuple[str, ...]]] = {
    LU: ("lu", "packed", ("lu", "piv")),
    SeparateLU: ("lu", "separate", ("l", "u", "piv")),
    QR: ("qr", "separate", ("q", "r")),
    PackedQR: ("qr", "packed", ("qr", "tau")),
    CholeskyFactor: ("cholesky", "separate", ("l",)),
    SVD: ("svd", "separate", ("u", "s", "vh")),
    EigenDecomposition: ("eigh", "separate", ("w", "v")),
}


#: Fields of results that are facts of a reply; the others are its arrays.
_FACTS = frozenset({"singular_at", "residual", "residuals", "limit", "passed", "inertia", "iterations"})


# Calls

_OF_ONE_ARRAY = (bool, int, float, complex, list, tuple)
"""A list of these is one array; a list of arrays is several inputs."""


@dataclass(frozen=True)
class PreparedCall(Generic[R]):
    """A call, and how its result is made of the reply."""

    call: Call
    result: Callable[[Reply], R]


def lu(a: Any, options: Options) -> PreparedCall[LU]:
    """See `Accelerator`, as for all of these."""
    return _prepare(LU, "lu", (a,), options, form="packed")


def separate_lu(a: Any, options: Options) -> PreparedCall[SeparateLU]:
    """L and U as matrices."""
    return _prepare(SeparateLU, "lu", (a,), options, form="separate")


def qr(a: Any, options: Options) -> PreparedCall[QR]:
    """Q and R as matrices."""
    return _prepare(QR, "qr", (a,), options, form="separate")


def packed_qr(a: Any, options: Options) -> PreparedCall[PackedQR]:
    """LAPACK's packed form."""
    return _prepare(PackedQR, "qr", (a,), options, form="packed")


def cholesky(a: Any, options: Options) -> PreparedCall[CholeskyFactor]:
    """L of A = LL'."""
    return _prepare(CholeskyFactor, "cholesky", (a,), options)


def svd(a: Any, options: Options) -> PreparedCall[SVD]:
    """A = USV'."""
    return _prepare(SVD, "svd", (a,), options)


def eigh(a: Any, options: Options) -> PreparedCall[EigenDecomposition]:
    """A = VWV'."""
    return _prepare(EigenDecomposition, "eigh", (a,), options)


def gemm(a: Any, b: Any, options: Options) -> PreparedCall[MatrixProduct]:
    """C = AB."""
    return _prepare(MatrixProduct, "gemm", (a, b), options)


def lstsq(a: Any, b: Any, options: Options) -> PreparedCall[Solution]:
    """The least-squares x of Ax = b."""
    return _prepare(Solution, "lstsq", (a, b), options)


def inv(a: Any, options: Options) -> PreparedCall[Inverse]:
    """The inverse of A."""
    return _prepare(Inverse, "inv", (a,), options)


def slogdet(a: Any, options: Options) -> PreparedCall[Determinant]:
    """Sign and logarithm of a determinant."""
    return _prepare(Determinant, "slogdet", (a,), options)


def solve(a: Any, b: Any, options: Options) -> PreparedCall[Solution]:
    """x of Ax = b from A itself, or from its factors."""
    if not isinstance(a, (LU, SeparateLU, QR, PackedQR, CholeskyFactor)):
        return _prepare(Solution, "linsolve", (a, b), options)
    factors: Factorization = a
    operation, form, inputs = _factor_inputs(factors)
    params = {"factors": operation, "form": form}
    if operation == "cholesky" and form == "packed":
        params["triangle"] = "lower"
    return _prepare(Solution, "solve", (*inputs, b), {**params, **options})


def residual(a: Any, factors: Factors, options: Options) -> PreparedCall[ResidualCheck]:
    """The ratios of LAPACK's tests."""
    operation, _, inputs = _factor_inputs(factors)
    call = Call.of("residual", a, *inputs, **options)
    call = replace(call, params={**call.params, "operation": operation})
    return PreparedCall(call, functools.partial(_result_of, ResidualCheck))


def features(images: Union[str, Reference, Sequence[bytes]], options: Options) -> PreparedCall[ImageFeatures]:
    """A row of features for each image."""
    return _prepare(ImageFeatures, "features", _images(images), options)


def infer(model: Union[str, os.PathLike[str]], inputs: Any, options: Options) -> PreparedCall[Inference]:
    """The outputs of a model: of arrays by the names of its inputs or in their order, or of images."""
    options = {**options, "model": model if isinstance(model, str) else uri_of(model)}
    if options.get("image_size") is not None:
        return _prepare(Inference, "infer", _images(inputs), options)
    if isinstance(inputs, Mapping):
        options["inputs"] = list(inputs)
        inputs = list(inputs.values())
    elif not isinstance(inputs, (list, tuple)) or not inputs or isinstance(inputs[0], _OF_ONE_ARRAY):
        inputs = [inputs]
    return _prepare(Inference, "infer", inputs, options)


def step(operation: str, /, *inputs: Union[int, str], **params: Any) -> Dict[str, Any]:
    """A step of `Accelerator.chain`.

    >>> step("solve", "lu", "piv", 1)
    {'operation': 'solve', 'params': {}, 'inputs': ['lu', 'piv', 1]}

    Args:
        operation: its name.
        inputs: the number of an input of the chain, the name of a result of the step before, or ``"0.lu"``, a
            result of step 0. None at all: those of the chain, or of the step before, as many as it takes.
        params: of the operation.
    """
    written = {"operation": operation, "params": params}
    return {**written, "inputs": list(inputs)} if inputs else written


def chain(steps: Sequence[Any], inputs: Sequence[Any], options: Options) -> PreparedCall[ChainResult]:
    """Several operations in one request."""
    written = [step(each) if isinstance(each, str) else each for each in steps]
    return _prepare(ChainResult, "chain", inputs, options, steps=written)


def _images(images: Union[str, Reference, Sequence[bytes]]) -> Sequence[Any]:
    """Encoded images as the two inputs of a call, or the file that has them as the one."""
    if isinstance(images, (str, os.PathLike, Reference)):
        return (images,)
    images = list(images)
    try:
        blob = b"".join(images)
    except TypeError:
        cure = "pass a list of the bytes of each image, or the URI of an .npz"
        raise RejectedError("wrong-dtype", "images: not the bytes of each", cure=cure) from None
    lengths = struct.pack("<{}q".format(len(images)), *(len(image) for image in images))
    return (
        Tensor(TensorSpec("|u1", (len(blob),)), blob),
        Tensor(TensorSpec("<i8", (len(images),)), lengths),
    )


def kmeans(points: Any, k: int, options: Options) -> PreparedCall[Clusters]:
    """k clusters of points."""
    return _prepare(Clusters, "kmeans", (points,), options, k=k)


def knn(points: Any, references: Any, labels: Any, options: Options) -> PreparedCall[Neighbours]:
    """The nearest reference points of points."""
    inputs = (points, references) if labels is None else (points, references, labels)
    return _prepare(Neighbours, "knn", inputs, options)


def _prepare(
    kind: Callable[..., R], operation: str, inputs: Sequence[Any], options: Mapping[str, Any], **params: Any
) -> PreparedCall[R]:
    """A call whose result is a named tuple of that kind; its `of`, if any, makes more than `_result_of`."""
    call = Call.of(operation, *inputs, **{**params, **options})
    make = getattr(kind, "of", None) or functools.partial(_result_of, kind)
    return PreparedCall(call, functools.partial(make, output=call.output_uri))


def _result_of(kind: Callable[..., R], reply: Reply, output: str = "") -> R:
    """The named tuple of that kind with what a reply has by the names of its fields: facts, and arrays."""
    given = {"output": output, "reply": reply}
    names: Tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    info = {name: reply.info[name] for name in names if name in _FACTS}
    return kind(*[given[n] if n in given else info[n] if n in info else _array(reply, n) for n in names])


def _factor_inputs(factors: Factors) -> Tuple[str, str, List[Any]]:
    """The operation that made these factors, their form, and what stands for them among a call's inputs."""
    operation, form, names = _FACTORS[type(factors)]
    if factors.output:
        if not factors.output.endswith(".npz"):
            raise RejectedError(
                "wrong-dtype",
                "{}: files are read by their names, and this one would be plain bytes".format(factors.output),
                cure="end an output that is an input later in .npz",
            )
        return operation, form, [Reference(factors.output)]
    arrays = [getattr(factors, name) for name in names]
    if operation == "cholesky" and len(_shape(arrays[0])) == 1:
        form = "packed"
    return operation, form, arrays


def _shape(array: Any) -> Tuple[int, ...]:
    shape: Tuple[int, ...] = array.spec.shape if hasattr(array, "spec") else array.shape
    return shape


def _rejected(reply: Reply) -> Dict[int, RejectedError]:
    """Of a reply for images, the error of each bad one by its number."""
    rejected: Dict[int, RejectedError] = {}
    for index, code, message in reply.info.get("rejected", ()):
        error = rejected[int(index)] = RejectedError(code, message)
        error.item = int(index)
        error.place = "image {}".format(index)
    return rejected


def _array(reply: Reply, name: str) -> Any:
    """An array of a reply; None for what the server has written elsewhere."""
    tensor = reply.tensors.get(name)
    if tensor is None:
        return None
    try:
        return tensor.array()
    except ImportError:
        return tensor
