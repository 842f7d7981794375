import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.fixtures.refusals import refused
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.operations import OPERATIONS, Operation, get, load_more, registry
from yarn_accel.operations.operation import resolve
from yarn_accel.operations.registry import ENTRY_POINTS
from yarn_accel.wire import TensorSpec

F8, U1, I8 = "<f8", "|u1", "<i8"
IMAGES = (TensorSpec(U1, (100,)), TensorSpec(I8, (3,)))


def specs(*items):
    return [item if isinstance(item, TensorSpec) else TensorSpec(F8, item) for item in items]


def test_an_unknown_operation_names_the_known_ones():
    with refused("unknown-operation", match="'lupa'; known: chain, cholesky, colour, echo"):
        get("lupa")


def test_the_table_needs_nothing_but_the_standard_library():
    """And so do the checks, so a client can use them."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from yarn_accel.operations import OPERATIONS\n"
        "from yarn_accel.wire import TensorSpec\n"
        "OPERATIONS['lu'].check([TensorSpec('<f8', (3, 3))], {})\n"
        "print(len(OPERATIONS), 'numpy' in sys.modules)\n"
    )
    root = str(Path(__file__).parents[3])
    argv = [sys.executable, "-I", "-S", "-c", program, root]
    completed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    assert completed.stdout.split() == [str(len(OPERATIONS)), "False"]


@pytest.mark.parametrize(
    ("name", "inputs", "params"),
    [
        ("echo", specs(), {"anything": 1}),
        ("lu", specs((3, 5)), {}),
        ("qr", [TensorSpec("<f4", (1, 1), "F")], {}),
        ("cholesky", specs((4, 4)), {}),
        ("residual", specs((3, 5), (3, 5), TensorSpec("<i4", (3,))), {"operation": "lu"}),
        ("residual", specs((5, 3), (5, 3), (3, 3)), {"operation": "qr"}),
        ("residual", specs((3, 5), (3, 3), (3, 5)), {"operation": "qr"}),
        ("residual", specs((3, 3), (3, 3)), {"operation": "cholesky"}),
        ("lbp", IMAGES, {"bins": 256}),
        ("colour", IMAGES, {"hsv_bins": [8, 3, 3]}),
        ("features", IMAGES, {"bins": 59, "hsv_bins": [1, 1, 1], "root": True, "max_pixels": 4096}),
        ("kmeans", specs((10, 2)), {"k": 10, "seed": 3, "max_iterations": 5, "tolerance": 0, "restarts": 1}),
        ("kmeans_seed", specs((10, 2)), {"k": 1}),
        ("kmeans_step", specs((10, 2), (3, 2)), {}),
    ],
)
def test_good_requests_pass(name, inputs, params):
    get(name).check(inputs, params)
    assert get(name).flops(inputs, params) >= 0


@pytest.mark.parametrize(
    ("name", "inputs", "params", "code", "match"),
    [
        ("lu", specs(), {}, "wrong-inputs", "expected 1"),
        ("lu", specs((3, 3), (3, 3)), {}, "wrong-inputs", "found 2"),
        ("lu", specs((3,)), {}, "wrong-shape", "found shape 3"),
        ("lu", specs((0, 3)), {}, "wrong-shape", "0x3"),
        ("qr", [TensorSpec("<i8", (3, 3))], {}, "wrong-dtype", "<f4 or <f8 or <c8 or <c16, found <i8"),
        ("qr", specs((3, 3)), {"pivot": 1}, "bad-parameter", "unknown parameter 'pivot'"),
        ("cholesky", specs((3, 4)), {}, "wrong-shape", "square matrix, found 3x4"),
        ("residual", specs((3, 3)), {}, "bad-parameter", "lu, qr, cholesky, svd, eigh, found None"),
        ("residual", specs((3, 3)), {"operation": "lu"}, "wrong-inputs", "then lu, piv"),
        ("residual", specs((3, 3), (3, 3), (3,)), {"operation": "lu"}, "wrong-dtype", r"input 2 \(piv\)"),
        ("residual", specs((5, 3), (5, 5), (5, 3)), {"operation": "qr"}, "wrong-shape", r"\(q\): .* 5x3"),
        ("residual", specs((5, 3), (5, 3)), {"operation": "cholesky"}, "wrong-shape", "square"),
        ("lbp", IMAGES, {"bins": 60}, "bad-parameter", "59 or 256"),
        ("lbp", IMAGES, {"hsv_bins": [1, 1, 1]}, "bad-parameter", "known: max_pixels, root, bins"),
        ("lbp", IMAGES, {"root": 1}, "bad-parameter", "root"),
        ("colour", IMAGES, {"hsv_bins": [16, 4]}, "bad-parameter", "hsv_bins"),
        ("colour", IMAGES, {"hsv_bins": [256, 256, 1]}, "bad-parameter", "hsv_bins"),
        ("features", IMAGES, {"max_pixels": 0}, "bad-parameter", "max_pixels"),
        ("features", IMAGES[:1], {}, "wrong-inputs", "length of each"),
        ("features", (IMAGES[1], IMAGES[1]), {}, "wrong-dtype", "input 0"),
        ("features", (IMAGES[0], TensorSpec(I8, (0,))), {}, "wrong-shape", "input 1"),
        ("kmeans", specs((10, 2)), {}, "bad-parameter", "k: expected"),
        ("kmeans", specs((10, 2)), {"k": 11}, "bad-parameter", "11 clusters for 10 points"),
        ("kmeans", specs((10, 2)), {"k": 2, "seed": -1}, "bad-parameter", "seed"),
        ("kmeans", specs((10, 2)), {"k": True}, "bad-parameter", "k"),
        ("kmeans", specs((10, 2)), {"k": 2, "tolerance": "small"}, "bad-parameter", "tolerance"),
        ("kmeans_step", specs((10, 2), (3, 3)), {}, "wrong-shape", "centroids of 3 values for points of 2"),
    ],
)
def test_bad_requests_are_turned_away_before_memory_is_taken(name, inputs, params, code, match):
    with refused(code, match=match):
        get(name).check(inputs, params)


def test_operation_counts_are_the_usual_ones():
    square, n = specs((600, 600)), 600
    assert get("lu").flops(square, {}) == pytest.approx(2 * n**3 / 3, rel=0.01)
    assert get("cholesky").flops(square, {}) == pytest.approx(n**3 / 3, rel=0.01)
    # Householder 4/3 n^3, and as much again to write q out.
    assert get("qr").flops(square, {}) == pytest.approx(8 * n**3 / 3, rel=0.01)
    for name in ("lu", "qr", "cholesky"):
        assert get(name).flops(specs((4, n, n)), {}) == 4 * get(name).flops(square, {})
    assert get("qr").flops(square, {"form": "packed"}) < get("qr").flops(square, {})
    assert get("gemm").flops(specs((3, 4), (4, 5)), {}) == 2 * 3 * 4 * 5
    triangle = specs((n * (n + 1) // 2,))
    assert get("cholesky").flops(triangle, {"triangle": "lower"}) == get("cholesky").flops(square, {})
    tall = specs((1000, 10))
    assert get("qr").flops(tall, {}) == pytest.approx(2 * (2 * 1000 * 100), rel=0.02)


def named(name):
    """An operation that does nothing."""
    return Operation(name, "", 1, lambda s, p: None, lambda a, p, place=None: None, lambda s, p: 0)


def test_operations_of_others_join_the_table(monkeypatch, tmp_path):
    table = dict(registry._table)
    monkeypatch.setattr(registry, "_table", table)
    monkeypatch.setattr(registry, "OPERATIONS", table)
    module = ModuleType("somebody")
    module.twice, module.lu = named("twice"), named("lu")
    module.several = [module.twice]
    module.nothing = 3
    monkeypatch.setitem(sys.modules, "somebody", module)
    for _ in range(2):
        assert load_more(["somebody:twice", "somebody:several"], entry_points=False) == ("twice", "twice")
    assert registry.get("twice") is module.twice
    assert load_more() == ()
    info = tmp_path / "somebody-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\ntwice = somebody:twice\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_more() == ("twice",)
    points = [SimpleNamespace(value="somebody:twice")]
    for of_old_pythons in (SimpleNamespace(select=lambda group: points), {ENTRY_POINTS: points}):
        monkeypatch.setattr(metadata, "entry_points", lambda found=of_old_pythons: found)
        assert load_more() == ("twice",)
    for name, match in [
        ("somebody:lu", "this name is taken"),
        ("somebody:nothing", "is no Operation"),
        ("somebody:missing", "missing"),
        ("nobody:twice", "nobody"),
        ("", "module:attribute"),
    ]:
        with pytest.raises(ConfigError, match=match):
            load_more([name], entry_points=False)


def test_memory_of_an_operation_that_says_nothing_is_that_of_its_inputs():
    operation = named("x")
    assert operation.output_bytes(specs((3, 3)), {}) == 128
    assert operation.form("cpu") is operation.run
    assert operation.form("cuda") is None


def test_a_form_that_is_missing_is_a_start_up_error():
    for place in ("nowhere.lu", "factorization.ul", "no.such.package:run"):
        with pytest.raises(StartupError):
            resolve(place)
    assert resolve("json:dumps") is json.dumps


def test_images_say_how_much_memory_their_features_take():
    assert get("features").output_bytes(IMAGES, {"hsv_bins": [2, 2, 2]}) == -(-3 * (59 + 8) * 4 // 64) * 64
    assert get("lbp").output_bytes(IMAGES, {"bins": 256}) == 3 * 256 * 4
    assert get("kmeans_step").output_bytes(specs((10, 2), (3, 2)), {}) == 64 + 64 + 2 * 64
