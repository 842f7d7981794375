"""The archive for sites without internet: its wheels are the installed distributions, and damage is found."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from yarn_accel.launch import bundle


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of this distribution alone, unpacked."""
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "distributions", lambda _extras: {})
        done = CliRunner().invoke(bundle.bundle, [str(folder / "b.tar")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [path.name for path in folder.iterdir()] == ["b.tar"]
    with tarfile.open(folder / "b.tar") as archive:
        archive.extractall(folder, filter="data")
    [found] = [path for path in folder.iterdir() if path.is_dir()]
    return found


def install(unpacked: Path, target: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = ["sh", str(unpacked / "install.sh"), str(target)]
    merged = {**os.environ, "PYTHON": sys.executable, **environ}
    return subprocess.run(argv, env=merged, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["PyYAML", "numba", "pytest"])
def test_a_wheel_installs_what_was_installed(name: str, tmp_path: Path) -> None:
    distribution = importlib.metadata.distribution(name)
    wheel = bundle.write_wheel(distribution, tmp_path)
    argv = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "--prefix"]
    subprocess.run(
        [*argv, str(tmp_path / "new"), "--ignore-installed", str(wheel)], check=True, capture_output=True
    )
    [site] = (tmp_path / "new").glob("lib/python*/site-packages")
    [again] = importlib.metadata.distributions(name=name, path=[str(site)])

    def contents(each: importlib.metadata.Distribution) -> dict[str, bytes]:
        listed = [
            path for path in each.files or () if path.suffix != ".pyc" and ".dist-info/" not in str(path)
        ]
        return {str(path): Path(str(path.locate())).read_bytes().partition(b"\n")[2] for path in listed}

    assert contents(again) == contents(distribution)
    assert (again.version, again.requires) == (distribution.version, distribution.requires)


def test_a_bundle_lists_its_files_and_has_this_distribution(unpacked: Path) -> None:
    listed = {line.split(maxsplit=1)[1] for line in (unpacked / "SHA256SUMS").read_text().splitlines()}
    there = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert there == listed | {"SHA256SUMS"}
    [wheel] = (unpacked / "wheels").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert {"yarn_accel/cli.py", "torque_sched/cli.py"} < set(names)
    assert any(name.endswith(".data/data/share/cluster-accel/hadoop_conf/core-site.xml") for name in names)


def test_a_damaged_bundle_is_refused_before_anything_is_made(unpacked: Path, tmp_path: Path) -> None:
    [wheel] = (unpacked / "wheels").iterdir()
    content = wheel.read_bytes()
    wheel.write_bytes(content[:-1] + b"x")
    try:
        done = install(unpacked, tmp_path / "new")
    finally:
        wheel.write_bytes(content)
    assert (done.returncode, "copy it again" in done.stderr) == (3, True)
    assert not (tmp_path / "new").exists()


def test_another_python_is_refused_with_the_cure(unpacked: Path, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.8 mips\n")
    other.chmod(0o755)
    done = install(unpacked, tmp_path / "new", PYTHON=str(other))
    assert done.returncode == 3
    assert "here is 3.8 mips: set PYTHON=" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(bundle.bundle, [str(tmp_path / "none" / "b.tar")])
    assert str(tmp_path / "none") in str(done.exception)
