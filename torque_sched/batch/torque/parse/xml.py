"""The XML of ``pbsnodes -x`` and ``qstat -f -x``: exactly the subset Torque prints, nothing more.

Torque prints ``<Data>``, then records without attributes, each a flat list of elements, some of which
hold one more level (``<Resource_List><nodes>``). A general XML parser gives up on the whole document at
the first damaged record, and it has features nobody here needs: entities, document types, processing
instructions. So the document is cut at the end tags of its records, and each record is read alone:

* no entity is ever expanded but the five predefined ones and character numbers; a document type,
  a comment, CDATA or a processing instruction after the header refuses the document;
* text in a value is escaped by the server, so a record's tags cannot occur in a value;
* sizes are bounded: document, record, depth 2.

This also is more than twice as fast as ElementTree's pull parser, and every cycle waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from torque_sched.batch.torque.parse.records import (
    Parsed,
    Record,
    as_record_error,
    decoded,
    listed_once,
    read_record,
)
from torque_sched.errors import DocumentError, RecordError, TorqueSchedError

T = TypeVar("T")
MAX_RECORD_CHARACTERS = 8 * 1024 * 1024

_HEADER = re.compile(r"\s*<\?xml [^<>]{0,200}\?>\s*")
_NAME = re.compile(r"[A-Za-z_][\w.\-\[\]]{0,199}", re.ASCII)
_ENTITY = re.compile(r"&(?:#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,4}));")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_NAME_ELEMENT = {"Job": "Job_Id", "Node": "name"}


def unescaped(text: str) -> str:
    """Text with the five predefined entities and character numbers put back; others stay as they are."""
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(found: re.Match[str]) -> str:
    decimal, hexadecimal, name = found.groups()
    if name is not None:
        return _NAMED.get(name, found.group())
    number = int(decimal) if decimal is not None else int(hexadecimal, 16)
    is_character = 0 < number < 0x110000 and not 0xD800 <= number < 0xE000
    return chr(number) if is_character else found.group()


def escaped(text: str) -> str:
    """Text as Torque escapes it in XML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def read_xml(data: bytes | str, kind: str, command: str) -> Parsed[Record]:
    """Records of one kind (``Job``, ``Node``) from a whole XML output; see :func:`build_from_xml`."""
    return build_from_xml(data, kind, command, lambda record: record)


def build_from_xml(
    data: bytes | str,
    kind: str,
    command: str,
    build: Callable[[Record], T],
    seen: dict[str, T] | None = None,
    *,
    may_be_cut: bool = False,
) -> Parsed[T]:
    """Values of one kind from an XML output; each record is let go once its value is built.

    Args:
        data: what the command printed.
        kind: the element around each record.
        command: the command's name for messages.
        build: makes the value; what it raises becomes a problem of that record.
        seen: values by the text of their records, from the output before; an unchanged record is not
            read again. It is replaced by this output's. Use one for each ``build``.
        may_be_cut: of an output that is cut off, read the records before the cut.

    Raises:
        DocumentError: the output is empty, cut off, too large, or no such XML.
    """
    body, is_cut = _body(decoded(data, command), command)
    if is_cut and not may_be_cut:
        raise DocumentError(f"{command}: the output is cut off", cure="ask again; nothing of it is used")
    chunks = body.split(f"</{kind}>")
    rest = chunks.pop()
    opening = f"<{kind}>"
    items: list[T] = []
    problems: list[RecordError] = []
    known: dict[str, T] = seen if seen is not None else {}
    fresh: dict[str, T] = {}
    for chunk in chunks:
        lost, _, inside = chunk.rpartition(opening)
        if lost and not lost.isspace():
            problems.extend(_lost(lost, opening, kind, command))
        if not inside:
            problems.append(_damaged(kind, chunk, "has no beginning", command))
            continue
        try:
            value = known.get(inside) or build(_record(inside, kind, command))
            items.append(value)
            fresh[inside] = value
        except TorqueSchedError as error:
            problems.append(as_record_error(error, f"a {kind.lower()} record of {command}"))
    if is_cut:
        half = rest.strip().removeprefix(opening)[:60]
        cure = "the records before that place are used; get the output anew"
        problems.append(RecordError(f"{command}: the output is cut off, near {half!r}", cure=cure))
    elif rest and not rest.isspace():
        problems.extend(_lost(rest, opening, kind, command))
    if seen is not None:
        seen.clear()
        seen.update(fresh)
    return listed_once(items, problems, command)


