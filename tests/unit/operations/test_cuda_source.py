"""The text of the CUDA kernels, emulated on the CPU: by a C++ compiler, with a fiber for each thread."""

import numpy as np
import pytest

from tests.unit.operations.emulation import COMPILER, build, launch
from tests.unit.operations.linear import LIMIT, general, householder_q, norm, positive_definite, ratio
from yarn_accel.operations import cuda_images, cuda_source, features, pixels

IMAGE_THREADS, QR_THREADS = cuda_images._THREADS, cuda_source.HOUSEHOLDER_THREADS
emulated = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")


@emulated
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (40, 33), (64, 64)])
def test_image_kernels_give_the_histograms_of_the_definition(shape):
    library = build(cuda_source.IMAGES)
    generator = np.random.default_rng(1)
    coloured = generator.integers(0, 256, (2, *shape, 3))
    many_ties = np.repeat(generator.integers(0, 3, (2, *shape, 1)), 3, axis=3)
    images = np.concatenate([coloured, many_ties]).astype(np.uint8)
    shades = np.empty(images.shape[:3], np.uint8)
    launch(library, "grey", (3, 1), IMAGE_THREADS, images, np.int64(shades.size), shades)
    np.testing.assert_array_equal(shades, pixels.grey(images))
    histogram = np.zeros((4, 256), np.uint64)
    launch(library, "patterns", (3, 4), IMAGE_THREADS, shades, *shape, histogram)
    np.testing.assert_array_equal(histogram, features.histogram_256(shades))
    for bins in ((16, 4, 4), (7, 5, 100), (1, 1, 1)):
        histogram = np.zeros((4, int(np.prod(bins))), np.uint64)
        n_pixels = np.int64(shape[0] * shape[1])
        launch(library, "colours", (2, 4), IMAGE_THREADS, images, n_pixels, *bins, histogram)
        np.testing.assert_array_equal(histogram, features.histogram_hsv(images, bins))


@emulated
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (32, 32), (40, 12), (12, 40)])
def test_the_householder_kernel_is_a_qr_factorization(shape, dtype):
    library = build(cuda_source.HOUSEHOLDER, "-DREAL=" + {"<f4": "float", "<f8": "double"}[dtype])
    (m, n), k = shape, min(shape)
    matrices = general((4, m, n), dtype, "C")
    matrices[1, :, 0] = 0.0
    matrices[2] *= 1e18
    # Denormal: the factors are as exact as LAPACK's, R has the few digits that such numbers have.
    matrices[3] *= {"<f4": 1e-40, "<f8": 1e-315}[dtype]
    columns = np.ascontiguousarray(matrices.transpose(0, 2, 1))
    scalars = np.empty((4, k), dtype)
    shared = n * (m | 1) * matrices.itemsize
    launch(library, "factor", (4, 1), QR_THREADS, columns, scalars, m, n, shared=shared)
    reflectors = columns[:, :k].copy()
    launch(library, "write_out", (4, 1), QR_THREADS, reflectors, scalars, m, k, shared=shared)
    for item, packed, tau, q in zip(
        matrices, columns.transpose(0, 2, 1), scalars, reflectors.transpose(0, 2, 1), strict=True
    ):
        exact, q = item.astype(np.float64), q.astype(np.float64)
        r = np.triu(packed[:k]).astype(np.float64)
        spacing = 4 * np.finfo(dtype).smallest_subnormal * m
        error = np.maximum(np.abs(exact - q @ r) - spacing, 0)
        assert ratio(error, norm(exact), m, dtype) < LIMIT
        assert ratio(q.T @ q - np.eye(k), 1.0, m, dtype) < LIMIT
        assert ratio(householder_q(packed, tau) - q, 1.0, m, dtype) < LIMIT


@emulated
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<c8", "<c16"])
@pytest.mark.parametrize("n_blocks", [1, 3])
def test_the_soundness_kernel_marks_what_the_definition_does(dtype, n_blocks):
    is_complex = dtype[1] == "c"
    size = int(dtype[2:]) // (1 + is_complex)
    library = build(cuda_source.MATRICES, "-DREAL=" + {4: "float", 8: "double"}[size])
    order, eps = 37, float(np.finfo(dtype).eps)
    stack = positive_definite((9, order, order), dtype, "C")
    largest = np.abs(np.diagonal(stack, axis1=1, axis2=2)).max(axis=1)
    stack[1, 0, 36], stack[2, 36, 36], stack[3, 20, 4] = np.nan, np.inf, -np.inf
    stack[4, 30, 2] += 4 * order * eps * largest[4]
    stack[5, 2, 30] += 0.2 * order * eps * largest[5]
    if is_complex:
        stack[6, 5, 5] += 4j * order * eps * largest[6]
        stack[7] = stack[7].conj()
        stack[8] += np.triu(np.full((order, order), 1j, dtype), 1)
    with np.errstate(invalid="ignore"):
        difference = np.abs(stack - stack.transpose(0, 2, 1).conj()).max(axis=(1, 2))
    is_finite = np.isfinite(stack).reshape(9, -1).all(axis=1)
    for asked, expected in ((0, ~is_finite), (order, ~(difference <= order * eps * largest))):
        marks = np.zeros(9, np.int32)
        numbers = np.int64(order**2), 1 + is_complex, asked, np.float64(order * eps)
        launch(library, "mark_unsound", (9, n_blocks), cuda_source.MATRICES_THREADS, stack, *numbers, marks)
        np.testing.assert_array_equal(marks, expected)
    columns = stack[4:].copy()
    launch(library, "clear_upper", (5, n_blocks), cuda_source.MATRICES_THREADS, columns, *numbers[:2], order)
    np.testing.assert_array_equal(columns, np.triu(stack[4:]))
    assert expected.tolist() == [False, *[True] * 4, False, is_complex, False, is_complex]


def test_the_householder_kernel_has_shared_memory_enough():
    """What is declared and what is asked for at the launch add up to the 48 KiB that every GPU gives."""
    declared = 8 * cuda_source.HOUSEHOLDER_THREADS
    assert f"REAL parts[{cuda_source.HOUSEHOLDER_THREADS}];" in cuda_source.HOUSEHOLDER
    assert cuda_source.HOUSEHOLDER_SHARED_BYTES + declared <= 48 << 10
    assert declared == cuda_source.HOUSEHOLDER_OWN_BYTES
