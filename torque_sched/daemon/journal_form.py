"""A cycle as a line of the journal, and back: all that went into a decision, so that it can be replayed."""

from __future__ import annotations

import base64
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from torque_sched.adapters.journal import read_journal as read_lines
from torque_sched.batch.connect import snapshot_in
from torque_sched.batch.documents import plain, with_model_names
from torque_sched.batch.system import OrderKind
from torque_sched.daemon.c_policy import SettingsInForce, c_files_of
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleReport
from torque_sched.daemon.decision_engine import RecordedPredictions
from torque_sched.decide.context import Context, KnownPredictions
from torque_sched.decide.settings import Settings
from torque_sched.errors import RecordError, TorqueSchedError
from torque_sched.learn.promises import BETTER
from torque_sched.model.decisions import Decision, Hold, Reserve, Start
from torque_sched.model.snapshot import Snapshot

VERSION = 1
_LEVEL = 1
"""zlib's fastest: an output shrinks to a tenth all the same."""

_KINDS: dict[str, type[Any]] = {"start": Start, "reserve": Reserve, "hold": Hold}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class JournalledCycle:
    """Everything a decision was made of, and the decision."""

    number: int
    snapshot: Snapshot
    context: Context
    settings: Settings
    decisions: tuple[Decision, ...]
    results: Mapping[str, str]
    """What qrun answered, by job."""
    at_s: float
    line: Mapping[str, Any]
    """The whole line."""


def line_of(
    report: CycleReport, number: int, config: Config, c_texts: Mapping[str, str], *, mode: str, cause: str
) -> dict[str, Any]:
    """The line of a cycle that had a snapshot.

    Args:
        report: the cycle.
        number: counts cycles of this daemon.
        config: the daemon's own settings.
        c_texts: pbs_sched's files as they were read.
        mode: ``serve``, ``shadow`` or ``dry-run``.
        cause: what the cycle was run for.
    """
    assert report.look is not None
    assert report.context is not None
    return {
        "version": VERSION,
        "cycle": number,
        "at_s": report.at_s,
        "now_s": report.look.snapshot.now_s,
        "silent_s": report.look.snapshot.silent_s,
        "mode": mode,
        "cause": cause,
        "wall_s": {
            "query": round(report.look.query_s, 6),
            "decide": round(report.decide_s, 6),
            "total": round(report.total_s, 6),
            "phases": {name: round(took_s, 6) for name, took_s in report.phases_s.items()},
        },
        "config": config.model_dump(mode="json", exclude_defaults=True),
        "c_files": dict(c_texts),
        "outputs": {name: _packed(data) for name, data in report.look.outputs.items()},
        "context": _context(report.context),
        "decisions": [{"is": _NAMES[type(each)], **plain(each)} for each in report.decisions],
        "results": {job: [result.kind.value, result.text] for job, result in report.results.items()},
        "findings": [plain(each) for each in report.findings],
        # Those that got better stand in the decisions; there may be a thousand in each cycle.
        "promises": [
            {"job": job, **plain(change)} for job, change in report.promises if change.kind != BETTER
        ],
        "settled": [plain(each) for each in report.settled],
        "commented": report.n_commented,
    }


def _context(context: Context) -> dict[str, Any]:
    known = context.predictions
    by_job = known.answers if isinstance(known, RecordedPredictions) else getattr(known, "by_job", {})
    return plain(dataclasses.replace(context, predictions=KnownPredictions(dict(by_job))))  # type: ignore[no-any-return]


def read_journal(
    place: Path, leave_out: Callable[[TorqueSchedError], None] | None = None
) -> Iterator[JournalledCycle]:
    """Every cycle of a journal file, or of a folder of them, oldest first.

    Args:
        place: the file or folder.
        leave_out: called for each line that is damaged, of another version, or has outputs nobody can read;
            None: the first of them is raised.

    Raises:
        TorqueSchedError: such a line.
        OSError: it cannot be read.
    """
    for line in read_lines(place):
        try:
            if isinstance(line, RecordError):
                raise line
            cycle = _checked(line, place)
        except TorqueSchedError as error:
            if leave_out is None:
                raise
            leave_out(error)
        else:
            yield cycle


def _checked(line: Mapping[str, Any], place: Path) -> JournalledCycle:
    if line.get("version") != VERSION:
        raise RecordError(
            f"{place}: a cycle of journal version {line.get('version')}, this is {VERSION}",
            cure="replay it with the release that wrote it",
        )
    try:
        return _cycle_of(line)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, OSError, zlib.error) as error:
        raise RecordError(
            f"{place}: cycle {line.get('cycle')} is not as the daemon writes it ({error!r:.200})",
            cure="delete its line; the others are good",
        ) from error


def _cycle_of(line: Mapping[str, Any]) -> JournalledCycle:
    outputs = {name: _unpacked(text) for name, text in line["outputs"].items()}
    snapshot = snapshot_in(outputs, line["now_s"], line.get("silent_s", 0.0))
    config = Config(**line["config"])
    in_force = SettingsInForce(config, c_files_of(dict(line["c_files"]), config))
    return JournalledCycle(
        number=line["cycle"],
        snapshot=snapshot,
        context=read_context(line["context"]),
        settings=in_force.at(line["now_s"]),
        decisions=tuple(_read_decision(each) for each in line["decisions"]),
        results={job: OrderKind(kind).value for job, (kind, _) in line["results"].items()},
        at_s=line["at_s"],
        line=line,
    )


def _read_decision(values: Mapping[str, Any]) -> Decision:
    rest = with_model_names(values)
    decision: Decision = TypeAdapter(_KINDS[rest.pop("is")]).validate_python(rest)
    return decision


def read_context(values: Mapping[str, Any]) -> Context:
    """The context of a line: everything beside snapshot and settings that its decision was made of."""
    values = with_model_names(values)
    known: KnownPredictions = _adapter(KnownPredictions).validate_python(values["predictions"])
    hints = {name: hint for name, hint in _context_hints().items() if name in values}
    read = {name: _adapter(hint).validate_python(values[name]) for name, hint in hints.items()}
    return Context(**read, predictions=known)


@functools.cache
def _context_hints() -> dict[str, Any]:
    import typing

    hints = typing.get_type_hints(Context)
    del hints["predictions"]
    return hints


@functools.lru_cache(maxsize=32)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, _LEVEL)).decode("ascii")


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))
