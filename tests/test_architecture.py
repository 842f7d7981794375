"""The rules that no other tool checks: imports stand alone, modules are whole, names are the field's."""

from __future__ import annotations

import ast
import gc
import graphlib
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests import structure
from tests.names import DOUBLE_CLASSES, banned, double_classes, riddles, torque_words

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("yarn_accel", "torque_sched")
SOURCES = sorted(
    p for name in (*PACKAGES, "jobs", "benchmarks", "tests/fixtures") for p in (ROOT / name).rglob("*.py")
)
LIBRARY = [p for p in SOURCES if p.relative_to(ROOT).parts[0] in PACKAGES]
MOST_DECISIONS = 45
MOST_ARCHITECTURE_LINES = 220
FACES = {"yarn_accel/streaming.py"}
"""Modules outside of ``__init__`` that users import from, and that only list what others define."""
FORBIDDEN_NAMES = {"utils", "helpers", "common", "manager", "misc"}
VAGUE = re.compile(r"_class$")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(autouse=True, scope="module")
def no_trees_are_left() -> Iterator[None]:
    """Trees have no cycles; each search for garbage among them costs seconds beside other tests' modules."""
    gc.disable()
    yield
    structure.forget_trees()
    gc.enable()


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 30


def test_modules_are_well_named() -> None:
    assert [relative(p) for p in SOURCES if p.stem in FORBIDDEN_NAMES or VAGUE.search(p.stem)] == []


def test_a_small_module_of_one_importer_has_a_reason() -> None:
    """It is a part of that importer, until `tests.structure` says why not."""
    assert structure.slivers_without_reason() == structure.MOST_SLIVERS, "they may only become fewer"
    assert set(structure.REASONS) <= set(structure.slivers())


def test_a_protocol_has_two_implementations_or_draws_the_edge_of_a_process() -> None:
    assert set(structure.lonely_protocols()) == set(structure.EDGES)


def test_a_default_is_written_once() -> None:
    """Two ideas of one name need two names, or a word in `tests.structure`."""
    assert set(structure.defaults_written_twice()) == set(structure.SAME_NAME)


def test_no_definition_is_there_for_tests_alone() -> None:
    """What a test needs of its own stands in tests/, or says in `tests.structure` for whom it is."""
    assert set(structure.used_by_tests_alone()) == set(structure.TESTED_ALONE)


def test_no_folder_of_tests_hides_a_package() -> None:
    """pytest imports a folder with an ``__init__.py`` by its own name: one called docker hid the SDK."""
    folders = [path.parent for path in (ROOT / "tests" / "integration").rglob("__init__.py")]
    tops = {folder.name for folder in folders if not (folder.parent / "__init__.py").exists()}
    assert tops
    assert [
        name for name in tops - sys.stdlib_module_names if importlib.util.find_spec(name) is not None
    ] == []


