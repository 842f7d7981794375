"""A blocked LU in this process; the factors are put together and compared with numpy's product."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from jobs.lu_blocks import tiles
from jobs.lu_blocks.cli import lu_blocks
from jobs.lu_blocks.dag import RESIDUAL_TASK, Tiling, lu_dag, made_matrix, store_tiles
from yarn_accel.errors import ConfigError, JobError
from yarn_accel.storage import Store


def run(folder, matrix, side):
    """The DAG of a matrix in this process; what its last task returns."""
    tiling, uri = Tiling(len(matrix), side), folder.as_uri()
    store_tiles(Store(), f"{uri}/tiles", matrix, tiling)
    dag = lu_dag(tiling, f"{uri}/tiles", f"{uri}/factors", environment={"ACCEL_RUNNER": "inline"})
    return dag.run_inline()[RESIDUAL_TASK]


@pytest.mark.parametrize(("n", "side"), [(24, 8), (21, 8), (8, 8)])
def test_factors_make_the_matrix_again(tmp_path, n, side):
    matrix = made_matrix(n, 1)
    found = run(tmp_path, matrix, side)
    tiling = Tiling(n, side)
    left, upper = np.eye(n), np.zeros((n, n))
    for k in range(tiling.n_tiles):
        for i in range(k + 1, tiling.n_tiles):
            left[tiling.part(i), tiling.part(k)] = np.load(
                tmp_path / "factors" / f"trsm-{i}-{k}" / f"l-{i}-{k}.npy"
            )
        for j in range(k, tiling.n_tiles):
            place = f"factors/gemm-{k}-{j}-{k - 1}" if k else "tiles"
            upper[tiling.part(k), tiling.part(j)] = np.load(tmp_path / place / f"a-{k}-{j}-{k}.npy")
    np.testing.assert_allclose(left @ upper, matrix, rtol=1e-12, atol=1e-10)
    assert found["n"] == n
    assert found["residual"] < 1


def test_a_wrong_factor_is_seen(tmp_path):
    matrix = made_matrix(16, 1)
    run(tmp_path, matrix, 8)
    place = tmp_path / "factors" / "trsm-1-0" / "l-1-0.npy"
    np.save(place, np.load(place) + 1e-6)
    folders = (tmp_path / "tiles").iterdir(), (tmp_path / "factors").glob("*/*.npy")
    where = {path.name: str(path) for paths in folders for path in paths}
    found = tiles.residual(
        [[where[f"a-{i}-{j}-0.npy"] for j in range(2)] for i in range(2)],
        [[], [where["l-1-0.npy"]]],
        [[where["a-0-0-0.npy"], where["a-0-1-0.npy"]], [where["a-1-1-1.npy"]]],
        0,
    )
    assert found["residual"] > tiles.LIMIT


def test_a_singular_tile_fails_its_task(tmp_path):
    matrix = np.eye(4)[::-1].copy()
    with pytest.raises(JobError, match=r"getrf-0: ValueError: a-0-0-0\.npy: singular"):
        run(tmp_path, matrix, 2)


def test_sizes():
    with pytest.raises(ConfigError, match="17 tiles along a side; 16 are taken: --tile 11"):
        Tiling(170, 10)
    with pytest.raises(ConfigError, match="tiles of 5 in a matrix of order 4"):
        Tiling(4, 5)


def test_the_command(tmp_path):
    done = CliRunner().invoke(lu_blocks, ["--n", "32", "--tile", "16", "--home", tmp_path.as_uri()])
    assert done.exit_code == 0, done.output
    assert "2 x 2" in done.output
    assert (tmp_path / "factors" / "gemm-1-1-0" / "a-1-1-1.npy").exists()


def test_a_matrix_that_is_not_square(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    done = CliRunner().invoke(lu_blocks, [str(tmp_path / "a.npy")])
    assert isinstance(done.exception, ConfigError)
