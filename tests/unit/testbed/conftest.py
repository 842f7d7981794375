"""A cluster's files and layout, for tests that make none."""

from __future__ import annotations

from pathlib import Path

import pytest

from yarn_accel.hadoop.java import HadoopInstall
from yarn_accel.testbed.plan import ClusterPlan, NetworkMode, UpOptions, make_plan
from yarn_accel.testbed.software import Software
from yarn_accel.testbed.state import ClusterPaths


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    return ClusterPaths.of("demo", tmp_path / "clusters")


@pytest.fixture
def software(tmp_path: Path) -> Software:
    lib = tmp_path / "lib"
    jar = lib / "class-path.jar"
    return Software(
        HadoopInstall(
            java=Path("/usr/lib/jvm/x/bin/java"),
            lib_dir=lib,
            class_path_jar=jar,
            streaming_jar=lib / "hadoop-streaming.jar",
            version="3.5.0",
            n_jars=1,
            n_bytes=1,
        ),
        archive=None,
    )


def plan_of(paths: ClusterPaths, mode: NetworkMode, **options: object) -> ClusterPlan:
    wanted = UpOptions(name="demo", **options)  # type: ignore[arg-type]
    return make_plan(wanted, mode, paths.scope, subnet=9, port_base=13000)
