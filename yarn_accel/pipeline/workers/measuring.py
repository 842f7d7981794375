"""Small problems by which a worker shows how fast its device is: it warms up with them, and is calibrated.

A problem takes about `PIECE_S` at most and runs beside the worker's loop, so that real work does not wait for
it.
"""

from __future__ import annotations

import io
import logging
import time
from typing import TYPE_CHECKING, Any

from yarn_accel.operations import registry
from yarn_accel.operations.operation import allocate
from yarn_accel.wire import TensorSpec

if TYPE_CHECKING:
    from yarn_accel.pipeline.workers.execution import Forms

logger = logging.getLogger(__name__)

PIECE_S = 0.05
_REPEATS = 3
PROBLEMS: tuple[tuple[str, int], ...] = tuple(
    (operation, n) for n in (64, 128, 256, 512) for operation in ("lu", "qr", "cholesky", "gemm")
) + tuple((operation, n) for n in (64, 256) for operation in ("lbp", "colour"))
"""Operation and size: order of the matrices, or width of the image."""

WARMING = PROBLEMS[:4] + PROBLEMS[-4:-2]
"""The smallest problem of each operation."""

Problem = tuple[str, int]


def measure(forms: Forms, operation: str, n: int) -> dict[str, Any] | None:
    """Run one problem, in the worker; the best of three runs, fewer when they are long.

    Returns:
        flops, bytes and seconds; None when the operation cannot be run here.
    """
    try:
        arrays, specs = _problem(operation, n)
        template = forms.template(operation, {}, specs)
        entry = registry.get(operation)
        best_s, spent_s = float("inf"), 0.0
        for i in range(_REPEATS):
            inputs = [array.copy(order="A") for array in arrays]
            started_s = time.perf_counter()
            template.run(inputs, {}, allocate)
            seconds = time.perf_counter() - started_s
            best_s, spent_s = min(best_s, seconds), spent_s + seconds
            # The first run may have had to load or compile, and says nothing by itself.
            if i > 0 and spent_s + seconds > PIECE_S:
                break
        return {
            "flops": entry.flops(specs, {}),
            "n_bytes": entry.bytes_moved(specs, {}),
            "seconds": best_s,
        }
    except Exception as error:  # noqa: BLE001 -- an operation that breaks here fails when it is asked for
        logger.debug("cannot measure %s of %d: %s", operation, n, error)
        return None


def _problem(operation: str, n: int) -> tuple[list[Any], list[TensorSpec]]:
    import numpy as np

    random = np.random.default_rng(n)
    arrays: list[Any]
    if operation in ("lbp", "colour"):
        arrays = [np.frombuffer(png_of(random.integers(0, 256, (n, n, 3), np.uint8)), np.uint8)]
        arrays.append(np.array([arrays[0].size], np.int64))
    else:
        matrix = np.asfortranarray(random.standard_normal((n, n)))
        if operation == "cholesky":
            matrix = np.asfortranarray((matrix + matrix.T) / 2 + 2 * n * np.eye(n))
        arrays = [matrix, matrix] if operation == "gemm" else [matrix]
    specs = [TensorSpec(array.dtype.str, array.shape, "F" if array.ndim == 2 else "C") for array in arrays]
    return arrays, specs


def png_of(pixels: Any) -> bytes:
    """An image, bytes ``(height, width, 3)``, as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