def test_library_code_never_prints() -> None:
    assert [
        f"{relative(path)}:{node.lineno}"
        for path in LIBRARY
        for node in ast.walk(structure.tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ] == []


def test_only_the_face_of_a_package_lists_its_names() -> None:
    """Within a package the underscore says what is private; mypy refuses names that a module only imports."""
    listing = {
        name: {
            ast.unparse(target)
            for node in structure.tree_of(path).body
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        for name, path in {relative(each): each for each in SOURCES}.items()
    }
    with_list = {name for name, names in listing.items() if "__all__" in names}
    assert {name for name in with_list if not name.endswith("__init__.py")} <= FACES
    for name in with_list:
        module = importlib.import_module(module_name(ROOT / name))
        assert [each for each in module.__all__ if not hasattr(module, each)] == []


@pytest.mark.parametrize(
    ("package", "blocked"), [("yarn_accel", "torque_sched"), ("torque_sched", "yarn_accel")]
)
def test_each_package_works_with_the_other_one_blocked(package: str, blocked: str) -> None:
    program = (
        "import sys, pkgutil, importlib\n"
        f"sys.modules[{blocked!r}] = None\n"
        f"import {package} as top\n"
        "for found in pkgutil.walk_packages(top.__path__, top.__name__ + '.'):\n"
        "    found.name.endswith('__main__') or importlib.import_module(found.name)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr


def test_the_mapper_side_imports_without_site_packages() -> None:
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "import yarn_accel.errors, yarn_accel.wire, yarn_accel.client.client, yarn_accel.client.dispatch\n"
        "import yarn_accel.client.binding, yarn_accel.client.fallback, yarn_accel.operations, jobs.entry\n"
    )
    completed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr


def test_no_file_names_this_machine() -> None:
    """Absolute paths of somebody's home or checkout have no business in the repository."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")
    pattern = re.compile(r"/(?:home|Users)/[a-z]|/root/")
    guilty = []
    for name in names:
        path = ROOT / name
        if path.suffix in {
            ".py",
            ".md",
            ".sh",
            ".xml",
            ".cfg",
            ".toml",
            ".json",
            ".properties",
        } and path != Path(__file__):
            guilty += [
                f"{name}:{n}"
                for n, line in enumerate(path.read_text().splitlines(), 1)
                if pattern.search(line)
            ]
    assert not guilty


def test_decisions_are_numbered_as_they_stand_and_references_name_one() -> None:
    entries = re.findall(r"^### (\d+)\. ", (ROOT / "DECISIONS.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number in entries] == list(range(1, len(entries) + 1))
    assert len(entries) <= MOST_DECISIONS
    documents = [*ROOT.glob("*.md"), *SOURCES, *(ROOT / "tests").rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in documents)
    assert {int(number) for number in re.findall(r"DECISIONS(?:\.md)? (\d+)", text)} <= set(map(int, entries))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_name_stands_for_two_ideas_of_a_package(package: str) -> None:
    twice, known = double_classes(package), DOUBLE_CLASSES.get(package, frozenset())
    assert {name: places for name, places in twice.items() if name not in known} == {}
    assert set(twice) == known, "shorten DOUBLE_CLASSES: it may only shrink"


@pytest.mark.parametrize("package", ["yarn_accel", "torque_sched", "jobs", "benchmarks"])
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    """Imports within functions and for types count as well."""
    names = {module_name(path): path for path in SOURCES if path.relative_to(ROOT).parts[0] == package}
    graph = {name: imported(path, names) - {name} for name, path in names.items()}
    tuple(graphlib.TopologicalSorter(graph).static_order())


def imported(path: Path, names: Collection[str]) -> set[str]:
    """The modules among `names` that a module imports anywhere."""
    found = set()
    for node in ast.walk(structure.tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in names else node.module for each in whole}
    return found & set(names)


def test_every_path_in_the_architecture_exists() -> None:
    """Paths from the root or from a package; a name alone lies in the folder of the path before it."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_ARCHITECTURE_LINES
    modules = set(re.findall(r"\b(?:yarn_accel|torque_sched)(?:\.\w+)+", text))
    missing = [name for name in sorted(modules) if not is_module(name)]
    for paragraph in re.split(r"\n(?=\n|[-|#])", text):
        folder = ROOT
        for path in re.findall(r"`([\w.-]+(?:/[\w.-]*)*(?:/|\.py|\.md|\.cfg))`", paragraph):
            places = [base / path for base in (folder, ROOT, *map(ROOT.joinpath, PACKAGES))]
            found = next((place for place in places if place.exists()), None)
            if found is None:
                missing.append(path)
            elif "/" in path:
                folder = found if found.is_dir() else found.parent
    assert missing == []


def test_every_path_in_the_makefile_exists() -> None:
    """A lane that names a test which is gone fails only where it can run: with a compiler, say."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w./])(?:tests|benchmarks|docker|jobs)/[\w/.-]+", text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def test_no_metaphor_stands_where_the_field_has_a_word() -> None:
    """The words and what to say instead: `tests.names`."""
    assert banned() == []
    assert riddles() == []
    assert torque_words() == []
