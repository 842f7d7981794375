"""The five papers and the peers, read from papers.yaml beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper, or the peers.

    Attributes:
        key: as ``--only`` takes it.
        title: of the paper.
        source: authors and where it appeared.
        here: how its experiments are repeated here.
        emulated: what is not as in the paper; shown above its table.
        results: files of results that its claims are judged by, or whose pictures belong to it.
        captions: what the paper says to a picture of ours, by the picture's name without ``.png``.
        tables: of `benchmarks.tables`, shown below.
    """

    key: str
    title: str
    source: str
    here: str
    emulated: tuple[str, ...]
    results: tuple[str, ...]
    captions: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[str, ...] = ()


def _read() -> dict[str, Paper]:
    document = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text(encoding="utf-8"))
    found = {}
    for key, values in document.items():
        lists = {name: tuple(values.get(name, ())) for name in ("emulated", "results", "tables")}
        found[key] = Paper(**{**values, **lists, "key": key})
    return found


PAPERS: Mapping[str, Paper] = _read()
