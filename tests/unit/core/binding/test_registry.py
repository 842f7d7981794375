"""Policies by name, and mistakes in their settings."""

import pytest

from yarn_accel.core.binding import (
    POLICIES,
    SETTINGS,
    ANodeAdded,
    ANodeLost,
    ContainerBinding,
    NNodeAdded,
    make,
)
from yarn_accel.errors import ConfigError


@pytest.mark.parametrize("name", ["paper", "container", "weighted"])
def test_each_is_called_what_it_is_asked_for(name):
    assert make(name).name == name
    assert make(name) is not make(name)


def test_the_two_tables_agree():
    assert POLICIES.keys() == SETTINGS.keys()


def test_settings_reach_the_policy():
    policy = make(
        "container", {"cross_rack": "fallback", "min_gain_s": 1, "min_gain_share": 0.5, "max_moves": 3}
    )
    assert isinstance(policy, ContainerBinding)
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
    policy = make(name, settings)
    policy.apply(ANodeAdded("a", "/r1"))
    policy.apply(ANodeAdded("b", "/r2"))
    policy.apply(NNodeAdded("n", "/r1"))
    policy.apply(ANodeLost("a"))
    assert policy.crosses_racks is crosses
    assert policy.bound() == ({"n": "b"} if crosses else {})
    policy.apply(ANodeAdded("a", "/r1"))
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
        make(name, settings)
