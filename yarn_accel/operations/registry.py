"""The table of operations: the only place that knows their names.

The names of this package are there at once, with only the standard library imported. Others join through
`load_more`: from the server's configuration (``module:attribute``), or from installed distributions that name
an `Operation` (or several) in the entry point group ``yarn_accel.operations``. Server and workers call it
explicitly, at start; nothing is searched for at import.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from yarn_accel.errors import ConfigError, RejectedError
from yarn_accel.operations import chains, checks, counts, matrices, models
from yarn_accel.operations.operation import Operation, Params, late
from yarn_accel.wire import TensorSpec

ENTRY_POINTS = "yarn_accel.operations"
_INFOS = (".dist-info", ".egg-info", "EGG-INFO")
Specs = Sequence[TensorSpec]


def _anything(specs: Specs, params: Params) -> None:
    """Every input is fine."""


def _built_in(
    module: str,
    name: str,
    summary: str,
    n_inputs: Optional[int],
    check: Any,
    flops: Any,
    output: Any,
    *,
    on_gpu: str = "",
    **more: Any,
) -> Operation:
    """An operation of this package.

    Args:
        module: has the function of that name for the CPU.
        on_gpu: the module with the function of that name for GPUs; empty: there is none.
        more: further attributes of `Operation`.
    """
    place = "{}.{}".format(module, name)
    forms = {"cpu": place, "cuda": "{}.{}".format(on_gpu, name)} if on_gpu else {"cpu": place}
    return Operation(
        name, summary, n_inputs, check, late(place), flops, counts.moved, output, forms=forms, **more
    )


def _linear(*fields: Any, on_gpu: str = "", computed: Any = checks.floating, **more: Any) -> Operation:
    """An operation of linear algebra, which takes stacks, and on a GPU many requests at once."""
    batch = {"cuda": "{}.{}_batch".format(on_gpu, fields[1])} if on_gpu else {}
    return _built_in(*fields, on_gpu=on_gpu, batch=batch, computed=computed, takes_stacks=True, **more)


def _images(name: str, summary: str, params: Tuple[str, ...]) -> Operation:
    """An operation on encoded images: a row of features for each."""
    is_texture, is_colour = "bins" in params, "hsv_bins" in params

    def output(specs: Specs, params: Params) -> int:
        return counts.images_output(specs, params, is_texture, is_colour)

    return _built_in(
        "features", name, summary, 2, checks.batch(*params), counts.none, output, on_gpu="cuda_images"
    )


_STEP = "one iteration of K-means: labels, and the sums, counts and inertia of each cluster"
_KNN = "the nearest reference points of each point, and what most of them are"

_table: Dict[str, Operation] = {
    entry.name: entry
    for entry in (
        _built_in("operation", "echo", "the inputs unchanged", None, _anything, counts.none, counts.none),
        _built_in(
            *("linear", "residual", "how exact factors are", None, checks.factors, counts.none, counts.none),
            on_gpu="cuda_systems",
            computed=checks.floating_factors,
        ),
        _linear(
            *("factorization", "lu", "PA = LU with partial pivoting", 1),
            *(matrices.check_lu, counts.lu_flops, counts.lu_output),
            on_gpu="cuda_linalg",
            overwrites=True,
        ),
        _linear(
            *("factorization", "qr", "A = QR", 1, matrices.check_qr, counts.qr_flops, counts.qr_output),
            on_gpu="cuda_linalg",
            overwrites=True,
        ),
        _linear(
            *("factorization", "cholesky", "A = LL'", 1),
            *(matrices.check_cholesky, counts.cholesky_flops, counts.cholesky_output),
            on_gpu="cuda_linalg",
            overwrites=True,
        ),
        _linear(
            *("linear", "gemm", "C = AB", 2, matrices.check_gemm, counts.gemm_flops, counts.gemm_output),
            on_gpu="cuda_linalg",
        ),
        _linear(
            *("linear", "solve", "x of Ax = b from the factors of A; the least-squares x for qr", None),
            *(matrices.check_solve, counts.solve_flops, counts.solve_output),
            on_gpu="cuda_linalg",
            overwrites=True,
            computed=matrices.floating_solve,
        ),
        _linear(
            *("systems", "linsolve", "x of Ax = b from A itself", 2),
            *(matrices.check_linsolve, counts.linsolve_flops, counts.solve_output),
            on_gpu="cuda_systems",
        ),
        _linear(
            *("systems", "lstsq", "x of the least norm(b - Ax) from A itself", 2),
            *(matrices.check_lstsq, counts.lstsq_flops, counts.lstsq_output),
            on_gpu="cuda_systems",
        ),
        _linear(
            *("systems", "inv", "the inverse of a square matrix", 1),
            *(matrices.check_square, counts.inv_flops, counts.inv_output),
            on_gpu="cuda_systems",
        ),
        _linear(
            *("systems", "slogdet", "sign and logarithm of a determinant", 1),
            *(matrices.check_square, counts.slogdet_flops, counts.slogdet_output),
            on_gpu="cuda_systems",
        ),
        _linear(
            *("factorization", "svd", "A = USV'", 1),
            *(matrices.check_svd, counts.svd_flops, counts.svd_output),
            on_gpu="cuda_systems",
        ),
        _linear(
            *("factorization", "eigh", "A = VWV' of a symmetric matrix", 1),
            *(matrices.check_eigh, counts.eigh_flops, counts.eigh_output),
            on_gpu="cuda_systems",
        ),
        _images("lbp", "texture histograms", ("bins",)),
        _images("colour", "colour histograms", ("hsv_bins",)),
        _images("features", "texture and colour histograms, each image decoded once", ("bins", "hsv_bins")),
        _built_in(
            *("distances", "kmeans", "k clusters of points: k-means++ start, then Lloyd's iterations", 1),
            *(checks.points, counts.kmeans_flops, counts.kmeans_output),
            on_gpu="cuda_distances",
            computed=checks.floating,
        ),
        _built_in(
            *("distances", "kmeans_seed", "k-means++ start only", 1),
            *(checks.points, counts.step_flops, counts.seed_output),
            on_gpu="cuda_distances",
            computed=checks.floating,
        ),
        _built_in(
            *("distances", "kmeans_step", _STEP, 2),
            *(checks.centroids, counts.step_flops, counts.step_output),
            on_gpu="cuda_distances",
            computed=checks.floating,
        ),
        _built_in(
            *("distances", "knn", _KNN, None),
            *(checks.neighbours, counts.knn_flops, counts.knn_output),
            on_gpu="cuda_distances",
            computed=checks.floating_points,
        ),
        Operation(
            *("infer", "the outputs of an ONNX model", None, models.check_infer, late("inference.infer")),
            *(counts.none, counts.moved, models.output_bytes),
            forms={"cpu": "inference.infer", "cuda": "inference.infer_on_gpu"},
            batch={"cpu": "inference.infer_batch", "cuda": "inference.infer_batch_on_gpu"},
        ),
        Operation(
            *("chain", "several operations, each on what the ones before give", None, chains.check_chain),
            *(late("chains.chain"), counts.none, counts.moved, chains.output_bytes),
            forms={"cpu": "chains.chain", "cuda": "chains.chain_on_gpu"},
        ),
    )
}

OPERATIONS: Mapping[str, Operation] = _table


def get(name: str) -> Operation:
    """The operation of that name.

    Raises:
        RejectedError: ``unknown-operation``, naming the known ones.
    """
    operation = OPERATIONS.get(name)
    if operation is None:
        known = ", ".join(sorted(OPERATIONS))
        raise RejectedError("unknown-operation", "unknown operation {!r}; known: {}".format(name, known))
    return operation


def load_more(names: Sequence[str] = (), *, entry_points: bool = True) -> Tuple[str, ...]:
    """Add operations of others to the table; adding the same ones again changes nothing.

    Args:
        names: ``module:attribute`` of an `Operation` or of several.
        entry_points: whether installed distributions are asked too.

    Returns:
        The names of the operations that came from outside, in the order found.

    Raises:
        ConfigError: one cannot be imported, is no `Operation`, or bears a name that is taken.
    """
    found: List[str] = []
    for origin in [*(_entry_points() if entry_points else ()), *names]:
        for operation in _imported(origin):
            known = _table.setdefault(operation.name, operation)
            if known is not operation:
                raise ConfigError(
                    "operation {!r} of {}: this name is taken".format(operation.name, origin),
                    cure="give it another name",
                )
            found.append(operation.name)
    return tuple(found)


def _entry_points() -> List[str]:
    if not _is_named():
        return []
    from importlib import metadata

    installed: Any = metadata.entry_points()
    # Python 3.8 and 3.9 give a mapping by group.
    group: Iterable[Any] = (
        installed.select(group=ENTRY_POINTS)
        if hasattr(installed, "select")
        else installed.get(ENTRY_POINTS, ())
    )
    return sorted({str(point.value) for point in group})


def _is_named() -> bool:
    """Whether any installed distribution may name operations.

    `metadata` would tell, but it takes 20 ms of processor time to load it and to parse what all of them name.
    """
    for folder in (Path(entry) for entry in sys.path):
        if folder.is_file():
            return True  # an archive, into which only `metadata` looks
        infos: List[Path] = []
        with contextlib.suppress(OSError):
            infos = [each for each in folder.iterdir() if each.name.endswith(_INFOS)]
        for info in infos:
            with contextlib.suppress(OSError):
                if ENTRY_POINTS.encode() in (info / "entry_points.txt").read_bytes():
                    return True
    return False


def _imported(origin: str) -> List[Operation]:
    module, _, attribute = origin.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            "operations {!r}: {}".format(origin, error), cure="write module:attribute of something installed"
        ) from error
    operations = [value] if isinstance(value, Operation) else list(_several(value))
    for operation in operations:
        if not isinstance(operation, Operation):
            raise ConfigError("operations {!r}: {!r} is no Operation".format(origin, operation))
    return operations


def _several(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else (value,)
