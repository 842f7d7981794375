"""README's ten lines of both packages, from the wheel alone, on each Python of setup.cfg that is at hand.

Each version costs about 22 s of CPU where pip has the packages in its cache. The oldest and the newest run in
`make test`, those between in `make test-all`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.documents import ROOT, run_page

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
IMPORT_ALL = """
import importlib, pkgutil
for top in ("yarn_accel", "torque_sched"):
    for found in pkgutil.walk_packages(importlib.import_module(top).__path__, top + "."):
        found.name.endswith("__main__") or importlib.import_module(found.name)
"""
NO_REGISTRY = ("NewConnectionError", "Temporary failure", "ConnectTimeoutError", "Max retries exceeded")


def interpreters(version: str) -> Iterator[str]:
    """Where a Python of a version may be: on PATH, and where pyenv puts it."""
    yield from filter(None, [shutil.which(f"python{version}")])
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob(f"versions/{version}*/bin/python{version}")))


def found(version: str) -> str:
    """An interpreter that makes virtual environments; else the test is skipped with its version."""
    for path in interpreters(version):
        check = f"import sys, ensurepip, venv; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
        if subprocess.run([path, "-c", check], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip(f"there is no Python {version} with venv here: README's lines did not run on it")


def pip(python: Path | str, *arguments: str) -> None:
    """Run pip; the test is skipped where no registry answers."""
    done = subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and any(text in done.stderr for text in NO_REGISTRY):
        pytest.skip("no package registry answers: nothing could be installed from the wheel")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this tree, built from a copy: setuptools leaves a folder behind."""
    folder = tmp_path_factory.mktemp("wheel")
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "yarn_accel", "torque_sched", "hadoop_conf", *META],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in filter(lambda name: (ROOT / name).is_file(), names):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    pip(sys.executable, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(folder / "source"))
    [path] = folder.glob("*.whl")
    return path


META = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "NOTICE")


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(each, marks=() if each in (VERSIONS[0], VERSIONS[-1]) else pytest.mark.slow)
        for each in VERSIONS
    ],
)
def test_readme_runs_from_the_wheel_alone(version: str, wheel: Path, tmp_path: Path) -> None:
    python = found(version)
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True)
    own = tmp_path / "venv" / "bin" / "python"
    pip(own, "install", "--quiet", "--no-compile", f"{wheel}[yarn,torque]")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [str(own), "-I", "-c", IMPORT_ALL], cwd=empty, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    wrong = run_page(ROOT / "README.md", empty, installed=own.parent)
    assert not wrong, "\n".join(wrong)
    shutil.rmtree(tmp_path / "venv")  # half a GB
    left = [f"{each.name}/" * each.is_dir() or each.name for each in empty.iterdir() if each.name[0] != "."]
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *left, "docker/.env"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    assert {*left, "docker/.env"} == set(ignored), "whoever tries README in a clone has changes"
