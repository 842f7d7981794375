from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.launch.yarn import node
from yarn_accel.adapters.hadoop_rpc.records import NodeReport, YarnResource
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.sizing import fitted

SMALL_STEPS = {"yarn.scheduler.minimum-allocation-mb": "128"}


def sized(memory_mib: int, host: str = "w1") -> NodeReport:
    return replace(node(host), capability=YarnResource.of(memory_mib, 8))


def usual(**sections: object) -> LaunchConfig:
    return LaunchConfig.model_validate(sections)


@pytest.mark.parametrize("properties", [{}, SMALL_STEPS])
@pytest.mark.parametrize("memory_mib", [4096, 5120, 6144])
def test_a_server_fits_beside_an_agent_and_the_master(properties, memory_mib) -> None:
    config, reported = fitted(usual(), properties, [sized(memory_mib)])
    step = 128 if properties else 1024
    taken = sum(-(-mib // step) * step for mib in (config.server_memory_mib, 256, 192))
    assert taken <= memory_mib
    assert ("instead of 1024 MiB" in "".join(reported)) == (config != usual())
    LaunchConfig.model_validate(config.model_dump())


def test_large_nodes_change_nothing() -> None:
    assert fitted(usual(), SMALL_STEPS, [sized(8192)]) == (usual(), ())
    assert fitted(usual(), SMALL_STEPS, []) == (usual(), ())


def test_what_was_said_stays() -> None:
    for given in ({"server": {"memory_mib": 9000}}, {"pipeline": {"pool_bytes": 2**30}}):
        assert fitted(usual(**given), SMALL_STEPS, [sized(2048)]) == (usual(**given), ())


def test_nodes_without_an_accelerator_do_not_count_where_others_have_one() -> None:
    nodes = [sized(2048, "small"), sized(16384, "large")]
    named = usual(master={"settings": {"accelerator_nodes": ["lar*"]}})
    assert fitted(named, SMALL_STEPS, nodes) == (named, ())
    gpus = [sized(2048, "small"), replace(nodes[1], capability=YarnResource.of(16384, 8, {"yarn.io/gpu": 1}))]
    assert fitted(usual(), SMALL_STEPS, gpus) == (usual(), ())
    assert fitted(usual(), SMALL_STEPS, nodes)[1]


def test_the_clusters_own_bound_holds() -> None:
    bounded = {**SMALL_STEPS, "yarn.scheduler.maximum-allocation-mb": "2048"}
    config, _ = fitted(usual(), bounded, [sized(16384)])
    assert config.server_memory_mib <= 2048
