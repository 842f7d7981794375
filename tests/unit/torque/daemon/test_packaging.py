"""The shim and the unit: they find home and commands where an init script's environment names neither."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from torque_sched.daemon.packaging import KEPT, apply, command_folders, plan, shim_text, undo, unit_text
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


def a_home(place: Path) -> Path:
    (place / "sched_priv").mkdir(parents=True)
    return place


def install(home: Path, sbin: Path) -> None:
    apply(plan(home, sbin, None), home)


@pytest.fixture
def sbin(tmp_path: Path) -> Path:
    folder = tmp_path / "sbin"
    folder.mkdir()
    (folder / "pbs_sched").write_text("of Torque 6.1.2")
    return folder


def test_an_original_that_an_upgrade_put_over_ours_is_kept_and_comes_back(tmp_path: Path, sbin: Path) -> None:
    home, program = a_home(tmp_path / "home"), sbin / "pbs_sched"
    install(home, sbin)
    program.write_text("of Torque 6.1.3")
    [step] = plan(home, sbin, None)
    assert step.told == f"write {program}, keep what is there as {program}{KEPT}"
    install(home, sbin)
    assert Path(f"{program}{KEPT}").read_text() == "of Torque 6.1.3"
    undo(home)
    assert program.read_text() == "of Torque 6.1.3"


def test_undoing_leaves_what_an_upgrade_put_over_ours(tmp_path: Path, sbin: Path) -> None:
    home, program = a_home(tmp_path / "home"), sbin / "pbs_sched"
    install(home, sbin)
    program.write_text("of Torque 6.1.3")
    assert undo(home) == [f"{program}: no longer ours, so it is left as it is"]
    assert program.read_text() == "of Torque 6.1.3"


def test_a_second_home_does_not_take_our_own_program_for_the_original(tmp_path: Path, sbin: Path) -> None:
    wrong, right = a_home(tmp_path / "wrong"), a_home(tmp_path / "right")
    install(wrong, sbin)
    install(right, sbin)
    assert repr(str(right)) in (sbin / "pbs_sched").read_text()
    undo(right)
    assert (sbin / "pbs_sched").read_text() == "of Torque 6.1.2"
    undo(wrong)
    assert [(each.name, each.read_text()) for each in sbin.iterdir()] == [("pbs_sched", "of Torque 6.1.2")]


def test_a_folder_named_from_here_is_found_again_from_elsewhere(
    tmp_path: Path, sbin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = a_home(tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    install(home, Path("sbin"))
    monkeypatch.chdir("/")
    assert undo(home) == [f"{sbin}/pbs_sched: the original is back"]
    assert (sbin / "pbs_sched").read_text() == "of Torque 6.1.2"
