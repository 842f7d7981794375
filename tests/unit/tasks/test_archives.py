"""Zip files of modules: made alike of like sources, refused where their names lead out of a folder."""

from __future__ import annotations

import stat
import subprocess
import sys
import zipfile

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.tasks import archives


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one inside it, which can be imported."""
    folder = tmp_path / "src" / "outer_package"
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "other.py").write_text("")
    (folder / "inner" / "__init__.py").write_text("def three(): return 3\n")
    (folder / "inner" / "data.json").write_text("{}")
    (folder / "inner" / "__pycache__" / "x.pyc").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    yield "outer_package.inner"
    for name in [each for each in sys.modules if each.startswith("outer_package")]:
        del sys.modules[name]


def test_a_package_travels_with_those_around_it(package, tmp_path):
    path = archives.package_archive([package], tmp_path / "a.zip")
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [
            "outer_package/__init__.py",
            "outer_package/inner/__init__.py",
            "outer_package/inner/data.json",
        ]
    archives.check_archive(path)
    assert archives.archived_modules(path) == {"outer_package"}
    program = f"import sys; sys.path[:] = ['{path}', *sys.path]; import {package} as p; print(p.three())"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "3\n"


def test_like_sources_give_like_bytes(package, tmp_path):
    first = archives.package_archive([package], tmp_path / "a.zip").read_bytes()
    (tmp_path / "src" / "outer_package" / "inner" / "data.json").touch()
    assert archives.package_archive([package], tmp_path / "b.zip").read_bytes() == first


def test_what_cannot_be_packed(package, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="'no_such_package' is not here"):
        archives.package_archive(["no_such_package"], tmp_path / "a.zip")
    with pytest.raises(ConfigError, match="is not of plain files"):
        archives.package_archive(["sys"], tmp_path / "a.zip")
    monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 10)
    with pytest.raises(ConfigError, match="more than"):
        archives.package_archive([package], tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["/etc/x.py", "../x.py", "a/../../x.py", "..\\x.py", "\\x.py", "c:/x.py"])
def test_names_that_lead_out(name, tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "")
    with pytest.raises(ConfigError, match="is absolute or has"):
        archives.check_archive(path)


def test_links(tmp_path):
    entry = zipfile.ZipInfo("link.py")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        archives.check_archive(tmp_path / "a.zip")


def test_a_small_file_that_is_large_inside(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.py", bytes(30 << 20))
    with pytest.raises(ConfigError, match="more than 64 MiB"):
        archives.check_archive(tmp_path / "a.zip")
