"""Predictions for the rows of a DataFrame: batches, bad rows, images, counters."""

from __future__ import annotations

import io
import pickle
import types
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tests.fixtures import onnx_models as models
from tests.unit.spark.conftest import FakeDataFrame, FakeType
from yarn_accel.client import ConfigError, RejectedError, connect
from yarn_accel.spark import SparkCounters, predict_in_pandas
from yarn_accel.spark.batches import BatchPredictor, InputColumn

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
ONE_INPUT = (InputColumn(1, "x"),)


@pytest.fixture
def linear(tmp_path):
    return models.written(models.linear(WEIGHTS), tmp_path / "linear.onnx")


def run(model, rows, inputs=ONE_INPUT, outputs=None, batch_size=4, **options):
    predictor = BatchPredictor(model.as_uri(), inputs, outputs or {"y": True}, batch_size, **options)
    predictor = pickle.loads(pickle.dumps(predictor))
    counts = Counter()
    with connect("inline", count_calls=False) as accel:
        found = list(predictor.results(accel, rows, lambda name, amount: counts.update({name: amount})))
    assert counts["records_in"] == counts["done"] + counts["rejected"] == len(rows)
    return {each.record[0]: each for each in found}, counts


def test_a_batch_is_one_request_and_each_row_has_its_prediction(linear):
    rows = [(number, [float(number), 1.0]) for number in range(10)]
    found, counts = run(linear, rows)
    assert counts["sent"] == 3
    assert counts["cpu_fallback"] == 3
    for number, x in rows:
        assert found[number].value == {"y": (np.float32(x) @ WEIGHTS).tolist()}


def test_a_bad_row_costs_itself_alone(linear):
    rows = [
        (0, [1, 0]),
        (1, None),
        (2, [1, 2, 3]),
        (3, "text"),
        (4, [[1, 2], [3]]),
        (5, np.array([0, 1])),
        (6, [None, 1]),
    ]
    found, counts = run(linear, rows, batch_size=64)
    assert {number: each.error_code for number, each in found.items()} == {
        **{0: None, 5: None},
        **{1: "invalid-record", 3: "invalid-record", 4: "invalid-record", 6: "invalid-record"},
        2: "wrong-shape",
    }
    assert found[1].error_message == "column x: expected numbers, found null"
    assert counts["done"] == 2


def test_rows_that_the_model_refuses_together_are_tried_alone(tmp_path):
    """An index out of bounds fails the whole run of the model."""
    gather = models.model(
        [models.helper.make_node("Gather", ["table", "x"], ["y"])],
        [models.value("x", ["n"], models.TensorProto.INT64)],
        [models.value("y", ["n"])],
        {"table": np.array([10, 20, 30], np.float32)},
    )
    model = models.written(gather, tmp_path / "gather.onnx")
    found, counts = run(model, [(0, 2), (1, 99), (2, 0)], outputs={"y": False})
    assert (found[0].value, found[2].value) == ({"y": 30.0}, {"y": 10.0})
    assert found[1].error_code
    assert counts["sent"] == 1 + 3
    with pytest.raises(RejectedError, match=r"record \(1, 99\) is bad"):
        run(model, [(1, 99)], outputs={"y": False}, mode="FAILFAST")


def test_many_bad_rows_in_a_row_do_not_pile_up(linear):
    taken = 0

    def rows():
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield (number, None)

    counts = Counter()
    with connect("inline", count_calls=False) as accel:
        results = BatchPredictor(linear.as_uri(), ONE_INPUT, {"y": True}, 4).results(
            accel, rows(), lambda name, amount: counts.update({name: amount})
        )
        next(results)
        assert taken == 4
        results.close()
    assert counts["records_in"] == counts["rejected"] + counts["cancelled"] == 4


def test_lists_are_given_the_shape_of_a_tensor_and_images_are_decoded_by_the_server(tmp_path):
    model = models.written(models.image_means(), tmp_path / "means.onnx")
    column = InputColumn(1, "pixels", "image", (3, 2, 2))
    found, _ = run(model, [(0, list(range(12))), (1, [1.0])], (column,), {"mean": True})
    assert found[0].value == {"mean": [1.5, 5.5, 9.5]}
    assert found[1].error_message == "column pixels: 1 numbers are no 3x2x2"
    encoded = io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 51)).save(encoded, "PNG")
    rows = [(0, encoded.getvalue()), (1, b"no image"), (2, 5), (3, bytearray(encoded.getvalue()))]
    found, counts = run(model, rows, ONE_INPUT, {"mean": True}, options={"image_size": [4, 4]})
    assert found[0].value["mean"] == found[3].value["mean"] == pytest.approx([1.0, 0.0, 0.2])
    assert found[1].error_code not in (None, "invalid-record")
    assert found[2].error_code == "invalid-record"
    assert counts["sent"] == 1


def test_outputs_that_do_not_fit_the_columns_are_named(linear):
    found, _ = run(linear, [(0, [1, 2])], outputs={"y": False})
    assert found[0].error_code == "output-shape"
    assert found[0].error_message.endswith("declare the column as an array")
    found, _ = run(linear, [(0, [1, 2])], outputs={"z": True})
    assert found[0].error_code == "bad-parameter"


def schema(**kinds):
    return types.SimpleNamespace(fields=[FakeType(kind, name) for name, kind in kinds.items()])


def test_the_front_maps_columns_to_columns(task, context, pandas, linear):
    rows = [(1, "a", [1.0, 0.0]), (2, "b", None), (3, "c", [0.0, 1.0])]
    df = FakeDataFrame(rows, ["id", "text", "x"], ["bigint", "string", "array<double>"], context)
    counters = SparkCounters(context)
    found = predict_in_pandas(
        df, linear, {"x": "x"}, schema(y="array<float>"), keep=["id"], counters=counters, runner="inline"
    )
    assert found.ddl == "`id` bigint, `y` array<float>, `error_code` string, `error_message` string"
    assert {row["id"]: (row["y"], row["error_code"]) for row in found.rows} == {
        1: ([0.0, 1.0, 2.0], None),
        2: (None, "invalid-record"),
        3: ([3.0, 4.0, 5.0], None),
    }
    value = counters.value
    assert (value["records_in"], value["done"], value["rejected"], value["sent"]) == (3, 2, 1, 1)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["nothing"], {}, "no column nothing for an input of the model: take some of id, x"),
        ("x", {"input_tensor_shapes": {"id": [1]}}, "no column id for an input"),
        ([], {}, "0 input columns"),
        ("x", {"batch_size": 0}, "batches of 0"),
        (["x", "id"], {"infer_options": {"image_size": [2, 2]}}, "one alone of images"),
        ("x", {"keep": ["id", "y"]}, "no column y: keep some of id, x"),
        ("x", {"mode": "strict"}, "mode 'strict' is unknown"),
    ],
)
def test_what_cannot_be_is_refused_on_the_driver(context, inputs, options, message):
    df = FakeDataFrame([], ["id", "x"], ["bigint", "array<double>"], context)
    with pytest.raises(ConfigError, match=message):
        predict_in_pandas(df, "hdfs:///m.onnx", inputs, schema(y="array<float>"), **options)
