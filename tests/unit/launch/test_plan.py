from __future__ import annotations

import shlex

from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.node_compatibility import EXIT_REASONS
from yarn_accel.launch.plan import ROLES, ApplicationPlan, make_plan
from yarn_accel.launch.upload import SCRIPT_NAME, FileResource
from yarn_accel.master.launch_plan import parse_plan

NAME = f"accel-environment-{'0f' * 16}.zip"
ENVIRONMENT = FileResource(NAME, f"hdfs://nn/user/u/.yarn-accel/{NAME}", 100, 1700000000000)
SCRIPT = FileResource(SCRIPT_NAME, "hdfs://nn/user/u/.yarn-accel/accel-start-0.py", 10, 1700000000001)


def planned(**values: object) -> ApplicationPlan:
    return make_plan(LaunchConfig.model_validate(values), ENVIRONMENT, SCRIPT)


def test_every_row_of_the_table_is_planned() -> None:
    plan = planned(environment={"python": "/opt/py/bin/python3"}, worker={"enabled": True})
    assert set(plan.roles) == {row.name for row in ROLES} == {"master", "server", "agent", "worker"}
    for row in ROLES:
        role = plan.roles[row.name]
        words = shlex.split(role.command)
        assert words[:6] == ["exec", "/opt/py/bin/python3", "-I", "-S", SCRIPT_NAME, NAME]
        assert tuple(words[6 : 6 + len(row.words)]) == row.words
        assert words[-2:] == ["1>><LOG_DIR>/stdout", "2>><LOG_DIR>/stderr"]
        assert role.resources == (ENVIRONMENT, SCRIPT)
        assert role.memory_mib > 0


def test_it_survives_the_journey() -> None:
    plan = planned(server={"gpus": 2}, agent={"environment": {"A": "b"}})
    found = parse_plan(plan.to_json())
    assert found.exit_reasons == plan.exit_reasons == EXIT_REASONS
    launched = {name: (spec.command, spec.environment) for name, spec in found.launches.items()}
    assert launched == {
        name: (role.command, role.environment) for name, role in plan.roles.items() if name != "master"
    }
    assert dict(found.launches["agent"].environment)["A"] == "b"


def test_gpus_are_asked_of_yarn_or_locked_by_us() -> None:
    both = planned().roles["server"]
    assert (dict(both.other), both.whole, both.environment) == (
        {},
        ("yarn.io/gpu",),
        {"ACCEL_DEVICES": "all"},
    )
    ours = planned(server={"gpus": 0}).roles["server"]
    assert (dict(ours.other), ours.whole, ours.environment) == ({}, (), {"ACCEL_DEVICES": "all"})
    yarns = planned(server={"gpus": 2}).roles["server"]
    counted = {"yarn.io/gpu": 2}
    assert (dict(yarns.other), yarns.whole, yarns.environment) == (counted, (), {"ACCEL_DEVICES": "2"})
    assert planned(server={"gpus": 2, "devices": "none"}).roles["server"].environment == {}
    assert planned(server={"devices": "none"}).roles["server"].environment == {}
    assert "ACCEL_DEVICES" not in planned().roles["agent"].environment


def test_agents_of_systemd_are_left_out() -> None:
    assert set(planned(agent={"enabled": False, "secret_file": "/s"}).roles) == {"master", "server"}


def test_a_role_has_files_of_its_own() -> None:
    settings = FileResource("pipeline.yaml", "hdfs://nn/x", 1, 1)
    plan = make_plan(LaunchConfig.model_validate({}), ENVIRONMENT, SCRIPT, {"server": [settings]})
    assert plan.roles["server"].resources[-1] == settings
    assert plan.roles["agent"].resources == (ENVIRONMENT, SCRIPT)
