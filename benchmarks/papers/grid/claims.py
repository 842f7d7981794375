"""The claims of the grid paper (section 4) as checks over the cells of one preset and lambda.

A claim is a share of single comparisons that hold, each named when it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.papers.grid.cells import OVERHEADS, WINDOWS, Cell
from benchmarks.result import Row

_Check = tuple[str, bool]
_MOST_NAMED = 8


class _Cells:
    """The cells of one preset and lambda."""

    def __init__(self, results: Mapping[str, Any], cells: Iterable[Cell]) -> None:
        self._cells = {(cell.window, cell.mode, cell.p): results[cell.key] for cell in cells}

    def of(self, window: str, mode: str, p: float) -> Any:
        return self._cells[window, mode, p]

    def awrt_s(self, window: str, mode: str, p: float) -> list[float]:
        return [site["awrt_s"] for site in self.of(window, mode, p)["sites"]]


def _everywhere() -> Iterator[tuple[str, float]]:
    return ((window, p) for window in WINDOWS for p in OVERHEADS)


def _grows(cells: _Cells) -> Iterator[_Check]:
    """G1: alone, AWRT grows with the clusters of a site, and with p where there are several."""
    for window, p in _everywhere():
        sites = cells.awrt_s(window, "a", p)
        for site in range(1, len(sites)):
            yield f"{window} p {p:g}: site {site} to {site + 1}", sites[site] > sites[site - 1]
    for window in WINDOWS:
        for low, high in pairwise(OVERHEADS):
            before, after = cells.awrt_s(window, "a", low), cells.awrt_s(window, "a", high)
            for site in range(1, len(before)):
                yield f"{window} site {site + 1}: p {low:g} to {high:g}", after[site] > before[site]


def _is_lower(cells: _Cells, mode: str, other: str) -> Iterator[_Check]:
    """G2, G6: every site's AWRT in one mode is below that in the other."""
    for window, p in _everywhere():
        pairs = zip(cells.awrt_s(window, mode, p), cells.awrt_s(window, other, p), strict=True)
        for site, (own_s, other_s) in enumerate(pairs, start=1):
            yield f"{window} p {p:g} site {site} ({own_s / other_s - 1:+.1%})", own_s < other_s


def _beats_cheap_splits(cells: _Cells, mode: str) -> Iterator[_Check]:
    """G3: even at p = 0.4 most sites in the grid beat themselves alone at p = 0.1."""
    for window in WINDOWS:
        pairs = zip(cells.awrt_s(window, mode, 0.4), cells.awrt_s(window, "a", 0.1), strict=True)
        for site, (grid_s, alone_s) in enumerate(pairs, start=1):
            yield f"{window} site {site} ({grid_s / alone_s - 1:+.1%})", grid_s < alone_s


def _falls(cells: _Cells, mode: str, figure: str, shown: str) -> Iterator[_Check]:
    """G4, G5: a figure of the whole grid is lower than without one; `shown` writes both, alone first."""
    for window, p in _everywhere():
        grid, alone = (cells.of(window, each, p)[figure] for each in (mode, "a"))
        yield f"{window} p {p:g} ({shown.format(alone, grid)})", grid < alone


def _splits_less(cells: _Cells, mode: str) -> Iterator[_Check]:
    """G4: fewer jobs are split once the grid is searched."""
    return _falls(cells, mode, "n_split", "{:,} to {:,}")


def _splits_cheaper(cells: _Cells, mode: str) -> Iterator[_Check]:
    """G4 by its cost: the extra area of all splits falls, as a share of the unsplit area."""
    return _falls(cells, mode, "overhead_share", "{:.1%} to {:.1%}")


def _balances(cells: _Cells, mode: str) -> Iterator[_Check]:
    """G5: the AWRTs of the sites differ less."""
    return _falls(cells, mode, "spread", "max/min {:.2f} to {:.2f}")


CLAIMS: Mapping[str, tuple[str, Callable[[_Cells], Iterator[_Check]]]] = {
    "G1": ("alone, AWRT grows with clusters and with p", _grows),
    "G2 (b)": ("search improves every site over alone", lambda cells: _is_lower(cells, "b", "a")),
    "G2 (c)": ("co-allocation improves every site over alone", lambda cells: _is_lower(cells, "c", "a")),
    "G3 (b)": ("search at p 0.4 beats alone at p 0.1", lambda cells: _beats_cheap_splits(cells, "b")),
    "G3 (c)": ("co-allocation at p 0.4 beats alone at p 0.1", lambda cells: _beats_cheap_splits(cells, "c")),
    "G4 (b)": ("search splits fewer jobs than alone", lambda cells: _splits_less(cells, "b")),
    "G4 (c)": ("co-allocation splits fewer jobs than alone", lambda cells: _splits_less(cells, "c")),
    "G4 area (b)": ("search makes all splits cost less area", lambda cells: _splits_cheaper(cells, "b")),
    "G4 area (c)": ("co-allocation makes splits cost less area", lambda cells: _splits_cheaper(cells, "c")),
    "G5 (b)": ("search evens out the sites", lambda cells: _balances(cells, "b")),
    "G5 (c)": ("co-allocation evens out the sites", lambda cells: _balances(cells, "c")),
    "G6 over (a)": ("co-allocation beats alone on all sites", lambda cells: _is_lower(cells, "c", "a")),
    "G6 over (b)": ("co-allocation beats search on all sites", lambda cells: _is_lower(cells, "c", "b")),
}

#: Why a claim does not hold everywhere, as far as we understand it.
_WHY = {
    "G2": "sites that need few splits alone share the extra area of the others' splits",
    "G3": "searching does not make up for all of the extra area of splits at p 0.4",
    "G4": "jobs of the site with one cluster, never split alone, may be split elsewhere",
    "G6": "a split pays for its own job by the gain rule, not for the jobs that its extra area delays",
}


def claim_rows(results: Mapping[str, Any], members: Sequence[Cell]) -> list[Row]:
    """Judge the claims for one preset and lambda; a share of 1 means that it holds everywhere."""
    cells = _Cells(results, members)
    group = f"{members[0].preset}, lambda {members[0].gain:g}"
    rows = []
    for name, (what, checks) in CLAIMS.items():
        found = list(checks(cells))
        wrong = [where for where, is_so in found if not is_so]
        note = f"holds {len(found) - len(wrong)} of {len(found)}"
        if wrong:
            more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
            note += "; not: " + "; ".join(wrong[:_MOST_NAMED]) + more
            note += f". Why: {_WHY[name[:2]]}" if name[:2] in _WHY else ""
        share = 1 - len(wrong) / len(found)
        rows.append(Row(f"{name}, {group}: {what}", share, "share", len(found), None, note=note))
    return rows
