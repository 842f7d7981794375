"""Which experiments a report has, and where the figures of each come from: taken, run now, or neither.

A result that is current is taken. One that is not is measured anew, where this machine has what that needs;
where it has not, or where measuring fails, the old figures are shown and marked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.registry import NEEDS, RECORDINGS, TAKES_MODE, Recording, load
from benchmarks.report.papers import PAPERS
from benchmarks.result import current_commit
from benchmarks.stale import verdict_of
from yarn_accel.errors import AccelError, ConfigError

#: These run here without what they need, and say in their rows what they left out.
_RUN_WITHOUT = frozenset({"backfill"})


@dataclass(frozen=True, slots=True)
class Experiment:
    """One that is run.

    Attributes:
        stem: name of its result, without ``.json``.
        log: the log that it reads; None: none.
        estimate_s: about how long it takes.
    """

    stem: str
    recording: Recording
    log: Path | None
    estimate_s: float

    def words(self, target: Path, *, is_quick: bool, mode: str) -> list[str]:
        """After ``python -m benchmarks``."""
        words = [*self.recording.words(is_quick=is_quick), "--json", str(target)]
        words += ["--log", str(self.log)] if self.log else []
        return words + (["--mode", mode] if mode and self.recording.benchmark in TAKES_MODE else [])


@dataclass(frozen=True, slots=True)
class Result:
    """A file of results.

    Attributes:
        document: its JSON.
        why_stale: it is older than the code it measures, or no whole result; empty: it is current.
        is_taken: of the recorded ones; else measured by this report.
    """

    document: Mapping[str, Any]
    why_stale: str
    is_taken: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done for a report.

    Attributes:
        todo: what is run, in this order.
        lacks: experiments that are not run, and why not.
    """

    todo: tuple[Experiment, ...]
    lacks: Mapping[str, str]


def names(keys: Iterable[str]) -> list[str]:
    """The results that these papers' claims are judged by, each once."""
    return list(dict.fromkeys(stem for key in keys for stem in PAPERS[key].results))


def read_result(root: Path, path: Path, *, is_taken: bool) -> Result | None:
    """A file of results against the history of the checkout `root`; None: it is not there.

    Raises:
        ConfigError: it is no result of a benchmark.
    """
    if not path.exists():
        return None
    verdict = verdict_of(root, path)
    return Result(json.loads(path.read_text(encoding="utf-8")), verdict.why, is_taken)


def _is_done(path: Path, *, is_quick: bool, mode: str, benchmark: str) -> bool:
    """Whether this report, before it was killed, or one like it has measured it with this version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found = (document["commit"], document["state"], document["is_quick"])
        measured_in = document["machine"].get("cluster_mode", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    is_same_mode = benchmark not in TAKES_MODE or measured_in == mode
    return found == (current_commit(), "complete", is_quick) and is_same_mode


def left_of(
    todo: Iterable[Experiment], path_of: Callable[[str], Path], *, is_quick: bool, mode: str
) -> list[Experiment]:
    """What a report that was killed has not measured.

    Args:
        path_of: where the figures of an experiment lie.
    """
    return [
        each
        for each in todo
        if not _is_done(path_of(each.stem), is_quick=is_quick, mode=mode, benchmark=each.recording.benchmark)
    ]


def plan_of(
    stems: Sequence[str],
    recorded: Mapping[str, Result],
    logs: Sequence[Path],
    *,
    is_quick: bool,
    is_fresh: bool = False,
) -> Plan:
    """Decide what is run, and in which order: first what has no figures at all, then what takes longest.

    So what does not fit into a report's time is short, and there are figures of it.

    Args:
        stems: of the report.
        recorded: the files of ``benchmarks/results``.
        logs: of the Parallel Workloads Archive.
        is_fresh: take none of them.
    """
    todo, lacks = [], {}
    for stem in stems:
        known = recorded.get(stem)
        if known is not None and not known.why_stale and not is_fresh:
            continue
        recording = RECORDINGS[stem]
        log = _log_of(recording, logs)
        why = _why_not(stem, recording, log, is_quick=is_quick)
        if why:
            lacks[stem] = why
        else:
            estimate_s = recording.quick_s if is_quick else recording.full_s
            todo.append(Experiment(stem, recording, log, estimate_s))
    todo.sort(key=lambda each: (each.stem in recorded, -each.estimate_s))
    return Plan(tuple(todo), lacks)


def _log_of(recording: Recording, logs: Sequence[Path]) -> Path | None:
    return next((each for each in logs if recording.log and each.name.startswith(recording.log)), None)


def _why_not(stem: str, recording: Recording, log: Path | None, *, is_quick: bool) -> str:
    if is_quick and not recording.quick_s:
        return "left out of the quick form"
    needs = NEEDS.get(stem, NEEDS.get(recording.benchmark, ""))
    if not needs or log is not None or stem in _RUN_WITHOUT:
        return ""
    if recording.log:
        return f"needs {needs}: --log {recording.log}.gz"
    require = getattr(load(recording.benchmark), "require", None)
    if require is None:
        return f"needs {needs}"
    try:
        require(None)
    except AccelError as error:
        return f"needs {needs}: {error}"
    return ""


def check_logs(logs: Sequence[Path]) -> None:
    """Refuse a log that no experiment reads.

    Raises:
        ConfigError: naming those that some read.
    """
    known = sorted({each.log for each in RECORDINGS.values() if each.log})
    for path in logs:
        if not any(path.name.startswith(name) for name in known):
            raise ConfigError(
                f"--log {path}: no experiment of the report reads it",
                cure=f"give {' or '.join(f'{name}.gz' for name in known)}, under that name",
            )
