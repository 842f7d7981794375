import numpy as np
import pytest

from tests.unit.operations.linear import general, positive_definite
from yarn_accel.errors import RejectedError
from yarn_accel.operations import soundness


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_that_overflows_is_no_infinity(dtype):
    soundness.reject_not_finite(np.full(100, np.finfo(dtype).max, dtype=dtype), "input 0")


@pytest.mark.parametrize(
    "array", [np.ones((0, 3)), np.ones(3)[::-1], np.ones((4, 4, 4))[:, ::2], np.arange(5)]
)
def test_any_layout_can_be_looked_at(array):
    soundness.reject_not_finite(array, "input 0")


def test_nan_in_a_view_without_contiguity_is_found():
    array = np.ones((4, 4))
    array[2, 2] = np.nan
    with pytest.raises(RejectedError, match=r"\[1, 1\]"):
        soundness.reject_not_finite(array[::2, ::2], "input 0")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [2, 5, 129, 300])
def test_every_single_difference_is_seen(n, order):
    matrix = positive_definite((n, n), order=order)
    allowed = n * np.finfo(float).eps * matrix.diagonal().max()
    for i, j in np.random.default_rng(0).integers(0, n, (40, 2)):
        if i == j:
            continue
        changed = matrix.copy(order="K")
        changed[i, j] += 8 * allowed
        with pytest.raises(RejectedError, match="differ"):
            soundness.reject_asymmetric(changed, "input 0")


def test_huge_symmetric_matrices_are_symmetric():
    matrix = np.full((200, 200), 1e308) + np.eye(200)
    soundness.reject_asymmetric(matrix, "input 0")


def test_all_positive_and_equal_numbers_need_no_second_look(monkeypatch):
    """Rounding in two long sums must not look like a difference, or every look would be a slow one."""
    matrix = np.abs(general((1000, 1000)))
    matrix = matrix + matrix.T

    def slow(*_):
        raise AssertionError("looked at each element")

    monkeypatch.setattr(soundness, "_compare_each", slow)
    soundness.reject_asymmetric(matrix, "input 0")
    soundness.reject_asymmetric(matrix.astype(np.float32), "input 0")
    gram = np.abs(general((1000, 50)))
    soundness.reject_asymmetric(gram @ gram.T / 2 + (gram @ gram.T).T / 2, "input 0")
