import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from jobs.images.make_input import PatchPlan, patches
from tests.examples import examples
from yarn_accel.errors import RejectedError
from yarn_accel.operations import get
from yarn_accel.operations import kmeans as module


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


def test_separate_blobs_are_found():
    points = blobs()
    reference = KMeans(4, n_init=10, random_state=0).fit(points)
    outcome = run("kmeans", points, k=4)
    assert outcome.info["inertia"] == pytest.approx(reference.inertia_)
    pairs = set(zip(outcome.arrays["labels"].tolist(), reference.labels_.tolist(), strict=True))
    assert len(pairs) == 4


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
