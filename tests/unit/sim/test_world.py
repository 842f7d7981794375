"""WORLD.yaml: what is wrong in it is named with its place and the cure."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import ConfigError
from yarn_accel.sim.world import load_world, world_of

SMALL: dict[str, Any] = {
    "disks": {"sata": {"bandwidth_mb_s": 100, "gamma": 0.1}},
    "nodes": [{"name": "n", "count": 2, "cores": 2, "gpus": 1, "disk": "sata"}],
    "apps": [
        {
            "name": "a",
            "tasks": 4,
            "split_mb": 100,
            "cpu": {"read_s": 20},
            "gpu": {"read_s": 1, "compute_s": 1},
        },
        {"name": "b", "tasks": 2, "split_mb": 10, "cpu": {"read_s": 5}, "is_learned": True},
    ],
}


def changed(**values: Any) -> dict[str, Any]:
    return {**SMALL, **values}


def app(**values: Any) -> dict[str, Any]:
    return changed(apps=[{**SMALL["apps"][0], **values}])


def test_a_world_says_what_a_policy_hears() -> None:
    world = world_of(SMALL, "w")
    resources = [spec for spec, _ in world.resources()]
    assert [(spec.node, spec.cores, spec.gpus) for spec in resources] == [("n-1", 2, 1), ("n-2", 2, 1)]
    assert resources[0].bandwidth_bytes_per_s == 100e6
    first, second = (each.spec for each in world.apps)
    assert first.demands[Form.GPU].gpus == 1
    assert first.declared is not None
    assert first.declared.forms[Form.CPU].alone_s == 20
    assert second.declared is None
    assert world.starts_s() == (0.0, 1.0)


def test_a_policy_may_be_given_another_bandwidth() -> None:
    disks = {"sata": {"bandwidth_mb_s": 100, "declared_mb_s": 5}}
    [(spec, disk), _] = world_of(changed(disks=disks), "w").resources()
    assert (spec.bandwidth_bytes_per_s, disk.bandwidth_mb_s) == (5e6, 100)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "disks: missing; nodes: missing; apps: missing"),
        (changed(apps=[]), "apps: there are none; give at least one"),
        (changed(polcy="hdas"), "polcy: unknown key; known: apps, disks, nodes, options, policy, settings"),
        (app(gpus=1), "apps.0 (a).gpus: unknown key; known: accelerators, cpu, gpu, is_learned"),
        (app(gpu={"read": 1}), "apps.0 (a).gpu.read: unknown key; known: compute_s, cores, gpus, memory_gb"),
        (app(split_mb=0), "apps.0 (a).split_mb: must be at least 1e-06, not 0"),
        (
            app(cpu={"read_s": float("inf")}),
            "apps.0 (a).cpu.read_s: must be at most 1000000000, not Infinity",
        ),
        (
            app(cpu={"read_s": 0}),
            "apps.0 (a).cpu: read_s and compute_s are both 0: a task takes time; give one",
        ),
        (app(tasks=0), "apps.0 (a).tasks: must be at least 1, not 0"),
        (app(name="<b>"), "apps.0 (<b>).name: must be a text that matches"),
        (app(cpu=None, gpu=None), "apps.0 (a): application a has no form; give `cpu`, `gpu` or both"),
        (app(gpu=None, accelerators={"k80": {"read_s": 1}}), "has `accelerators` and no GPU form"),
        (
            app(cpu=None, gpu={"read_s": 1, "gpus": 2}),
            "apps: no node can serve a: a task needs 1 cores, 2 GPUs and 0 GB of memory of one node (n: 2, 1",
        ),
        (changed(apps=SMALL["apps"][:1] * 2), "apps: the name a is given twice"),
        (changed(disks={"ssd": {"bandwidth_mb_s": 1}}), "nodes: n has disk 'sata'; known disks: ssd"),
        (
            changed(disks={"sata": {"bandwidth_mb_s": -1}}),
            "disks.sata.bandwidth_mb_s: must be at least 1e-06, not -1",
        ),
        (changed(options={"samples": "all"}), 'options.samples: must be "requested" or "given", not'),
        (app(tasks=1_000_001), "apps.0 (a).tasks: must be at most 1000000"),
    ],
)
def test_what_is_wrong_is_named(values, message) -> None:
    with pytest.raises(ConfigError) as caught:
        world_of(values, "w.yaml")
    assert str(caught.value).startswith("w.yaml: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("wrong", [1e308, 1e-300, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda x: {"disks": {"sata": {"bandwidth_mb_s": x}}}, "disks.sata.bandwidth_mb_s"),
        (lambda x: {"disks": {"sata": {"bandwidth_mb_s": 100, "declared_mb_s": x}}}, "declared_mb_s"),
        (lambda x: {"disks": {"sata": {"bandwidth_mb_s": 100, "gamma": x}}}, "disks.sata.gamma"),
        (lambda x: {"nodes": [{"name": "n", "cores": 2, "disk": "sata", "memory_gb": x}]}, "memory_gb"),
        (lambda x: app(split_mb=x), "apps.0 (a).split_mb"),
        (lambda x: app(start_s=x), "apps.0 (a).start_s"),
        (lambda x: app(cpu={"read_s": x}), "apps.0 (a).cpu"),
        (lambda x: app(cpu={"compute_s": x}), "apps.0 (a).cpu"),
        (lambda x: app(cpu={"read_s": 10, "memory_gb": x}), "apps.0 (a).cpu.memory_gb"),
        (lambda x: app(accelerators={"k80": {"compute_s": x}}), "apps.0 (a).accelerators.k80"),
        (lambda x: {"options": {"heartbeat_s": x}}, "options"),
        (lambda x: {"options": {"sample_interval_s": x}}, "options"),
        (lambda x: {"options": {"overhead_s": x}}, "options.overhead_s"),
        (lambda x: {"options": {"apps_start_every_s": x}}, "options.apps_start_every_s"),
        (lambda x: {"options": {"read_piece_mb": x}}, "options.read_piece_mb"),
    ],
)
def test_a_number_that_is_none_of_a_cluster_is_one_error(change, place, wrong) -> None:
    values = changed(**change(wrong))
    if wrong == 1e-300:
        # As good as 0, where that is allowed.
        with contextlib.suppress(ConfigError):
            world_of(values, "w.yaml")
        return
    with pytest.raises(ConfigError) as caught:
        world_of(values, "w.yaml")
    assert str(caught.value).startswith(f"w.yaml: {place}" if "." in place else "w.yaml: ")
    assert place in str(caught.value)
    assert "; " not in str(caught.value)


def test_a_task_reads_no_faster_than_every_disk() -> None:
    assert world_of(app(cpu={"read_s": 0.64}, split_mb=64), "w").apps
    with pytest.raises(ConfigError) as caught:
        world_of(app(cpu={"read_s": 0.1}, split_mb=64), "w")
    assert str(caught.value) == (
        "w: apps: a: cpu.read_s: 64 MB in 0.1 s is faster than every disk of the nodes, 100 MB/s at most; "
        "give at least 0.64"
    )


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_world(tmp_path / "w.yaml")
