"""Records: what every Torque output is a list of, before anybody asks what the attributes mean.

A reader turns an output into records, leniently but never half: a damaged record becomes one problem
that names the place and the cure, the others are read, and ``n_records == len(items) + len(problems)``.
An output that is cut off or of another format raises :class:`DocumentError` as a whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torque_sched.errors import DocumentError, RecordError, TorqueSchedError, UnitError
from torque_sched.model.texts import is_plain, one_line

MAX_DOCUMENT_BYTES = 512 * 1024 * 1024
"""Larger outputs are refused: 10,000 jobs take about 20 MiB."""

_MOST = 2**53
"""A figure as large as this is of no machine; smaller ones are exact as floats."""

T = TypeVar("T")
N = TypeVar("N", int, float)


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


def read_record(kind: str, name: str, attributes: dict[str, str]) -> Record:
    """The record of what an output says. Every reader of any output makes its records here.

    Users choose texts in it, with newlines and ESC sequences; each becomes one line that can be shown
    (`model.texts.one_line`), so that nothing that prints, logs or stores it has to think of that.
    """
    if not (is_plain("".join(attributes.values())) and is_plain(name) and is_plain("".join(attributes))):
        attributes = {one_line(key): one_line(text) for key, text in attributes.items()}
    return Record(kind, one_line(name), attributes)


def keyed(
    text: str, separator: str, free: frozenset[str], begins: Callable[[str, str], bool]
) -> dict[str, str]:
    """``key=value`` pairs joined by a separator, some of whose values are anybody's text with anything in it.

    A key that is there before the first free text counts as it stands there. Of a key that comes only after
    it the last one counts: what comes before is of the text, which the writer puts before the rest.

    Args:
        text: the pairs.
        separator: between them, and perhaps inside of free texts.
        free: keys of free texts.
        begins: whether a key, after the key before, may begin a pair.
    """
    parts = text.split(separator)
    keys: list[str] = []
    at: dict[str, int] = {}
    last, first_free = "", len(parts)
    for number, part in enumerate(parts):
        key, equals, _ = part.partition("=")
        key = key.strip()
        keys.append(key if equals and begins(key, last) else "")
        if not keys[number]:
            continue
        last = key
        first_free = min(first_free, number) if key in free else first_free
        if key not in at or at[key] > first_free:
            at[key] = number
    values: dict[str, list[str]] = {}
    for number, (key, part) in enumerate(zip(keys, parts, strict=True)):
        if key and at[key] == number:
            values[key] = [part.partition("=")[2]]
            last = key
        elif values:
            values[last].append(part)
    return {key: separator.join(texts) for key, texts in values.items()}


def figure(given: Mapping[str, str], name: str, read: Callable[[str], N]) -> N | None:
    """A figure that nothing depends on: None where it is missing, garbled (as ``-1kb``) or absurd."""
    text = given.get(name)
    if text is None:
        return None
    try:
        value = read(text)
    except (ValueError, UnitError):
        return None
    # Of nan each comparison is false.
    return value if abs(value) < _MOST else None


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


def listed_once(items: Iterable[T], problems: list[RecordError], command: str) -> Parsed[T]:
    """What was read; a job or node that is there a second time becomes a problem, the first one counts."""
    first: dict[str, T] = {}
    for item in items:
        name = str(getattr(item, "id", None) or getattr(item, "name", ""))
        if name in first:
            problems.append(RecordError(f"{command}: {name[:60]} is there a second time", cure=_DOUBLE))
        else:
            first[name] = item
    return Parsed(tuple(first.values()), tuple(problems))


_DOUBLE = "the first one is used; if it stays, attach the output to a bug report"


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
    text = utf8_bytes(data).decode("utf-8", errors="replace") if isinstance(data, bytes) else data
    return text.removeprefix("\ufeff")


def utf8_bytes(data: bytes) -> bytes:
    """The bytes in UTF-8 without a byte order mark; a shell on Windows saves outputs in UTF-16."""
    if data[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
        return data.decode("utf-16", errors="replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)
