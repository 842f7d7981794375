"""The page of a report and its JSON: claims and results together, ours drawn beside the papers'."""

from __future__ import annotations

import io
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from benchmarks.papers.report.claims import CLAIMS, PAPERS, WHOSE, Claim, Paper, Row, Verdict
from benchmarks.papers.report.running import Result
from benchmarks.registry import RECORDINGS, judged_again, needs_of
from yarn_accel.report.pages import Cell, render, table

_LIBRARIES = ("numpy", "scipy", "hdfs-native", "simpy", "pyzmq", "pyarrow", "grpcio", "ray", "distributed")
_MARKS = {
    Verdict.HOLDS: "ok",
    Verdict.IN_PART: "part",
    Verdict.FAILS: "bad",
    Verdict.FITTED: "plain",
    Verdict.REPORTED: "plain",
    Verdict.NOT_MEASURED: "plain",
}
_LONGEST_WHY = 420
_HEADER = ("where", "claim", "paper", "holds if", "ours (n; least to most)", "verdict", "notes")
_HEADER_PEERS = ("what", "claim", "asked", *_HEADER[3:])
_PICTURE_COLOURS, _PICTURE_SCALE, _PICTURE_WIDTH = 16, 0.65, 1000
_LONGEST_LABEL = 88

Results = Mapping[str, Result]
"""By name, without ``.json``."""


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim and what came of it.

    Attributes:
        rows: those that were measured for it, each after its label.
        why: what the rows and the claim say of it; of one that is not measured, why not.
        is_old: its figures are older than the code they measure.
        device: the GPU that they were measured on; empty: none.
    """

    claim: Claim
    verdict: Verdict
    rows: Sequence[tuple[str, Row]] = ()
    why: str = ""
    is_old: bool = False
    device: str = ""

    @property
    def bound(self) -> str:
        """What must be so for it to hold."""
        return "" if self.claim.is_fitted else self.claim.rule.words([row for _, row in self.rows])


def judged(claim: Claim, results: Results, reasons: Mapping[str, str]) -> JudgedClaim:
    """Judge a claim by the rows that it names.

    Args:
        reasons: why there is no result, by its name.
    """
    if not claim.result:
        return JudgedClaim(claim, Verdict.NOT_MEASURED, why=claim.note)
    result = results.get(claim.result)
    if result is None:
        why = reasons.get(claim.result, f"benchmarks/results/{claim.result}.json is not there")
        return JudgedClaim(claim, Verdict.NOT_MEASURED, why=_joined([why, claim.note]))
    rows = {str(row["what"]): row for row in (*result.document["rows"], *judged_again(result.document))}
    rows = {what: row for what, row in rows.items() if row["n"] and _can_judge(claim, row)}
    found = [(label, rows[what]) for label, what in claim.rows if what in rows]
    missing = [label or what for label, what in claim.rows if what not in rows]
    notes = _notes(found)
    if missing:
        said = _why_missing(claim, result) if not found else ""
        absent = "not recorded yet" if result.why_stale else "not measured"
        notes.append(f"{absent}: {', '.join(missing)}" + f" ({said})" * bool(said))
    distinct = _merged(found)
    verdict = claim.rule.judge([row for _, row in distinct])
    if claim.is_fitted and found:
        verdict = Verdict.FITTED
    is_missed = verdict in (Verdict.IN_PART, Verdict.FAILS)
    notes += [claim.note, f"a guess: {claim.guess}" if claim.guess and is_missed else ""]
    device = str(result.document.get("machine", {}).get("gpu", ""))
    return JudgedClaim(claim, verdict, distinct, _joined(notes), bool(result.why_stale), device)


def _can_judge(claim: Claim, row: Row) -> bool:
    """Rows of earlier versions have no interval."""
    return bool(row.get("interval")) or not claim.rule.needs_interval


def _why_missing(claim: Claim, result: Result) -> str:
    """What the first row of the claim says that was not measured."""
    rows = {str(row["what"]): row for row in result.document["rows"]}
    return next(
        (str(rows[what]["note"]) for _, what in claim.rows if what in rows and not rows[what]["n"]), ""
    )


def _merged(found: Sequence[tuple[str, Row]]) -> list[tuple[str, Row]]:
    """Each figure once: rows that coincide in value, number and spread, such as rules that decide alike."""
    labels: dict[tuple[Any, ...], list[str]] = {}
    rows: dict[tuple[Any, ...], Row] = {}
    for label, row in found:
        # Two that were measured once and agree by chance are two.
        own = () if row["spread"] else (label,)
        key = (row["value"], row["n"], str(row["spread"]), *own)
        labels.setdefault(key, []).append(label)
        rows.setdefault(key, row)
    return [(" = ".join(labels[key]), row) for key, row in rows.items()]


def _notes(found: Iterable[tuple[str, Row]]) -> list[str]:
    """The notes of rows, each once, after the labels of its rows."""
    labels: dict[str, list[str]] = {}
    for label, row in found:
        # The verdict that some begin with stands beside it.
        note = str(row["note"]).removeprefix("does not hold: ").removeprefix("holds: ")
        labels.setdefault(note, []).append(label)
    return [
        f"{', '.join(several)}: {note}" if any(several) else note for note, several in labels.items() if note
    ]


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(part for part in parts if part)


def counts(claims: Iterable[JudgedClaim], paper: str = "") -> list[int]:
    """How many claims (of one paper, where one is given) have each verdict, in the order of `Verdict`."""
    found = Counter(each.verdict for each in claims if paper in ("", each.claim.paper))
    return [found[verdict] for verdict in Verdict]


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


# ---- the JSON


def document_of(
    keys: Sequence[str],
    claims: Sequence[JudgedClaim],
    results: Results,
    reasons: Mapping[str, str],
    facts: Mapping[str, Any],
    now: datetime,
) -> dict[str, Any]:
    """The report as JSON.

    Args:
        keys: of papers.
        facts: of this report: commit, machine, versions, how it was made.
    """
    papers = [
        {
            "key": key,
            **{name: getattr(PAPERS[key], name) for name in ("title", "source", "emulated")},
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
    return {**document, "not_run": dict(reasons)}


def _claim_document(each: JudgedClaim) -> dict[str, Any]:
    names = ("value", "unit", "n", "spread", "interval")
    return {
        "where": each.claim.where,
        "claim": each.claim.claim,
        "paper": each.claim.stated,
        "ours": [{"label": label, **{name: row.get(name) for name in names}} for label, row in each.rows],
        "holds_if": each.bound,
        "verdict": each.verdict.value,
        "why": each.why,
        "how": each.claim.how,
        "device": each.device,
        "result": each.claim.result,
        "is_stale": each.is_old,
    }


def judged_claims(keys: Sequence[str], results: Results, reasons: Mapping[str, str]) -> list[JudgedClaim]:
    """All claims of these papers, judged."""
    return [judged(each, results, reasons) for each in CLAIMS if each.paper in keys]


# ---- the page


def page_of(
    document: Mapping[str, Any],
    claims: Sequence[JudgedClaim],
    results: Results,
    pictures: Mapping[str, bytes],
    tables: Mapping[str, Sequence[str]],
    now: datetime,
) -> str:
    """The whole page.

    Args:
        document: of `document_of`.
        pictures: PNG by name, such as ``hdas`` (ours beside the paper's) or ``hdas_paper-S2-P``.
        tables: lines by name, of `benchmarks.tables`.
    """
    n_stale = sum(bool(each.why_stale) for each in results.values())
    stale = (
        f"{n_stale} of {len(results)} results are older than the code they measure, or name a commit that is "
        "no longer there. Their claims are marked with a *; a table below says how to record them again."
    )
    keys = [paper["key"] for paper in document["papers"]]
    header = ("paper", *(verdict.value for verdict in Verdict))
    return render(
        Path(__file__).with_name("page.html"),
        title="cluster-accel: five papers, claim by claim",
        is_live=False,
        lead=_lead(document),
        verdicts=[(str(n), verdict.value) for n, verdict in zip(counts(claims), Verdict, strict=True)],
        stale=stale if n_stale else "",
        overview=table(header, [(PAPERS[key].title, *counts(claims, key)) for key in keys]),
        papers=[_paper(PAPERS[key], claims, results, pictures, tables) for key in keys],
        sources=_sources(results, now),
        not_run=[(stem, why, needs_of(stem)) for stem, why in document["not_run"].items()],
        versions=list(document["versions"].items()),
    )


def _lead(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    how = "quick form: fewer repetitions; no figures to quote. " if document["is_quick"] else ""
    mode = f" Clusters in {document['mode']} mode." if document["mode"] else ""
    # Of ``/proc/meminfo``, such as ``24684084 kB``.
    kib = machine["memory"].partition(" ")[0]
    memory = f"{int(kib) / (1 << 20):.0f} GiB of memory" if kib.isdigit() else "memory unknown"
    return (
        f"What each of five papers states, and what came out here, by {document['command']}. {how}Page "
        f"made {document['made_at']} at commit {document['commit']} on {machine['cores']} cores of "
        f"{machine['cpu']}, {memory}, kernel {machine['kernel']}.{mode} No GPU and no "
        "network between machines unless a line says so; each section begins with what is emulated."
    )


def _paper(
    paper: Paper,
    claims: Sequence[JudgedClaim],
    results: Results,
    pictures: Mapping[str, bytes],
    tables: Mapping[str, Sequence[str]],
) -> dict[str, object]:
    """The texts, tables and pictures of one paper, for the template."""
    drawn = []
    if paper.key in pictures:
        alt = f"{paper.title}: ours over the paper's figures"
        drawn.append((pictures[paper.key], alt, "Ours beside the paper's figures."))
    first = {stem: key for key, each in reversed([*PAPERS.items()]) for stem in each.results}
    for stem in (stem for stem in paper.results if stem in results and first[stem] == paper.key):
        for name in (name for name in sorted(pictures) if _stem_of(name) == stem):
            caption = paper.captions.get(name, "")
            drawn.append((pictures[name], caption or name, f"{name}. {caption}".strip()))
    own = [_cells(each) for each in claims if each.claim.paper == paper.key]
    return {
        "title": paper.title,
        "text": f"{paper.source}. {paper.here}",
        "emulated": " ".join(paper.emulated),
        "inputs": table(
            ("inputs", "which"),
            [(words, "\n".join(paper.inputs[key])) for key, words in WHOSE.items() if key in paper.inputs],
        ),
        "claims": table(_HEADER_PEERS if paper.key == "peers" else _HEADER, own),
        "pictures": drawn,
        "tables": [(name, tables[name]) for name in paper.tables if name in tables],
    }


def _stem_of(picture: str) -> str:
    """The longest name of a result that the picture's name begins with."""
    return max((stem for stem in RECORDINGS if picture.startswith(f"{stem}-")), key=len, default="")


def _cells(each: JudgedClaim) -> tuple[object, ...]:
    claim = each.claim
    why = each.why if len(each.why) <= _LONGEST_WHY else each.why[: _LONGEST_WHY - 4] + " ..."
    how = f"{claim.how}, {each.device}" if each.device else claim.how
    return (
        claim.where,
        f"{claim.claim}\n[{how}]",
        claim.stated,
        Cell(each.bound, "small"),
        Cell("\n".join(_value(label, row) + _miss(each, row) for label, row in each.rows), "lines"),
        Cell(each.verdict.value + ("*" if each.is_old else ""), _MARKS[each.verdict]),
        Cell(why, "small"),
    )


def _miss(each: JudgedClaim, row: Row) -> str:
    """Which of several rows does not hold."""
    is_miss = each.verdict is Verdict.IN_PART and each.claim.rule.holds(row) is False
    return " - misses" if is_miss else ""


def _value(label: str, row: Row) -> str:
    unit = f" {row['unit']}" if row["unit"] else ""
    spread = f"; {_number(row['spread'][0])} to {_number(row['spread'][1])}" if row["spread"] else ""
    ends = row.get("interval")
    interval = f", 95 % interval {_number(ends[0])} to {_number(ends[1])}" if ends else ""
    return f"{f'{label}: ' * bool(label)}{_number(row['value'])}{unit} ({row['n']}{spread}){interval}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _sources(results: Results, now: datetime) -> Markup:
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
                Cell(RECORDINGS[stem].command(stem), "small"),
            )
        )
    columns = ("result", "source", "commit", "of", ">took", "machine", "recorded again by")
    return table(columns, rows)


