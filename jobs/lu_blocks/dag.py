"""The DAG of a blocked LU, and its tiles in storage.

A = LU by blocks: L has unit blocks on its diagonal, U is upper by blocks, with whole blocks on its diagonal.
Rows are swapped inside diagonal tiles only, so every diagonal tile, as it is when its turn comes, has to be
regular: as with matrices whose diagonal dominates. The last task measures how exact the factors are.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.lu_blocks import tiles
from yarn_accel.errors import ConfigError
from yarn_accel.storage import Store
from yarn_accel.tasks import DagBuilder

#: Along a side; the last task reads all tiles, at most 512 files.
MOST_TILES = 16
#: The speed and overhead that planning expects before anything was learned.
_FLOPS_PER_S = 5e9
_OVERHEAD_S = 0.05
#: A process with numpy and SciPy's libraries; and what a task holds beside that.
_BASE_MIB = 240
_TILES_AT_ONCE = 8
_FLOAT_BYTES = 8
RESIDUAL_TASK = "residual"
"""The last one; it returns the order and how exact the factors are."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """A square matrix cut into square tiles; the last ones may be smaller.

    Attributes:
        n: its order.
        side: of a tile.
    """

    n: int
    side: int

    def __post_init__(self) -> None:
        if not 1 <= self.side <= self.n:
            raise ConfigError(
                f"tiles of {self.side} in a matrix of order {self.n}", cure="give 1 to its order"
            )
        if self.n_tiles > MOST_TILES:
            least = -(-self.n // MOST_TILES)
            raise ConfigError(
                f"{self.n_tiles} tiles along a side; {MOST_TILES} are taken", cure=f"--tile {least}"
            )

    @property
    def n_tiles(self) -> int:
        """Along a side."""
        return -(-self.n // self.side)

    def part(self, i: int) -> slice:
        """Rows, or columns, of the tiles with this number."""
        return slice(i * self.side, min(self.n, (i + 1) * self.side))

    def n_bytes(self) -> float:
        """Of a tile."""
        return float(_FLOAT_BYTES * self.side**2)

    def seconds(self, flops_per_n3: float) -> float:
        """Seconds that a task is expected to take."""
        return round(_OVERHEAD_S + flops_per_n3 * self.side**3 / _FLOPS_PER_S, 4)


def made_matrix(n: int, seed: int) -> NDArray[np.float64]:
    """A random matrix whose diagonal dominates."""
    matrix = np.random.default_rng(seed).standard_normal((n, n))
    matrix[np.diag_indices(n)] += np.abs(matrix).sum(axis=1)
    return matrix


def store_tiles(store: Store, folder_uri: str, matrix: NDArray[np.float64], tiling: Tiling) -> None:
    """Write the tiles of a matrix, a file each."""
    for i in range(tiling.n_tiles):
        for j in range(tiling.n_tiles):
            content = io.BytesIO()
            np.save(content, np.ascontiguousarray(matrix[tiling.part(i), tiling.part(j)]))
            store.write_atomic(f"{folder_uri}/{_tile(i, j, 0)}", [content.getvalue()])


def lu_dag(tiling: Tiling, input_uri: str, output_uri: str, seed: int = 0, **settings: Any) -> DagBuilder:
    """The DAG whose tiles `store_tiles` has written.

    Args:
        input_uri: folder of the tiles.
        output_uri: folder of what tasks make.
        seed: of the columns with which the residual is measured.
        settings: more of `DagBuilder`.
    """
    memory_mib = _BASE_MIB + round(_TILES_AT_ONCE * tiling.n_bytes() / 2**20)
    settings = {"memory_mib": memory_mib, **settings}
    dag = DagBuilder("lu_blocks", output=output_uri, packages=["jobs.lu_blocks"], **settings)
    n_tiles = tiling.n_tiles
    for i in range(n_tiles):
        for j in range(n_tiles):
            dag.give(_tile(i, j, 0), f"{input_uri}/{_tile(i, j, 0)}", tiling.n_bytes())
    for k in range(n_tiles):
        _add_step(dag, tiling, k)
    files: dict[str, Any] = {
        "a": [[_tile(i, j, 0) for j in range(n_tiles)] for i in range(n_tiles)],
        "left": [[_left(i, k) for k in range(i)] for i in range(n_tiles)],
        "upper": [[_tile(k, j, k) for j in range(k, n_tiles)] for k in range(n_tiles)],
    }
    names = dict.fromkeys(name for rows in files.values() for row in rows for name in row)
    dag.call(
        RESIDUAL_TASK,
        tiles.residual,
        {**files, "seed": seed},
        inputs=list(names),
        after=[f"getrf-{n_tiles - 1}"],
        runtime_s=tiling.seconds(0.1),
    )
    return dag


def _add_step(dag: DagBuilder, tiling: Tiling, k: int) -> None:
    """Eliminate with the diagonal tile k."""
    n_bytes, below = tiling.n_bytes(), range(k + 1, tiling.n_tiles)
    diagonal, lu, piv = _tile(k, k, k), f"lu-{k}.npy", f"piv-{k}.npy"
    dag.call(
        f"getrf-{k}",
        tiles.factor,
        {"tile": diagonal, "lu": lu, "piv": piv},
        inputs=[diagonal],
        outputs={lu: n_bytes, piv: 0},
        runtime_s=tiling.seconds(2 / 3),
    )
    for i in below:
        tile = _tile(i, k, k)
        dag.call(
            f"trsm-{i}-{k}",
            tiles.left_factor,
            {"lu": lu, "piv": piv, "tile": tile, "into": _left(i, k)},
            inputs=[lu, piv, tile],
            outputs={_left(i, k): n_bytes},
            runtime_s=tiling.seconds(2),
        )
        for j in below:
            into, before, above = _tile(i, j, k + 1), _tile(i, j, k), _tile(k, j, k)
            dag.call(
                f"gemm-{i}-{j}-{k}",
                tiles.update,
                {"tile": before, "left": _left(i, k), "above": above, "into": into},
                inputs=[before, _left(i, k), above],
                outputs={into: n_bytes},
                runtime_s=tiling.seconds(2),
            )


def _tile(i: int, j: int, version: int) -> str:
    """A[i, j] after so many updates; that of version min(i, j) is U[i, j], where j >= i."""
    return f"a-{i}-{j}-{version}.npy"


def _left(i: int, k: int) -> str:
    return f"l-{i}-{k}.npy"
