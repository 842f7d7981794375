"""The claims of the report: complete, judged by pure rules, and as the benchmarks judge them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.registry import BENCHMARKS, RECORDINGS
from benchmarks.report.claims import CLAIMS, Claim
from benchmarks.report.collecting import judged
from benchmarks.report.experiments import Result
from benchmarks.report.judging import (
    AsRecorded,
    AtLeast,
    AtMost,
    Between,
    Everywhere,
    FirstIsLeast,
    Near,
    Reported,
    Rule,
    Verdict,
    judge,
)
from benchmarks.report.papers import PAPERS
from benchmarks.tables import TABLES
from benchmarks.yarn_paper.claims import CLAIMS as YARN_CLAIMS

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


def row(value: float, ok: bool | None = None, what: str = "w", **more: Any) -> dict[str, Any]:
    rest = {"unit": "x", "n": 1, "spread": None, "goal": "", "note": ""}
    return {"what": what, "value": value, "ok": ok, **rest, **more}


def rows_of(stem: str) -> dict[str, dict[str, Any]]:
    path = RESULTS / f"{stem}.json"
    return {each["what"]: each for each in json.loads(path.read_text())["rows"]} if path.exists() else {}


def test_every_paper_has_claims_and_every_claim_a_result_of_a_benchmark() -> None:
    assert {each.paper for each in CLAIMS} == PAPERS.keys()
    for each in CLAIMS:
        if each.result:
            assert each.result in PAPERS[each.paper].results, each.claim
            assert RECORDINGS[each.result].benchmark in BENCHMARKS
            assert each.rows
        else:
            assert each.note, f"{each.claim}: nothing measures it, and nothing says why"


def test_every_result_of_a_paper_is_recorded_and_judges_or_shows_something() -> None:
    for paper in PAPERS.values():
        assert set(paper.results) <= RECORDINGS.keys()
        assert set(paper.tables) <= TABLES.keys()
        assert {each.result for each in CLAIMS if each.paper == paper.key} - {""} == set(paper.results)


def test_no_claim_stands_twice() -> None:
    assert len({(each.paper, each.claim, each.rows) for each in CLAIMS}) == len(CLAIMS)


def test_every_claim_of_the_yarn_benchmark_is_in_the_table() -> None:
    named = {what for each in CLAIMS if each.result == "yarn_paper" for _, what in each.rows}
    assert named == {f"claim: {name}" for name in YARN_CLAIMS}


@pytest.mark.parametrize("prefix", ["S1", "S2"])
def test_every_statement_that_the_hdas_benchmark_judges_is_in_the_table(prefix: str) -> None:
    stated = {
        what
        for what, each in rows_of("hdas_paper").items()
        if what.startswith(f"{prefix}: ") and each["goal"].startswith("paper: ")
    }
    named = {what for each in CLAIMS if each.result == "hdas_paper" for _, what in each.rows}
    assert stated == {what for what in named if what.startswith(f"{prefix}: ")}


@pytest.mark.parametrize("claim", [each for each in CLAIMS if each.result], ids=lambda each: each.claim[:60])
def test_the_rows_of_a_claim_are_in_the_recorded_result(claim: Claim) -> None:
    rows = rows_of(claim.result)
    missing = [what for _, what in claim.rows if what not in rows]
    # Not every peer is installed on every machine.
    assert not rows or missing == [] or (claim.paper == "peers" and len(missing) < len(claim.rows))


def test_a_paper_s_figure_is_judged_as_the_benchmark_judged_it() -> None:
    """Where both judge the same row, by the figure that both have of the paper."""
    differing = []
    for each in CLAIMS:
        rows = rows_of(each.result) if each.result == "hdas_paper" else {}
        for _, what in each.rows:
            if what in rows and rows[what]["ok"] is not None:
                holds = each.rule.holds(rows[what])
                if holds != rows[what]["ok"]:
                    differing.append((what, each.rule, rows[what]["value"]))
    assert differing == []


@pytest.mark.parametrize(
    ("rule", "rows", "verdict"),
    [
        (Near(10.0), [row(10.5)], Verdict.HOLDS),
        (Near(10.0), [row(10.6)], Verdict.FAILS),
        (Near(-0.2), [row(-0.195)], Verdict.HOLDS),
        (Near(10.0), [row(10.0), row(12.0)], Verdict.IN_PART),
        (Near(10.0), [], Verdict.NOT_MEASURED),
        (AtMost(1.0), [row(1.0)], Verdict.HOLDS),
        (AtMost(0), [row(1)], Verdict.FAILS),
        (AtLeast(1.0), [row(1.0), row(0.9)], Verdict.IN_PART),
        (Between(0, 3), [row(3), row(0)], Verdict.HOLDS),
        (Between(0, 3), [row(-0.1)], Verdict.FAILS),
        (AsRecorded(), [row(1.0, ok=True)], Verdict.HOLDS),
        (AsRecorded(), [row(1.0, ok=False), row(1.0, ok=True)], Verdict.IN_PART),
        (AsRecorded(), [row(1.0)], Verdict.REPORTED),
        (AsRecorded(), [row(1.0), row(1.0, ok=False)], Verdict.FAILS),
        (Everywhere(), [row(1.0), row(1.0)], Verdict.HOLDS),
        (Everywhere(), [row(0.9)], Verdict.IN_PART),
        (Everywhere(), [row(0.4), row(0.0)], Verdict.FAILS),
        (FirstIsLeast(), [row(1.0), row(2.0), row(1.5)], Verdict.HOLDS),
        (FirstIsLeast(), [row(1.0), row(1.0)], Verdict.FAILS),
        (FirstIsLeast(), [row(1.0)], Verdict.NOT_MEASURED),
        (Reported(), [row(1.0, ok=True)], Verdict.REPORTED),
    ],
)
def test_a_verdict(rule: Rule, rows: list[dict[str, Any]], verdict: Verdict) -> None:
    assert judge(rule, rows) is verdict


CLAIM = Claim(
    "mps", "Figure 1", "it is fast", "2 x", "mps_paper", (("a", "one"), ("b", "two")), AtLeast(2), "simulated"
)


def result(*rows: dict[str, Any], why_stale: str = "") -> Result:
    return Result({"rows": list(rows)}, why_stale, is_taken=True)


def test_a_claim_without_a_result_says_why() -> None:
    found = judged(CLAIM, {}, {"mps_paper": "needs a log"})
    assert (found.verdict, found.why, found.figures) == (Verdict.NOT_MEASURED, "needs a log", ())
    assert "mps_paper.json is not there" in judged(CLAIM, {}, {}).why


def test_a_claim_has_the_figures_of_its_rows_and_their_notes_once() -> None:
    rows = row(3.0, what="one", note="holds: why", spread=[2, 4]), row(2.5, what="two", note="why")
    found = judged(CLAIM, {"mps_paper": result(*rows)}, {})
    assert found.verdict is Verdict.HOLDS
    assert [(each.label, each.value, each.spread) for each in found.figures] == [
        ("a", 3.0, (2.0, 4.0)),
        ("b", 2.5, None),
    ]
    assert found.why == "a, b: why"
    assert not found.is_old


def test_rows_that_are_missing_or_were_not_measured_are_named() -> None:
    rows = row(0.0, what="one", n=0, note="not measured: no log")
    found = judged(CLAIM, {"mps_paper": result(rows)}, {})
    assert (found.verdict, found.why) == (Verdict.NOT_MEASURED, "not measured: a, b (not measured: no log)")
    found = judged(CLAIM, {"mps_paper": result(row(3.0, what="two"), why_stale="old")}, {})
    assert (found.verdict, found.why, found.is_old) == (Verdict.HOLDS, "not measured: a", True)


def test_what_does_not_hold_in_a_recorded_result_comes_with_a_reason() -> None:
    documents = {stem: {"rows": list(rows_of(stem).values())} for stem in {each.result for each in CLAIMS}}
    results = {stem: Result(each, "", is_taken=True) for stem, each in documents.items() if each["rows"]}
    found = [judged(each, results, {}) for each in CLAIMS]
    failing = [each for each in found if each.verdict in (Verdict.FAILS, Verdict.IN_PART)]
    assert failing
    assert [each.claim.claim for each in failing if not each.why] == []
