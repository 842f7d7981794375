"""K-means and nearest neighbours: exact on the CPU, the same on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from jobs.images.make_input import PatchPlan, patches
from tests.examples import examples
from tests.fixtures.refusals import refused
from yarn_accel.errors import RejectedError
from yarn_accel.operations import cuda_distances, get
from yarn_accel.operations import distances as module
from yarn_accel.operations.distances import majority
from yarn_accel.wire import TensorSpec


def run(name, *arrays, **params):
    return get(name).run(list(arrays), params)


def blobs(n=300, d=5, k=4, seed=0, dtype=np.float64):
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((k, d)) * 10
    return (centres[generator.integers(0, k, n)] + generator.standard_normal((n, d))).astype(dtype)


@pytest.fixture(scope="module")
def image_features():
    encoded = [image for _, image in patches(PatchPlan(320))]
    blob = np.frombuffer(b"".join(encoded), np.uint8)
    lengths = np.array([len(image) for image in encoded], np.int64)
    return run("features", blob, lengths, root=True).arrays["features"]


@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize("seed", [0, 1])
def test_inertia_is_within_two_percent_of_scikit_learn_on_image_features(image_features, k, seed):
    reference = KMeans(k, n_init=10, random_state=0).fit(image_features)
    assert run("kmeans", image_features, k=k, seed=seed).info["inertia"] <= 1.02 * reference.inertia_


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 60), st.integers(1, 6), st.data())
def test_what_comes_back_is_consistent(n, d, data):
    k = data.draw(st.integers(1, n))
    values = st.integers(-3, 3) | st.floats(-1e3, 1e3)
    points = np.array(data.draw(st.lists(values, min_size=n * d, max_size=n * d)), dtype=float).reshape(n, d)
    outcome = run("kmeans", points, k=k, restarts=2, seed=data.draw(st.integers(0, 99)))
    labels, centroids = outcome.arrays["labels"], outcome.arrays["centroids"]
    assert (labels.dtype, centroids.dtype, centroids.shape) == (np.int32, np.float64, (k, d))
    squares = ((points[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2)
    scale = 1e-9 * (1 + (points**2).sum(axis=1).max())
    np.testing.assert_allclose(squares[np.arange(n), labels], squares.min(axis=1), atol=scale)
    assert outcome.info["inertia"] == pytest.approx(squares.min(axis=1).sum(), abs=n * scale)


def test_equal_requests_have_equal_answers_and_seeds_differ():
    points = np.random.default_rng(3).standard_normal((500, 4))
    first, again = (run("kmeans", points, k=20, seed=5, restarts=1) for _ in range(2))
    np.testing.assert_array_equal(first.arrays["labels"], again.arrays["labels"])
    other = run("kmeans", points, k=20, seed=6, restarts=1)
    assert not np.array_equal(first.arrays["labels"], other.arrays["labels"])


def test_blocks_change_nothing(monkeypatch):
    points = blobs(n=500, dtype=np.float32)
    whole = run("kmeans", points, k=6)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 4000)
    pieces = run("kmeans", points, k=6)
    np.testing.assert_array_equal(whole.arrays["labels"], pieces.arrays["labels"])
    np.testing.assert_allclose(whole.arrays["centroids"], pieces.arrays["centroids"], rtol=1e-12)


def test_a_cluster_for_each_point_and_points_that_coincide():
    points = np.arange(12.0).reshape(6, 2)
    assert run("kmeans", points, k=6).info["inertia"] == 0.0
    same = np.ones((10, 3))
    outcome = run("kmeans", same, k=4)
    assert outcome.info["inertia"] == 0.0
    np.testing.assert_array_equal(outcome.arrays["centroids"], np.ones((4, 3)))


def test_an_empty_cluster_restarts_at_the_farthest_point():
    points = np.array([[0.0], [1.0], [10.0]])
    centroids = np.array([[0.5], [1000.0]])
    step = module._pass(points, module.squared_norms(points), centroids)
    np.testing.assert_array_equal(module._next_centroids(points, step), [[0.5], [10.0]])


def test_steps_over_parts_add_up_to_one_over_all():
    points = blobs(dtype=np.float32)
    centroids = run("kmeans_seed", points, k=7, seed=1).arrays["centroids"]
    whole = run("kmeans_step", points, centroids).arrays
    parts = [run("kmeans_step", part, centroids).arrays for part in np.array_split(points, 5)]
    np.testing.assert_array_equal(np.concatenate([part["labels"] for part in parts]), whole["labels"])
    np.testing.assert_array_equal(sum(part["counts"] for part in parts), whole["counts"])
    for name in ("sums", "inertias"):
        np.testing.assert_allclose(sum(part[name] for part in parts), whole[name], rtol=1e-9)
    nearest = ((points[:, None, :] - centroids[None]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(whole["labels"], nearest)


def test_the_start_is_made_of_points():
    points = blobs()
    start = run("kmeans_seed", points, k=5, seed=9).arrays["centroids"]
    assert {tuple(row) for row in start} <= {tuple(row) for row in points}


@pytest.mark.parametrize("name", ["kmeans", "kmeans_seed", "kmeans_step"])
def test_nan_names_its_index(name):
    points = blobs()
    points[17, 3] = np.nan
    arrays = [points] if name != "kmeans_step" else [blobs(), points[:20]]
    params = {} if name == "kmeans_step" else {"k": 2}
    with pytest.raises(RejectedError, match=r"nan at index \[17, 3\]"):
        run(name, *arrays, **params)


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
    with refused(code):
        get("knn").check([TensorSpec("<f8", shape) for shape in shapes], params)


def test_labels_are_whole_numbers_one_for_each_reference_point():
    two = [TensorSpec("<f8", (3, 2)), TensorSpec("<f8", (9, 2))]
    knn = get("knn")
    for spec, code in ((TensorSpec("<f8", (9,)), "wrong-dtype"), (TensorSpec("<i4", (8,)), "wrong-shape")):
        with refused(code):
            knn.check(knn.computed_specs([*two, spec], {}), {})
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
    monkeypatch.setattr(cuda_distances, "_BLOCK_BYTES", block_bytes)
    arrays = [points(23, 3, 1, dtype), points(40, 3, 2, dtype), np.arange(40) % 4]
    expected = get("knn").run(arrays, {"k": 6}).arrays
    found = get("knn").form("cuda")(arrays, {"k": 6}).arrays
    np.testing.assert_array_equal(found["neighbours"], expected["neighbours"])
    np.testing.assert_allclose(found["distances"], expected["distances"], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found["labels"], expected["labels"])
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in expected.items()
    }


@pytest.mark.parametrize("k", [1, 3, 47, 96, 97, 300])
def test_a_gpu_finds_many_neighbours_and_the_first_of_equal_ones(device, k):
    arrays = [np.arange(3.0)[:, None], np.random.default_rng(1).integers(0, 9, (300, 1)).astype(float)]
    expected, found = (get("knn").form(form)(arrays, {"k": k}).arrays for form in ("cpu", "cuda"))
    np.testing.assert_array_equal(found["neighbours"], expected["neighbours"])
    np.testing.assert_array_equal(found["distances"], expected["distances"])


def test_a_gpu_reads_distances_once_for_many_neighbours(device, monkeypatch):
    launched = []
    kernels = cuda_distances._kernels

    class Counted:
        def get_function(self, name):
            function = kernels().get_function(name)
            return lambda *args, **options: (launched.append(name), function(*args, **options))

    monkeypatch.setattr(cuda_distances, "_kernels", Counted)
    monkeypatch.setattr(cuda_distances, "_nearest", None)
    get("knn").form("cuda")([points(9, 2), points(90, 2)], {"k": 50})
    assert launched == ["nearest"]


@pytest.mark.parametrize("block_bytes", [1, 700, 256 << 20])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_a_gpu_makes_the_same_pass_of_kmeans(device, monkeypatch, dtype, block_bytes):
    monkeypatch.setattr(cuda_distances, "_BLOCK_BYTES", block_bytes)
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
    for name in ("kmeans", "kmeans_seed"):
        with pytest.raises(RejectedError, match="input 0"):
            get(name).form("cuda")([bad], {"k": 2})


LARGE = np.array([[1e200, 0.0], [-1e200, 1e200], [1.0, 2.0], [1.7e308, 0.0]])
"""Of which no square is a float64."""


@pytest.mark.parametrize("form", ["cpu", "cuda"])
def test_neighbours_of_points_whose_squares_overflow(device, form):
    references = np.array([[-1e200, 0.0], [1e200, 0.0], [1.0, 1.0], [1.0, 2.5]])
    found = get("knn").form(form)([LARGE, references], {"k": 4}).arrays
    assert found["neighbours"].tolist() == [[1, 2, 3, 0], [0, 2, 3, 1], [3, 2, 0, 1], [0, 1, 2, 3]]
    expected = [
        [0, 1e200, 1e200, 2e200],
        [1e200, 2**0.5 * 1e200, 2**0.5 * 1e200, 5**0.5 * 1e200],
        [0.5, 1, 1e200, 1e200],
        [1.7e308] * 4,
    ]
    np.testing.assert_allclose(found["distances"], expected, rtol=1e-15)
    beyond = get("knn").form(form)([LARGE[3:], -LARGE[3:]], {"k": 1}).arrays
    assert beyond["distances"].tolist() == [[np.inf]]


@pytest.mark.parametrize("form", ["cpu", "cuda"])
def test_a_pass_over_points_whose_squares_overflow(device, form):
    centroids = np.array([[1.0, 2.0], [-1e200, 1e200], [1e200, 1e100]])
    found = get("kmeans_step").form(form)([LARGE[:3], centroids], {})
    assert found.arrays["labels"].tolist() == [2, 1, 0]
    np.testing.assert_allclose(found.arrays["inertias"], [0, 0, 1e200], rtol=1e-15)
    with refused("overflow", match="beyond float64"):
        get("kmeans_step").form(form)([LARGE[:1], centroids[:2]], {})


@pytest.mark.parametrize("form", ["cpu", "cuda"])
@pytest.mark.parametrize("unit", [2.0**600, 2.0**1010])
def test_clusters_of_points_whose_squares_overflow(device, form, unit):
    small = blobs()
    start = get("kmeans_seed").form(form)([small * unit], {"k": 4}).arrays["centroids"]
    np.testing.assert_array_equal(start, run("kmeans_seed", small, k=4).arrays["centroids"] * unit)
    with refused("overflow"):
        get("kmeans").form(form)([small * unit], {"k": 4})
    # Whole numbers, so that no square is rounded.
    few = np.array([[0.0, 9.0], [4.0, 1.0], [-8.0, 2.0]])
    outcome = get("kmeans").form(form)([np.repeat(few, 2, axis=0) * unit], {"k": 3})
    assert sorted(outcome.arrays["centroids"].tolist()) == sorted((few * unit).tolist())
    assert outcome.info["inertia"] == 0.0


@pytest.mark.parametrize("block_bytes", [700, 256 << 20])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_a_gpu_finds_the_same_clusters(device, monkeypatch, dtype, block_bytes):
    monkeypatch.setattr(cuda_distances, "_BLOCK_BYTES", block_bytes)
    given = [blobs(dtype=dtype)]
    for name, params in (
        ("kmeans", {"k": 7, "seed": 3, "restarts": 3}),
        ("kmeans_seed", {"k": 7, "seed": 3}),
    ):
        expected, found = get(name).run(given, params), get(name).form("cuda")(given, params)
        assert list(found.arrays) == list(expected.arrays)
        for key, array in expected.arrays.items():
            assert found.arrays[key].dtype == array.dtype
            np.testing.assert_allclose(found.arrays[key], array, rtol=1e-9, atol=1e-9)
        assert found.info == pytest.approx(expected.info)


def test_a_gpu_fills_clusters_that_are_empty(device):
    some = np.array([[0.0], [0.0], [0.0], [8.0]])
    expected, found = (get("kmeans").form(form)([some], {"k": 4}) for form in ("cpu", "cuda"))
    assert sorted(expected.arrays["centroids"].tolist()) == [[0.0], [0.0], [0.0], [8.0]]
    assert found.arrays["centroids"].tolist() == expected.arrays["centroids"].tolist()
    assert found.info == expected.info


@pytest.mark.parametrize("form", ["cpu", "cuda"])
def test_a_sum_of_squares_that_overflows_is_refused(device, form):
    far = np.full((40, 1), 2.0**509)
    with refused("overflow", match="beyond float64"):
        get("kmeans_step").form(form)([far, -far[:1]], {})
