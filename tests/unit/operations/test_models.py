"""What an ONNX file says of itself, and which requests name a model."""

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fixtures import onnx_models as models
from tests.fixtures.refusals import refused
from yarn_accel.errors import UnavailableError
from yarn_accel.operations import get
from yarn_accel.operations.models import OTHER_FORMATS, ModelSource, check_name, digest_of, model_facts
from yarn_accel.wire import TensorSpec

GOOD = models.linear(np.eye(3, dtype=np.float32)).SerializeToString()
X = [TensorSpec("<f4", (2, 3))]
IMAGES = [TensorSpec("|u1", (100,)), TensorSpec("<i8", (3,))]


def with_external(place, made=None):
    """A model with a tensor in a file, which may stand anywhere in it."""
    made = made or models.linear(np.eye(3, dtype=np.float32))
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    return made


def nested(tensor_holder):
    """A model with that attribute of a node within a graph within a graph."""
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"])], "inner", [], [models.value("c", [1])]
    )
    inner.node[0].attribute.append(tensor_holder)
    outer = helper.make_graph(
        [helper.make_node("If", ["b"], ["c"], then_branch=inner, else_branch=inner)],
        "outer",
        [],
        [models.value("c", [1])],
    )
    node = helper.make_node("If", ["b"], ["y"], then_branch=outer, else_branch=outer)
    return models.model([node], [models.value("b", [], onnx.TensorProto.BOOL)], [models.value("y", [1])])


def test_the_facts_of_a_model():
    facts = model_facts(GOOD, "m.onnx")
    assert facts.opsets == {"": models.OPSET}
    assert facts.external_files == ()
    assert model_facts(with_external("a/b.bin").SerializeToString(), "m").external_files == ("a/b.bin",)


def test_a_file_beside_a_model_is_found_wherever_its_tensor_stands():
    tensor = with_external("hidden.bin").graph.initializer[0]
    made = nested(helper.make_attribute("value", tensor))
    assert model_facts(made.SerializeToString(), "m").external_files == ("hidden.bin",)
    sparse = onnx.SparseTensorProto(values=tensor, indices=tensor, dims=[3])
    made = nested(helper.make_attribute("sparse_value", sparse))
    assert model_facts(made.SerializeToString(), "m").external_files == ("hidden.bin",)
    made = models.linear(np.eye(3, dtype=np.float32))
    function = made.functions.add(name="f", domain="d")
    function.node.append(helper.make_node("Constant", [], ["c"]))
    function.node[0].attribute.append(helper.make_attribute("value", tensor))
    assert model_facts(made.SerializeToString(), "m").external_files == ("hidden.bin",)


@pytest.mark.parametrize(
    "place",
    [
        "/etc/passwd",
        "../a",
        "a/../b",
        "a//b",
        "",
        "./a",
        ".hidden",
        "a\\..\\b",
        "*/_ORT_MEM_ADDR_/*",
        "a\n",
        "a/",
    ],
)
def test_no_other_place_is_taken(place):
    with refused("external-data", match="no plain name in its folder"):
        model_facts(with_external(place).SerializeToString(), "m.onnx")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"hello",
        GOOD[:-1],
        GOOD[: len(GOOD) // 2],
        b"\x80" * 20,
        b"\x0a\xff\xff\xff\xff\x7f",
    ],
    ids=range(7),
)
def test_what_is_no_onnx_file(content):
    with refused("not-onnx", match="m.onnx: this is no ONNX file"):
        model_facts(content, "m.onnx")


def test_any_changed_byte_is_refused_or_read_without_another_error():
    for at in range(len(GOOD)):
        for bits in (1, 0x80, 0xFF):
            content = bytearray(GOOD)
            content[at] ^= bits
            try:
                model_facts(bytes(content), "m")
            except Exception as error:  # noqa: BLE001 -- judged
                assert getattr(error, "code", "") in ("not-onnx", "external-data"), (at, bits, error)


def test_a_file_of_nothing_but_fields_costs_a_bounded_time_and_no_memory():
    content = b"\x3a\xff\xff\x7f" + b"\x52\x00" * (1 << 21)
    tracemalloc.start()
    with refused("not-onnx"):
        model_facts(content, "m")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("suffix", OTHER_FORMATS)
def test_other_formats_are_named(suffix):
    with refused("model-format", match=OTHER_FORMATS[suffix]):
        check_name("hdfs:///models/net" + suffix)


@pytest.mark.parametrize(
    ("specs", "params", "code"),
    [
        (X, {}, "bad-parameter"),
        (X, {"model": 3}, "bad-parameter"),
        (X, {"model": "m.onnx#x"}, "bad-parameter"),
        (X, {"model": "m.pt"}, "model-format"),
        ([], {"model": "m.onnx"}, "wrong-inputs"),
        (X, {"model": "m.onnx", "inputs": ["a", "b"]}, "wrong-inputs"),
        (X, {"model": "m.onnx", "inputs": "a"}, "bad-parameter"),
        (X, {"model": "m.onnx", "outputs": ["a", "a"]}, "bad-parameter"),
        (X, {"model": "m.onnx", "outputs": []}, "bad-parameter"),
        (X, {"model": "m.onnx", "output_bytes": 0}, "bad-parameter"),
        (X, {"model": "m.onnx", "batch": 1}, "bad-parameter"),
        (X, {"model": "m.onnx", "image_mean": [0, 0, 0]}, "bad-parameter"),
        (X, {"model": "m.onnx", "image_size": [8, 8]}, "wrong-inputs"),
        (IMAGES, {"model": "m.onnx", "image_size": [8, 0]}, "bad-parameter"),
        (IMAGES, {"model": "m.onnx", "image_size": [8, 8], "image_std": [1, 0, 1]}, "bad-parameter"),
        (IMAGES, {"model": "m.onnx", "image_size": [8, 8], "image_layout": "CHW"}, "bad-parameter"),
        (IMAGES, {"model": "m.onnx", "image_size": [8, 8], "no": 1}, "bad-parameter"),
    ],
)
def test_bad_requests(specs, params, code):
    with refused(code):
        get("infer").check(specs, params)


def test_good_requests():
    check = get("infer").check
    check(
        X, {"model": "hdfs:///m.onnx", "inputs": ["x"], "outputs": ["y"], "output_bytes": 9, "batch": False}
    )
    check(
        IMAGES, {"model": "m.ONNX", "image_size": [8, 9], "image_mean": [0, 0.5, 1], "image_layout": "NHWC"}
    )


def test_a_file_that_is_another_one_now_is_asked_for_again(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(GOOD)
    source = ModelSource("m.onnx", digest_of({"": GOOD}), {"": str(path)})
    assert source.contents() == {"": GOOD}
    path.write_bytes(b"another")
    with pytest.raises(UnavailableError, match="dropped"):
        source.contents()
    path.unlink()
    with pytest.raises(UnavailableError, match="dropped"):
        source.contents()
