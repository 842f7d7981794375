"""The five papers and the peers, their claims, and how a claim is judged: read from papers.yaml. Pure.

A claim names who states what, and which rows of which result judge it. It is judged row by row, by one rule:
a figure is within 5 % of the paper's, above or below, or it keeps a bound that the page prints. The claim
holds where all rows do, and in part where some do. A statement that an input was fitted to is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

Row = Mapping[str, Any]
"""Of a result, as its JSON has it."""
_CLOSE = 0.05
"""What a figure that is near the paper's may be off by, as a part of it; above or below."""
_BOUND = re.compile(r"(?P<sign><=|>=) (?P<bound>-?[\d.]+)")
_RULE = re.compile(r"(?P<kind>[a-z ]*[a-z])(?P<bounds>( -?[\d.]+)*)(, paper (?P<paper>-?[\d.]+))?")
_FIRST = "first is least"
_EVERYWHERE = "everywhere"

_HOLDS: Mapping[str, Callable[[Row, Sequence[float]], bool | None]] = {
    "near": lambda row, bounds: abs(row["value"] - bounds[0]) <= _CLOSE * abs(bounds[0]),
    "at most": lambda row, bounds: row["value"] <= bounds[0],
    "at least": lambda row, bounds: row["value"] >= bounds[0],
    "below": lambda row, bounds: row["value"] < bounds[0],
    "above": lambda row, bounds: row["value"] > bounds[0],
    "between": lambda row, bounds: bounds[0] <= row["value"] <= bounds[1],
    # Of the mean; a row without an interval says nothing.
    "interval below": lambda row, bounds: row["interval"][1] < bounds[0] if row.get("interval") else None,
    "interval above": lambda row, bounds: row["interval"][0] > bounds[0] if row.get("interval") else None,
    # The row's figure is the share of single comparisons that hold; the claim is that all do.
    _EVERYWHERE: lambda row, bounds: row["value"] >= 1,
    # The row names its bound: a number, or words where the benchmark judged by more than one figure.
    "bound": lambda row, bounds: _keeps_its_bound(row),
    # The paper says nothing that could be judged, or has other conditions.
    "reported": lambda row, bounds: None,
    # One row says nothing by itself: its figure is to be below those of the others.
    _FIRST: lambda row, bounds: None,
}
_WORDS: Mapping[str, str] = {
    "near": "within 5 % of {0:g}",
    "at most": "<= {0:g}",
    "at least": ">= {0:g}",
    "below": "< {0:g}",
    "above": "> {0:g}",
    "between": "{0:g} to {1:g}",
    "interval below": "95 % interval below {0:g}",
    "interval above": "95 % interval above {0:g}",
    _EVERYWHERE: "all comparisons; in part from half of them",
    "reported": "not judged",
    _FIRST: "the first below the others",
}


def _keeps_its_bound(row: Row) -> bool | None:
    """Whether the figure keeps the goal of its row; None: it has none."""
    found = _BOUND.fullmatch(str(row["goal"]))
    if found is None:
        return None if row["ok"] is None else bool(row["ok"])
    value, bound = row["value"], float(found["bound"])
    return bool(value <= bound if found["sign"] == "<=" else value >= bound)


