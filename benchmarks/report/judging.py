"""What is said of a claim: a rule, the rows that were measured for it, and a verdict. Pure.

A rule is judged row by row: a claim holds where it does in all rows, and in part where it does in some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

Row = Mapping[str, Any]
"""Of a result, as its JSON has it."""


class Verdict(Enum):
    """What came of a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    REPORTED = "reported only"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Near:
    """The figure is that of the paper, give or take a part of it."""

    paper: float
    within: float = 0.05

    def holds(self, row: Row) -> bool | None:
        """Whether this row's figure is close enough."""
        return bool(abs(row["value"] - self.paper) <= self.within * abs(self.paper))


@dataclass(frozen=True, slots=True)
class AtMost:
    """The figure is not above a bound."""

    bound: float
    paper: float | None = None

    def holds(self, row: Row) -> bool | None:
        """Whether this row's figure is within the bound."""
        return bool(row["value"] <= self.bound)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The figure is not below a bound."""

    bound: float
    paper: float | None = None

    def holds(self, row: Row) -> bool | None:
        """Whether this row's figure reaches the bound."""
        return bool(row["value"] >= self.bound)


@dataclass(frozen=True, slots=True)
class Between:
    """The figure lies in a range."""

    low: float
    high: float
    paper: float | None = None

    def holds(self, row: Row) -> bool | None:
        """Whether this row's figure lies in the range."""
        return bool(self.low <= row["value"] <= self.high)


@dataclass(frozen=True, slots=True)
class AsRecorded:
    """The benchmark judged it, by more than the row's figure, such as an interval."""

    paper: float | None = None

    def holds(self, row: Row) -> bool | None:
        """The benchmark's own verdict; None: it has none."""
        return None if row["ok"] is None else bool(row["ok"])


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The figure is the share of single comparisons that hold; the claim is that all do."""

    paper: float | None = None

    def holds(self, row: Row) -> bool | None:
        """Whether all comparisons of this row hold."""
        return bool(row["value"] >= 1)


@dataclass(frozen=True, slots=True)
class FirstIsLeast:
    """The first row's figure is below those of the others."""

    paper: float | None = None

    def holds(self, row: Row) -> bool | None:
        """A row by itself says nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Reported:
    """The paper says nothing that could be judged, or has other conditions."""

    paper: float | None = None

    def holds(self, row: Row) -> bool | None:
        """It is not judged."""
        return None


Rule = Near | AtMost | AtLeast | Between | AsRecorded | Everywhere | FirstIsLeast | Reported


def judge(rule: Rule, rows: Sequence[Row]) -> Verdict:
    """The verdict of a rule over all rows that were measured; none: not measured."""
    if not rows:
        return Verdict.NOT_MEASURED
    if isinstance(rule, FirstIsLeast):
        if len(rows) < 2:
            return Verdict.NOT_MEASURED
        least = min(row["value"] for row in rows[1:])
        return Verdict.HOLDS if rows[0]["value"] < least else Verdict.FAILS
    found = [rule.holds(row) for row in rows]
    judged = [each for each in found if each is not None]
    if not judged:
        return Verdict.REPORTED
    if all(judged):
        return Verdict.HOLDS
    # Most comparisons of a single row may hold, too.
    is_part = any(judged) or (isinstance(rule, Everywhere) and any(row["value"] >= 0.5 for row in rows))
    return Verdict.IN_PART if is_part else Verdict.FAILS
