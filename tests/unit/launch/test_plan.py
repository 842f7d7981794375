"""The plan of an application, the words that bash and a NodeManager make of it, and its submission."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.launch.yarn import app, node
from yarn_accel.adapters.hadoop_rpc import read_token_file
from yarn_accel.adapters.hadoop_rpc.records import LocalResourceType, LocalResourceVisibility, YarnResource
from yarn_accel.errors import ConfigError
from yarn_accel.launch import plan as launch_plan
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.container_entry import MASTER_ALIAS
from yarn_accel.launch.node_checks import check_sizes
from yarn_accel.launch.uploads import SCRIPT_NAME, FileResource
from yarn_accel.master.credentials import AGENTS_ALIAS, CONTROL_ALIAS, SERVER_ALIAS
from yarn_accel.master.environment import parse_plan

NAME = f"accel-environment-{'0f' * 16}.zip"
ENVIRONMENT = FileResource(NAME, f"hdfs://nn/user/u/.yarn-accel/{NAME}", 100, 1700000000000)
SCRIPT = FileResource(SCRIPT_NAME, "hdfs://nn/user/u/.yarn-accel/accel-start-0.py", 10, 1700000000001)


def planned(**values):
    return launch_plan.make_plan(LaunchConfig.model_validate(values), ENVIRONMENT, SCRIPT)


def test_every_row_of_the_table_is_planned():
    plan = planned(environment={"python": "/opt/py/bin/python3"}, worker={"enabled": True})
    assert (
        set(plan.roles) == {row.name for row in launch_plan.ROLES} == {"master", "server", "agent", "worker"}
    )
    for row in launch_plan.ROLES:
        role = plan.roles[row.name]
        words = shlex.split(role.command)
        assert words[:6] == ["exec", "/opt/py/bin/python3", "-I", "-S", SCRIPT_NAME, NAME]
        assert tuple(words[6 : 6 + len(row.words)]) == row.words
        assert words[-2:] == ["1>><LOG_DIR>/stdout", "2>><LOG_DIR>/stderr"]
        assert role.resources == (ENVIRONMENT, SCRIPT)
        assert role.memory_mib > 0


def test_it_survives_the_journey():
    plan = planned(server={"gpus": 2}, agent={"environment": {"A": "b"}})
    found = parse_plan(plan.to_json())
    assert found.exit_reasons == plan.exit_reasons == launch_plan.EXIT_REASONS
    launched = {name: (spec.command, spec.environment) for name, spec in found.launches.items()}
    assert launched == {
        name: (role.command, role.environment) for name, role in plan.roles.items() if name != "master"
    }
    assert dict(found.launches["agent"].environment)["A"] == "b"


@pytest.mark.parametrize(
    ("server", "counted", "whole", "locked"),
    [
        ({}, {}, ("yarn.io/gpu",), "all"),
        ({"gpus": 0}, {}, (), "all"),
        ({"gpus": 2}, {"yarn.io/gpu": 2}, (), "2"),
        ({"gpus": 2, "devices": "none"}, {"yarn.io/gpu": 2}, (), None),
        ({"devices": "none"}, {}, ("yarn.io/gpu",), None),
    ],
)
def test_gpus_are_asked_of_yarn_or_locked_by_us(server, counted, whole, locked):
    plan = planned(server=server)
    role = plan.roles["server"]
    assert (dict(role.other), role.whole) == (counted, whole)
    assert role.environment == ({"ACCEL_DEVICES": locked} if locked else {})
    assert "ACCEL_DEVICES" not in plan.roles["agent"].environment


def test_an_agent_is_served_before_the_server_that_needs_it():
    """A smaller number is served first, and a queue may be too small for all."""
    roles = planned(worker={"enabled": True}).roles
    assert roles["master"].priority < roles["agent"].priority < roles["server"].priority
    assert roles["server"].priority < roles["worker"].priority


def test_agents_of_systemd_are_left_out():
    assert set(planned(agent={"enabled": False, "secret_file": "/s"}).roles) == {"master", "server"}


def test_a_role_has_files_of_its_own():
    settings = FileResource("pipeline.yaml", "hdfs://nn/x", 1, 1)
    plan = launch_plan.make_plan(LaunchConfig.model_validate({}), ENVIRONMENT, SCRIPT, {"server": [settings]})
    assert plan.roles["server"].resources[-1] == settings
    assert plan.roles["agent"].resources == (ENVIRONMENT, SCRIPT)


ARCHIVE = f"accel-environment-{'ab' * 16}.zip"
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
HOSTILE = (
    *("a b", "'", '"', "$HOME", "`id`", "$(id)", "\\", "a\nb", "!", "*", "{{PATH}}", "}}}"),
    *("<LOG_DIR>", "<CPS>"),
)
words = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), max_size=5)


def as_a_node_manager(command, environment, folder):
    """A launch context as ContainerLaunch of Hadoop 3.5.0 writes it, run by the real bash."""

    def expanded(text):
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
def test_words_arrive_as_they_were(words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("container")
    command = launch_plan.container_command([sys.executable, "-I", "-c", TELL, *words])
    assert as_a_node_manager(command, {}, folder)[0] == words


@settings(max_examples=examples(40))
@given(value=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20))
@example(value="a $HOME `id` \" \\ ' \n")
def test_variables_arrive_as_they_were_or_are_refused(value, tmp_path_factory):
    if re.search(r"\{\{|\}\}|<(LOG_DIR|CPS|ADD_OPENS)>", value):
        with pytest.raises(ConfigError, match="would replace"):
            launch_plan.quoted_environment({"X": value})
        return
    folder = tmp_path_factory.mktemp("container")
    command = launch_plan.container_command([sys.executable, "-I", "-c", TELL])
    assert as_a_node_manager(command, launch_plan.quoted_environment({"X": value}), folder)[1]["X"] == value


def test_the_log_folder_may_have_spaces(tmp_path):
    folder = tmp_path / "a log $dir"
    folder.mkdir()
    command = launch_plan.container_command([sys.executable, "-I", "-c", TELL, "x"])
    script = command.replace("<LOG_DIR>", str(folder).replace("$", r"\$"))
    subprocess.run(["/bin/bash", "-c", f'exec /bin/bash -c "{script}"'], check=True)
    assert json.loads((folder / "stdout").read_text())[0] == ["x"]


def test_a_nul_is_refused():
    with pytest.raises(ConfigError, match="NUL"):
        launch_plan.container_command(["a\0b"])
    with pytest.raises(ConfigError, match="replace"):
        launch_plan.quoted_environment({"X": "a\0b"})


@pytest.mark.parametrize("name", ["ACCEL_SECRET", "DB_PASSWORD", "TOKEN", "MY_CREDENTIALS"])
def test_secrets_do_not_go_through_the_environment(name):
    with pytest.raises(ConfigError, match="container credentials"):
        launch_plan.quoted_environment({name: "x"})


def test_the_place_of_a_secret_may_be_set():
    assert launch_plan.quoted_environment({"ACCEL_SECRET_FILE": "secret"}) == {"ACCEL_SECRET_FILE": "secret"}


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "A\nB"])
def test_a_name_that_bash_does_not_take_is_refused(name):
    with pytest.raises(ConfigError, match="name of a variable"):
        launch_plan.quoted_environment({name: "x"})


def test_what_is_not_set_is_left_out():
    assert launch_plan.container_environment() == {}
    assert launch_plan.container_environment("/c", "all", more={"A": "$b"}) == {
        "ACCEL_CACHE_DIR": "/c",
        "ACCEL_DEVICES": "all",
        "A": r"\$b",
    }


def test_the_interpreter_is_isolated_and_the_archive_named_by_its_content():
    argv = launch_plan.container_argv(("node", "agent"), ARCHIVE, "/opt/py thon")
    assert argv == ["/opt/py thon", "-I", "-S", "accel-start.py", ARCHIVE, "node", "agent"]
    assert launch_plan.container_command(argv).startswith("exec '/opt/py thon' -I -S accel-start.py ")
    with pytest.raises(ConfigError, match="not the name of an environment"):
        launch_plan.container_argv((), "app.zip; rm -rf /")


CONTROL, PIPELINE = b"c" * 32, b"p" * 32


def made(agents=b"", **sections):
    config = LaunchConfig.model_validate(sections)
    plan = launch_plan.make_plan(config, ENVIRONMENT, SCRIPT)
    return launch_plan.make_submission(app(1), config, plan, CONTROL, PIPELINE, agents)


def test_the_site_s_rules_arrive():
    app = {"name": "mine", "queue": "gpu", "priority": 3, "node_label": "fast", "tags": ["a"]}
    attempts = {"max_attempts": 7, "attempt_failures_validity_interval_s": 60}
    submission = made(app={**app, **attempts}, master={"memory_mib": 300, "vcores": 2})
    assert (submission.name, submission.queue, submission.label) == ("mine", "gpu", "fast")
    assert (submission.type, submission.tags, submission.priority.value) == ("yarn-accel", ("a",), 3)
    assert (submission.max_attempts, submission.attempt_failures_validity_ms) == (7, 60_000)
    assert submission.keep_containers
    assert (submission.resource.memory_mib, submission.resource.vcores) == (300, 2)
    assert made().label is None, "the queue decides"


def test_secrets_travel_in_the_credentials_and_nowhere_else():
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


def test_files_are_files_of_the_user():
    files = {each.key: each.value for each in made().launch.files}
    assert set(files) == {ENVIRONMENT.name, SCRIPT.name}
    environment = files[ENVIRONMENT.name]
    assert environment.type is LocalResourceType.FILE
    assert environment.visibility is LocalResourceVisibility.PRIVATE
    assert (environment.size_bytes, environment.modified_ms) == (100, 1700000000000)


def plan_of(**server):
    return planned(server=server)


def test_what_no_container_can_be_is_refused():
    with pytest.raises(
        ConfigError, match=r"role server needs memory-mb 9000, the largest container has 8192"
    ):
        check_sizes(plan_of(memory_mib=9000), YarnResource.of(8192, 16), ())
    with pytest.raises(ConfigError, match=r"role server needs yarn\.io/gpu 2, the largest container has 0"):
        check_sizes(plan_of(gpus=2), YarnResource.of(81920, 16), ())


def test_what_no_node_has_yet_is_reported():
    (warning,) = check_sizes(plan_of(vcores=9), YarnResource.of(81920, 16), (node("w1"), node("w2")))
    assert "role server" in warning
    assert "vcores 9" in warning
    small = {"pool_bytes": 1 << 20, "queue_bytes": 1 << 20, "max_request_bytes": 1 << 20}
    assert check_sizes(planned(pipeline=small), YarnResource.of(8192, 16), (node("w1"),)) == []
