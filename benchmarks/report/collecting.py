"""Puts claims and results together: the document that a report's JSON is, and its page shows."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.report.claims import CLAIMS, Claim
from benchmarks.report.experiments import Result
from benchmarks.report.judging import Row, Verdict, judge
from benchmarks.report.papers import PAPERS

_LIBRARIES = ("numpy", "scipy", "hdfs-native", "simpy", "pyzmq", "pyarrow", "grpcio", "ray", "distributed")


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a result that judges a claim.

    Attributes:
        label: which of the claim's rows; empty where there is one.
        spread: smallest and largest measurement; None: there was one.
    """

    label: str
    value: float
    unit: str
    n: int
    spread: tuple[float, float] | None
    note: str


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim and what came of it.

    Attributes:
        why: what the rows and the claim say of it; of one that is not measured, why not.
        is_old: its figures are older than the code they measure.
    """

    claim: Claim
    verdict: Verdict
    figures: tuple[Figure, ...]
    why: str
    is_old: bool


def judged(claim: Claim, results: Mapping[str, Result], reasons: Mapping[str, str]) -> JudgedClaim:
    """What came of a claim.

    Args:
        results: by name.
        reasons: why there is no result, by its name.
    """
    if not claim.result:
        return JudgedClaim(claim, Verdict.NOT_MEASURED, (), claim.note, False)
    result = results.get(claim.result)
    if result is None:
        why = reasons.get(claim.result, f"benchmarks/results/{claim.result}.json is not there")
        return JudgedClaim(claim, Verdict.NOT_MEASURED, (), _joined([why, claim.note]), False)
    rows = {str(row["what"]): row for row in result.document["rows"]}
    found = [(label, rows[what]) for label, what in claim.rows if what in rows and rows[what]["n"]]
    missing = [label or what for label, what in claim.rows if what not in rows or not rows[what]["n"]]
    verdict = judge(claim.rule, [row for _, row in found])
    notes = _notes(found)
    if missing:
        said = next((rows[what]["note"] for _, what in claim.rows if what in rows), "")
        notes.append(f"not measured: {', '.join(missing)}" + (f" ({said})" if said and not found else ""))
    why = _joined([*dict.fromkeys(notes), claim.note])
    return JudgedClaim(claim, verdict, tuple(_figure(*each) for each in found), why, bool(result.why_stale))


def _notes(found: Iterable[tuple[str, Row]]) -> list[str]:
    """What rows note, each note once, after the labels of its rows."""
    labels: dict[str, list[str]] = {}
    for label, row in found:
        note = str(row["note"])
        # The verdict that some begin with stands beside it.
        for verdict in ("does not hold: ", "holds: "):
            note = note.removeprefix(verdict)
        labels.setdefault(note, []).append(label)
    return [
        f"{', '.join(several)}: {note}" if any(several) else note for note, several in labels.items() if note
    ]


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(part for part in parts if part)


def _figure(label: str, row: Row) -> Figure:
    spread = (float(row["spread"][0]), float(row["spread"][1])) if row["spread"] else None
    return Figure(label, float(row["value"]), str(row["unit"]), int(row["n"]), spread, str(row["note"]))


def counts(claims: Iterable[JudgedClaim]) -> dict[Verdict, int]:
    """How many claims have which verdict."""
    found = dict.fromkeys(Verdict, 0)
    for each in claims:
        found[each.verdict] += 1
    return found


def source_of(result: Result, now: datetime) -> str:
    """Which file a result is, how old, and of which commit; in words."""
    document = result.document
    age_days = (now - datetime.fromisoformat(str(document["started_at"]))).days
    age = "today" if age_days < 1 else f"{age_days} day{'s' if age_days > 1 else ''} old"
    where = "taken from benchmarks/results" if result.is_taken else "measured for this report"
    quick = ", quick form" if document.get("is_quick") else ""
    stale = f"; STALE: {result.why_stale}" if result.why_stale else ""
    return f"{where}{quick}, {age}{stale}"


def library_versions() -> dict[str, str]:
    """Of Python and of the libraries that figures hang on."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def document_of(
    keys: Sequence[str],
    results: Mapping[str, Result],
    reasons: Mapping[str, str],
    facts: Mapping[str, Any],
    now: datetime,
) -> tuple[dict[str, Any], list[JudgedClaim]]:
    """The report as JSON, and its judged claims.

    Args:
        keys: of papers.
        facts: of this report: commit, machine, versions, how it was made.
    """
    claims = [judged(each, results, reasons) for each in CLAIMS if each.paper in keys]
    papers = [
        {
            "key": key,
            "title": PAPERS[key].title,
            "source": PAPERS[key].source,
            "emulated": list(PAPERS[key].emulated),
            "claims": [_claim_document(each) for each in claims if each.claim.paper == key],
        }
        for key in keys
    ]
    sources = {
        stem: {
            "source": source_of(result, now),
            **{name: result.document.get(name) for name in ("commit", "started_at", "wall_s", "machine")},
        }
        for stem, result in results.items()
    }
    document = {"made_at": now.isoformat(timespec="seconds"), **facts, "papers": papers, "results": sources}
    return {**document, "not_run": dict(reasons)}, claims


def _claim_document(each: JudgedClaim) -> dict[str, Any]:
    return {
        "where": each.claim.where,
        "claim": each.claim.claim,
        "paper": each.claim.stated,
        "ours": [
            {"label": f.label, "value": f.value, "unit": f.unit, "n": f.n, "spread": f.spread}
            for f in each.figures
        ],
        "verdict": each.verdict.value,
        "why": each.why,
        "how": each.claim.how,
        "result": each.claim.result,
        "is_stale": each.is_old,
    }
