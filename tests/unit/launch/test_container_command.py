from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.errors import ConfigError
from yarn_accel.launch.container_command import (
    container_argv,
    container_command,
    container_environment,
    quoted_environment,
)

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
    """What ContainerLaunch of Hadoop 3.5.0 makes of a launch context, run by the real bash."""

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
