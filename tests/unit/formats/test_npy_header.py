"""Our reader takes and refuses the headers that ``numpy.load(allow_pickle=False)`` does; values are equal.

On purpose we refuse, where numpy does not: element types that are no plain numbers, records and subarrays,
more than 8 axes, and bytes behind the end.
"""

import io
import math
import tokenize
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.refusals import refused
from yarn_accel.errors import RejectedError
from yarn_accel.formats import BytesInMemory, describe, load
from yarn_accel.wire import ITEM_BYTES

LENGTH = {1: 2, 2: 4, 3: 4}


def npy(header_text, content=b"", version=(1, 0), encoding="latin-1"):
    header = header_text.encode(encoding)
    n_bytes = len(header).to_bytes(LENGTH.get(version[0], 2), "little")
    return b"\x93NUMPY" + bytes(version) + n_bytes + header + content


def ours(content, uri="x.npy"):
    """The array, or None where it is refused."""
    source = BytesInMemory(content)
    try:
        (found,) = describe(source, uri)
    except RejectedError as error:
        assert error.code in ("bad-npy", "bad-npz")
        return None
    memory = np.zeros(found.spec.nbytes, np.uint8)
    load(found, source, memory.data)
    return memory.view(found.spec.dtype).reshape(found.spec.shape, order=found.spec.order)


def numpys(content):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, TypeError, SyntaxError, EOFError, OverflowError, MemoryError, tokenize.TokenError):
        return None


def assert_alike(content):
    expected, found = numpys(content), ours(content)
    assert (expected is None) == (found is None)
    if expected is not None:
        assert found.dtype == expected.dtype.newbyteorder("<")
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


