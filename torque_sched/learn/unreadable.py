"""Rows of the history file in which something else stands than we write: each costs itself alone.

A disk, an editor or a fault of ours may leave such a row. Whoever reads a table leaves it out, names it once
and counts it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from torque_sched.learn.schema import table_forms
from torque_sched.model.texts import one_line

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, AttributeError)
"""What building a value from a row raises in which something else stands than we write."""
_CLASSES = {"TEXT": str, "REAL": float, "INTEGER": int}


class UnreadableRows:
    """The rows that were left out, each counted once however often it is met.

    Args:
        most_named: so many of each table are named in the log.
    """

    def __init__(self, most_named: int = 5) -> None:
        self._most_named = most_named
        self._by_table: dict[str, dict[str, str]] = {}

    def note(self, table: str, row: object, why: str) -> None:
        """A row was left out.

        Args:
            table: its name.
            row: what tells the row from others.
            why: it cannot be read.
        """
        found = self._by_table.setdefault(table, {})
        name = one_line(str(row))[:80]
        if name in found:
            return
        found[name] = one_line(why)[:200]
        if len(found) <= self._most_named:
            logger.warning("history: a row of %s cannot be read and is left out: %s: %s", table, name, why)

    @property
    def words(self) -> list[str]:
        """A sentence for each table that has such rows: how many there are, and the first one."""
        return [
            f"{len(found)} {'row' if len(found) == 1 else 'rows'} of {table} cannot be read, "
            f"the first: {next(iter(found))}: {next(iter(found.values()))}"
            for table, found in self._by_table.items()
        ]


@dataclass(frozen=True, slots=True)
class RowForm(Generic[T]):
    """How the rows of one table become values.

    Attributes:
        table: its name.
        columns: those that are read, in the order in which `build` takes them.
        build: makes the value; what it raises of `UNREADABLE` is the row's fault.
    """

    table: str
    columns: tuple[str, ...]
    build: Callable[..., T]

    def value(self, row: Iterable[object]) -> T:
        """The value of a row.

        Raises:
            ValueError: a column holds another type than the table declares; or what `build` raises.
        """
        values = tuple(row)
        declared = table_forms()[self.table].columns
        for name, value in zip(self.columns, values, strict=True):
            kind, may_be_null = declared[name]
            if not (isinstance(value, _CLASSES[kind]) or (value is None and may_be_null)):
                raise ValueError(f"{name} is no {kind}")
        return self.build(*values)

    def read(
        self, db: sqlite3.Connection, found: UnreadableRows, rest: str = "", given: Iterable[object] = ()
    ) -> Iterator[T]:
        """The values of all rows that can be read.

        Args:
            db: the file.
            found: takes in the others.
            rest: of the query, behind the name of the table.
            given: its parameters.
        """
        query = f"SELECT {', '.join(self.columns)} FROM {self.table} {rest}"
        for row in db.execute(query, tuple(given)):
            try:
                yield self.value(row)
            except UNREADABLE as error:
                found.note(self.table, row[:2], str(error))
