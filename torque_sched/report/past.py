"""What was decided about one job in the cycles before, from the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torque_sched.adapters.state_file import open_plain
from torque_sched.model.reasons import Reason, log_text_for


@dataclass(frozen=True, slots=True)
class PastDecision:
    """One decision, and until when it was repeated."""

    at_s: float
    last_s: float
    kind: str
    words: str
    reserved_s: float | None = None
    """The estimated start, of a reservation."""
    nodes: tuple[str, ...] = ()


def decisions_about(folder: Path, job: str) -> tuple[PastDecision, ...]:
    """The decisions about a job, oldest first, equal ones that follow one another as one.

    A journal that is not there, or not ours to read, tells nothing.
    """
    found: list[PastDecision] = []
    for line in _lines_naming(folder, job):
        at_s = float(line.get("now_s") or line.get("at_s") or 0.0)
        for decision in line.get("decisions") or ():
            if decision.get("job") != job:
                continue
            new = _decision(at_s, decision, (line.get("results") or {}).get(job))
            if found and _says_the_same(found[-1], new):
                new = PastDecision(found[-1].at_s, at_s, new.kind, new.words, new.reserved_s, new.nodes)
                found.pop()
            found.append(new)
    return tuple(found)


def _says_the_same(before: PastDecision, now: PastDecision) -> bool:
    return (before.kind, before.words, before.reserved_s, before.nodes) == (
        now.kind, now.words, now.reserved_s, now.nodes,
    )  # fmt: skip


def _decision(at_s: float, decision: Mapping[str, Any], result: Any) -> PastDecision:
    kind = str(decision.get("is", "?"))
    nodes = tuple(str(share.get("node", "?")) for share in decision.get("allocation") or ())
    words = _why(str(decision.get("reason") or ""), decision.get("details") or {})
    if kind == "start":
        words = " ".join(str(each) for each in result) if isinstance(result, list) else "not enacted"
    start_s = decision.get("start_s") if kind == "reserve" else None
    return PastDecision(at_s, at_s, kind, words, start_s, nodes)


def _why(reason: str, details: Mapping[str, str]) -> str:
    """A reason as the log has it; one of another release by its name."""
    try:
        return log_text_for(Reason(reason), details)
    except ValueError:
        return reason


def _lines_naming(folder: Path, job: str) -> Iterator[dict[str, Any]]:
    """Lines in which the job's id stands; the others are not even parsed."""
    wanted = json.dumps(job).encode("ascii")
    for path in sorted(folder.glob("cycles-*.jsonl")) if folder.is_dir() else ():
        try:
            with open_plain(path) as lines:
                for line in lines:
                    if wanted in line and line.endswith(b"\n"):
                        # A damaged line says nothing; those after it do.
                        with suppress(ValueError, RecursionError):
                            found = json.loads(line)
                            if isinstance(found, dict):
                                yield found
        except OSError:
            continue
