"""``python -m benchmarks stale``: results older than the code they measure.

A result is current where the commit that it names is one of this history, had no changes beside it, and
nothing that its benchmark measures (`SUBJECTS`) was changed since.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.registry import NEEDS, RECORDINGS, SUBJECTS
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
    needs = NEEDS.get(path.stem, NEEDS.get(name, ""))
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
    changed = _git(root, "diff", "--name-only", commit_id, "HEAD", "--", *SUBJECTS[name]) or ""
    files = changed.splitlines()
    return f"{len(files)} files changed since, such as {files[0]}" if files else ""


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
            needs = NEEDS.get(name, NEEDS.get(RECORDINGS[name].benchmark, ""))
            table.add_row(f"{name}.json", "", "", "never recorded", needs, RECORDINGS[name].command(name))
    return table
