"""Products through a GPU's streams against the CPU's; how requests go through the streams at all."""

import numpy as np
import pytest

from tests.unit.operations.linear import PRECISIONS, Area, compare, general
from yarn_accel.operations import cuda_streams, get


@pytest.mark.parametrize(("dtype", "precision"), PRECISIONS)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("orders", ["CC", "FF", "CF"])
@pytest.mark.parametrize("stack", [(), (3,), (1,)])
def test_products(device, stack, orders, transposed, dtype, precision):
    shapes = [(20, 30), (30, 10)]
    arrays, params = [], {**precision}
    for i, name in enumerate(("transpose_a", "transpose_b")):
        shape = shapes[i][::-1] if transposed[i] else shapes[i]
        arrays.append(general((*stack, *shape), dtype, orders[i], seed=i))
        params[name] = transposed[i]
    expected = get("gemm").run(arrays, params)
    found = get("gemm").form("cuda")(arrays, params, Area().place)
    compare(found, expected, dtype)
    assert found.arrays["c"].flags.f_contiguous == expected.arrays["c"].flags.f_contiguous


def test_nan_goes_through_a_product(device):
    a = np.eye(4)
    a[1, 2] = np.nan
    expected = get("gemm").run([a, np.eye(4)], {}).arrays["c"]
    np.testing.assert_array_equal(get("gemm").form("cuda")([a, np.eye(4)], {}).arrays["c"], expected)


def test_a_batch_of_products_keeps_its_order(device):
    sizes = [(8, 8), (8, 8), (5, 3), (600, 5), (8, 8), (600, 600), (600, 600), (600, 600), (600, 600)]
    items = [([general((m, n), seed=i), general((n, m), seed=i + 50)], {}) for i, (m, n) in enumerate(sizes)]
    items.append(([general((4, 8, 8), order="C"), general((4, 8, 8), order="C", seed=1)], {}))
    found = get("gemm").batch_form("cuda")([(arrays, params, Area().place) for arrays, params in items])
    for (arrays, params), one in zip(items, found, strict=True):
        compare(one, get("gemm").run(arrays, params), "<f8")


def test_lanes_have_streams_of_their_own(device):
    """Else a large request of one lane would wait for that of another."""
    cupy, matrix = cuda_streams.cupy_module(), np.eye(3)
    lanes = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    used = []
    for lane in (*lanes, *lanes):
        with lane:
            get("gemm").form("cuda")([matrix, matrix], {}, Area().place)
        used.append({stream.ptr for stream in cuda_streams._streams(lane.ptr)})
    assert cuda_streams._streams.cache_info().misses == 2
    assert len(used[0] | used[1]) == 6
    assert used[:2] == used[2:]


def test_copies_end_before_an_error_leaves(device):
    """The memory that results are copied to is the caller's again when the call has raised."""
    area = Area()

    def no_place(*_):
        raise MemoryError

    placed = []

    def place(*args):
        placed.append(area.place(*args))
        return placed[-1]

    matrix = general((600, 600))
    items = [([matrix, matrix], {}, place), ([matrix, matrix], {}, no_place)]
    with pytest.raises(MemoryError):
        get("gemm").batch_form("cuda")(items)
    np.testing.assert_allclose(placed[0], matrix @ matrix, atol=1e-9)
