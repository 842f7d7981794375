"""The text of ``qstat -f -w``, ``pbsnodes -av`` and ``pbs_rstat -f`` as records.

Text and never ``-F json``: the server prints there what a user wrote as it is. One job with a variable
``A=nan`` makes the whole document invalid, and of a limit that stands there several times a reader keeps the
last (observed on 23.06.06). With ``-w`` each attribute has one line, and a newline in a value is ``\\n``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torque_sched.batch.torque.parse.records import decoded
from torque_sched.errors import DocumentError, RecordError
from torque_sched.model.texts import one_line

_TITLES = {
    "Job": "Job Id: ", "Queue": "Queue: ", "Server": "Server: ", "Reservation": "Resv ID: ", "Vnode": "",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][\w.\-]{0,199}", re.ASCII)
_DECISIVE = frozenset({"euser", "egroup", "exec_vnode", "job_state", "queue"})
_REPORT = "the other records are used; if it stays, attach the output to a bug report"


@dataclass(frozen=True, slots=True)
class Block:
    """One record as printed: its name, and the lines below its title."""

    kind: str
    name: str
    text: str

    @property
    def place(self) -> str:
        """The words an error message names this record by."""
        return f"{self.kind.lower()} {self.name[:60]}"

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Attributes in the order printed, some of them several times (``max_run``).

        Raises:
            RecordError: it has none.
        """
        name, value = "", ""
        for line in self.text.split("\n"):
            given, equals, rest = line.strip(" ").partition(" = ")
            if not equals and given.endswith(" ="):
                given, equals, rest = given[:-2], "=", ""
            is_attribute = bool(equals) and line[:1] != "\t" and _NAME.fullmatch(given) is not None
            if is_attribute and (line[:1] == " " or self.kind == "Reservation"):
                if name:
                    yield name, one_line(value)
                name, value = given, rest
            elif name:
                value += line[1:] if line[:1] == "\t" else "\n" + line
            elif line:
                raise RecordError(f"{self.place}: no attribute but {line.strip()[:60]!r}", cure=_REPORT)
        if not name:
            raise RecordError(f"{self.place}: no attributes", cure=_REPORT)
        yield name, one_line(value)

    def attributes(self) -> dict[str, str]:
        """Attributes by name.

        Raises:
            RecordError: one that decides whose job it is, or where, stands there twice.
        """
        found: dict[str, str] = {}
        for name, value in self.pairs():
            if name in found and name in _DECISIVE and self.kind == "Job":
                raise RecordError(f"{self.place}: two lines {name}", cure=_REPORT)
            found.setdefault(name, value)
        return found


def read_blocks(data: bytes | str, kind: str, command: str) -> list[Block]:
    """The records of an output; nothing at all is an empty list.

    Args:
        data: the output.
        kind: ``Job``, ``Queue``, ``Server``, ``Reservation`` or ``Vnode``.
        command: for messages.

    Raises:
        DocumentError: it does not end with the blank line that ends it, or has no such record.
    """
    text = decoded(data, command).replace("\r\n", "\n")
    if not text.strip():
        return []
    if not text.endswith("\n\n"):
        raise DocumentError(f"{command}: the output is cut off", cure="ask again; nothing of it is used")
    title = _TITLES[kind]
    blocks: list[Block] = []
    for part in text.split("\n\n"):
        first, _, rest = part.lstrip("\n").partition("\n")
        if first.startswith(title) and first[:1] not in {" ", "\t", ""}:
            blocks.append(Block(kind, one_line(first[len(title) :].strip()), rest))
        elif part.strip() and not blocks:
            raise DocumentError(
                f"{command} printed no {kind.lower()} but {part.strip()[:60]!r}",
                cure="run it by hand; is this the output of another command?",
            )
        elif part.strip():
            # A blank line in a value: it belongs to the record before.
            blocks[-1] = Block(kind, blocks[-1].name, f"{blocks[-1].text}\n\n{part}")
    return blocks
