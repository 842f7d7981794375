"""The table of performance weights: who wins, what fits, and what is refused."""

import pytest

from yarn_accel.core.binding import (
    ANodeAdded,
    DeviceWeights,
    NNodeAdded,
    WeightedBinding,
)
from yarn_accel.errors import ConfigError

TABLE = DeviceWeights.from_mapping(
    {
        "default": 0.5,
        "devices": {"NVIDIA H200*": 9.5, "NVIDIA H200 NVL": 8, "NVIDIA*": 2.0, "NVIDIA H200 N*": 7.0},
    }
)


@pytest.mark.parametrize(
    ("device", "weight"),
    [
        ("NVIDIA H200 NVL", 8.0),
        ("nvidia  h200 nvl", 8.0),
        ("NVIDIA H200 NX", 7.0),
        ("NVIDIA H200", 9.5),
        ("NVIDIA A100", 2.0),
        ("Xeon Phi", 0.5),
    ],
)
def test_the_exact_name_wins_over_the_longest_pattern_and_that_over_the_default(device, weight):
    assert TABLE.look_up(device) == weight


def test_a_node_weighs_what_its_devices_weigh_together():
    assert TABLE.of_node(["NVIDIA A100", "NVIDIA A100", "Tesla K20m"]) == 4.5
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
    assert DeviceWeights().look_up("anything") == 1.0
    assert DeviceWeights.from_mapping({"devices": None}) == DeviceWeights()


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