def _body(text: str, command: str) -> tuple[str, bool]:
    """What stands between the tags of the document, and whether its end is missing."""
    header = _HEADER.match(text)
    text = text[header.end() :].strip() if header else text.strip()
    if not text:
        raise DocumentError(f"{command} printed nothing", cure="ask again; is pbs_server running?")
    if not text.startswith("<Data>"):
        raise DocumentError(
            f"{command} printed no <Data> document but {text[:60]!r}",
            cure="run it by hand; OpenPBS and Slurm's wrappers have no such XML",
        )
    if "<!" in text or "<?" in text:
        raise DocumentError(
            f"{command}: a document type, comment or instruction inside",
            cure="Torque prints none; nothing of this output is used",
        )
    is_cut = not text.endswith("</Data>")
    return text[6:] if is_cut else text[6:-7], is_cut


def _lost(text: str, opening: str, kind: str, command: str) -> list[RecordError]:
    """One problem for each record without an end in ``text``, and one for text between records."""
    before, *starts = text.split(opening)
    found = [_damaged(kind, start, "has no end", command) for start in starts]
    if before and not before.isspace():
        found.append(_damaged(kind, before, "is text between records", command))
    return found


def _damaged(kind: str, text: str, trouble: str, command: str) -> RecordError:
    return RecordError(
        f"{command}: {kind.lower()} record {trouble}, near {text.strip()[:60]!r}",
        cure="the other records are used; if it stays, attach the output to a bug report",
    )


def _record(text: str, kind: str, command: str) -> Record:
    """One record from the text between its tags."""
    if len(text) > MAX_RECORD_CHARACTERS:
        raise _damaged(kind, text, f"is longer than {MAX_RECORD_CHARACTERS} characters", command)
    attributes = _elements(text, kind, command)
    if "&" in text:
        attributes = {name: unescaped(value) for name, value in attributes.items()}
    name = attributes.pop(_NAME_ELEMENT[kind], "")
    if not name:
        raise _damaged(kind, text, f"has no {_NAME_ELEMENT[kind]}", command)
    return read_record(kind, name, attributes)


def _elements(text: str, kind: str, command: str) -> dict[str, str]:
    """Leaves by dotted name. This loop is where a large cycle's parse time goes."""
    attributes: dict[str, str] = {}
    parts = text.split("<")
    parts.append("")
    if parts[0] and not parts[0].isspace():
        raise _damaged(kind, text, "begins with text", command)
    end = len(parts) - 1
    prefix = parent = ""
    at = 1
    while at < end:
        name, closed, value = parts[at].partition(">")
        follower = parts[at + 1]
        # "/name>" follows its own value; blanks after it come with pretty-printed files only.
        if follower == f"/{name}>" or (closed and follower.rstrip() == f"/{name}>"):
            attributes[prefix + name] = value
            at += 2
        elif parent and name == parent and closed and not value.strip():
            prefix = parent = ""
            at += 1
        elif not parent and closed and name and name[0] != "/" and not value.strip():
            parent, prefix = f"/{name}", f"{name}."
            at += 1
        else:
            raise _damaged(kind, parts[at], "is garbled", command)
    if parent:
        raise _damaged(kind, text, f"lacks <{parent}>", command)
    _check_names(attributes, kind, command)
    return attributes


def _check_names(attributes: dict[str, str], kind: str, command: str) -> None:
    if attributes.keys() <= _GOOD_NAMES:
        return
    for name in attributes.keys() - _GOOD_NAMES:
        if _NAME.fullmatch(name) is None:
            raise _damaged(kind, name, "has an element with an impossible name", command)
        if len(_GOOD_NAMES) < _MOST_GOOD_NAMES:
            _GOOD_NAMES.add(name)


_GOOD_NAMES: set[str] = set()
_MOST_GOOD_NAMES = 4096
