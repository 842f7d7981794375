"""The compiled form of texture and colour against the definition: the same whole numbers, always."""

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays

from tests.examples import examples
from yarn_accel.operations import colour, compiled, features, lbp, pixels

LEVELS = st.integers(0, 255) | st.integers(98, 100)
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@pytest.fixture
def fresh_forms():
    features.forms.cache_clear()
    yield
    features.forms.cache_clear()


def compiled_patterns(grey):
    histogram = np.zeros(256, np.int64)
    compiled.add_patterns(grey, histogram)
    return histogram


def compiled_colours(image, bins):
    histogram = np.zeros(int(np.prod(bins)), np.int64)
    compiled.add_colours(image.reshape(-1), np.array(bins, np.float32), histogram)
    return histogram


@settings(max_examples=examples(100), deadline=None)
@given(numpy_arrays(np.uint8, SIZES, elements=LEVELS))
def test_patterns_of_any_image(grey):
    np.testing.assert_array_equal(compiled_patterns(grey), lbp.histogram_256(grey[None])[0])


@pytest.mark.parametrize("shape", [(1, 3000), (3000, 1), (700, 900), (2100, 40)])
def test_patterns_where_rounding_decides(shape):
    """Far from the origin the fractions are other numbers: the tie breaks differently, but equally here."""
    grey = np.random.default_rng(4).integers(0, 3, shape).astype(np.uint8)
    np.testing.assert_array_equal(compiled_patterns(grey), lbp.histogram_256(grey[None])[0])
    flat = np.full(shape, 200, np.uint8)
    np.testing.assert_array_equal(compiled_patterns(flat), lbp.histogram_256(flat[None])[0])


@pytest.mark.parametrize("bins", [(16, 4, 4), (256, 1, 16), (1, 256, 16), (7, 5, 100), (1, 1, 1)])
def test_every_colour_there_is(bins):
    """All 16,777,216 for the usual bins, every fourth red for the others: no quotient is left to chance."""
    step = 1 if bins == colour.DEFAULT_BINS else 4
    rest = np.stack(np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2, indexing="ij"), axis=-1)
    for red in range(0, 256, step):
        image = np.concatenate([np.full((256, 256, 1), red, np.uint8), rest], axis=-1)
        np.testing.assert_array_equal(
            compiled_colours(image, bins), colour.histogram_hsv(image[None], bins)[0]
        )


def test_grey_is_that_of_the_definition():
    image = np.random.default_rng(2).integers(0, 256, (300, 301, 3)).astype(np.uint8)
    out = np.empty(300 * 301, np.uint8)
    compiled.grey(image.reshape(-1), out)
    np.testing.assert_array_equal(out.reshape(300, 301), pixels.grey(image))


def test_both_forms_give_the_same_features():
    images = [np.random.default_rng(i).integers(0, 256, (64, 48, 3)).astype(np.uint8) for i in range(3)]
    fast, plain = features.compiled_forms(), features.numpy_forms()
    assert (fast.name, plain.name) == ("numba", "numpy")
    np.testing.assert_array_equal(fast.patterns(images), plain.patterns(images))
    for bins in itertools.product((1, 16), (3, 4), (4, 9)):
        np.testing.assert_array_equal(fast.colours(images, bins), plain.colours(images, bins))


def test_without_numba_numpy_takes_over_and_says_so(monkeypatch, fresh_forms):
    monkeypatch.delitem(sys.modules, "yarn_accel.operations.compiled")
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.warns(RuntimeWarning, match="computed by numpy: the same results"):
        assert features.forms().name == "numpy"
    assert features.forms().name == "numpy"


def test_numba_is_chosen_where_it_is_installed(fresh_forms):
    assert features.forms().name == "numba"


def test_without_a_place_for_a_cache_it_is_compiled_all_the_same(monkeypatch):
    """As in a zip archive, where numba finds no file to put machine code beside."""
    numba = compiled.numba
    plain = numba.njit

    def njit(function, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return plain(function, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled._compiled(lambda value: value + 1)(2) == 3
