"""What the methods of `Accelerator` return: named tuples, the arrays by their names.

The arrays are numpy's where numpy is there, else `Tensor`; they are None when the call had an ``output``,
to which the server wrote them. Such a result may itself be an input: its arrays are then read from there.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Tuple, Union

from yarn_accel.client.calls import Reference, Reply
from yarn_accel.errors import RejectedError


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

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> LU:
        """The result that a reply to ``lu`` holds."""
        return cls(_array(reply, "lu"), _array(reply, "piv"), reply.info["singular_at"], output, reply)


class SeparateLU(NamedTuple):
    """PA = LU with ``form="separate"``: ``l`` (m, k), ``u`` (k, n), the rest as in `LU`."""

    l: Any  # noqa: E741 -- the name of the factor
    u: Any
    piv: Any
    singular_at: Any
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> SeparateLU:
        """The result that a reply to ``lu`` holds."""
        return cls(
            _array(reply, "l"),
            _array(reply, "u"),
            _array(reply, "piv"),
            reply.info["singular_at"],
            output,
            reply,
        )


class QR(NamedTuple):
    """A = QR of ``(m, n)``: ``q`` (m, k) with orthonormal columns, ``r`` (k, n) upper triangular."""

    q: Any
    r: Any
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> QR:
        """The result that a reply to ``qr`` holds."""
        return cls(_array(reply, "q"), _array(reply, "r"), output, reply)


class PackedQR(NamedTuple):
    """A = QR with ``form="packed"``: R above Householder's vectors in ``qr``, their scalars in ``tau``."""

    qr: Any
    tau: Any
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> PackedQR:
        """The result that a reply to ``qr`` holds."""
        return cls(_array(reply, "qr"), _array(reply, "tau"), output, reply)


class CholeskyFactor(NamedTuple):
    """A = LL': ``l`` (n, n) lower triangular, or one triangle ``n (n + 1) / 2`` in packed storage."""

    l: Any  # noqa: E741 -- the name of the factor
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> CholeskyFactor:
        """The result that a reply to ``cholesky`` holds."""
        return cls(_array(reply, "l"), output, reply)


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

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> SVD:
        """The result that a reply to ``svd`` holds."""
        return cls(_array(reply, "u"), _array(reply, "s"), _array(reply, "vh"), output, reply)


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

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> EigenDecomposition:
        """The result that a reply to ``eigh`` holds."""
        return cls(_array(reply, "w"), _array(reply, "v"), output, reply)


class MatrixProduct(NamedTuple):
    """C = AB: ``c`` (m, n)."""

    c: Any
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> MatrixProduct:
        """The result that a reply to ``gemm`` holds."""
        return cls(_array(reply, "c"), output, reply)


class Solution(NamedTuple):
    """x of Ax = b: ``x`` (n,) or (n, n_right)."""

    x: Any
    output: str
    reply: Reply

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> Solution:
        """The result that a reply to ``solve`` holds."""
        return cls(_array(reply, "x"), output, reply)


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

    @classmethod
    def of(cls, reply: Reply) -> ResidualCheck:
        """The result that a reply to ``residual`` holds."""
        info = reply.info
        return cls(info["residual"], info["residuals"], info["limit"], info["passed"], reply)


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
        rejected: Dict[int, RejectedError] = {}
        for index, code, message in reply.info.get("rejected", ()):
            error = rejected[int(index)] = RejectedError(code, message)
            error.item = int(index)
            error.place = "image {}".format(index)
        return cls(_array(reply, "features"), rejected, output, reply)


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

    @classmethod
    def of(cls, reply: Reply, output: str = "") -> Clusters:
        """The result that a reply to ``kmeans`` holds."""
        info = reply.info
        return cls(
            _array(reply, "labels"),
            _array(reply, "centroids"),
            info["inertia"],
            info["iterations"],
            output,
            reply,
        )


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


def factor_inputs(factors: Factors) -> Tuple[str, str, List[Any]]:
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


def _array(reply: Reply, name: str) -> Any:
    """An array of a reply; None for what the server has written elsewhere."""
    tensor = reply.tensors.get(name)
    if tensor is None:
        return None
    try:
        return tensor.array()
    except ImportError:
        return tensor
