"""The shim and the unit: they find home and commands where an init script's environment names neither."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torque_sched.daemon import packaging
from torque_sched.daemon.packaging import KEPT, apply, command_folders, record_of, shim_text, unit_text
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
    [step] = packaging.plan(tmp_path, tmp_path, None, record=tmp_path / "record")
    assert f"#!{sys.executable}\n" in step.text
    assert str(tmp_path / "a") in step.text


def a_home(place: Path) -> Path:
    (place / "sched_priv").mkdir(parents=True)
    return place


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return a_home(tmp_path / "home")


def record(home: Path) -> Path:
    return record_of(home, home.parent / "records")


def plan(home: Path, sbin: Path) -> list[packaging.Step]:
    return packaging.plan(home, sbin, None, record=record(home))


def install(home: Path, sbin: Path) -> None:
    apply(plan(home, sbin), record(home))


def undo(home: Path) -> list[str]:
    return packaging.undo(record(home))


@pytest.fixture
def sbin(tmp_path: Path) -> Path:
    folder = tmp_path / "sbin"
    folder.mkdir()
    (folder / "pbs_sched").write_text("of Torque 6.1.2")
    return folder


def test_an_original_that_an_upgrade_put_over_ours_is_kept_and_comes_back(home: Path, sbin: Path) -> None:
    program = sbin / "pbs_sched"
    install(home, sbin)
    program.write_text("of Torque 6.1.3")
    [step] = plan(home, sbin)
    assert step.done == f"write {program}, keep what is there as {program}{KEPT}"
    install(home, sbin)
    assert Path(f"{program}{KEPT}").read_text() == "of Torque 6.1.3"
    undo(home)
    assert program.read_text() == "of Torque 6.1.3"


def test_undoing_leaves_what_an_upgrade_put_over_ours(home: Path, sbin: Path) -> None:
    program = sbin / "pbs_sched"
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
    tmp_path: Path, home: Path, sbin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(home, Path("sbin"))
    monkeypatch.chdir("/")
    assert undo(home) == [f"{sbin}/pbs_sched: the original is back"]
    assert (sbin / "pbs_sched").read_text() == "of Torque 6.1.2"


NOBODY = 65534


def a_lie(folder: Path, target: Path) -> str:
    """A record that would have root move one file over another, and remove the first."""
    return json.dumps([{"path": str(target), "text": "", "mode": 0o644, "kept": str(folder / "evil")}])


@pytest.mark.parametrize(
    "trick", ["symlink", "dangling symlink", "hard link", "fifo", "other owner", "open to all"]
)
def test_a_record_that_somebody_else_could_have_written_is_not_followed(
    tmp_path: Path, home: Path, sbin: Path, trick: str
) -> None:
    install(home, sbin)
    before = (sbin / "pbs_sched").read_text()
    mine, elsewhere = record(home), tmp_path / "elsewhere"
    elsewhere.write_text(a_lie(tmp_path, sbin / "pbs_sched"))
    mine.unlink()
    if trick in ("other owner", "open to all"):
        mine.write_text(elsewhere.read_text())
    if trick == "other owner" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    {
        "symlink": lambda: mine.symlink_to(elsewhere),
        "dangling symlink": lambda: mine.symlink_to(tmp_path / "nowhere"),
        "hard link": lambda: mine.hardlink_to(elsewhere),
        "fifo": lambda: os.mkfifo(mine),
        "other owner": lambda: os.chown(mine, NOBODY, NOBODY),
        "open to all": lambda: mine.chmod(0o666),
    }[trick]()
    with pytest.raises(StartupError, match="remove it, and put back by hand"):
        undo(home)
    assert (sbin / "pbs_sched").read_text() == before


def test_a_record_in_a_folder_of_somebody_else_is_not_followed(home: Path, sbin: Path) -> None:
    install(home, sbin)
    record(home).parent.chmod(0o777)
    with pytest.raises(StartupError, match="writable for group or others"):
        undo(home)


def test_what_lies_in_sched_priv_is_no_record_of_roots(tmp_path: Path, home: Path, sbin: Path) -> None:
    own = home / "sched_priv" / record(home).name
    own.write_text(a_lie(tmp_path, sbin / "pbs_sched"))
    with pytest.raises(StartupError, match="nothing is recorded"):
        undo(home)
    assert packaging.RECORDS in record_of(home).parents or os.geteuid() != 0


def test_the_unit_is_hardened(tmp_path: Path) -> None:
    text = unit_text(("/bin/true",), Path("/var/spool/torque"), ())
    assert "ReadWritePaths=/var/spool/torque/sched_priv /var/spool/torque/sched_logs" in text
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "torque-sched.service"
    unit.write_text(text)
    words = ["security", "--offline=yes", "--no-pager", "--threshold=45", str(unit)]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
