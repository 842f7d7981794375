from __future__ import annotations

import pytest

from yarn_accel.adapters.hadoop_rpc.addresses import Address, ResourceManagerAddresses
from yarn_accel.errors import ConfigError

RM = "yarn.resourcemanager."


def test_the_host_alone_gives_the_usual_ports() -> None:
    found = ResourceManagerAddresses.from_properties({f"{RM}hostname": "rm"})
    assert found.client == (Address("rm", 8032),)
    assert found.scheduler == (Address("rm", 8030),)
    assert found.admin == (Address("rm", 8033),)


def test_an_address_wins_over_the_host() -> None:
    found = ResourceManagerAddresses.from_properties(
        {
            f"{RM}hostname": "rm",
            f"{RM}address": "other:1",
            f"{RM}scheduler.address": "${yarn.resourcemanager.hostname}:2",
            f"{RM}admin.address": "bare",
        }
    )
    assert (str(found.client[0]), str(found.scheduler[0]), str(found.admin[0])) == (
        "other:1",
        "rm:2",
        "bare:8033",
    )


def test_several_resource_managers_keep_their_order() -> None:
    found = ResourceManagerAddresses.from_properties(
        {
            f"{RM}ha.enabled": "true",
            f"{RM}ha.rm-ids": "rm2, rm1",
            f"{RM}hostname.rm1": "a",
            f"{RM}hostname.rm2": "b",
            f"{RM}scheduler.address.rm1": "a:99",
        }
    )
    assert [str(each) for each in found.client] == ["b:8032", "a:8032"]
    assert [str(each) for each in found.scheduler] == ["b:8030", "a:99"]


@pytest.mark.parametrize(
    "properties",
    [
        {f"{RM}ha.enabled": "true"},
        {f"{RM}ha.enabled": "true", f"{RM}ha.rm-ids": "rm1", f"{RM}hostname": "a"},
        {f"{RM}hostname": "rm", f"{RM}address": "rm:port"},
        {f"{RM}hostname": "rm", f"{RM}address": "rm:0"},
        {f"{RM}hostname": "rm", f"{RM}address": "rm:65536"},
        {f"{RM}hostname": "rm", f"{RM}address": ":80"},
        {f"{RM}hostname": "rm..example.org"},
        {f"{RM}hostname": "r" * 64},
        {f"{RM}hostname": "rm", f"{RM}address": "http://rm:8032"},
        {f"{RM}hostname": "rm", f"{RM}scheduler.address": "rm example:8030"},
    ],
)
def test_half_a_configuration_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        ResourceManagerAddresses.from_properties(properties)


@pytest.mark.parametrize("properties", [{}, {f"{RM}hostname": "0.0.0.0"}, {f"{RM}address": "0.0.0.0:8032"}])
def test_hadoops_default_is_this_machine(properties: dict[str, str]) -> None:
    found = ResourceManagerAddresses.from_properties(properties)
    assert (str(found.client[0]), str(found.admin[0])) == ("localhost:8032", "localhost:8033")


def test_version_6_addresses() -> None:
    assert Address.parse("[::1]:8032") == Address("::1", 8032)
    assert Address.parse("[::1]", 8032) == Address("::1", 8032)
    assert str(Address("::1", 8032)) == "[::1]:8032"
