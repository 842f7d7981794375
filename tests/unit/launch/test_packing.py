"""Packing of an installation made for the test: some distributions, one for developers, our package."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch import bootstrap, packing

LIBRARY = b"\x7fELF" + bytes(20) + b"\0GLIBC_2.17\0GLIBC_2.29\0GLIBC_2.4.5\0GLIBCXX_3.4.30\0text GLIBC_2.99\0"


def install(site, name, files, requires=()):
    """Write a distribution as pip does."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    extras = {part.split("'")[1] for part in requires if "extra ==" in part}
    text += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    text += "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = {
        **files,
        f"{info}/METADATA": text.encode(),
        f"{info}/direct_url.json": b'{"url": "file:///somewhere"}',
        f"{info}/INSTALLER": b"pip",
    }
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD", "../../../bin/tool"])
    (site / info / "RECORD").write_text(record)


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = tmp_path / "site"
    ours = (
        "base-lib",
        "fast-lib[speed]; extra == 'yarn'",
        "dev-tool; extra == 'dev'",
        "gone; python_version < '3'",
    )
    install(site, "cluster-accel", {}, ours)
    install(site, "base-lib", {"base_lib.py": b"", "base_lib.pyi": b"", "__pycache__/base_lib.pyc": b"x"})
    install(
        site,
        "fast-lib",
        {"fast/__init__.py": b"", "fast/tests/test.py": b"", "fast.libs/lib.so": LIBRARY, "fast/run": b"#!"},
        ("turbo; extra == 'speed'", "never-installed; extra == 'slow'", "Base_Lib>=1"),
    )
    install(site, "turbo", {"turbo.py": b""})
    install(site, "dev-tool", {"dev_tool.py": b""})
    (site / "fast/run").chmod(0o755)
    package = tmp_path / "ours" / "yarn_accel"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__pycache__" / "__init__.pyc").write_bytes(b"x")
    monkeypatch.setattr(packing.yarn_accel, "__file__", str(package / "__init__.py"))
    monkeypatch.syspath_prepend(str(site))
    return site


def packed_names(environment):
    with zipfile.ZipFile(environment.path) as archive:
        return set(archive.namelist())


def test_what_the_extra_needs_is_packed_and_nothing_else(site, tmp_path):
    environment = packing.pack(folder=tmp_path / "packed")
    assert packed_names(environment) == {
        *("accel-requirement.json", "base_lib-1.0.dist-info/METADATA", "base_lib.py"),
        *("fast_lib-1.0.dist-info/METADATA", "fast.libs/lib.so", "fast/__init__.py", "fast/run"),
        *("turbo-1.0.dist-info/METADATA", "turbo.py", "yarn_accel/__init__.py"),
    }
    assert (environment.n_files, environment.n_bytes) == (10, environment.path.stat().st_size)


def test_further_packages_can_be_named(site, tmp_path):
    environment = packing.pack((), ("dev-tool",), tmp_path / "packed")
    assert {"dev_tool.py", "base_lib.py"} < packed_names(environment)
    assert "turbo.py" not in packed_names(environment)


def test_it_knows_what_a_node_must_have(site, tmp_path):
    environment = packing.pack(folder=tmp_path / "packed")
    facts = bootstrap.node_facts()
    assert environment.requirement == packing.Requirement(**{**facts, "glibc": "2.29"})
    with zipfile.ZipFile(environment.path) as archive:
        assert json.loads(archive.read("accel-requirement.json"))["glibc"] == "2.29"


