"""Where the tree is cut finer than its ideas: modules, Protocols and defaults without an idea of their own.

``python -m tests.structure`` lists what it finds. The tables say what is excused, and why;
`MOST_SLIVERS` may only shrink.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("yarn_accel", "torque_sched", "jobs", "benchmarks")
SMALL_MODULE_LINES = 80

REASONS: dict[str, str] = {
    "benchmarks/gpu/pictures.py": "imports matplotlib, which a GPU's node may do without",
    "jobs/cli.py": "imports click and rich; where they are missing, `python -m jobs` says so in one line",
}
"""A module below 80 lines that one other imports -> why it stands alone."""

MOST_SLIVERS: dict[str, int] = {}
"""Folder -> how many more it may have; only what waits for its redesign stands here."""

EDGES: dict[str, str] = {
    "yarn_accel/core/dags/timeline.py:Planned": "not yet judged",
    "yarn_accel/formats/array_file.py:ByteSource": "adapters open files in HDFS or on a disk",
    "yarn_accel/pipeline/http.py:_Connection": "asyncio's base class of a connection, no Protocol of types",
    "yarn_accel/tasks/service_link.py:ServiceLink": "not yet judged",
    "torque_sched/grid/site/peer_endpoint.py:_Guarded": "asyncio's base class of a connection",
    "torque_sched/grid/site/own_jobs.py:Sites": "the processes of other sites, reached by HTTPS",
}
"""``path:Protocol`` with less than two implementations -> the edge of a process that it draws."""

SAME_NAME: dict[str, str] = {
    "interval_s": "the agent's heartbeat; a worker's look at its node's I/O",
    "max_backoff_s": "the agent's, which costs a node its server; a worker's, whose tasks go on meanwhile",
    "memory_mib": "of an attempt, of the container of each role, of all tasks of a worker",
    "progress_interval_s": "what the protocol promises to who asks for it; how often all others hear",
    "recovery_s": "nodes of a restarted ResourceManager; workers of an earlier master",
    "silence_s": "of a pipeline server, reported each second; of a worker of tasks",
    "timeout_s": "longest silence of different peers: a pipeline server, HDFS by WebHDFS",
}
"""Name of a default that is written in several modules -> why the values are different ideas."""


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Path -> syntax tree of each module of the product."""
    paths = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): tree_of(path) for path in paths}


def forget_trees() -> None:
    """Free their memory: two million objects, through which each search for garbage goes for two seconds."""
    for cached in (tree_of, trees, importers):
        cached.cache_clear()


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module, package: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parts = package.split(".")
                origin = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            names |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    return names


@functools.cache
def importers() -> dict[str, set[str]]:
    """Path of a module -> paths of those that import it, within functions and for types, too."""
    paths = {_module(path): path for path in trees()}
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees().items():
        package = _module(path) if path.endswith("__init__.py") else _module(path).rpartition(".")[0]
        for name in _imported(tree, package):
            if name in paths and paths[name] != path:
                found[paths[name]].add(path)
    return found


def slivers() -> list[str]:
    """Modules of less than 80 lines that exactly one other module imports."""
    return [
        path
        for path in trees()
        if not path.endswith(("__init__.py", "__main__.py"))
        and len(importers()[path]) == 1
        and len((ROOT / path).read_text(encoding="utf-8").splitlines()) < SMALL_MODULE_LINES
    ]


def slivers_without_reason() -> Counter[str]:
    """Folder -> how many of its modules are slivers that `REASONS` does not excuse."""
    return Counter(str(Path(path).parent) for path in slivers() if path not in REASONS)


def lonely_protocols() -> list[str]:
    """Protocols that less than two classes of the product implement, as ``path:name``."""
    methods: dict[tuple[str, str], set[str]] = {}
    bases: dict[tuple[str, str], list[str]] = {}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                key = (path, node.name)
                bases[key] = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
                methods[key] = {
                    each.name if not isinstance(each, ast.AnnAssign) else ast.unparse(each.target)
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign)
                }
    concrete = [has for key, has in methods.items() if "Protocol" not in bases[key]]
    return [
        f"{path}:{name}"
        for (path, name), asked in methods.items()
        if "Protocol" in bases[path, name] and asked != {"__call__"}
        if sum(asked <= has for has in concrete) < 2
    ]


UNITS = ("_s", "_ms", "_bytes", "_mib", "_gib", "_S", "_MS", "_BYTES", "_MIB", "_GIB")