class Verdict(Enum):
    """What came of a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    FITTED = "fitted, not judged"
    REPORTED = "reported only"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Rule:
    """How a claim is judged.

    Attributes:
        kind: a key of `_HOLDS`.
        bounds: the numbers that it compares with.
        paper: the paper's figure, beside which ours is drawn; None: it has none.
    """

    kind: str
    bounds: tuple[float, ...] = ()
    paper: float | None = None

    @classmethod
    def of(cls, text: str) -> Rule:
        """Such as ``near 14.3``, ``between 0 3`` or ``at least 21, paper 20``.

        Raises:
            ValueError: it is no rule.
        """
        found = _RULE.fullmatch(text)
        if found is None or found["kind"] not in _HOLDS:
            raise ValueError(f"no rule: {text}")
        bounds = tuple(map(float, found["bounds"].split()))
        stated = found["paper"] or (found["bounds"] if found["kind"] == "near" else "")
        return cls(found["kind"], bounds, float(stated) if stated else None)

    def words(self, rows: Sequence[Row]) -> str:
        """What must be so for the claim to hold; the bounds that rows name are taken from these."""
        if self.kind != "bound":
            return _WORDS[self.kind].format(*self.bounds)
        goals = (str(row["goal"]).removeprefix("paper: ") for row in rows)
        return "\n".join(dict.fromkeys(goal for goal in goals if goal)) or "a bound of each row"

    @property
    def needs_interval(self) -> bool:
        """Whether it judges by the 95 % interval of a mean."""
        return self.kind.startswith("interval ")

    def holds(self, row: Row) -> bool | None:
        """Whether it does by this row alone; None: that cannot be said."""
        found = _HOLDS[self.kind](row, self.bounds)
        return None if found is None else bool(found)

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """The verdict over all rows that were measured; none: not measured."""
        if len(rows) < (2 if self.kind == _FIRST else 1):
            return Verdict.NOT_MEASURED
        if self.kind == _FIRST:
            least = min(row["value"] for row in rows[1:])
            return Verdict.HOLDS if rows[0]["value"] < least else Verdict.FAILS
        judged = [found for found in map(self.holds, rows) if found is not None]
        if not judged:
            return Verdict.REPORTED
        if all(judged):
            return Verdict.HOLDS
        # Most comparisons of a single row may hold, too.
        is_part = any(judged) or (self.kind == _EVERYWHERE and any(row["value"] >= 0.5 for row in rows))
        return Verdict.IN_PART if is_part else Verdict.FAILS


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Attributes:
        paper: key of `PAPERS`.
        where: section, figure or table.
        claim: in a few words.
        stated: the paper's figure, as it is printed; of peers: what is asked of ours.
        rule: how it is judged.
        how: what kind of figure ours is, such as ``simulated``.
        result: name of the file of results, without ``.json``; empty: no benchmark measures it, see `note`.
        rows: names of the result's rows, each after a label.
        note: what a reader must know beside the rows' own notes.
        guess: a cause that no figure shows.
        is_fitted: an input was fitted to it, or to what implies it.
    """

    paper: str
    where: str
    claim: str
    stated: str
    rule: Rule
    how: str
    result: str = ""
    rows: tuple[tuple[str, str], ...] = ()
    note: str = ""
    guess: str = ""
    is_fitted: bool = False


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper, or the peers.

    Attributes:
        key: as ``--only`` takes it.
        title: of the paper.
        source: authors and where it appeared.
        here: how its experiments are repeated here.
        emulated: what is not as in the paper; shown above its table.
        inputs: what goes into its experiments, by whose it is: `WHOSE`.
        results: files of results that its claims are judged by, or whose pictures belong to it.
        claims: what it states.
        captions: what the paper says to a picture of ours, by the picture's name without ``.png``.
        tables: of `benchmarks.tables`, shown below.
    """

    key: str
    title: str
    source: str
    here: str
    emulated: Sequence[str]
    inputs: Mapping[str, Sequence[str]]
    results: Sequence[str]
    claims: Sequence[Claim]
    captions: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[str] = ()


def _claims(paper: str, group: Mapping[str, Any]) -> Iterator[Claim]:
    """Those that one result judges in one way."""
    labels = group.get("labels", [""])
    values = labels if isinstance(labels, dict) else {str(each): each for each in labels}
    for where, claim, stated, rule, *row in group["list"]:
        head, _, tail = claim.partition(": ")
        parts = {"claim": claim, "head": head, "tail": tail, "row": "".join(row)}
        rows = tuple(
            (label, group["rows"].format(label=value, **parts))
            for label, value in (values if "rows" in group else {}).items()
        )
        more: dict[str, Any] = {name: group.get(name, "") for name in ("result", "note", "guess")}
        more |= {"rows": rows, "is_fitted": bool(group.get("fitted"))}
        yield Claim(paper, where, claim, stated, Rule.of(rule), group["how"], **more)


def _papers() -> Iterator[Paper]:
    document = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text(encoding="utf-8"))
    for key, values in document.items():
        claims = [claim for group in values["claims"] for claim in _claims(key, group)]
        yield Paper(**{**values, "key": key, "claims": claims})


WHOSE: Mapping[str, str] = {"paper": "the paper's", "fitted": "fitted", "ours": "ours: a reading or a guess"}
"""Whose an input is: key of `Paper.inputs`, and its words."""
PAPERS: Mapping[str, Paper] = {paper.key: paper for paper in _papers()}
CLAIMS: Sequence[Claim] = [claim for paper in PAPERS.values() for claim in paper.claims]
