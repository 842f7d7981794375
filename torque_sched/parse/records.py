"""Records: what every Torque output is a list of, before anybody asks what the attributes mean.

A reader turns an output into records, leniently but never half: a damaged record becomes one problem
that names the place and the cure, the others are read, and ``n_records == len(items) + len(problems)``.
An output that is cut off or of another format raises :class:`DocumentError` as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torque_sched.errors import DocumentError, RecordError, TorqueSchedError

__all__ = ["MAX_DOCUMENT_BYTES", "Parsed", "Record", "as_record_error", "convert", "decoded"]

MAX_DOCUMENT_BYTES = 512 * 1024 * 1024
"""Larger outputs are refused: 10,000 jobs take about 20 MiB."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """One object an output names, with its attributes in the order printed.

    Attributes of a family have dotted names (``Resource_List.nodes``) in every dialect.
    """

    kind: str
    """``Job``, ``Node``, ``Queue`` or ``Server``."""
    name: str
    attributes: dict[str, str]

    @property
    def place(self) -> str:
        """The words an error message names this record by."""
        return f"{self.kind.lower()} {self.name[:60]}"


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """What was read, and one error for each record that could not be."""

    items: tuple[T, ...]
    problems: tuple[RecordError, ...] = ()

    @property
    def n_records(self) -> int:
        """Records seen, good and damaged."""
        return len(self.items) + len(self.problems)


def convert(parsed: Parsed[Record], build: Callable[[Record], T]) -> Parsed[T]:
    """Build a value from every record; a record whose values make no sense becomes a problem."""
    items: list[T] = []
    problems = list(parsed.problems)
    for record in parsed.items:
        try:
            items.append(build(record))
        except TorqueSchedError as error:
            problems.append(as_record_error(error, record.place))
    return Parsed(tuple(items), tuple(problems))


def as_record_error(error: TorqueSchedError, place: str) -> RecordError:
    """The same error as one of a record, which says where and what to do."""
    if isinstance(error, RecordError) and error.cure:
        return error
    message = error.message if isinstance(error, RecordError) else f"{place}: {error.message}"
    return RecordError(message, cure=error.cure or _REPORT)


_REPORT = "run the command by hand and attach its output to a bug report (torque-sched parse shows ours)"


def decoded(data: bytes | str, command: str) -> str:
    """Text of an output; bytes are UTF-8, and a byte that is not becomes U+FFFD (names are raw bytes).

    A byte order mark at the beginning, which editors leave there, is no part of it.

    Raises:
        DocumentError: the output is larger than :data:`MAX_DOCUMENT_BYTES`.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DocumentError(
            f"{command} printed {len(data)} bytes, more than {MAX_DOCUMENT_BYTES}",
            cure="lower the server's keep_completed, so that fewer finished jobs are listed",
        )
    text = data.decode("utf-8", errors="replace") if isinstance(data, bytes) else data
    return text.removeprefix("\ufeff")
