from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jobs.zipapp import ARCHIVE_NAME, build_zipapp, sources
from tests.fixtures.programs import ran

MAPPER_PYTHON = "3.8"


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    return build_zipapp(tmp_path_factory.mktemp("zipapp") / ARCHIVE_NAME)


def run(
    python: str, archive: Path, *words: str, cwd: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    environ.setdefault("PATH", os.environ["PATH"])
    return ran([python, "-I", str(archive), *words], cwd=cwd, env=environ, input="", timeout=60)


def test_the_same_sources_give_the_same_bytes(archive, tmp_path):
    again = build_zipapp(tmp_path / "other-name.pyz")
    assert again.read_bytes() == archive.read_bytes()
    with zipfile.ZipFile(archive) as content:
        assert {entry.date_time for entry in content.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def imported(path: Path, package: str) -> set[str]:
    """Modules of ours that a file imports anywhere, as archive names that exist in the checkout."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.split(".")[0] in ("jobs", "yarn_accel")}


def test_everything_the_archive_imports_of_ours_is_in_it():
    inside = set(sources())
    root = Path(str(sys.modules["jobs"].__file__)).parent.parent
    for name, path in sources().items():
        for module in imported(path, name):
            relative = module.replace(".", "/")
            for candidate in (f"{relative}.py", f"{relative}/__init__.py"):
                assert candidate in inside or not (root / candidate).exists(), f"{name} imports {module}"


@pytest.mark.parametrize("version", [MAPPER_PYTHON, "3.9", "3.13"])
def test_it_starts_on_other_pythons_without_any_package(archive, tmp_path, find_python, version):
    python = find_python(version)
    done = run(python, archive, "factorize-map", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("reporter:status:computing on this node's CPU: agent ")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_a_too_old_python_is_named_before_anything_else(archive, tmp_path, find_python, version):
    python = find_python(version)
    environ = {"PATH": os.environ["PATH"]}
    done = ran([python, str(archive), "factorize-map"], cwd=tmp_path, env=environ)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"accel-job: Python {version} on this node is too old, 3.8 or newer is needed: "
        "name another interpreter with --python"
    ]
