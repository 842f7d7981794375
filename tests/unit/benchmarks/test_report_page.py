"""The page of the report: one file that is whole, escaped, and asks nobody for anything."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.report.claims import Claim
from benchmarks.report.collecting import JudgedClaim, counts, document_of, source_of
from benchmarks.report.command import report
from benchmarks.report.experiments import Result
from benchmarks.report.judging import Near, Verdict
from benchmarks.report.pictures import draw_beside, small_png
from benchmarks.report.rendering import page_of

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime(2026, 1, 5, tzinfo=timezone.utc)
BAD = "<script>alert('x')</script> & \"more\""
FACTS = {
    "command": BAD, "commit": "0123456789ab", "is_quick": True, "mode": "netns", "versions": {"python": BAD},
    "machine": {"cpu": BAD, "cores": 2, "memory": "2097152 kB", "kernel": "6"},
}  # fmt: skip


class Checker(HTMLParser):
    """Every tag is closed, and what pages ask for is noted."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.asked: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.asked += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(page: str) -> Checker:
    found = Checker()
    found.feed(page)
    assert found.open == []
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert all(each.startswith("data:image/png;base64,") for each in found.asked)
    style = page.split("<style>")[1].split("</style>")[0]
    assert "@media print" in style
    assert "url(" not in style
    assert "@import" not in style
    return found


def result(value: float = 10.2, why_stale: str = BAD) -> Result:
    row = {"value": value, "unit": "x", "n": 3, "spread": [9.0, 11.0], "goal": "", "ok": True, "note": BAD}
    names = ("makespan", "SD")
    rows = [{**row, "what": f"preemptive DAG, own makespan 36, mps: {name}"} for name in names]
    document = {
        "name": "mps_paper", "commit": "0123456789ab", "started_at": "2026-01-02T03:04:05+00:00",
        "wall_s": 12.0, "machine": {"cores": 2, "python": "3"}, "rows": rows,
    }  # fmt: skip
    return Result(document, why_stale, is_taken=True)


def page(pictures: dict[str, bytes] | None = None) -> tuple[str, dict[str, Any]]:
    results = {"mps_paper": result()}
    reasons = {"grid": BAD}
    document, claims = document_of(["mps", "grid"], results, reasons, FACTS, NOW)
    return page_of(document, claims, results, pictures or {}, {}, NOW), document


def test_the_page_is_whole_escaped_and_asks_nobody_for_anything() -> None:
    text, document = page({"mps": b"x", "mps_paper-same": b"y", "grid-equal": b"z"})
    found = checked(text)
    assert BAD in found.text
    assert len(found.asked) == 2  # The grid has no result, so no picture of one.
    assert "holds*" in found.text
    assert "not measured" in found.text
    assert "10.2 x (3; 9 to 11)" in found.text
    assert "quick form" in found.text
    assert "netns mode" in found.text
    assert "2 GiB of memory" in found.text
    assert "python -m benchmarks mps_paper --json benchmarks/results/mps_paper.json" in found.text
    assert json.loads(json.dumps(document))["papers"][0]["claims"]


def test_what_is_emulated_stands_above_each_table() -> None:
    text, _ = page()
    for section in text.split("<h2>")[1:3]:
        assert section.index("Emulated or not as in the paper") < section.index("<table>")


def test_a_source_names_its_age_and_what_is_stale() -> None:
    assert source_of(result(why_stale=""), NOW) == "taken from benchmarks/results, 2 days old"
    assert source_of(result(), NOW).endswith(f"; STALE: {BAD}")
    today = Result({**result().document, "started_at": NOW.isoformat(), "is_quick": True}, "", is_taken=False)
    assert source_of(today, NOW) == "measured for this report, quick form, today"


def test_ours_beside_the_paper_is_a_picture_with_few_colours(tmp_path: Path) -> None:
    from benchmarks.report.collecting import Figure

    claim = Claim(
        "mps", "Figure 1", "a $ claim_with^odd $ signs", "10", "mps_paper", (), Near(10.0), "simulated"
    )
    judged = JudgedClaim(claim, Verdict.HOLDS, (Figure("", 10.2, "x", 3, (0.0, 11.0), ""),), "", False)
    assert counts([judged])[Verdict.HOLDS] == 1
    drawn = draw_beside([judged], tmp_path / "p.png")
    assert drawn is not None
    assert small_png(drawn).startswith(b"\x89PNG")
    assert len(small_png(drawn)) < drawn.stat().st_size
    unmeasured = JudgedClaim(claim, Verdict.NOT_MEASURED, (), "", False)
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
