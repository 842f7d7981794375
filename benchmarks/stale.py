"""``python -m benchmarks stale``: results older than the code they measure.

A result is current where the commit that it names is one of this history, had no changes beside it, and no
code that its benchmark measures (`SUBJECTS`) was changed since. Code is compared statement by statement:
a module that moved, two that became one, an import or a docstring change nothing that could be measured.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.registry import RECORDINGS, SUBJECTS, needs_of
from yarn_accel.errors import ConfigError

_UNCOMMITTED = "+uncommitted"


@dataclass(frozen=True)
class Verdict:
    """What is to be said of one file of results.

    Attributes:
        file: its name.
        benchmark: which one wrote it.
        commit: as it names it.
        date: of the start, as YYYY-MM-DD.
        why: it is stale; empty: it is current.
        needs: what to record it again takes beside this machine, if anything.
        cure: the command that records it again; empty where it is current, or no command is known.
    """

    file: str
    benchmark: str
    commit: str
    date: str
    why: str
    needs: str = ""
    cure: str = ""


def verdicts(root: Path) -> Iterator[Verdict]:
    """Of all files of results of the checkout `root`, by name.

    Raises:
        ConfigError: it is no checkout, or its history was not cloned; a file is no result.
    """
    _require_history(root)
    for path in sorted((root / "benchmarks" / "results").glob("*.json")):
        yield verdict_of(root, path)


def verdict_of(root: Path, path: Path) -> Verdict:
    """Of one file, wherever it lies, against the history of the checkout `root`.

    Raises:
        ConfigError: it is no result.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        name, commit, started_at = (str(result[key]) for key in ("name", "commit", "started_at"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path.name} is no result of a benchmark: {error!r}") from None
    why = _why_stale(root, name, commit) or _why_no_result(result)
    needs = needs_of(path.stem, name)
    cure = RECORDINGS[path.stem].command(path.stem) if why and path.stem in RECORDINGS else ""
    return Verdict(path.name, name, commit, started_at[:10], why, needs, cure)


def _require_history(root: Path) -> None:
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        raise ConfigError(f"{root} has no history", cure="clone the repository whole: git fetch --unshallow")


def _why_no_result(result: Mapping[str, Any]) -> str:
    """Not whole, or not measured in full; files of earlier versions say neither."""
    if result.get("is_quick"):
        return "measured in the quick form"
    state = result.get("state", "complete")
    return "" if state == "complete" else f"its run did not end well: {state}"


def _why_stale(root: Path, name: str, commit: str) -> str:
    if name not in SUBJECTS:
        return "there is no such benchmark any more"
    commit_id = commit.removesuffix(_UNCOMMITTED)
    if not commit_id or _git(root, "merge-base", "--is-ancestor", commit_id, "HEAD") is None:
        return "its commit is none of this history: the history was rewritten, or it is of another branch"
    if commit_id != commit:
        return "measured with changes that were not committed"
    files = _changed_files(root, commit_id, SUBJECTS[name])
    return f"{len(files)} files changed since, such as {files[0]}" if files else ""


def _changed_files(root: Path, commit: str, paths: Sequence[str]) -> list[str]:
    """Files below `paths` with a statement that is new since `commit`, or that is no more."""
    # What is in `papers` now was one folder above.
    former = [path.replace("benchmarks/papers/", "benchmarks/") for path in paths]
    # What draws the figures measures nothing.
    paths = [*paths, ":!benchmarks/*/pictures.py", ":!benchmarks/*/views.py"]
    listed = _git(root, "diff", "--name-only", "--no-renames", commit, "HEAD", "--", *{*paths, *former}) or ""
    then, now = (
        {name: _statements(name, _git(root, "show", f"{at}:{name}")) for name in listed.splitlines()}
        for at in (commit, "HEAD")
    )
    gone, new = (Counter(each for some in side.values() for each in some) for side in (then, now))
    changed = (gone - new).keys() | (new - gone).keys()
    return [name for name in then if changed.intersection(then[name] + now[name])]


def _statements(name: str, text: str | None) -> list[str]:
    """The statements of a module without imports and docstrings; the lines of any other file."""
    try:
        tree = ast.parse(text or "")
    except (SyntaxError, ValueError):
        tree = None
    if tree is None or not name.endswith(".py"):
        return (text or "").splitlines()
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, block, None), list):
                setattr(node, block, [each for each in statements if not _is_beside(each)])
    return [ast.dump(each) for each in tree.body]


def _is_beside(statement: ast.stmt) -> bool:
    """Whether it is an import, a docstring, or the list of a package's names: nothing runs longer for it."""
    if isinstance(statement, ast.Assign):
        return any(isinstance(each, ast.Name) and each.id == "__all__" for each in statement.targets)
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _git(root: Path, *words: str) -> str | None:
    """What git says; None: it fails, or is not there."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def shown(found: Sequence[Verdict], names: Iterable[str]) -> Table:
    """A table of verdicts.

    Args:
        names: of `RECORDINGS`; those without a file are listed, too.
    """
    table = Table("result", "of", "commit", "stale", "needs", "recorded again by")
    for each in found:
        table.add_row(
            each.file, each.date, each.commit, escape(each.why) or "no", each.needs, escape(each.cure)
        )
    files = {each.file for each in found}
    for name in names:
        if f"{name}.json" not in files:
            command = RECORDINGS[name].command(name)
            table.add_row(f"{name}.json", "", "", "never recorded", needs_of(name), command)
    return table
