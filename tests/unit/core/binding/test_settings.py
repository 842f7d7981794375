"""Policies by name, the table of weights, and mistakes in both."""

import pytest

from yarn_accel.core import binding
from yarn_accel.errors import ConfigError


@pytest.mark.parametrize("name", ["paper", "container", "weighted"])
def test_each_is_called_what_it_is_asked_for(name):
    assert binding.make(name).name == name
    assert binding.make(name) is not binding.make(name)


def test_settings_reach_the_policy():
    policy = binding.make(
        "container", {"cross_rack": "fallback", "min_gain_s": 1, "min_gain_share": 0.5, "max_moves": 3}
    )
    assert isinstance(policy, binding.ContainerBinding)
    assert policy.crosses_racks


@pytest.mark.parametrize(
    ("name", "settings", "crosses"),
    [
        ("paper", {}, False),
        ("weighted", {}, True),
        ("container", {}, True),
        ("weighted", {"cross_rack": "deny"}, False),
        ("container", {"cross_rack": "deny"}, False),
        ("weighted", {"cross_rack": "allow"}, True),
    ],
)
def test_a_rack_without_a_server_uses_others_unless_it_may_not(name, settings, crosses):
    policy = binding.make(name, settings)
    policy.apply(binding.ANodeAdded("a", "/r1"))
    policy.apply(binding.ANodeAdded("b", "/r2"))
    policy.apply(binding.NNodeAdded("n", "/r1"))
    policy.apply(binding.ANodeLost("a"))
    assert policy.crosses_racks is crosses
    assert policy.bound() == ({"n": "b"} if crosses else {})
    policy.apply(binding.ANodeAdded("a", "/r1"))
    assert policy.bound() == {"n": "a"}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("best", {}, "no policy is called 'best'; known: paper, container, weighted"),
        ("paper", {"max_moves": 1}, "'paper' has no setting 'max_moves'; it has: none"),
        ("weighted", {"max_moves": 1}, "'weighted' has no setting 'max_moves'; it has: cross_rack"),
        ("weighted", {"cross_rack": True}, "binding.cross_rack: expected fallback or deny, found True"),
        ("container", {"min_gain_s": -1}, "binding.min_gain_s: expected a number from 0"),
        ("container", {"min_gain_share": "x"}, "binding.min_gain_share: expected a number from 0"),
        ("container", {"max_moves": 1.5}, "binding.max_moves: expected a whole number from 0"),
    ],
)
def test_mistakes_are_named(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        binding.make(name, settings)


TABLE = binding.DeviceWeights.from_mapping(
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
    weight = binding.DeviceWeights.from_mapping({"default": 1e6}).of_node(["NVIDIA H200"] * n_devices)
    policy = binding.WeightedBinding()
    policy.apply(binding.ANodeAdded("a", "/r", weight))
    policy.apply(binding.NNodeAdded("n", "/r"))
    assert policy.loads() == {"a": load}


def test_an_empty_table_makes_all_alike():
    assert binding.DeviceWeights().look_up("anything") == 1.0
    assert binding.DeviceWeights.from_mapping({"devices": None}) == binding.DeviceWeights()


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
def test_mistakes_in_the_table_are_named(content, message):
    with pytest.raises(ConfigError, match=message):
        binding.DeviceWeights.from_mapping(content)
