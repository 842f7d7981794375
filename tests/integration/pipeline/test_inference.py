"""`infer` on a real server: models are read once, by whoever may, and a bad one costs its own calls alone."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from tests.fixtures import onnx_models as models
from tests.fixtures.refusals import refused
from yarn_accel.client import Binding, Call, RejectedError, Reply, StorageError, connect
from yarn_accel.pipeline import models as server_models
from yarn_accel.storage import Store

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
SETTINGS = {"workers": 1, "model_time_s": 1.0, "model_memory_bytes": 64 << 20}


class CountingStore(Store):
    """Counts the files that are read."""

    def __init__(self):
        super().__init__(follow_symlinks=False)
        self.read = []

    def read_into(self, uri, target):
        self.read.append(uri.rpartition("/")[2])
        super().read_into(uri, target)


@pytest.fixture
def store():
    return CountingStore()


@pytest.fixture
def server(start_server, store):
    return start_server(store, **SETTINGS)


@pytest.fixture
def accel(server, credential):
    with connected(server, credential) as made:
        yield made


@pytest.fixture
def good(tmp_path):
    return models.written(models.linear(WEIGHTS), tmp_path / "good.onnx").as_uri()


def connected(server, credential, **options):
    binding = Binding((server.endpoint,))
    options = {"environ": {}, "fallback": False, "patience_s": 120.0, **options}
    return connect(binding=binding, credential=credential, **options)


def counted(accel):
    """The counters of a client, added up."""
    found = {}
    accel._counters.add = lambda **more: [
        found.update({name: found.get(name, 0) + n}) for name, n in more.items()
    ]
    return found


def test_the_outputs_of_a_model_are_those_of_its_arithmetic(accel, good):
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    found = accel.infer(good, x)
    assert list(found.outputs) == ["y"]
    assert np.allclose(found.outputs["y"], x @ WEIGHTS)
    assert found.reply.server == "w1"
    by_name = accel.infer(good, {"x": x}, outputs=["y"])
    assert np.array_equal(by_name.outputs["y"], found.outputs["y"])


def test_numbers_of_another_precision_are_converted_and_that_is_said(accel, good):
    found = accel.infer(good, [[1.0, 2.0, 3.0, 4.0]])
    assert np.allclose(found.outputs["y"], np.array([[1, 2, 3, 4]]) @ WEIGHTS)
    assert found.reply.info["converted"] == "input 0: <f8 to <f4"


def test_a_model_is_read_once_for_many_calls(accel, good, store):
    for number in range(20):
        accel.infer(good, np.full((1, 4), number, np.float32))
    assert store.read == ["good.onnx"]


def test_a_model_that_was_replaced_is_read_again(accel, good, tmp_path, monkeypatch):
    monkeypatch.setattr(server_models, "RIGHT_RECHECK_S", 0.0)
    x = np.ones((1, 4), np.float32)
    assert np.allclose(accel.infer(good, x).outputs["y"], x @ WEIGHTS)
    models.written(models.linear(2 * WEIGHTS), tmp_path / "new")
    (tmp_path / "new").replace(tmp_path / "good.onnx")
    for _ in range(1000):
        found = accel.infer(good, x).outputs["y"]
        if np.allclose(found, 2 * x @ WEIGHTS):
            return
    raise AssertionError("the model of before is used still")


def test_small_calls_of_one_form_are_computed_together(start_server, credential, good):
    server = start_server(**SETTINGS, max_batch_size=8, max_queue_delay_us=1_000_000)
    x = np.random.default_rng(2).standard_normal((8, 2, 4)).astype(np.float32)
    with connected(server, credential, window=8) as accel:
        accel.infer(good, x[0])
        calls = [Call.of("infer", rows, model=good, tag=number) for number, rows in enumerate(x)]
        for call, reply in accel.map(calls):
            assert np.allclose(reply.arrays()["output_0"], x[call.tag] @ WEIGHTS)
            assert reply.info["computed_together"] == 8


def png(colour):
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10), colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_are_decoded_resized_and_normalised_and_bad_ones_cost_their_row(accel, tmp_path):
    uri = models.written(models.image_means(), tmp_path / "means.onnx").as_uri()
    images = [png((255, 0, 0)), b"no image", png((0, 51, 255))]
    options = {"image_size": [8, 8], "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    found = accel.infer(uri, images, **options)
    assert np.allclose(found.outputs["mean"], [[1, -1, -1], [0, 0, 0], [-1, -0.6, 1]], atol=1e-6)
    assert {number: error.code for number, error in found.rejected.items()} == {1: "not-an-image"}
    none = accel.infer(uri, [b"no image"], **options)
    assert none.outputs["mean"].tolist() == [[0, 0, 0]]
    assert list(none.rejected) == [0]


def test_a_local_computation_gives_the_same(accel, good):
    x = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    with connect("inline") as inline:
        assert np.array_equal(inline.infer(good, x).outputs["y"], accel.infer(good, x).outputs["y"])


# Rights


def test_a_model_outside_of_the_tenants_folders_is_refused(accel, open_path):
    uri = models.written(models.linear(WEIGHTS), open_path / "model.onnx").as_uri()
    with refused("forbidden-uri", match="read_prefixes|not below"):
        accel.infer(uri, np.ones((1, 4), np.float32))


def test_a_right_is_checked_for_each_principal(start_server, issue_to, tmp_path, good):
    folder = f"file://{tmp_path}/"
    server = start_server(**SETTINGS, tenants={"alice": {"read_prefixes": [folder]}, "bob": {}})
    x = np.ones((1, 4), np.float32)
    with connected(server, issue_to("alice")) as alice, connected(server, issue_to("bob")) as bob:
        alice.infer(good, x)
        with refused("forbidden-uri"):
            bob.infer(good, x)


def test_tensors_beside_a_model_are_read_from_its_folder_alone(accel, tmp_path):
    made = models.linear(WEIGHTS)
    beside = models.with_tensors_in(made, tmp_path, "beside.onnx", "weights.bin").as_uri()
    x = np.ones((1, 4), np.float32)
    assert np.allclose(accel.infer(beside, x).outputs["y"], x @ WEIGHTS)
    content = (tmp_path / "beside.onnx").read_bytes()
    assert content.count(b"weights.bin") == 1
    for number, place in enumerate((b"/etc/passwd", b"../secrets.", b"*/_ORT_MEM_", b"./../a.bin1")):
        path = tmp_path / f"outside{number}.onnx"
        path.write_bytes(content.replace(b"weights.bin", place))
        with refused("external-data", match="no plain name in its folder"):
            accel.infer(path.as_uri(), x)


# Bad models


def not_onnx(path):
    path.write_bytes(b"these are no fields of a message" * 10)


def unknown_opset(path):
    models.written(models.linear(WEIGHTS, opset=999), path)


def of_2_gib(path):
    path.touch()
    os.truncate(path, 2 << 30)


def growing(path):
    models.written(models.growing(), path)


def endless(path):
    models.written(models.endless(), path)


def unknown_operator(path):
    made = models.linear(WEIGHTS)
    made.graph.node[0].op_type = "NoSuchOperator"
    models.written(made, path)


def missing(path):
    """There is no such file."""


BAD = [
    (not_onnx, "not-onnx", "this is no ONNX file"),
    (unknown_opset, "bad-model", "does not load it"),
    (unknown_operator, "bad-model", "NoSuchOperator"),
    (of_2_gib, "model-too-large", "2147483648 bytes, at most 536870912"),
    (growing, "model-memory", "needs more than 67108864 bytes to run"),
    (endless, "model-time", "did not end within 1 s to run"),
]


@pytest.mark.parametrize(("write", "code", "match"), BAD, ids=[row[0].__name__ for row in BAD])
def test_a_bad_model_is_one_clear_error_and_the_rest_goes_on(
    accel, server, good, tmp_path, write, code, match
):
    path = tmp_path / f"{write.__name__}.onnx"
    write(path)
    totals = counted(accel)
    x = np.ones((1, 2 if write in (growing, endless) else 4), np.float32)
    y = np.ones((1, 4), np.float32)
    calls = [Call.of("infer", y, model=good, tag="good") for _ in range(3)]
    calls[1:1] = [Call.of("infer", x, model=path.as_uri(), tag="bad") for _ in range(2)]
    accel.infer(good, y)
    totals.clear()
    pids = [each["pid"] for each in server.stats()["workers"]]
    outcomes = list(accel.map(calls))
    for call, outcome in outcomes:
        if call.tag == "good":
            assert isinstance(outcome, Reply), outcome
            assert np.allclose(outcome.arrays()["output_0"], y @ WEIGHTS)
        else:
            assert isinstance(outcome, RejectedError), outcome
            assert outcome.code == code
            assert match in outcome.message
            assert path.name in outcome.message
            assert outcome.cure
    assert totals["records_in"] == 5 == totals["done"] + totals["rejected"]
    assert [each["pid"] for each in server.stats()["workers"]] == pids, "no worker was lost by it"


def test_a_model_that_is_not_there_is_an_error_of_storage(accel, tmp_path):
    with pytest.raises(StorageError, match=r"none\.onnx"):
        accel.infer((tmp_path / "none.onnx").as_uri(), np.ones((1, 4), np.float32))


@pytest.mark.parametrize(
    ("name", "what"), [("m.pt", "PyTorch"), ("m.pkl", "a pickle"), ("m", "does not end in .onnx")]
)
def test_other_formats_are_refused_by_name(accel, tmp_path, name, what):
    with refused("model-format", match=what):
        accel.infer((tmp_path / name).as_uri(), np.ones((1, 4), np.float32))


def test_inputs_that_do_not_fit_a_model(accel, good):
    with refused("wrong-inputs", match="takes x, found 2 arrays"):
        accel.infer(good, [np.ones((1, 4), np.float32)] * 2)
    with refused("wrong-shape"):
        accel.infer(good, np.ones((1, 5), np.float32))
    with refused("wrong-dtype", match="expected <f4, found <c16"):
        accel.infer(good, np.ones((1, 4), np.complex128))
    with refused("bad-parameter", match="has no 'z'; it has y"):
        accel.infer(good, np.ones((1, 4), np.float32), outputs=["z"])
    with refused("output-too-large", match="12000 bytes of results"):
        accel.infer(good, np.ones((1000, 4), np.float32), output_bytes=1)


def test_models_that_were_used_longest_ago_are_dropped_and_read_again(
    start_server, credential, tmp_path, store
):
    big = [
        models.written(models.linear(np.full((4, 20_000), number, np.float32)), tmp_path / f"{number}.onnx")
        for number in range(3)
    ]
    server = start_server(store, **SETTINGS, max_model_bytes=400_000, model_cache_bytes=700_000)
    with connected(server, credential) as accel:
        for _ in range(2):
            for number, path in enumerate(big):
                y = accel.infer(path.as_uri(), np.ones((1, 4), np.float32), output_bytes=100_000).outputs["y"]
                assert (y == 4 * number).all()
    assert len(store.read) == 6
