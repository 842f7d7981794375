"""The list of commands: what it says, what it imports."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from torque_sched import commands
from torque_sched.cli import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_each_line_of_the_list_is_the_commands_own(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(300) == COMMANDS[name]


def test_every_command_is_in_the_list() -> None:
    modules = {
        found.name.replace("_", "-")
        for found in pkgutil.iter_modules(commands.__path__)
        if found.name[0] != "_"
    }
    assert list(COMMANDS) == sorted(modules)


def test_the_list_imports_no_command() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from torque_sched.cli import main\n"
        "result = CliRunner().invoke(main, [])\n"
        "assert result.exit_code == 0 and 'showstart' in result.output, result.output\n"
        "print(*sorted(name for name in sys.modules if name.startswith('torque_sched.')))\n"
        "print(*sorted({'pydantic', 'yaml', 'rich', 'numpy', 'asyncio'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "torque_sched.cli\n\n"


def test_a_wrong_name_is_told_with_those_there_are() -> None:
    result = CliRunner().invoke(main, ["stauts"])
    assert result.exit_code == 2
    assert "No such command 'stauts'" in result.output
    assert "status, top" in result.output


def test_the_shell_completes_names() -> None:
    context = click.Context(main)
    assert [item.value for item in main.shell_complete(context, "show")] == ["showbf", "showstart"]
