"""The plan of an application, the words that bash and a NodeManager make of it, and its submission."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.launch.yarn import app, node
from yarn_accel.adapters.hadoop_rpc import read_token_file
from yarn_accel.adapters.hadoop_rpc.records import LocalResourceType, LocalResourceVisibility, YarnResource
from yarn_accel.errors import ConfigError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.container_entry import MASTER_ALIAS
from yarn_accel.launch.node_checks import check_sizes
from yarn_accel.launch.plan import (
    EXIT_REASONS,
    ROLES,
    ApplicationPlan,
    container_argv,
    container_command,
    container_environment,
    make_plan,
    make_submission,
    quoted_environment,
)
from yarn_accel.launch.uploads import SCRIPT_NAME, FileResource
from yarn_accel.master.credentials import AGENTS_ALIAS, CONTROL_ALIAS, SERVER_ALIAS
from yarn_accel.master.environment import parse_plan

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


ARCHIVE = f"accel-environment-{'ab' * 16}.zip"
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
HOSTILE = (
    "a b",
    "'",
    '"',
    "$HOME",
    "`id`",
    "$(id)",
    "\\",
    "a\nb",
    "!",
    "*",
    "{{PATH}}",
    "}}}",
    "<LOG_DIR>",
    "<CPS>",
)
words = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), max_size=5)


def as_a_node_manager(command: str, environment: dict[str, str], folder: Path) -> list:
    """A launch context as ContainerLaunch of Hadoop 3.5.0 writes it, run by the real bash."""

    def expanded(text: str) -> str:
        text = text.replace("<LOG_DIR>", str(folder)).replace("<CPS>", ":").replace("<ADD_OPENS>", "--add")
        return text.replace("{{", "$").replace("}}", "")

    lines = ["#!/bin/bash", "set -o pipefail -e"]
    lines += [f'export {name}="{expanded(value)}"' for name, value in environment.items()]
    lines += [f'exec /bin/bash -c "{expanded(command)}"']
    script = folder / "launch_container.sh"
    script.write_text("\n".join(lines), newline="")
    for log in folder.glob("std*"):
        log.unlink()
    argv = ["/bin/bash", str(script)]
    completed = subprocess.run(argv, capture_output=True, check=False, env={"HOME": "/h"})
    assert completed.returncode == 0, (completed, (folder / "stderr").read_text())
    assert completed.stdout == completed.stderr == b""
    return json.loads((folder / "stdout").read_text())


@settings(max_examples=examples(60))
@given(words=words)
@example(words=list(HOSTILE))
@example(words=["{" * n for n in range(1, 6)] + ["<" + "<LOG_DIR>>"])
def test_words_arrive_as_they_were(words: list[str], tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("container")
    command = container_command([sys.executable, "-I", "-c", TELL, *words])
    assert as_a_node_manager(command, {}, folder)[0] == words


@settings(max_examples=examples(40))
@given(value=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20))
@example(value="a $HOME `id` \" \\ ' \n")
def test_variables_arrive_as_they_were_or_are_refused(value: str, tmp_path_factory) -> None:
    if re.search(r"\{\{|\}\}|<(LOG_DIR|CPS|ADD_OPENS)>", value):
        with pytest.raises(ConfigError, match="would replace"):
            quoted_environment({"X": value})
        return
    folder = tmp_path_factory.mktemp("container")
    command = container_command([sys.executable, "-I", "-c", TELL])
    assert as_a_node_manager(command, quoted_environment({"X": value}), folder)[1]["X"] == value


def test_the_log_folder_may_have_spaces(tmp_path) -> None:
    folder = tmp_path / "a log $dir"
    folder.mkdir()
    command = container_command([sys.executable, "-I", "-c", TELL, "x"])
    script = command.replace("<LOG_DIR>", str(folder).replace("$", r"\$"))
    subprocess.run(["/bin/bash", "-c", f'exec /bin/bash -c "{script}"'], check=True)
    assert json.loads((folder / "stdout").read_text())[0] == ["x"]


def test_a_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match="NUL"):
        container_command(["a\0b"])
    with pytest.raises(ConfigError, match="replace"):
        quoted_environment({"X": "a\0b"})


@pytest.mark.parametrize("name", ["ACCEL_SECRET", "DB_PASSWORD", "TOKEN", "MY_CREDENTIALS"])
def test_secrets_do_not_go_through_the_environment(name) -> None:
    with pytest.raises(ConfigError, match="container credentials"):
        quoted_environment({name: "x"})


def test_the_place_of_a_secret_may_be_set() -> None:
    assert quoted_environment({"ACCEL_SECRET_FILE": "secret"}) == {"ACCEL_SECRET_FILE": "secret"}


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "A\nB"])
def test_a_name_that_bash_does_not_take_is_refused(name) -> None:
    with pytest.raises(ConfigError, match="name of a variable"):
        quoted_environment({name: "x"})


def test_what_is_not_set_is_left_out() -> None:
    assert container_environment() == {}
    assert container_environment("/c", "all", more={"A": "$b"}) == {
        "ACCEL_CACHE_DIR": "/c",
        "ACCEL_DEVICES": "all",
        "A": r"\$b",
    }


def test_the_interpreter_is_isolated_and_the_archive_named_by_its_content() -> None:
    argv = container_argv(("node", "agent"), ARCHIVE, "/opt/py thon")
    assert argv == ["/opt/py thon", "-I", "-S", "accel-start.py", ARCHIVE, "node", "agent"]
    assert container_command(argv).startswith("exec '/opt/py thon' -I -S accel-start.py ")
    with pytest.raises(ConfigError, match="not the name of an environment"):
        container_argv((), "app.zip; rm -rf /")


CONTROL, PIPELINE = b"c" * 32, b"p" * 32


def made(agents: bytes = b"", **sections: object):
    config = LaunchConfig.model_validate(sections)
    plan = make_plan(config, ENVIRONMENT, SCRIPT)
    return make_submission(app(1), config, plan, CONTROL, PIPELINE, agents)


def test_the_site_s_rules_arrive() -> None:
    submission = made(
        app={
            "name": "mine",
            "queue": "gpu",
            "priority": 3,
            "node_label": "fast",
            "tags": ["a"],
            "max_attempts": 7,
            "attempt_failures_validity_interval_s": 60,
        },
        master={"memory_mib": 300, "vcores": 2},
    )
    assert (submission.name, submission.queue, submission.label) == ("mine", "gpu", "fast")
    assert submission.priority is not None
    assert submission.priority.value == 3
    assert (submission.type, submission.tags) == ("yarn-accel", ("a",))
    assert (submission.max_attempts, submission.attempt_failures_validity_ms) == (7, 60_000)
    assert submission.keep_containers
    assert (submission.resource.memory_mib, submission.resource.vcores) == (300, 2)


def test_without_a_label_the_queue_decides() -> None:
    assert made().label is None


def test_secrets_travel_in_the_credentials_and_nowhere_else() -> None:
    submission = made()
    launch = submission.launch
    assert launch.credentials is not None
    secrets = read_token_file(launch.credentials).secrets
    assert dict(secrets) == {CONTROL_ALIAS: CONTROL, SERVER_ALIAS: PIPELINE}
    assert read_token_file(made(b"a" * 32).launch.credentials).secrets[AGENTS_ALIAS] == b"a" * 32
    # Two packages name it: containers would find no secret if they differed.
    assert SERVER_ALIAS == MASTER_ALIAS
    shown = repr(launch.environment) + repr(launch.command) + repr(submission)
    assert "ccccc" not in shown
    assert "ppppp" not in shown


def test_files_are_files_of_the_user() -> None:
    files = {each.key: each.value for each in made().launch.files}
    assert set(files) == {ENVIRONMENT.name, SCRIPT.name}
    environment = files[ENVIRONMENT.name]
    assert environment.type is LocalResourceType.FILE
    assert environment.visibility is LocalResourceVisibility.PRIVATE
    assert (environment.size_bytes, environment.modified_ms) == (100, 1700000000000)


def plan_of(**server: object) -> ApplicationPlan:
    return planned(server=server)


def test_what_no_container_can_be_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"role server needs memory-mb 9000, the largest container has 8192"
    ):
        check_sizes(plan_of(memory_mib=9000), YarnResource.of(8192, 16), ())
    with pytest.raises(ConfigError, match=r"role server needs yarn\.io/gpu 2, the largest container has 0"):
        check_sizes(plan_of(gpus=2), YarnResource.of(81920, 16), ())


def test_what_no_node_has_yet_is_reported() -> None:
    (warning,) = check_sizes(plan_of(vcores=9), YarnResource.of(81920, 16), (node("w1"), node("w2")))
    assert "role server" in warning
    assert "vcores 9" in warning
    small = {"pool_bytes": 1 << 20, "queue_bytes": 1 << 20, "max_request_bytes": 1 << 20}
    assert check_sizes(planned(pipeline=small), YarnResource.of(8192, 16), (node("w1"),)) == []
