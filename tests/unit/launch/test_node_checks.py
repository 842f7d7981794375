"""Checks before a submission: interpreters of nodes, CuPy for GPUs, sizes of buffers."""

from dataclasses import asdict, replace

import pytest

from tests.unit.launch.yarn import node
from yarn_accel.adapters.hadoop_rpc.records import YarnResource
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch import bootstrap, node_checks
from yarn_accel.launch.config import EnvironmentSettings, LaunchConfig
from yarn_accel.launch.packing import Requirement

NEED = Requirement("3.11", ".cpython-311-x86_64-linux-gnu.so", "x86_64", "2.28")


def test_each_node_is_judged_by_what_it_tells():
    compatibility = node_checks.check_nodes(
        NEED,
        {
            "fits": {**asdict(NEED), "glibc": "2.31"},
            "same": {"glibc": "2.28", "python": "3.11"},
            "several": {"glibc": "2.28", "python": "3.9_3.11"},
            "python": {"python": "3.9", "glibc": "2.31"},
            "glibc": {"python": "3.11", "glibc": "2.9"},
            "arm": {"machine": "aarch64"},
            "silent": {},
        },
    )
    assert set(compatibility.incompatible) == {"python", "glibc", "arm"}
    assert "python3 is 3.9" in compatibility.incompatible["python"]
    assert "install python3.11" in compatibility.incompatible["python"]
    assert "glibc is 2.9, the environment needs 2.28" in compatibility.incompatible["glibc"]
    assert compatibility.unknown == ("silent",)
    assert "1 nodes tell neither" in str(compatibility)


def test_versions_are_numbers_and_not_text():
    assert not node_checks.check_nodes(NEED, {"n": {"glibc": "2.100"}}).incompatible
    assert node_checks.check_nodes(NEED, {"n": {"glibc": "2.3"}}).incompatible


def test_a_node_without_glibc_does_not_fit():
    assert (
        "another C library" in node_checks.check_nodes(NEED, {"alpine": {"glibc": ""}}).incompatible["alpine"]
    )


def test_facts_come_from_node_attributes_of_any_prefix():
    attributes = {"nm.yarn.io/accel-python": "3.11", "accel-glibc": "2.36", "rm.yarn.io/accel-bind": "w1"}
    assert node_checks.attribute_facts(attributes) == {"python": "3.11", "glibc": "2.36"}
    # An extension suffix begins with a dot, and the value of a node attribute may not.
    assert set(node_checks.ATTRIBUTES.values()) == set(bootstrap.node_facts()) - {"extension_suffix"}


def with_gpus(name, n_gpus):
    return replace(node(name), capability=YarnResource.of(64000, 8, {"yarn.io/gpu": n_gpus}))


NODES = (with_gpus("w2", 4), with_gpus("w1", 1), with_gpus("w3", 0))


@pytest.fixture
def packed(monkeypatch):
    names = ["numpy"]
    monkeypatch.setattr(node_checks, "distributions", lambda *_: dict.fromkeys(names))
    monkeypatch.setattr(node_checks, "packed_extras", lambda _: ("yarn",))
    return names


def checked(**settings):
    return node_checks.check_gpu_environment(LaunchConfig.model_validate(settings), NODES)


@pytest.mark.parametrize(
    "settings",
    [{"server": {"gpus": 2}}, {"server": {"devices": "1"}}, {"pipeline": {"devices": ["cpu", "cuda:1"]}}],
)
def test_gpus_that_are_asked_for_need_cupy(packed, settings):
    with pytest.raises(ConfigError, match="asks for GPUs, and CuPy is not in the environment") as caught:
        checked(**settings)
    assert "environment: {gpu: auto}" in str(caught.value)
    packed.append("cupy-cuda12x")
    assert checked(**settings) == []


def test_gpus_that_would_stay_idle_are_named(packed):
    (note,) = checked()
    assert "the GPUs of w1, w2 stay idle" in note
    assert checked(server={"gpus": 0}) == []
    assert checked(pipeline={"devices": ["cpu"]}) == []
    assert node_checks.check_gpu_environment(LaunchConfig.model_validate({}), NODES[2:]) == []
    packed.append("cupy-cuda12x")
    assert checked() == []


def test_cupy_of_cuda_13_travels_alone(packed):
    packed.append("cupy-cuda13x")
    assert checked() == []
    packed.append("cupy-cuda12x")
    with pytest.raises(ConfigError, match="cupy-cuda12x and cupy-cuda13x do not work in one") as caught:
        checked()
    assert "gpu: none" in caught.value.cure


def test_cupy_of_another_cuda_is_refused_by_name(packed):
    packed.append("cupy-cuda11x")
    with pytest.raises(ConfigError, match="cupy-cuda11x is of CUDA 11, which is not supported") as caught:
        checked()
    assert "cupy-cuda12x" in caught.value.cure