def test_equal_installations_give_equal_bytes(site, tmp_path):
    first = packing.pack(folder=tmp_path / "first")
    for path in site.rglob("*.py"):
        os.utime(path, (1, 1))
    program = "from pathlib import Path; from yarn_accel.launch import packing; import yarn_accel\n"
    program += f"yarn_accel.__file__ = {packing.yarn_accel.__file__!r}\n"
    program += f"print(packing.pack(folder=Path({str(tmp_path / 'second')!r})).digest)\n"
    completed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,  # beside the checkout there may be metadata of the real distribution
        env={**os.environ, "PYTHONPATH": f"{site}:{Path(__file__).parents[3]}", "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.strip() == first.digest
    (second,) = (tmp_path / "second").glob("*.zip")
    assert second.name == first.path.name
    assert second.read_bytes() == first.path.read_bytes()


def test_the_bootstrap_takes_what_was_packed(site, tmp_path):
    environment = packing.pack(folder=tmp_path / "packed")
    folder, lock = bootstrap.provide(str(environment.path), [tmp_path / "cache"])
    os.close(lock)
    assert (folder / "fast/run").stat().st_mode & 0o111
    assert not (folder / "fast.libs/lib.so").stat().st_mode & 0o111
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert n_bytes - len(bootstrap._boot()) == environment.n_unpacked_bytes


def test_it_is_packed_once_and_again_when_a_file_changes(site, tmp_path, monkeypatch):
    folder = tmp_path / "packed"
    first = packing.pack(folder=folder)
    with monkeypatch.context() as patch:
        patch.setattr(packing, "_pack", None)
        assert packing.pack(folder=folder) == first
    (site / "turbo.py").write_text("changed = True\n")
    second = packing.pack(folder=folder)
    assert second.digest != first.digest
    assert first.path.exists(), "an application may still want it"


def test_a_damaged_cache_is_made_anew(site, tmp_path):
    folder = tmp_path / "packed"
    first = packing.pack(folder=folder)
    first.path.write_bytes(b"short")
    for record in folder.glob("*.json"):
        assert packing._remembered(record) is None
    assert packing.pack(folder=folder) == first
    next(folder.glob("*.json")).write_text("[]")
    assert packing.pack(folder=folder) == first


def test_only_so_many_archives_are_kept(site, tmp_path):
    for number in range(5):
        (site / "turbo.py").write_text(f"version = {number}\n")
        packing.pack(folder=tmp_path / "packed")
    assert len(list((tmp_path / "packed").glob("*.zip"))) == packing._KEEP
    assert len(list((tmp_path / "packed").glob("*.json"))) == packing._KEEP
    assert not list((tmp_path / "packed").glob(".*"))


def test_an_extra_that_nobody_defines_is_named(site, tmp_path):
    with pytest.raises(ConfigError, match=r"environment\.extras: unknown extra gpuu; known: .*yarn"):
        packing.pack(("yarn", "gpuu"), folder=tmp_path / "packed")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda site: install(site, "cluster-accel", {}, ("never-installed; extra == 'yarn'",)),
            "never-installed is not installed",
        ),
        (
            lambda site: (site / "turbo-1.0.dist-info/RECORD").write_text("turbo-1.0.dist-info/METADATA,,\n"),
            "turbo does not say which files",
        ),
        (lambda site: (site / "turbo.py").unlink(), r"turbo\.py is gone: install turbo again"),
    ],
    ids=["not installed", "without files", "a file is gone"],
)
def test_what_cannot_be_packed_is_named(site, tmp_path, spoil, complaint):
    spoil(site)
    with pytest.raises(StartupError, match=complaint):
        packing.pack(folder=tmp_path / "packed")


def test_an_installed_file_that_vanishes_meanwhile_is_named_and_not_the_cache(site, tmp_path, monkeypatch):
    """A package is upgraded while its files are packed."""
    looked_up = packing.files

    def vanishing(found):
        named = looked_up(found)
        (site / "turbo.py").unlink()
        return named

    monkeypatch.setattr(packing, "files", vanishing)
    with pytest.raises(StartupError, match=r"turbo\.py, an installed file: No such file"):
        packing.pack(folder=tmp_path / "packed")


def test_a_folder_that_cannot_be_written_is_named(site, tmp_path):
    (tmp_path / "packed").write_text("a file")
    with pytest.raises(StartupError, match="XDG_CACHE_HOME"):
        packing.pack(folder=tmp_path / "packed")