def fields(descr="'<f8'", order="False", shape="(2, 3)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


KINDS = sorted({name[1:] for name in ITEM_BYTES})
LETTERS = list("?bBhHiIlLqQpPefdFD")
NAMES = [
    "bool",
    "int8",
    "uint16",
    "int32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "double",
    "int",
]
DESCRIPTIONS = st.one_of(
    st.tuples(st.sampled_from(["", *"<>=|"]), st.sampled_from(KINDS + LETTERS)).map("".join),
    st.sampled_from(
        [
            *NAMES,
            "int",
            "<float64",
            "f08",
            "f3",
            "f4f4",
            "Float64",
            " f8",
            "f8 ",
            "",
            "<",
            "x",
            "i16",
            "B1",
            "\xe9",
        ]
    ),
)
# Each with the number of elements that its writer may have meant.
SIZES = st.one_of(
    st.integers(-2, 4).map(lambda n: (str(n), abs(n))),
    st.sampled_from(
        [
            *[("3L", 3), ("2 L", 2), ("0L", 0), ("2LL", 2), ("0x2L", 2), ("2l", 2)],
            *[("True", 1), ("1.0", 1), ("'2'", 2), ("None", 1)],
        ]
    ),
)
SHAPES = st.one_of(
    st.lists(SIZES, max_size=4).map(
        lambda sizes: (
            "(" + "".join(name + ", " for name, _ in sizes) + ")",
            math.prod(size for _, size in sizes),
        )
    ),
    st.sampled_from(["[2, 3]", "6", "(6L)", "None", "(2 3)", "(2,3,)", "( 2 , 3 )", "(6e0,)"]).map(
        lambda shape: (shape, 6)
    ),
)
NUMPYS = "{{'descr': {d}, 'fortran_order': {o}, 'shape': {s}, }}"
LAYOUTS = st.sampled_from(
    [NUMPYS] * 6
    + [
        "{{'shape': {s}, 'descr': {d}, 'fortran_order': {o}}}",
        "{{u'descr': u{d}, u'fortran_order': {o}, u'shape': {s}}}",
        "  {{'descr': {d}, 'fortran_order': {o}, 'shape': {s}}}   \n",
        "\t{{'descr': {d}, 'fortran_order': {o}, 'shape': {s}}}\n\n\n",
        "\n {{'descr': {d}, 'fortran_order': {o}, 'shape': {s}}}",
        "{{'descr': {d},\n 'fortran_order': {o},\n 'shape': {s}}}",
        "{{'descr': {d}, 'fortran_order': {o}, 'shape': {s}}} # \xe9\n",
        "{{'descr': {d}, 'fortran_order': {o}, 'shape': {s}, 'more': 1}}",
        "{{'descr': {d}, 'fortran_order': {o}, 'shape': {s}, '\xe9': 1}}",
        "{{'descr': {d}, 'fortran_order': {o}}}",
        "{{b'descr': {d}, 'fortran_order': {o}, 'shape': {s}}}",
        "{{'descr': b{d}, 'fortran_order': {o}, 'shape': {s}}}",
        "{{'descr': '<f4', 'descr': {d}, 'fortran_order': {o}, 'shape': {s}}}",
        "[{d}, {o}, {s}]",
        "{{'descr': {d}, 'fortran_order': {o}, 'shape': {s}",
    ]
)


@settings(max_examples=examples(2000), deadline=None)
@given(
    layout=LAYOUTS,
    descr=DESCRIPTIONS,
    order=st.sampled_from(["False", "True"] * 4 + ["0", "None", "'C'"]),
    shape=SHAPES,
    version=st.sampled_from([(1, 0), (2, 0), (3, 0)] * 4 + [(1, 1), (0, 0), (4, 0), (3, 1)]),
    n_padding=st.sampled_from([0, 1, 63, 9_000, 11_000]),
    seed=st.integers(0, 99),
)
@example(NUMPYS, ">i2", "True", ("(3L, 4L)", 12), (1, 0), 0, 1)
@example(NUMPYS, "<u1", "False", ("(2, 2)", 4), (1, 0), 0, 1)
@example(NUMPYS, "=f8", "False", ("(2, 2)", 4), (3, 0), 0, 1)
def test_it_takes_and_refuses_what_numpy_does(layout, descr, order, shape, version, n_padding, seed):
    text, n_elements = shape
    header = layout.format(d=repr(descr), o=order, s=text) + " " * n_padding + "\n"
    encoding = "utf-8" if version[0] == 3 else "latin-1"
    try:
        n_bytes = n_elements * np.dtype(descr).itemsize
    except TypeError:
        n_bytes = 48
    # Bytes that are 0 or 1, so that a bool is one and no float is a NaN.
    content = np.random.default_rng(seed).integers(0, 2, n_bytes).astype(np.uint8).tobytes()
    assert_alike(npy(header, content, version, encoding))


@pytest.mark.parametrize(
    "descr",
    [
        *("'|O'", "'<U4'", "'|S4'", "'<M8[s]'", "'<m8'", "'<f16'", "'<c32'", "'|V8'", "'3f8'", "'f8,f8'"),
        *("('<f8', ())", "[('x', '<f8')]"),
    ],
)
def test_types_that_are_refused_on_purpose(descr):
    with refused("bad-npy", match="arrays of type"):
        describe(BytesInMemory(npy(fields(descr), bytes(96))), "x.npy")


def test_more_axes_or_longer_ones_than_can_travel_are_refused_by_shape():
    for shape in ("(" + "1, " * 9 + ")", f"(0, {2**50})"):
        with pytest.raises(RejectedError, match=r"arrays of shape \("):
            describe(BytesInMemory(npy(fields(shape=shape), bytes(8))), "x.npy")


def test_an_error_says_that_the_name_decided():
    for uri, content in (("a/x.npy", b"\x00" * 200), ("a/x.npy", b""), ("a/x.npz", npy(fields(), bytes(48)))):
        with pytest.raises(RejectedError, match=f"; it is read as {uri[-4:]} because of its name"):
            describe(BytesInMemory(content), uri)
    with pytest.raises(RejectedError) as caught:
        describe(BytesInMemory(npy(fields(), bytes(8))), "x.npy")
    assert "its name" not in caught.value.message
