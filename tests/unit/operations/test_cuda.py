"""The CUDA forms: against the CPU's answers on a GPU, and everything but the GPU itself by emulation."""

import io
import itertools
import sys

import numpy as np
import pytest
from PIL import Image

from tests.unit.operations.linear import (
    Area,
    compare,
    compare_lu,
    general,
    lower_triangle,
    positive_definite,
)
from yarn_accel.errors import RejectedError, StartupError
from yarn_accel.operations import OPERATIONS, get


def test_without_cupy_the_message_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name, n_inputs in {"lu": 1, "qr": 1, "cholesky": 1, "gemm": 2, "solve": 3}.items():
        form = get(name).form("cuda")
        with pytest.raises(StartupError, match=r"CuPy cannot be imported.*pip install"):
            form([np.eye(3)] * n_inputs, {})


def test_every_named_form_exists():
    for operation in OPERATIONS.values():
        for kind in operation.forms:
            assert callable(operation.form(kind))
        for kind in operation.batch:
            assert callable(operation.batch_form(kind))
    assert get("kmeans").form("cuda") is None
    assert get("lu").batch_form("cpu") is None


STACKS = [(), (3,)]
SHAPES = [(30, 30), (40, 12), (12, 40), (75, 75), (600, 600)]
"""With 75 rows and columns of float64 nearly all shared memory that our QR may take is taken."""
CASES = [
    (name, (*stack, *shape), params)
    for name, all_params in {
        "lu": [{}, {"form": "separate"}],
        "qr": [{}, {"form": "packed"}],
        "cholesky": [{}, {"form": "packed"}],
    }.items()
    for stack, shape, params in itertools.product(STACKS, SHAPES, all_params)
    if (name != "cholesky" or shape[0] == shape[1]) and not (stack and shape[0] >= 75)
]
CASES = [
    # The same kernels as for the other large one.
    pytest.param(*case, marks=pytest.mark.slow) if case[1] == (600, 600) and case[2] else case
    for case in CASES
]
CASES += [("cholesky", (3, 20, 20), {"triangle": "lower"}), ("cholesky", (1, 1, 1), {"triangle": "lower"})]
CASES += [("lu", (n, 130, 130), {}) for n in (1, 2)] + [("cholesky", (n, 60, 60), {}) for n in (2, 3)]
"""One by one, and by one call."""
CASES += [("qr", (4, 100, 90), params) for params in ({}, {"form": "packed"})]
"""More shared memory than a block has without asking."""


@pytest.mark.parametrize(
    ("dtype", "order", "extra"),
    [
        ("<f8", "F", {}),
        ("<f8", "C", {}),
        ("<f4", "C", {"compute": "f64"}),
        ("<f8", "F", {"reply": "f32"}),
        ("<c16", "F", {}),
        ("<c8", "C", {"compute": "f64"}),
    ],
)
@pytest.mark.parametrize(("name", "shape", "params"), CASES)
def test_one_request(device, name, shape, params, dtype, order, extra):
    matrix = (positive_definite if name == "cholesky" else general)(shape, dtype, order)
    if "triangle" in params:
        matrix = lower_triangle(matrix)
    params = {**params, **extra}
    expected = get(name).run([matrix.copy(order="K")], params)
    found = get(name).form("cuda")([matrix.copy(order="K")], params, Area().place)
    if name == "lu" and matrix.dtype.kind == "c":
        compare_lu(found, expected, matrix)
    else:
        compare(found, expected, dtype)


@pytest.mark.parametrize("name", ["lu", "qr", "cholesky"])
def test_a_batch_keeps_its_order_and_its_errors_apart(device, name):
    shapes = [(8, 8), (8, 8), (5, 5), (8, 8), (700, 700), (8, 8), (3, 8, 8)]
    matrices = [
        positive_definite(shape, order="C" if len(shape) == 3 else "F", seed=i)
        for i, shape in enumerate(shapes)
    ]
    matrices[1][2, 3] = np.nan
    untouched = matrices[1].copy(order="K")
    expected = []
    for matrix in matrices:
        try:
            expected.append(get(name).run([matrix.copy(order="K")], {}))
        except RejectedError as error:
            expected.append(error)
    items = [([matrix], {}, Area().place) for matrix in matrices]
    for number, (found, answer) in enumerate(zip(get(name).batch_form("cuda")(items), expected, strict=True)):
        if number == 1:
            assert (found.code, found.message) == (answer.code, answer.message)
        else:
            compare(found, answer, "<f8")
    np.testing.assert_array_equal(matrices[1], untouched)


def test_the_reasons_of_cholesky_are_those_of_the_cpu(device):
    stack = positive_definite((4, 9, 9), order="C")
    stack[2, 4, 4] = -1.0
    with pytest.raises(RejectedError, match="item 2: the leading minor of order 5 of 9") as caught:
        get("cholesky").form("cuda")([stack], {})
    assert caught.value.code == "not-positive-definite"
    with pytest.raises(RejectedError, match=r"^the leading minor of order 5 of 9"):
        get("cholesky").form("cuda")([np.asfortranarray(stack[2])], {})
    stack[1, 0, 5] += 1.0
    with pytest.raises(RejectedError, match=r"item 1: input 0: \[5, 0\] and \[0, 5\] differ"):
        get("cholesky").form("cuda")([stack], {})


@pytest.mark.parametrize("name", ["lbp", "colour", "features"])
def test_images(device, name):
    images = []
    for seed, size in enumerate([(20, 30), (20, 30), (7, 5), (1, 1)]):
        stream = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(stream, "PNG")
        images.append(stream.getvalue())
    images.insert(2, b"no image")
    blob = np.frombuffer(b"".join(images), np.uint8)
    lengths = np.array([len(image) for image in images], np.int64)
    expected = get(name).run([blob, lengths], {})
    found = get(name).form("cuda")([blob, lengths], {}, Area().place)
    np.testing.assert_array_equal(found.arrays["features"], expected.arrays["features"])
    assert found.info == expected.info
