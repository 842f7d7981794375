"""The shim and the unit: they find home and commands where an init script's environment names neither."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from torque_sched.daemon.packaging import command_folders, plan, shim_text, unit_text
from torque_sched.errors import StartupError

HOME = Path("/opt/tor'que/home")


def test_the_shim_is_python_that_knows_home_and_commands() -> None:
    text = shim_text("/opt/venv/bin/python", HOME, ("/opt/torque/bin",))
    assert text.startswith("#!/opt/venv/bin/python\n")
    compile(text, "pbs_sched", "exec")
    assert repr(str(HOME)) in text
    assert "'/opt/torque/bin:' + os.environ" in text


@pytest.mark.parametrize("python", ["/opt/my tools/python", "/" + 121 * "x"])
def test_an_interpreter_that_no_script_can_name(python: str) -> None:
    with pytest.raises(StartupError, match="a script cannot begin"):
        shim_text(python, HOME, ())


def test_the_unit_has_the_commands_first_on_its_path() -> None:
    text = unit_text(("/opt/venv/bin/torque-sched",), HOME, ("/opt/torque/bin", "/usr/bin"), "torque")
    path = next(line for line in text.splitlines() if line.startswith("Environment="))
    folders = path.removeprefix('Environment="PATH=').rstrip('"').split(":")
    assert folders[:2] == ["/opt/torque/bin", "/usr/bin"]
    assert folders.count("/usr/bin") == 1
    assert "/sbin" in folders
    assert "User=torque" in text


def test_commands_are_found_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_folders() == ()
    for folder, name in (("b", "qstat"), ("a", "pbsnodes"), ("b", "qrun")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("#!/bin/sh\n")
        (tmp_path / folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / each) for each in "ab"))
    assert command_folders() == (str(tmp_path / "a"), str(tmp_path / "b"))
    [step] = plan(tmp_path, tmp_path, None)
    assert f"#!{sys.executable}\n" in step.text
    assert str(tmp_path / "a") in step.text
