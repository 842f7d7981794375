"""The command itself: what it lists, what it imports, how it ends."""

from __future__ import annotations

import importlib
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from yarn_accel.cli import COMMANDS, TASKS_COMMANDS, main, root


@pytest.mark.parametrize(
    ("commands", "name"),
    [(commands, name) for commands in (COMMANDS, TASKS_COMMANDS) for name in commands],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_line_of_the_list_is_the_commands_own(commands, name) -> None:
    lazy = commands[name]
    command = getattr(importlib.import_module(lazy.module), lazy.attribute)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert lazy.help.rstrip(".") == command.get_short_help_str(200).rstrip(".")


def test_the_list_imports_no_package() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from yarn_accel.cli import root\n"
        "result = CliRunner().invoke(root, ['--help'])\n"
        "assert result.exit_code == 0 and 'drain' in result.output, result.output\n"
        "print(*sorted(name for name in sys.modules if name.startswith('yarn_accel.')))\n"
        "print(*sorted({'pydantic', 'yaml', 'rich', 'numpy', 'aiohttp'} & set(sys.modules)))\n"
    )
    reported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours, others = reported.stdout.splitlines()
    assert ours.split() == ["yarn_accel.cli", "yarn_accel.errors", "yarn_accel.extras"]
    assert not others


def test_the_command_alone_lists_the_commands_and_is_no_failure() -> None:
    result = CliRunner().invoke(root, [])
    assert result.exit_code == 0
    assert "drain" in result.output


def test_a_wrong_name_is_reported_with_those_there_are() -> None:
    result = CliRunner().invoke(root, ["strat"])
    assert result.exit_code == 2
    assert "No such command 'strat'" in result.output
    assert "start, status, top" in result.output


def test_an_error_is_one_line_and_its_exit_code(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(
        sys, "argv", ["yarn-accel", "launch", "check-config", "--config", str(tmp_path / "x")]
    )
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"yarn-accel: {tmp_path / 'x'}: No such file or directory\n"


def test_the_shell_completes_names() -> None:
    context = click.Context(root)
    assert [item.value for item in root.shell_complete(context, "sta")] == ["start", "status"]
