"""The driver of the factorize job: run a manifest, collect its rows, check that they add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.factorize.manifest import (
    DONE_FIELDS,
    Done,
    Entry,
    Reject,
    UniqueEntries,
    format_row,
    key_of,
    parse_entry,
    parse_row,
    records,
)
from jobs.factorize.mapper import FACTORS_PREFIX
from jobs.runners.step import Outcome, RejectedRecord, Report, Runner, Step, write_table
from yarn_accel.client import SequenceFileReader
from yarn_accel.errors import JobError, RejectedError, StorageError
from yarn_accel.storage import Store

MAX_PART_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class FactorizeJob:
    """How to run a manifest.

    Args:
        n_tasks: into how many map tasks the manifest is cut.
        is_by_value: mappers read the matrices and send their bytes, instead of sending URIs.
        is_strict: the first bad record fails the job.
        is_fallback_allowed: mappers may compute on their own CPU when no server answers.
        residual: whose factors are checked by servers: ``none``, a ``sample`` of each task, or ``all``.
        output: ``npz``: a file for each matrix, at the URI its line names; ``sequence``: one SequenceFile for
        each task, in the job's output folder.
        window: requests a mapper has in flight.
    """

    n_tasks: int = 8
    is_by_value: bool = False
    is_strict: bool = False
    is_fallback_allowed: bool = True
    residual: str = "sample"
    output: str = "npz"
    window: int = 4
    patience_s: float = 60.0


def run_factorize(
    runner: Runner, store: Store, manifest: str, job: FactorizeJob, report: Report, name: str = "factorize"
) -> Outcome[Done]:
    """Run every record of `manifest` and wait for the end.

    Raises:
        JobError: a task failed (with ``is_strict`` also: the first bad record), or the records do not add up.
    """
    found = _sort_out(manifest, job.output == "npz")
    lines = found.lines
    if not lines:
        raise JobError("the manifest has no records")
    if job.is_strict and found.doubled:
        first = found.doubled[0]
        raise JobError(f"record {first.key} ({first.code}): {first.message}")
    uri = runner.home(f"{name}/manifest.tsv")
    text = "".join(line + "\n" for line in lines)
    store.write_atomic(uri, [text.encode("utf-8", "surrogateescape")])
    step = Step(
        name=name,
        mapper=_mapper_command(job),
        inputs=(uri,),
        output_uri=parts_uri(runner, name),
        lines_per_map=-(-len(lines) // job.n_tasks),
        is_strict=job.is_strict,
        has_task_files=job.output == "sequence",
    )
    try:
        result = runner.run(step, report)
    finally:
        if job.output == "npz":
            _delete_unfinished(store, found.entries, report)
    done, rejects = _rows_of(store, result.parts)
    job_ids = (result.job_id,) if result.job_id else ()
    # No task saw those that were rejected here.
    rejects += found.doubled
    counters = Counter(result.counters)
    counters.update(records_in=len(found.doubled), rejected=len(found.doubled))
    n_in = len(lines) + len(found.doubled)
    outcome = Outcome(n_in, tuple(done), tuple(rejects), dict(counters), result.tasks, result.wall_s, job_ids)
    outcome.check_complete()
    return outcome


def _rows_of(store: Store, parts: Sequence[str]) -> tuple[list[Done], list[RejectedRecord]]:
    """The rows that the tasks wrote: done, and rejected."""
    done: list[Done] = []
    rejects: list[RejectedRecord] = []
    for part in parts:
        for line in store.read_bytes(part, MAX_PART_BYTES).decode("utf-8").splitlines():
            row = parse_row(line)
            if isinstance(row, Reject):
                rejects.append(RejectedRecord(row.key, row.code, row.message))
            else:
                done.append(row)
    return done, rejects


def parts_uri(runner: Runner, name: str = "factorize") -> str:
    """The job's output folder: its rows, and with the output ``sequence`` its factors."""
    return runner.home(f"{name}/output")


def factors_of(store: Store, entries: Sequence[Entry], folder_uri: str = "") -> Iterator[tuple[Entry, bytes]]:
    """The factors of matrices as ``.npz``, as they come.

    Args:
        folder_uri: the job's output folder with its SequenceFiles; empty: each matrix has a file.

    Raises:
        StorageError: some are not there.
    """
    if not folder_uri:
        yield from ((entry, store.read_bytes(entry.output_uri, MAX_PART_BYTES)) for entry in entries)
        return
    missing = {entry.key: entry for entry in entries}
    for uri in store.list(folder_uri):
        if missing and uri.rpartition("/")[2].startswith(FACTORS_PREFIX):
            with store.stream(uri) as stream:
                for key, content in SequenceFileReader(stream):
                    if str(key) in missing and isinstance(content, bytes):
                        yield missing.pop(str(key)), content
    if missing:
        raise StorageError(f"{folder_uri}: no factors of {', '.join(sorted(missing))}")


def good_entries(manifest: str, has_output: bool = True) -> list[Entry]:
    """The entries of the lines that are manifest lines at all, and no second ones; see `parse_entry`."""
    return _sort_out(manifest, has_output).entries


def write_outcome(outcome: Outcome[Done], folder: Path) -> tuple[Path, Path]:
    """Write ``results.tsv`` and ``rejects.tsv`` (with header lines) into `folder`."""
    results = write_table(
        folder / "results.tsv", DONE_FIELDS, (format_row(row).split("\t") for row in outcome.results)
    )
    rejects = write_table(
        folder / "rejects.tsv",
        ("key", "code", "message"),
        ((r.key, r.code, r.message) for r in outcome.rejects),
    )
    return results, rejects


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The records of a manifest.

    Attributes:
        lines: what tasks get: all but the second ones of one key or output.
        entries: those of the lines that are entries.
        doubled: the second ones. They are rejected here, since no task sees all lines.
    """

    lines: list[str]
    entries: list[Entry]
    doubled: list[RejectedRecord]


def _sort_out(manifest: str, has_output: bool) -> _Manifest:
    found = _Manifest([], [], [])
    unique = UniqueEntries(has_output)
    for number, line in records(manifest.split("\n")):
        place = f"manifest line {number}"
        try:
            entry = parse_entry(line, place, has_output)
            unique.check(entry, number, place)
            found.entries.append(entry)
        except RejectedError as error:
            if error.code == "doubled-record":
                found.doubled.append(RejectedRecord(key_of(line), error.code, str(error)))
                continue
        found.lines.append(line)
    return found


def _delete_unfinished(store: Store, entries: Sequence[Entry], report: Report) -> None:
    """Delete what attempts and servers that were killed left beside the factors."""
    try:
        store.delete_unfinished(entry.output_uri for entry in entries)
    except StorageError as error:
        report(f"unfinished files may be left beside the factors: {error}")


def _mapper_command(job: FactorizeJob) -> tuple[str, ...]:
    command: Sequence[str] = (
        "factorize-map",
        "--by",
        "value" if job.is_by_value else "reference",
        "--residual",
        job.residual,
        "--output",
        job.output,
        "--window",
        str(job.window),
        "--patience-s",
        f"{job.patience_s:g}",
    )
    command = [*command, *(["--strict"] if job.is_strict else [])]
    return (*command, *(() if job.is_fallback_allowed else ("--no-fallback",)))
