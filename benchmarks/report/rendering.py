"""The page of a report, from its judged claims, results and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from benchmarks.registry import NEEDS, RECORDINGS
from benchmarks.report.collecting import Figure, JudgedClaim, counts, source_of
from benchmarks.report.experiments import Result
from benchmarks.report.judging import Verdict
from benchmarks.report.papers import PAPERS, Paper
from jobs.demo.page import Marked, Page

_MARKS = {
    Verdict.HOLDS: "ok",
    Verdict.IN_PART: "part",
    Verdict.FAILS: "bad",
    Verdict.REPORTED: "plain",
    Verdict.NOT_MEASURED: "plain",
}
_LONGEST_WHY = 420
_HEADER = ("where", "claim", "paper", "ours (n; spread)", "verdict", "why")
_HEADER_PEERS = ("what", "claim", "asked", "ours (n; spread)", "verdict", "why")

Pictures = Mapping[str, bytes]


def page_of(
    document: Mapping[str, Any],
    claims: Sequence[JudgedClaim],
    results: Mapping[str, Result],
    pictures: Pictures,
    tables: Mapping[str, Sequence[str]],
    now: datetime,
) -> str:
    """The whole page.

    Args:
        document: of `document_of`.
        pictures: PNG by name, such as ``hdas`` (ours beside the paper's) or ``hdas_paper-S2-P``.
        tables: lines by name, of `benchmarks.tables`.
    """
    page = Page("cluster-accel: five papers, claim by claim", _lead(document), width_rem=84)
    _overview(page, document, claims, results)
    for paper in document["papers"]:
        key = paper["key"]
        own = [each for each in claims if each.claim.paper == key]
        _paper(page, PAPERS[key], own, results, pictures, tables)
    _sources(page, document, results, now)
    page.footer(
        "A claim is judged by the rule that stands in benchmarks/report/claims.py, from the rows of the "
        "named result. Inputs that papers lost are ours: the HDAS worlds were fitted to that paper's "
        "statements, and sizes and run times on the Torque cluster were chosen so that first fit is about as "
        "uneven as in that paper. Longer reasons are cut here and whole in report.json."
    )
    return page.text()


def _lead(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    how = "quick form: fewer repetitions; no figures to quote. " if document["is_quick"] else ""
    mode = f" Clusters in {document['mode']} mode." if document["mode"] else ""
    return (
        f"What each of five papers states, and what came out here, by {document['command']}. {how}Page "
        f"made {document['made_at']} at commit {document['commit']} on {machine['cores']} cores of "
        f"{machine['cpu']}, {_memory(machine['memory'])}, kernel {machine['kernel']}.{mode} No GPU and no "
        "network between machines unless a line says so; each section begins with what is emulated."
    )


def _memory(text: str) -> str:
    """Of ``/proc/meminfo``, such as ``24684084 kB``, in GiB."""
    number = text.split()[0] if text else ""
    return f"{int(number) / (1 << 20):.0f} GiB of memory" if number.isdigit() else "memory unknown"


def _overview(
    page: Page, document: Mapping[str, Any], claims: Sequence[JudgedClaim], results: Mapping[str, Result]
) -> None:
    found = counts(claims)
    n_stale = sum(bool(each.why_stale) for each in results.values())
    page.cards([(str(found[verdict]), verdict.value) for verdict in Verdict])
    if n_stale:
        page.notice(
            f"{n_stale} of {len(results)} results are older than the code they measure, or name a commit "
            "that is no longer there. Their claims are marked with a *; a table below says how to record "
            "them again."
        )
    rows = []
    for paper in document["papers"]:
        own = counts(each for each in claims if each.claim.paper == paper["key"])
        rows.append((PAPERS[paper["key"]].title, *(own[verdict] for verdict in Verdict)))
    page.table(("paper", *(verdict.value for verdict in Verdict)), rows)


def _paper(
    page: Page,
    paper: Paper,
    claims: Sequence[JudgedClaim],
    results: Mapping[str, Result],
    pictures: Pictures,
    tables: Mapping[str, Sequence[str]],
) -> None:
    page.heading(paper.title)
    page.paragraph(f"{paper.source}. {paper.here}")
    page.notice("Emulated or not as in the paper: " + " ".join(paper.emulated))
    header = _HEADER_PEERS if paper.key == "peers" else _HEADER
    page.table(header, [_row(each) for each in claims])
    if paper.key in pictures:
        page.picture(
            pictures[paper.key],
            f"{paper.title}: ours over the paper's figures",
            "Ours beside the paper's figures.",
        )
    first = {stem: key for key, each in reversed([*PAPERS.items()]) for stem in each.results}
    for stem in (stem for stem in paper.results if stem in results and first[stem] == paper.key):
        for name in sorted(pictures):
            if _stem_of(name) == stem:
                caption = paper.captions.get(name, "")
                page.picture(pictures[name], caption or name, f"{name}. {caption}".strip())
    for name in paper.tables:
        if name in tables:
            page.lines(tables[name], f"python -m benchmarks.tables {name}")


def _stem_of(picture: str) -> str:
    """The longest name of a result that the picture's name begins with."""
    return max((stem for stem in RECORDINGS if picture.startswith(f"{stem}-")), key=len, default="")


def _row(each: JudgedClaim) -> tuple[object, ...]:
    claim = each.claim
    why = each.why if len(each.why) <= _LONGEST_WHY else each.why[: _LONGEST_WHY - 4] + " ..."
    return (
        claim.where,
        (claim.claim, f"[{claim.how}]"),
        claim.stated,
        Marked("\n".join(_value(figure) for figure in each.figures), "lines"),
        Marked(each.verdict.value + ("*" if each.is_old else ""), _MARKS[each.verdict]),
        Marked(why, "small"),
    )


def _value(figure: Figure) -> str:
    label = f"{figure.label}: " if figure.label else ""
    unit = f" {figure.unit}" if figure.unit else ""
    spread = f"; {_number(figure.spread[0])} to {_number(figure.spread[1])}" if figure.spread else ""
    return f"{label}{_number(figure.value)}{unit} ({figure.n}{spread})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _sources(page: Page, document: Mapping[str, Any], results: Mapping[str, Result], now: datetime) -> None:
    page.heading("Where the figures come from")
    rows = []
    for stem, result in results.items():
        found = result.document
        machine = found["machine"]
        took = found.get("wall_s")
        rows.append(
            (
                f"{stem}.json",
                source_of(result, now),
                found["commit"],
                str(found["started_at"])[:10],
                f"{took:,.0f} s" if took else "not noted",
                f"{machine.get('cores', '?')} cores, Python {machine.get('python', '?')}",
                Marked(RECORDINGS[stem].command(stem), "small"),
            )
        )
    page.table(("result", "source", "commit", "of", "took", "machine", "recorded again by"), rows)
    if document["not_run"]:
        page.heading("What was not run, and why")
        page.table(
            ("experiment", "why", "needs"),
            [
                (stem, why, NEEDS.get(stem, NEEDS.get(RECORDINGS[stem].benchmark, "")))
                for stem, why in document["not_run"].items()
            ],
        )
    page.heading("Versions")
    page.table(("library", "version"), list(document["versions"].items()))
