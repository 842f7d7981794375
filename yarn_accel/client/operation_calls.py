"""The calls behind the methods of `Accelerator`, and what their replies mean."""

from __future__ import annotations

import functools
import os
import struct
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Generic, Mapping, Sequence, TypeVar, Union

from yarn_accel.client.calls import Call, Reference, Reply, Tensor
from yarn_accel.client.results import (
    LU,
    QR,
    SVD,
    CholeskyFactor,
    Clusters,
    EigenDecomposition,
    Factorization,
    Factors,
    ImageFeatures,
    MatrixProduct,
    PackedQR,
    ResidualCheck,
    SeparateLU,
    Solution,
    factor_inputs,
)
from yarn_accel.errors import RejectedError
from yarn_accel.wire import TensorSpec

R = TypeVar("R")
Options = Dict[str, Any]


@dataclass(frozen=True)
class PreparedCall(Generic[R]):
    """A call, and how its result is made of the reply."""

    call: Call
    result: Callable[[Reply], R]


def lu(a: Any, options: Options) -> PreparedCall[LU]:
    """See `Accelerator`, as for all of these."""
    return _prepare(LU.of, "lu", (a,), options, form="packed")


def separate_lu(a: Any, options: Options) -> PreparedCall[SeparateLU]:
    """L and U as matrices."""
    return _prepare(SeparateLU.of, "lu", (a,), options, form="separate")


def qr(a: Any, options: Options) -> PreparedCall[QR]:
    """Q and R as matrices."""
    return _prepare(QR.of, "qr", (a,), options, form="separate")


def packed_qr(a: Any, options: Options) -> PreparedCall[PackedQR]:
    """LAPACK's packed form."""
    return _prepare(PackedQR.of, "qr", (a,), options, form="packed")


def cholesky(a: Any, options: Options) -> PreparedCall[CholeskyFactor]:
    """L of A = LL'."""
    return _prepare(CholeskyFactor.of, "cholesky", (a,), options)


def svd(a: Any, options: Options) -> PreparedCall[SVD]:
    """A = USV'."""
    return _prepare(SVD.of, "svd", (a,), options)


def eigh(a: Any, options: Options) -> PreparedCall[EigenDecomposition]:
    """A = VWV'."""
    return _prepare(EigenDecomposition.of, "eigh", (a,), options)


def gemm(a: Any, b: Any, options: Options) -> PreparedCall[MatrixProduct]:
    """C = AB."""
    return _prepare(MatrixProduct.of, "gemm", (a, b), options)


def is_factorization(a: Any) -> bool:
    """Whether it is what one of the factorizations returned."""
    return isinstance(a, (LU, SeparateLU, QR, PackedQR, CholeskyFactor))


def solve(factors: Factorization, b: Any, options: Options) -> PreparedCall[Solution]:
    """x of Ax = b from the factors of A."""
    operation, form, inputs = factor_inputs(factors)
    params = {"factors": operation, "form": form}
    if operation == "cholesky" and form == "packed":
        params["triangle"] = "lower"
    return _prepare(Solution.of, "solve", (*inputs, b), {**params, **options})


def residual(a: Any, factors: Factors, options: Options) -> PreparedCall[ResidualCheck]:
    """The ratios of LAPACK's tests."""
    operation, _, inputs = factor_inputs(factors)
    call = Call.of("residual", a, *inputs, **options)
    return PreparedCall(replace(call, params={**call.params, "operation": operation}), ResidualCheck.of)


def features(images: Union[str, Reference, Sequence[bytes]], options: Options) -> PreparedCall[ImageFeatures]:
    """A row of features for each image."""
    if isinstance(images, (str, os.PathLike, Reference)):
        return _prepare(ImageFeatures.of, "features", (images,), options)
    images = list(images)
    try:
        blob = b"".join(images)
    except TypeError:
        cure = "pass a list of the bytes of each image, or the URI of an .npz"
        raise RejectedError("wrong-dtype", "images: not the bytes of each", cure=cure) from None
    lengths = struct.pack("<{}q".format(len(images)), *(len(image) for image in images))
    inputs = (
        Tensor(TensorSpec("|u1", (len(blob),)), blob),
        Tensor(TensorSpec("<i8", (len(images),)), lengths),
    )
    return _prepare(ImageFeatures.of, "features", inputs, options)


def kmeans(points: Any, k: int, options: Options) -> PreparedCall[Clusters]:
    """k clusters of points."""
    return _prepare(Clusters.of, "kmeans", (points,), options, k=k)


def _prepare(
    result: Callable[..., R], operation: str, inputs: Sequence[Any], options: Mapping[str, Any], **params: Any
) -> PreparedCall[R]:
    call = Call.of(operation, *inputs, **{**params, **options})
    return PreparedCall(call, functools.partial(result, output=call.output_uri))
