"""What a GPU shows before it computes for anybody: each library and kernel once, judged by the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from yarn_accel.errors import StartupError
from yarn_accel.operations import allocate, get
from yarn_accel.operations.cuda_streams import SMALL_ORDER
from yarn_accel.pipeline.workers.calibration import png_of

Array = Any
Case = tuple[str, list[Array], dict[str, Any]]
_FACTORIZATIONS = ("lu", "qr", "cholesky")
_LIBRARY = 1e-8
"""How far a product, a solution or a distance may be from the CPU's."""


def cases() -> Iterator[Case]:
    """Operation, inputs and parameters: in batches and alone, real and complex, images, and points."""
    random = np.random.default_rng(0)
    for dtype, order in (("f8", 9), ("f4", 9), ("c16", 9), ("f8", SMALL_ORDER + 1)):
        matrix = random.standard_normal((order, order))
        matrix = (matrix + 1j * matrix.T if dtype == "c16" else matrix).astype(dtype)
        yield "lu", [np.asfortranarray(matrix)], {}
        yield "qr", [np.asfortranarray(matrix[:, : order - 2])], {}
        definite = matrix @ matrix.conj().T + order * np.eye(order, dtype=dtype)
        yield "cholesky", [np.asfortranarray(definite.astype(dtype))], {}
    left, right = random.standard_normal((2, 9, 9))
    yield "gemm", [left, right], {}
    factors = get("lu").run([left.copy()], {}).arrays
    yield "solve", [factors["lu"], factors["piv"], right], {}
    picture = np.frombuffer(png_of(random.integers(0, 256, (16, 16, 3), np.uint8)), np.uint8)
    yield "features", [picture, np.array([picture.size], np.int64)], {}
    points, others = random.standard_normal((2, 17, 3))
    yield "knn", [points, others, np.arange(17) % 3], {}
    yield "kmeans_step", [points, others[:4]], {}


def probe() -> None:
    """Compute all cases on the GPU that this process sees.

    Raises:
        StartupError: a result is not the CPU's; the message names the operation and the input.
    """
    for name, arrays, params in cases():
        operation = get(name)
        form, batch = operation.form("cuda"), operation.batch_form("cuda")
        assert form is not None, name
        found = [form(_copies(arrays), params)]
        if batch is not None and max(array.shape[0] for array in arrays) <= SMALL_ORDER:
            found += batch([(_copies(arrays), params, allocate) for _ in range(2)])
        for outcome in found:
            if isinstance(outcome, Exception) or not _is_right(name, arrays, params, outcome.arrays):
                what = f"{name} of {arrays[0].dtype} {arrays[0].shape}"
                raise StartupError(f"{what} on the GPU is not what the CPU computes")


def _copies(arrays: list[Array]) -> list[Array]:
    return [array.copy(order="K") for array in arrays]


def _is_right(name: str, arrays: list[Array], params: dict[str, Any], found: dict[str, Array]) -> bool:
    if name in _FACTORIZATIONS:
        judged = get("residual").run([*_copies(arrays), *found.values()], {"operation": name})
        return bool(judged.info["passed"])
    expected = get(name).run(_copies(arrays), params).arrays
    if name == "features":
        return all(np.array_equal(found[key], array) for key, array in expected.items())
    return all(
        np.allclose(found[key], array, rtol=_LIBRARY, atol=_LIBRARY) for key, array in expected.items()
    )
