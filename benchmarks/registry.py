"""The table of all benchmarks, registry.yaml: what each measures and needs, and how it is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from benchmarks.result import Report, Row

_TABLE: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _expanded(paths: Iterable[str]) -> Iterator[str]:
    """The paths, with those of a group in the place of its name."""
    for path in paths:
        if path.startswith("+"):
            yield from _expanded(_TABLE["groups"][path[1:]])
        else:
            yield path


#: Name -> the line of the list.
BENCHMARKS: Mapping[str, str] = {name: each["measures"] for name, each in _TABLE["benchmarks"].items()}

#: What each measures: when a file there changes, its results are stale. ``:!`` leaves files out, as in git.
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    name: tuple(_expanded(each["subject"])) for name, each in _TABLE["benchmarks"].items()
}


@dataclass(frozen=True, slots=True)
class Recording:
    """How a file of ``benchmarks/results`` is recorded.

    Attributes:
        benchmark: which one writes it.
        only: its sections; none: all.
        quick_only: its sections in the quick form of the report; none: as `only`.
        log: the log that it reads, by its name in the Parallel Workloads Archive.
        full_s: about how long it takes on two quiet cores.
        quick_s: the same for its quick form; 0: the quick report leaves it out.
        needs: what not every machine has; empty: nothing beside what its benchmark needs.
        rank: which are recorded first: 1, 2, ...; 0: 1 where it judges a claim of the report, else 2.
    """

    benchmark: str
    only: Sequence[str] = ()
    quick_only: Sequence[str] = ()
    log: str = ""
    full_s: float = 120.0
    quick_s: float = 0.0
    needs: str = ""
    rank: int = 0

    def words(self, *, is_quick: bool = False) -> list[str]:
        """After ``python -m benchmarks``, without the files."""
        sections = (self.quick_only or self.only) if is_quick else self.only
        only = [word for section in sections for word in ("--only", section)]
        return [self.benchmark, *only, *(["--quick"] if is_quick else [])]

    def command(self, stem: str) -> str:
        """What records the file again, for a reader to copy."""
        log = ["--log", f"{self.log}.gz"] if self.log else []
        target = ["--json", f"benchmarks/results/{stem}.json"]
        return " ".join(["python -m benchmarks", *self.words(), *log, *target])


#: Every file of results, by its name without ``.json``.
RECORDINGS: Mapping[str, Recording] = {
    stem: Recording(**fields) for stem, fields in _TABLE["recordings"].items()
}


def needs_of(stem: str, benchmark: str = "") -> str:
    """What recording this file again takes beside this machine; empty: nothing.

    Args:
        benchmark: which one wrote it, where `RECORDINGS` does not have it.
    """
    recording = RECORDINGS.get(stem, Recording(benchmark))
    return recording.needs or str(_TABLE["benchmarks"].get(recording.benchmark, {}).get("needs", ""))


def takers(option: str) -> list[str]:
    """The benchmarks that take this option of the command, by its name in Python."""
    return [name for name, each in _TABLE["benchmarks"].items() if option in each.get("options", ())]


#: Those that keep what a killed run left in the JSON file, by ``--resume``.
RESUMABLE = frozenset(takers("resume"))

#: Those that start a Hadoop cluster and take ``--mode``: how its nodes are kept apart.
TAKES_MODE = frozenset(takers("mode"))


def module_of(name: str) -> str:
    """The module or package of the benchmark ``name``."""
    is_of_paper = _TABLE["benchmarks"].get(name, {}).get("of_paper")
    return f"benchmarks.papers.{name}" if is_of_paper else f"benchmarks.{name}"


def load(name: str) -> Any:
    """Import the benchmark ``name``: a module with a function ``run``, a `benchmarks.result.Benchmark`.

    A module with ``SECTIONS`` takes those to run as ``only``, one with ``draw`` can draw its report; one with
    ``require(path)`` raises there what it lacks on this machine to write its figures to that file.
    """
    return import_module(module_of(name))


def judged_again(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows that a benchmark makes anew of a recorded result, by today's bounds; most make none."""
    name = str(document.get("name", ""))
    if name not in BENCHMARKS or not hasattr(load(name), "judged_again"):
        return []
    return [asdict(row) for row in load(name).judged_again(document)]


def draw_result(stem: str, document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Have the benchmark of a recorded result draw it into a folder; nothing where it draws none."""
    name = str(document["name"])
    if not hasattr(load(name), "draw"):
        return []
    rows = [
        Row(**{**row, "spread": tuple(row["spread"]) if row["spread"] else None}) for row in document["rows"]
    ]
    report = Report(name, rows=rows, setting=dict(document["machine"]), series=document.get("series", {}))
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(file) for file in load(name).draw(report, str(folder / stem))]