@pytest.fixture
def installed(monkeypatch):
    """The extras whose distributions are installed on this machine."""
    found = set()

    def distributions(extras, more=()):
        for extra in extras:
            if extra.startswith("gpu") and extra not in found:
                raise StartupError("cupy-cuda12x is not installed")
        return dict.fromkeys(extras)

    monkeypatch.setattr(node_checks, "distributions", distributions)
    return found


def environment(**settings):
    return EnvironmentSettings.model_validate(settings)


@pytest.mark.parametrize(
    ("here", "form", "packs"),
    [
        ({"gpu", "gpu-site"}, "bundled", ("yarn", "gpu")),
        ({"gpu-site"}, "site", ("yarn", "gpu-site")),
        (set(), "none", ("yarn",)),
    ],
)
def test_auto_packs_what_is_installed_here(installed, here, form, packs):
    installed |= here
    assert node_checks.gpu_form(environment()) == form
    assert node_checks.packed_extras(environment()) == packs
    assert f"environment.gpu: auto, here {form}: " in node_checks.gpu_note(environment())


@pytest.mark.parametrize(("form", "extra"), [("bundled", "gpu"), ("site", "gpu-site")])
def test_a_form_that_is_asked_for_is_packed_or_its_package_is_named(installed, form, extra):
    with pytest.raises(
        StartupError, match=f"environment.gpu: {form}: cupy-cuda12x is not installed"
    ) as caught:
        node_checks.packed_extras(environment(gpu=form))
    assert f"pip install 'cluster-accel[yarn,{extra}]'" in caught.value.cure
    installed |= {"gpu", "gpu-site"}
    assert node_checks.packed_extras(environment(gpu=form, extras=["yarn", "gpu"])) == ("yarn", extra)
    assert node_checks.gpu_note(environment(gpu=form)).startswith(f"environment.gpu: {form}: ")


def test_the_extras_of_before_mean_their_form(installed):
    installed |= {"gpu", "gpu-site"}
    assert node_checks.gpu_form(environment(extras=["yarn", "gpu-site"])) == "site"
    assert node_checks.packed_extras(environment(extras=["yarn", "gpu-site"])) == ("yarn", "gpu-site")


def test_none_packs_none(installed):
    installed |= {"gpu"}
    assert node_checks.packed_extras(environment(gpu="none", extras=["yarn", "gpu"])) == ("yarn",)


SMALL_STEPS = {"yarn.scheduler.minimum-allocation-mb": "128"}


def sized(memory_mib, host="w1"):
    return replace(node(host), capability=YarnResource.of(memory_mib, 8))


def usual(**sections):
    return LaunchConfig.model_validate(sections)


@pytest.mark.parametrize("properties", [{}, SMALL_STEPS])
@pytest.mark.parametrize("memory_mib", [4096, 5120, 6144])
def test_a_server_fits_beside_an_agent_and_the_master(properties, memory_mib):
    config, reported = node_checks.fitted(usual(), properties, [sized(memory_mib)])
    step = 128 if properties else 1024
    taken = sum(-(-mib // step) * step for mib in (config.server_memory_mib, 256, 192))
    assert taken <= memory_mib
    assert ("instead of 1024 MiB" in "".join(reported)) == (config != usual())
    LaunchConfig.model_validate(config.model_dump())


def test_large_nodes_and_what_was_said_change_nothing():
    for nodes in ([sized(8192)], []):
        assert node_checks.fitted(usual(), SMALL_STEPS, nodes) == (usual(), ())
    for given in ({"server": {"memory_mib": 9000}}, {"pipeline": {"pool_bytes": 2**30}}):
        assert node_checks.fitted(usual(**given), SMALL_STEPS, [sized(2048)]) == (usual(**given), ())


def test_nodes_without_an_accelerator_do_not_count_where_others_have_one():
    nodes = [sized(2048, "small"), sized(16384, "large")]
    named = usual(master={"settings": {"accelerator_nodes": ["lar*"]}})
    assert node_checks.fitted(named, SMALL_STEPS, nodes) == (named, ())
    gpus = [sized(2048, "small"), replace(nodes[1], capability=YarnResource.of(16384, 8, {"yarn.io/gpu": 1}))]
    assert node_checks.fitted(usual(), SMALL_STEPS, gpus) == (usual(), ())
    assert node_checks.fitted(usual(), SMALL_STEPS, nodes)[1]


def test_the_clusters_own_bound_holds():
    bounded = {**SMALL_STEPS, "yarn.scheduler.maximum-allocation-mb": "2048"}
    config, _ = node_checks.fitted(usual(), bounded, [sized(16384)])
    assert config.server_memory_mib <= 2048
