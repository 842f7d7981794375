"""Nearest neighbours and a pass of K-means: exact on the CPU, the same on a GPU."""

import numpy as np
import pytest

from yarn_accel.errors import RejectedError
from yarn_accel.operations import cuda_neighbours, get
from yarn_accel.operations.neighbours import majority
from yarn_accel.wire import TensorSpec


def points(n, d, seed=0, dtype="<f8"):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def brute(given, references, k):
    """Straight from the definition."""
    distances = np.sqrt(((given[:, None, :].astype(float) - references[None, :, :]) ** 2).sum(axis=2))
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(distances, order, axis=1)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize(("n", "m", "d", "k"), [(30, 50, 4, 5), (1, 1, 1, 1), (7, 6, 3, 6)])
def test_neighbours_are_those_of_the_definition(n, m, d, k, dtype):
    given, references = points(n, d, 1, dtype), points(m, d, 2, dtype)
    order, distances = brute(given, references, k)
    found = get("knn").run([given, references], {"k": k}).arrays
    np.testing.assert_array_equal(found["neighbours"], order)
    np.testing.assert_allclose(found["distances"], distances, atol=1e-6)
    assert found["neighbours"].dtype == np.int32


def test_of_equally_near_ones_the_first_counts_and_labels_are_a_majority():
    references = np.array([[0.0], [1.0], [1.0], [1.0], [5.0]])
    labels = np.array([7, 3, 2, 3, 9], dtype=np.int64)
    found = get("knn").run([np.array([[1.0], [4.9]]), references, labels], {"k": 3}).arrays
    assert found["neighbours"].tolist() == [[1, 2, 3], [4, 1, 2]]
    assert found["labels"].tolist() == [3, 2]
    assert majority(np.array([[1, 2, 2, 1], [5, 5, 4, 6]])).tolist() == [1, 5]


@pytest.mark.parametrize(
    ("shapes", "params", "code"),
    [
        ([(3, 2)], {}, "wrong-inputs"),
        ([(3, 2), (4, 3)], {}, "wrong-shape"),
        ([(3, 2), (4, 2)], {}, "bad-parameter"),
        ([(3, 2), (4, 2)], {"k": 5}, "bad-parameter"),
        ([(3, 2), (4, 2)], {"n": 1}, "bad-parameter"),
        ([(3,), (4, 2)], {"k": 1}, "wrong-shape"),
    ],
)
def test_bad_inputs_are_refused(shapes, params, code):
    with pytest.raises(RejectedError) as caught:
        get("knn").check([TensorSpec("<f8", shape) for shape in shapes], params)
    assert caught.value.code == code


def test_labels_are_whole_numbers_one_for_each_reference_point():
    two = [TensorSpec("<f8", (3, 2)), TensorSpec("<f8", (9, 2))]
    knn = get("knn")
    for spec, code in ((TensorSpec("<f8", (9,)), "wrong-dtype"), (TensorSpec("<i4", (8,)), "wrong-shape")):
        with pytest.raises(RejectedError) as caught:
            knn.check(knn.computed_specs([*two, spec], {}), {})
        assert caught.value.code == code
    knn.check(knn.computed_specs([*two, TensorSpec("|u1", (9,))], {}), {})


def test_what_is_not_finite_is_refused():
    bad = points(4, 2)
    bad[2, 1] = np.nan
    for arrays in ([bad, points(9, 2)], [points(4, 2), bad]):
        with pytest.raises(RejectedError, match="nan at index"):
            get("knn").run(arrays, {"k": 2})


@pytest.mark.parametrize("block_bytes", [1, 700, 256 << 20])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_a_gpu_finds_the_same_neighbours(device, monkeypatch, dtype, block_bytes):
    monkeypatch.setattr(cuda_neighbours, "_BLOCK_BYTES", block_bytes)
    arrays = [points(23, 3, 1, dtype), points(40, 3, 2, dtype), np.arange(40) % 4]
    expected = get("knn").run(arrays, {"k": 6}).arrays
    found = get("knn").form("cuda")(arrays, {"k": 6}).arrays
    np.testing.assert_array_equal(found["neighbours"], expected["neighbours"])
    np.testing.assert_allclose(found["distances"], expected["distances"], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found["labels"], expected["labels"])
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in expected.items()
    }


@pytest.mark.parametrize("block_bytes", [1, 700, 256 << 20])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_a_gpu_makes_the_same_pass_of_kmeans(device, monkeypatch, dtype, block_bytes):
    monkeypatch.setattr(cuda_neighbours, "_BLOCK_BYTES", block_bytes)
    arrays = [points(60, 4, 1, dtype), np.vstack([points(5, 4, 2, dtype), np.full((1, 4), 99, dtype)])]
    expected, found = get("kmeans_step").run(arrays, {}), get("kmeans_step").form("cuda")(arrays, {})
    assert list(found.arrays) == list(expected.arrays)
    for name, array in expected.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_allclose(found.arrays[name], array, rtol=1e-9, atol=1e-9)
    assert found.info["inertia"] == pytest.approx(expected.info["inertia"])
    assert found.info["n"] == 60
    assert expected.arrays["counts"][5] == 0


def test_a_gpu_refuses_what_is_not_finite(device):
    bad = points(4, 2)
    bad[0, 0] = np.inf
    for name, params in (("knn", {"k": 1}), ("kmeans_step", {})):
        with pytest.raises(RejectedError, match="input 1"):
            get(name).form("cuda")([points(4, 2), bad], params)
