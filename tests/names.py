"""Words that this project does not use: metaphors, where the field has a word of its own.

``python -m tests.names`` lists every place that breaks a rule. Checked are names, docstrings, comments and
messages of yarn_accel, jobs, benchmarks and their tests, of torque_sched without `_NOT_CHECKED`, and all
documents.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.structure import tree_of

ROOT = Path(__file__).resolve().parent.parent

WORDS = {
    "brain": "decision code",
    "crew": "worker group",
    "crumb": "small request",
    "courier": "payload",
    "door": "endpoint, API",
    "gate": "verifier, admission",
    "house": "project",
    "ladder": "runners",
    "lent": "shared",
    "parcel": "payload",
    "room": "space, capacity, package",
    "rung": "runner",
    "shunned": "backed off from",
    "spot": "placement",
    "staff": "container manager",
    "told": "notified, informed; or say who writes what",
    "wakefulness": "cpu idle",
}
"""A metaphor, and what to write instead; its plural counts as well."""

TORQUE_WORDS = re.compile(
    r"(?<![a-z])(?:moab|moms?|pbsnodes|power state|q(?:alter|run|stat|sub)|substate|torque)(?![a-z])",
    re.IGNORECASE,
)
"""Words of one batch system: the model has none, so that an adapter of another one can fill it."""

PHRASES = {
    "comes up": "starts",
    "come up": "start",
    "came up": "started",
    "speaks": "reports, uses the protocol",
    "spoke": "reported",
    "for silent": "as lost",
}

PROTOCOL = re.compile(r"max_lent_bytes|\b(?:Lent|_take_lent)\b|it has not enough room|there is room now")
"""Names of the wire protocol and of its figures, that versions share, and texts of recorded decisions."""

EXCEPTIONS: dict[str, frozenset[str]] = {
    # The former name of --runner, which is still taken.
    "jobs/options.py": frozenset({"rung"}),
    "tests/unit/jobs/test_options.py": frozenset({"rung"}),
    # Names of torque_sched, which keeps them for now.
    "tests/structure.py": frozenset({"gate"}),
    # A column of the histories that sites have.
    "torque_sched/learn/promise_rows.py": frozenset({"told"}),
    "torque_sched/learn/schema.py": frozenset({"told"}),
    # The name of a Java virtual machine.
    "yarn_accel/hadoop/history.py": frozenset({"spot"}),
}
"""Path -> words it may use, each with its reason."""

DOUBLE_CLASSES = {
    "torque_sched": frozenset(
        {
            "Block", "Candidate", "Chunk", "Claim", "Collected",
            "Ended", "Journal", "Look", "Options",
            "Placed", "Placement", "Plan", "Refusal",
            "Request", "Settings", "SiteFigures",
            "_Reader", "_Steps",
        }
    ),
}  # fmt: skip
"""Names of classes that stand in a package for two ideas, from before that was a rule; none may be added."""

NOUN_FIRST = (
    *("jobs", "yarn_accel/adapters", "yarn_accel/client", "yarn_accel/formats", "yarn_accel/hadoop"),
    *("yarn_accel/launch", "yarn_accel/operations", "yarn_accel/report", "yarn_accel/spark"),
    *("yarn_accel/testbed", "yarn_accel/wire", "yarn_accel/pipeline", "yarn_accel/core/requests"),
    *("yarn_accel/core/application", "yarn_accel/core/binding", "yarn_accel/node", "yarn_accel/master"),
)
"""Folders in which no docstring opens with "What": the reader would wait for the noun. It may only grow."""

_PATTERN = re.compile(
    r"(?<![a-z])(?:" + "|".join([*(f"{word}s?" for word in WORDS), *PHRASES]) + r")(?![a-z])", re.IGNORECASE
)
_HINTS = tuple(word.replace(" ", "") for word in (*WORDS, *PHRASES))
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


_NOT_CHECKED = ("emulation", "grid")
"""Packages of torque_sched that keep their names for now. It may only shrink."""


def _files() -> Iterator[Path]:
    for path in sorted((ROOT / "torque_sched").rglob("*.py")):
        if path.relative_to(ROOT).parts[1] not in _NOT_CHECKED:
            yield path
    for top in ("yarn_accel", "jobs", "benchmarks", "tests"):
        for path in sorted((ROOT / top).rglob("*.py")):
            is_of_torque = any(part.startswith("torque") for part in path.relative_to(ROOT).parts)
            if not is_of_torque and path != Path(__file__):
                yield path


def _documents() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*.md")):
        relative = path.relative_to(ROOT)
        if not any(part.startswith(".") for part in relative.parts) and relative.name != "CHANGELOG.md":
            yield path


def _may_have(text: str) -> bool:
    """Much quicker than `_found`, and false for most lines."""
    squeezed = text.lower().replace("_", "").replace(" ", "")
    return any(hint in squeezed for hint in _HINTS)


def _found(text: str) -> list[str]:
    if not _may_have(text):
        return []
    return [
        found.lower() for found in _PATTERN.findall(_HUMP.sub(" ", PROTOCOL.sub("", text).replace("_", " ")))
    ]


def in_code(path: Path) -> Iterator[tuple[int, str]]:
    """Line and word of each banned word in a module: its names, comments and texts."""
    for word in _found(path.stem):
        yield 1, word
    text = path.read_text(encoding="utf-8")
    if not any(_found(line) for line in text.split("\n")):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.NAME, tokenize.COMMENT, tokenize.STRING}:
            for line, part in enumerate(token.string.split("\n"), token.start[0]):
                for word in _found(part):
                    yield line, word


def in_document(path: Path) -> Iterator[tuple[int, str]]:
    """Line and word of each banned word in a text."""
    for line, text in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        for word in _found(text):
            yield line, word


def banned() -> list[str]:
    """Every place with a banned word, as ``path:line: word``."""
    places = []
    for check, paths in ((in_code, _files()), (in_document, _documents())):
        for path in paths:
            name = str(path.relative_to(ROOT))
            allowed = EXCEPTIONS.get(name, frozenset())
            places += [f"{name}:{line}: {word}" for line, word in check(path) if word not in allowed]
    return places


def riddles() -> list[str]:
    """Places in the folders `NOUN_FIRST` where a docstring opens with "What"."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in NOUN_FIRST
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if re.match(r"\s*What\b", str(node.value.value))
    ]


def torque_words() -> list[str]:
    """Places in the model with a word of Torque; the text of a node's state is its own."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "torque_sched/model").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if TORQUE_WORDS.search(line.replace("torque_sched", "").replace("_", " "))
        and "MOM-list-not-sent" not in line
    ]


def double_classes(package: str) -> dict[str, list[str]]:
    """Names of classes that a package defines more than once, with the places."""
    found = defaultdict(list)
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


if __name__ == "__main__":
    for line in (*banned(), *riddles(), *torque_words()):
        sys.stdout.write(line + "\n")
    for package in ("yarn_accel", "torque_sched"):
        for name, places in double_classes(package).items():
            sys.stdout.write(f"{package}: class {name}: {', '.join(places)}\n")
