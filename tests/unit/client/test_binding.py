import json

import pytest

from yarn_accel.client.binding import (
    Binding,
    Endpoint,
    Reason,
    choose,
    explain,
    format_binding,
    parse_binding,
)
from yarn_accel.errors import ConfigError

SERVERS = tuple(Endpoint(f"w{i}", f"10.0.0.{i}", 7070, node=f"w{i}") for i in range(1, 5))
RACKS = {"w1": "/r1", "w2": "/r1", "w3": "/r2", "w4": "/r2", "w5": "/r2"}


def names(endpoints):
    return [endpoint.name for endpoint in endpoints]


def test_own_node_then_bound_then_rack_then_others():
    binding = Binding(SERVERS, RACKS, {"w3": ("w1",)})
    assert explain(binding, "w3") == [
        (SERVERS[2], Reason.OWN_NODE),
        (SERVERS[0], Reason.BOUND),
        (SERVERS[3], Reason.SAME_RACK),
        (SERVERS[1], Reason.OTHER),
    ]


def test_bound_servers_keep_the_order_of_the_binding_whatever_the_spread():
    binding = Binding(SERVERS, RACKS, {"w5": ("w4", "w2", "w1")})
    for spread in range(5):
        assert names(choose(binding, "w5", spread))[:3] == ["w4", "w2", "w1"]


def test_spread_rotates_servers_that_are_equally_near():
    binding = Binding(SERVERS, RACKS)
    assert names(choose(binding, "w5", 0)) == ["w3", "w4", "w1", "w2"]
    assert names(choose(binding, "w5", 1)) == ["w4", "w3", "w2", "w1"]


def test_tls_is_written_and_read_back():
    binding = Binding((Endpoint("w1", "h", 1, tls=True, ca_file="ca.pem"), Endpoint("w2", "h", 1)))
    assert parse_binding(format_binding(binding)) == binding


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"version": 2}, "version"),
        ({"extra": 1}, "extra"),
        ({"servers": {}}, "servers"),
        ({"servers": [{"name": "a", "host": "h", "port": 70000}]}, "servers[0].port"),
        ({"servers": [{"name": "a", "host": "h", "port": True}]}, "servers[0].port"),
        ({"servers": [{"name": "a", "host": "h"}]}, "servers[0]"),
        ({"servers": [{"host": "h", "port": 1}]}, "servers[0].name"),
        ({"servers": [{"name": "a", "host": "h", "port": 1, "colour": 1}]}, "servers[0]"),
        ({"servers": [{"name": "a", "host": "h", "port": 1}] * 2}, "servers[1].name"),
        ({"servers": [{"name": "a", "host": "h", "port": 1, "tls": 1}]}, "servers[0].tls"),
        ({"servers": [{"name": "a", "host": "h", "port": 1, "ca_file": 1}]}, "servers[0].ca_file"),
        ({"racks": {"w1": 7}}, "racks.w1"),
        ({"bound": {"w1": ["nobody"]}}, "bound.w1[0]"),
        ({"bound": {"w1": "w1"}}, "bound.w1"),
    ],
)
def test_errors_name_the_place(change, place):
    with pytest.raises(ConfigError) as caught:
        parse_binding(json.dumps({"version": 1, **change}))
    assert place in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_text_that_is_no_object(text):
    with pytest.raises(ConfigError, match="binding"):
        parse_binding(text)