def _number(value: ast.expr | None) -> float | None:
    """The number of a default, also of ``Field(60.0, ge=0)`` and ``field(default=60.0)``; None: no number."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in ("Field", "field"):
        named = [keyword.value for keyword in value.keywords if keyword.arg == "default"]
        value = next(iter([*value.args[:1], *named]), None)
    is_number = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
    return value.value if is_number else None  # type: ignore[union-attr, return-value]


def _defaults(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Names and values of parameters, fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), node.value
        elif isinstance(node, ast.Assign):
            yield ast.unparse(node.targets[0]), node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            placed = [*node.args.posonlyargs, *node.args.args][::-1]
            named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            for given, value in (*zip(placed, node.args.defaults[::-1], strict=False), *named):
                yield given.arg, value


def defaults_written_twice() -> dict[str, list[str]]:
    """Name with a unit -> the modules of yarn_accel that give it a number, where these are several.

    Private constants do not count: no caller can see them.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees().items():
        for name, value in _defaults(tree) if path.startswith("yarn_accel/") else ():
            if _number(value) and name.endswith(UNITS) and not name.startswith("_"):
                found[name.lower().removeprefix("default_")].add(path)
    return {name: sorted(places) for name, places in sorted(found.items()) if len(places) > 1}


TESTED_ALONE: dict[str, str] = {
    "yarn_accel/pipeline/trace.py:Trace.n_dropped": "not yet judged",
    "yarn_accel/testbed/cluster.py:Cluster.node_conf_dir": "not yet judged",
}
"""``path:name`` of a definition that no product module uses -> for whom it is there."""

FACES = ("yarn_accel/client/__init__.py", "yarn_accel/operations/__init__.py", "yarn_accel/spark/__init__.py")
"""Packages that users import: what their ``__all__`` names is for them, with all its methods."""

_PLAIN_DECORATORS = {"cache", "cached_property", "classmethod", "contextmanager", "dataclass", "lru_cache"}
_PLAIN_DECORATORS |= {"property", "staticmethod", "asynccontextmanager", "final", "unique", "total_ordering"}


def _is_registered(node: ast.AST) -> bool:
    """Whether a decorator may hand the definition to somebody."""
    names = {
        ast.unparse(each.func if isinstance(each, ast.Call) else each).rpartition(".")[2]
        for each in getattr(node, "decorator_list", ())
    }
    return not names <= _PLAIN_DECORATORS


def _public_definitions(tree: ast.Module, classes: set[str]) -> Iterator[tuple[str, ast.stmt]]:
    """Functions, classes and constants of a module, and methods of classes that nobody else asks for them."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                yield target.id, node
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
            if bases <= classes | {"Enum", "Exception", "NamedTuple", "Protocol", "Generic"}:
                for each in node.body:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{node.name}.{each.name}", each


def _names_in(node: ast.AST) -> Counter[str]:
    """How often a syntax tree says each name, also within texts such as ``"module:name"``."""
    found: Counter[str] = Counter()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found[each.id] += 1
        elif isinstance(each, ast.Attribute):
            found[each.attr] += 1
        elif isinstance(each, ast.alias):
            found[each.name.rpartition(".")[2]] += 1
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and len(each.value) < 200:
            found.update(set(re.findall(r"\w+", each.value)) if " " not in each.value else ())
    return found


def _documented() -> set[str]:
    """Words of the pages, of README and of what is installed, and what users import."""
    pages = [
        ROOT / "README.md",
        ROOT / "setup.cfg",
        *(ROOT / "docs").rglob("*.md"),
        *map(ROOT.joinpath, FACES),
    ]
    return set(re.findall(r"\w+", " ".join(page.read_text(encoding="utf-8") for page in pages)))


def used_by_tests_alone() -> list[str]:
    """Public definitions that no module of the product uses and no page names, as ``path:name``.

    Going by name finds less than there is: a name that stands for something else, too, counts as used.
    """
    used: Counter[str] = Counter()
    for tree in trees().values():
        used.update(_names_in(tree))
    classes = {
        node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    documented, found = _documented(), []
    for path, tree in trees().items():
        for full_name, node in (
            _public_definitions(tree, classes) if not path.startswith("benchmarks/") else ()
        ):
            owner, _, name = full_name.rpartition(".")
            if name.startswith("_") or documented & {owner, name} or _is_registered(node):
                continue
            if used[name] == _names_in(node)[name]:
                found.append(f"{path}:{full_name}")
    return found


if __name__ == "__main__":
    for path in slivers():
        print(f"sliver: {path}, imported by {', '.join(importers()[path])}")
    for name in lonely_protocols():
        print(f"Protocol without two implementations: {name}")
    for name, places in defaults_written_twice().items():
        print(f"default written twice: {name}: {', '.join(places)}")
    for name in used_by_tests_alone():
        print(f"used by tests alone: {name}")