# ---- its pictures


def small_png(path: Path) -> bytes:
    """A drawing as it is embedded: smaller, and with few colours, so a tenth as large."""
    from PIL import Image

    with Image.open(path) as picture:
        scale = min(_PICTURE_SCALE, _PICTURE_WIDTH / picture.width)
        size = round(scale * picture.width), round(scale * picture.height)
        shown = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        # Of all ways to choose colours this one keeps those of thin lines apart.
        few = shown.quantize(_PICTURE_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def draw_beside(claims: Sequence[JudgedClaim], file: Path) -> Path | None:
    """Each figure of ours as a part of the paper's, both as numbers beside it; None: no claim has both."""
    from yarn_accel.report.figures import drawing

    lines = list(_comparable(claims))
    if not lines:
        return None
    with drawing(file, (11, 1.1 + 0.27 * len(lines))) as (_, table):
        axes = table[0, 0]
        places = range(len(lines))
        axes.axvline(1.0, color="#55606e", linewidth=1)
        axes.axvspan(0.95, 1.05, color="#e1e5ea", zorder=0)
        for at, (_, paper, row) in zip(places, lines, strict=True):
            if row["spread"]:
                low, high = sorted(each / paper for each in row["spread"])
                axes.plot(
                    [max(low, 1e-3), high], [at, at], color="#8fb3d9", linewidth=3, solid_capstyle="butt"
                )
            axes.plot([row["value"] / paper], [at], "o", color="#0b5cad", markersize=5)
        labels = [
            text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 3] + "..." for text, *_ in lines
        ]
        axes.set_yticks(places, labels, fontsize=8)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        values = [row["value"] / paper for _, paper, row in lines]
        if min(values) > 0 and max(values) / min(values) > 8:
            axes.set_xscale("log")
        right = axes.secondary_yaxis("right")
        numbers = [f"paper {paper:.4g}, ours {row['value']:.4g} {row['unit']}" for _, paper, row in lines]
        right.set_yticks(places, numbers, fontsize=8)
        axes.set_xlabel(
            "ours over the paper's figure (band: within 5 %; bar: spread of single measurements)", fontsize=8
        )
        axes.grid(axis="x", alpha=0.3)
    return file


def _comparable(claims: Iterable[JudgedClaim]) -> Iterable[tuple[str, float, Row]]:
    for each in claims:
        if each.claim.rule.paper:
            for label, row in each.rows:
                yield f"{each.claim.claim}{f' ({label})' * bool(label)}", each.claim.rule.paper, row
