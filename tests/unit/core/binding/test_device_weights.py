"""The table of performance weights: who wins, what fits, and what is refused."""

import pytest

from yarn_accel.core.binding import (
    ANodeAdded,
    DeviceWeights,
    NNodeAdded,
    WeightedBinding,
    relative_weights,
)
from yarn_accel.errors import ConfigError

TABLE = DeviceWeights.from_mapping(
    {
        "default": 0.5,
        "devices": {"NVIDIA H200*": 9.5, "NVIDIA H200 NVL": 8, "NVIDIA*": 2.0, "NVIDIA H200 N*": 7.0},
    }
).with_measured({"NVIDIA H200 NVL": 3.0, "Tesla K20m": 0.25})


@pytest.mark.parametrize(
    ("device", "weight", "source"),
    [
        ("NVIDIA H200 NVL", 8.0, "edited (NVIDIA H200 NVL)"),
        ("nvidia  h200 nvl", 8.0, "edited (NVIDIA H200 NVL)"),
        ("NVIDIA H200 NX", 7.0, "edited (NVIDIA H200 N*)"),
        ("NVIDIA H200", 9.5, "edited (NVIDIA H200*)"),
        ("NVIDIA A100", 2.0, "edited (NVIDIA*)"),
        ("Tesla K20m", 0.25, "measured"),
        ("Xeon Phi", 0.5, "default"),
    ],
)
def test_the_admin_wins_over_the_measurement_and_that_over_the_default(device, weight, source):
    found = TABLE.look_up(device)
    assert (found.weight, found.source) == (weight, source)


def test_a_node_weighs_what_its_devices_weigh_together():
    assert TABLE.of_node(["NVIDIA A100", "NVIDIA A100", "Tesla K20m"]) == 4.25
    assert TABLE.of_node([]) == 0.5


@pytest.mark.parametrize(("n_devices", "load"), [(8, 1 / 8e6), (5000, 1e-9)])
def test_a_node_of_many_heavy_devices_can_be_bound(n_devices, load):
    """Where the admin wrote rates instead of ratios, a node's sum is far above what one device may weigh."""
    weight = DeviceWeights.from_mapping({"default": 1e6}).of_node(["NVIDIA H200"] * n_devices)
    policy = WeightedBinding()
    policy.apply(ANodeAdded("a", "/r", weight))
    policy.apply(NNodeAdded("n", "/r"))
    assert policy.loads() == {"a": load}


def test_an_empty_table_makes_all_alike():
    assert DeviceWeights().look_up("anything").weight == 1.0
    assert DeviceWeights.from_mapping({"devices": None}) == DeviceWeights()


def test_a_table_is_a_value():
    assert TABLE.with_measured({"Tesla K20m": 0.25, "NVIDIA H200 NVL": 3.0}) == TABLE
    assert hash(TABLE) == hash(TABLE.with_measured(dict(TABLE.measured)))
    assert DeviceWeights() == DeviceWeights().with_measured({})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"device": {}}, "unknown key 'device'; known: default, devices"),
        ({"default": 0}, "weights.default: expected a number above 0"),
        ({"default": True}, "weights.default: expected a number above 0"),
        ({"devices": ["H200"]}, "weights.devices: expected names with weights, found list"),
        ({"devices": {"H200": "fast"}}, "weights.devices.H200: expected a number above 0"),
        ({"devices": {"H200": float("nan")}}, "weights.devices.H200: expected a number above 0"),
        ({"devices": {"H*200": 1.0}}, "'H\\*200' is no device name"),
        ({"devices": {200: 1.0}}, "200 is no device name"),
    ],
)
def test_mistakes_are_named(content, message):
    with pytest.raises(ConfigError, match=message):
        DeviceWeights.from_mapping(content)


def test_measured_weights_are_the_geometric_mean_over_common_operations():
    rates = {
        "old": {"lu": 1e9, "qr": 2e9},
        "new": {"lu": 2e9, "qr": 16e9, "cholesky": 9e9},
        "odd": {"lbp": 5.0},
        "still": {"lu": 0.0},
    }
    assert relative_weights(rates, "old") == {"old": 1.0, "new": 4.0}
    assert relative_weights(rates, "unknown") == {}


def test_noise_below_two_digits_is_not_seen():
    assert relative_weights({"a": {"lu": 100.0}, "b": {"lu": 314.9}}, "a")["b"] == 3.1
