"""The report: its claims are complete and judged by pure rules, its page asks nobody for anything."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import RESULTS, ROOT
from benchmarks.papers.report.claims import CLAIMS, PAPERS, WHOSE, Claim, Rule, Verdict
from benchmarks.papers.report.command import report
from benchmarks.papers.report.page import (
    JudgedClaim,
    counts,
    document_of,
    draw_beside,
    judged,
    judged_claims,
    page_of,
    small_png,
    source_of,
)
from benchmarks.papers.report.running import Result
from benchmarks.papers.yarn_paper.claims import CLAIMS as YARN_CLAIMS
from benchmarks.registry import BENCHMARKS, RECORDINGS, judged_again, load
from benchmarks.stale import verdict_of
from benchmarks.tables import TABLES
from tests.fixtures.page_reader import Reader


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


@cache
def is_stale(stem: str) -> bool:
    return bool(verdict_of(ROOT, RESULTS / f"{stem}.json").why)


@pytest.mark.parametrize("claim", [each for each in CLAIMS if each.result], ids=lambda each: each.claim[:60])
def test_the_rows_of_a_claim_are_in_the_recorded_result(claim: Claim) -> None:
    rows = rows_of(claim.result)
    if rows:
        document = json.loads((RESULTS / f"{claim.result}.json").read_text())
        rows |= {str(each["what"]): dict(each) for each in judged_again(document)}
    missing = [what for _, what in claim.rows if what not in rows]
    # Not every peer is installed on every machine; a stale result may lack what its benchmark measures now.
    is_peer = claim.paper == "peers" and len(missing) < len(claim.rows)
    assert not rows or missing == [] or is_peer or is_stale(claim.result)


def test_a_paper_s_figure_is_judged_as_the_benchmark_judged_it() -> None:
    """Where both judge the same row, by the figure that both have of the paper."""
    differing = []
    for each in CLAIMS:
        rows = rows_of(each.result) if each.result == "hdas_paper" else {}
        for _, what in each.rows:
            # Two equal ones differed by 10 % once.
            if what in rows and rows[what]["ok"] is not None and "hdas over model" not in what:
                # It has one digit in the paper.
                rounded = {
                    **rows[what],
                    "value": round(rows[what]["value"], 1 if ": C: speed" in what else 9),
                }
                holds = each.rule.holds(rounded)
                if holds != rows[what]["ok"]:
                    differing.append((what, each.rule, rows[what]["value"]))
    assert differing == []


def test_every_claim_says_what_must_be_so_for_it_to_hold() -> None:
    for each in CLAIMS:
        rows = [row(1.0, goal="<= 1")]
        assert each.rule.words(rows)
        assert "recorded" not in each.rule.words(rows)
    assert Rule.of("near 0.7").words([]) == "within 5 % of 0.7"
    assert (
        Rule.of("bound").words([row(1, goal=">= 0.85"), row(1, goal=">= 0.9"), row(1)]) == ">= 0.85\n>= 0.9"
    )


def claims_where(paper: str, text: str) -> list[Claim]:
    return [each for each in CLAIMS if each.paper == paper and text in f"{each.where} {each.claim}"]


def recorded_results() -> dict[str, Result]:
    paths = {stem: RESULTS / f"{stem}.json" for stem in RECORDINGS}
    return {
        stem: Result(json.loads(p.read_text()), "", is_taken=True) for stem, p in paths.items() if p.exists()
    }


def test_what_an_input_was_fitted_to_is_shown_and_not_judged() -> None:
    results = recorded_results()
    for each in CLAIMS:
        if each.is_fitted:
            found = judged(each, results, {})
            assert found.verdict in (Verdict.FITTED, Verdict.NOT_MEASURED)
            assert found.bound == ""
    assert any(each.is_fitted for each in claims_where("hdas", "Figure 6"))
    assert all(each.is_fitted for each in claims_where("torque", "under VALUE: cpu stdev, over"))


def test_every_paper_says_whose_its_inputs_are() -> None:
    for paper in PAPERS.values():
        assert paper.inputs.keys() <= WHOSE.keys()
        has_fitted = any(each.is_fitted for each in CLAIMS if each.paper == paper.key)
        assert ("fitted" in paper.inputs) == has_fitted


def test_real_cells_of_figure_6_come_before_emulated_ones() -> None:
    first, second = [each for each in claims_where("yarn", "image job's time falls")]
    assert (first.how, second.how) == ("real cluster, real kernels", "real cluster, emulated kernels")


def test_section_2_4_is_judged_at_all_sizes() -> None:
    measured = {what for what in rows_of("pipeline-stages") if what.startswith("efficiency, ")}
    assert measured == {what for each in CLAIMS if each.result == "pipeline-stages" for _, what in each.rows}


def test_the_row_that_a_reason_quotes_is_on_the_page() -> None:
    [claim] = [each for each in CLAIMS if each.result == "pipeline-hdfs"]
    found = judged(claim, recorded_results(), {})
    assert [label for label, _ in found.rows] == [
        "8 MB",
        "8 MB, at most here",
        "50 MB",
        "50 MB, at most here",
    ]
    assert found.bound == ">= 0.85"


def test_what_a_gpu_misses_stands_beside_what_it_reaches() -> None:
    named = {what for each in CLAIMS if each.result == "gpu" for _, what in each.rows}
    missed = {what for what, each in rows_of("gpu").items() if each["ok"] is False}
    assert missed <= named


def test_figures_of_a_gpu_name_it() -> None:
    document = {**mps_result().document, "machine": {"cores": 2, "python": "3", "gpu": "GPU 3000"}}
    results = {"mps_paper": Result(document, "", is_taken=True)}
    claims = judged_claims(["mps"], results, {})
    whole = document_of(["mps"], claims, results, {}, FACTS, NOW)
    assert "simulated, GPU 3000" in Reader(page_of(whole, claims, results, {}, {}, NOW)).text


def test_rules_that_decide_alike_count_once() -> None:
    claim = replace(CLAIM, rule=Rule.of("at least 2"))
    same = {"n": 20, "spread": [1.0, 4.0]}
    found = judged(
        claim, {"mps_paper": result(row(3.0, what="one", **same), row(3.0, what="two", **same))}, {}
    )
    assert [label for label, _ in found.rows] == ["a = b"]
    # By chance.
    found = judged(claim, {"mps_paper": result(row(3.0, what="one"), row(3.0, what="two"))}, {})
    assert [label for label, _ in found.rows] == ["a", "b"]


def test_a_cause_that_nothing_shows_is_called_a_guess_and_only_where_something_is_missed() -> None:
    claim = replace(CLAIM, guess="it is cold", rows=(("a", "one"),))
    assert judged(claim, {"mps_paper": result(row(1.0, what="one"))}, {}).why == "a guess: it is cold"
    assert judged(claim, {"mps_paper": result(row(3.0, what="one"))}, {}).why == ""


def test_a_row_without_an_interval_is_not_recorded_yet() -> None:
    claim = replace(CLAIM, rule=Rule.of("interval below 0"), rows=(("a", "one"),))
    old = result(row(-1.0, what="one"), why_stale="old")
    assert judged(claim, {"mps_paper": old}, {}).why == "not recorded yet: a"
    new = result(row(-1.0, what="one", interval=[-2.0, 0.1]))
    assert judged(claim, {"mps_paper": new}, {}).verdict is Verdict.FAILS


def test_claims_of_the_yarn_paper_are_judged_again_from_the_recorded_cells() -> None:
    [claim] = [each for each in CLAIMS if each.how == "real cluster, real kernels"]
    found = judged(claim, recorded_results(), {})
    assert found.verdict is Verdict.FAILS
    assert found.bound.startswith("falls by > 5 %")


def test_every_picture_has_a_caption() -> None:
    captioned = {name for paper in PAPERS.values() for name in paper.captions}
    for paper in PAPERS.values():
        for stem in paper.results:
            if (
                hasattr(load(RECORDINGS[stem].benchmark), "draw")
                and rows_of(stem)
                and stem != "predictor-ctc"
            ):
                assert any(name.startswith(f"{stem}-") for name in captioned) or stem in WITHOUT_PICTURE, stem


#: Their results draw nothing in the sections that are recorded.
WITHOUT_PICTURE = {"pipeline-hdfs", "pipeline-kernels", "pipeline-small"}


@pytest.mark.parametrize(
    ("rule", "rows", "verdict"),
    [
        ("near 10.0", [row(10.5)], Verdict.HOLDS),
        ("near 10.0", [row(10.6)], Verdict.FAILS),
        ("near -0.2", [row(-0.195)], Verdict.HOLDS),
        ("near 10.0", [row(10.0), row(12.0)], Verdict.IN_PART),
        ("near 10.0", [], Verdict.NOT_MEASURED),
        ("at most 1.0", [row(1.0)], Verdict.HOLDS),
        ("at most 0", [row(1)], Verdict.FAILS),
        ("at least 1.0", [row(1.0), row(0.9)], Verdict.IN_PART),
        ("between 0 3", [row(3), row(0)], Verdict.HOLDS),
        ("between 0 3", [row(-0.1)], Verdict.FAILS),
        ("near 0.7", [row(1.3)], Verdict.FAILS),
        ("below 1", [row(1.0)], Verdict.FAILS),
        ("above 1", [row(1.1)], Verdict.HOLDS),
        ("interval below 0", [row(-1.0, interval=[-2.0, -0.1])], Verdict.HOLDS),
        ("interval below 0", [row(-1.0, interval=[-2.0, 0.1])], Verdict.FAILS),
        ("interval above 1", [row(2.0, interval=[1.1, 3.0])], Verdict.HOLDS),
        ("bound", [row(1.0, ok=False, goal="<= 1")], Verdict.HOLDS),
        ("bound", [row(1.0, ok=True, goal="<= -1")], Verdict.FAILS),
        ("bound", [row(1.0, ok=False, goal="in words"), row(1.0, ok=True)], Verdict.IN_PART),
        ("bound", [row(1.0)], Verdict.REPORTED),
        ("bound", [row(1.0), row(1.0, ok=False)], Verdict.FAILS),
        ("everywhere", [row(1.0), row(1.0)], Verdict.HOLDS),
        ("everywhere", [row(0.9)], Verdict.IN_PART),
        ("everywhere", [row(0.4), row(0.0)], Verdict.FAILS),
        ("first is least", [row(1.0), row(2.0), row(1.5)], Verdict.HOLDS),
        ("first is least", [row(1.0), row(1.0)], Verdict.FAILS),
        ("first is least", [row(1.0)], Verdict.NOT_MEASURED),
        ("reported", [row(1.0, ok=True)], Verdict.REPORTED),
    ],
)
def test_a_verdict(rule: str, rows: list[dict[str, Any]], verdict: Verdict) -> None:
    assert Rule.of(rule).judge(rows) is verdict


@pytest.mark.parametrize("text", ["", "about 3", "near x", "at least 3 paper 3", "recorded"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no rule"):
        Rule.of(text)


def test_a_rule_knows_the_papers_figure() -> None:
    rules = map(Rule.of, ("near -0.2", "at least 21, paper 20", "bound, paper 1", "at most 1", "bound"))
    assert [rule.paper for rule in rules] == [-0.2, 20.0, 1.0, None, None]


CLAIM = Claim(
    "mps", "Figure 1", "it is fast", "2 x", Rule.of("at least 2"), "simulated", "mps_paper",
    (("a", "one"), ("b", "two")),
)  # fmt: skip


def result(*rows: dict[str, Any], why_stale: str = "") -> Result:
    return Result({"rows": list(rows)}, why_stale, is_taken=True)


def test_a_claim_without_a_result_says_why() -> None:
    found = judged(CLAIM, {}, {"mps_paper": "needs a log"})
    assert (found.verdict, found.why, found.rows) == (Verdict.NOT_MEASURED, "needs a log", ())
    assert "mps_paper.json is not there" in judged(CLAIM, {}, {}).why


def test_a_claim_has_the_figures_of_its_rows_and_their_notes_once() -> None:
    rows = row(3.0, what="one", note="holds: why", spread=[2, 4]), row(2.5, what="two", note="why")
    found = judged(CLAIM, {"mps_paper": result(*rows)}, {})
    assert found.verdict is Verdict.HOLDS
    assert found.rows == [("a", rows[0]), ("b", rows[1])]
    assert found.why == "a, b: why"
    assert not found.is_old


def test_rows_that_are_missing_or_were_not_measured_are_named() -> None:
    rows = row(0.0, what="one", n=0, note="not measured: no log")
    found = judged(CLAIM, {"mps_paper": result(rows)}, {})
    assert (found.verdict, found.why) == (Verdict.NOT_MEASURED, "not measured: a, b (not measured: no log)")
    found = judged(CLAIM, {"mps_paper": result(row(3.0, what="two"), why_stale="old")}, {})
    assert (found.verdict, found.why, found.is_old) == (Verdict.HOLDS, "not recorded yet: a", True)


def test_what_does_not_hold_in_a_recorded_result_comes_with_a_reason() -> None:
    documents = {stem: {"rows": list(rows_of(stem).values())} for stem in {each.result for each in CLAIMS}}
    results = {stem: Result(each, "", is_taken=True) for stem, each in documents.items() if each["rows"]}
    found = [judged(each, results, {}) for each in CLAIMS]
    failing = [each for each in found if each.verdict in (Verdict.FAILS, Verdict.IN_PART)]
    assert failing
    assert [each.claim.claim for each in failing if not each.why] == []


NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
BAD = "<script>alert('x')</script> & \"more\""
FACTS = {
    "command": BAD, "commit": "0123456789ab", "is_quick": True, "mode": "netns", "versions": {"python": BAD},
    "machine": {"cpu": BAD, "cores": 2, "memory": "2097152 kB", "kernel": "6"},
}  # fmt: skip


def checked(page: str) -> Reader:
    found = Reader(page)
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert all(each.startswith("data:image/png;base64,") for each in found.asked)
    style = page.split("<style>")[1].split("</style>")[0]
    assert "@media print" in style
    assert "url(" not in style
    assert "@import" not in style
    return found


def mps_result(value: float = 40.2, why_stale: str = BAD) -> Result:
    row = {"value": value, "unit": "x", "n": 3, "spread": [39.0, 41.0], "goal": "", "ok": True, "note": BAD}
    names = ("makespan", "SD")
    rows = [{**row, "what": f"preemptive DAG, own makespan 36, mps: {name}"} for name in names]
    document = {
        "name": "mps_paper", "commit": "0123456789ab", "started_at": "2026-01-02T03:04:05+00:00",
        "wall_s": 12.0, "machine": {"cores": 2, "python": "3"}, "rows": rows,
    }  # fmt: skip
    return Result(document, why_stale, is_taken=True)


def page(pictures: dict[str, bytes] | None = None) -> tuple[str, dict[str, Any]]:
    results = {"mps_paper": mps_result()}
    reasons = {"grid": BAD}
    keys = ["mps", "grid"]
    claims = judged_claims(keys, results, reasons)
    document = document_of(keys, claims, results, reasons, FACTS, NOW)
    return page_of(document, claims, results, pictures or {}, {}, NOW), document


def test_the_page_is_whole_escaped_and_asks_nobody_for_anything() -> None:
    text, document = page({"mps": b"x", "mps_paper-same": b"y", "grid-equal": b"z"})
    found = checked(text)
    assert BAD in found.text
    assert len(found.asked) == 2  # The grid has no result, so no picture of one.
    assert "holds*" in found.text
    assert "not measured" in found.text
    assert "40.2 x (3; 39 to 41)" in found.text
    assert "quick form" in found.text
    assert "netns mode" in found.text
    assert "2 GiB of memory" in found.text
    assert "ours: a reading or a guess" in found.text
    assert "holds if" in found.text
    assert "python -m benchmarks mps_paper --json benchmarks/results/mps_paper.json" in found.text
    assert json.loads(json.dumps(document))["papers"][0]["claims"]


def test_what_is_emulated_stands_above_each_table() -> None:
    text, _ = page()
    for section in text.split("<h2>")[1:3]:
        assert section.index("Emulated or not as in the paper") < section.index("<table>")


def test_a_source_names_its_age_and_what_is_stale() -> None:
    assert source_of(mps_result(why_stale=""), NOW) == "taken from benchmarks/results, 2 days old"
    assert source_of(mps_result(), NOW).endswith(f"; STALE: {BAD}")
    today = Result(
        {**mps_result().document, "started_at": NOW.isoformat(), "is_quick": True}, "", is_taken=False
    )
    assert source_of(today, NOW) == "measured for this report, quick form, today"


def test_ours_beside_the_paper_is_a_picture_with_few_colours(tmp_path: Path) -> None:
    words, rule = "a $ claim_with^odd $ signs", Rule.of("near 10")
    claim = Claim("mps", "Figure 1", words, "10", rule, "simulated", "mps_paper")
    row = {"value": 10.2, "unit": "x", "n": 3, "spread": (0.0, 11.0)}
    judged = JudgedClaim(claim, Verdict.HOLDS, [("", row)])
    assert counts([judged]) == counts([judged], "mps") == [1, 0, 0, 0, 0, 0] != counts([judged], "hdas")
    drawn = draw_beside([judged], tmp_path / "p.png")
    assert drawn is not None
    assert small_png(drawn).startswith(b"\x89PNG")
    assert len(small_png(drawn)) < drawn.stat().st_size
    unmeasured = JudgedClaim(claim, Verdict.NOT_MEASURED)
    assert draw_beside([unmeasured], tmp_path / "q.png") is None


@pytest.mark.filterwarnings("default")
def test_the_command_makes_a_page_of_what_is_recorded(tmp_path: Path) -> None:
    found = CliRunner().invoke(report, ["--no-run", "--only", "torque", "--out", str(tmp_path / "r")])
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[-1] == str(tmp_path / "r" / "report.html")
    checked((tmp_path / "r" / "report.html").read_text())
    document = json.loads((tmp_path / "r" / "report.json").read_text())
    assert [each["key"] for each in document["papers"]] == ["torque"]
    assert document["papers"][0]["claims"][0]["ours"][0]["n"] >= 1
    assert (tmp_path / "r" / "torque.png").exists()
    assert not re.search(re.escape(str(tmp_path)), (tmp_path / "r" / "report.html").read_text())


def test_the_page_in_the_documents_is_one_of_these() -> None:
    found = checked((ROOT / "docs" / "report.html").read_text(encoding="utf-8"))
    assert "five papers, claim by claim" in found.text
    assert "Emulated or not as in the paper" in found.text
