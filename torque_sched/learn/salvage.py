"""A damaged history file: its good rows go on in a new one, and the file as it was is kept beside it.

Rows are read table by table, from the first one on and from the last one back, so that a page that cannot be
read costs the rows on it. The new file takes the place of the old one when it is whole; a process killed
before that leaves the damaged file where it was.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from torque_sched.errors import StartupError
from torque_sched.learn.schema import open_file, table_forms
from torque_sched.learn.store import ALL_ROWS, open_to_read
from torque_sched.learn.unreadable import UNREADABLE, UnreadableRows

logger = logging.getLogger(__name__)

_BESIDE = ("-wal", "-shm")


def is_damaged(path: Path) -> bool:
    """Whether a file is there that SQLite cannot read; rights and space are another matter."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with closing(sqlite3.connect(str(path), timeout=5.0, isolation_level=None)) as db:
        try:
            return bool(db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok")
        except sqlite3.OperationalError:
            return False
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return True


def salvage(path: Path, *, with_rows: bool = True) -> str:
    """Go on with a new history file that has the rows of a damaged one; returns what was lost, in words.

    Args:
        path: the damaged file; the new one has its name.
        with_rows: False: begin with an empty one.

    Raises:
        StartupError: its folder cannot be written.
    """
    fresh = path.with_name(f".{path.name}.salvaged")
    for each in (fresh, *_beside(fresh)):
        with suppress(OSError):
            each.unlink()
    n_kept, lost = 0, ["it cannot be used"]
    with closing(open_file(fresh)) as db:
        if with_rows:
            n_kept, lost = _copy(path, db)
    aside = _put_aside(path)
    fresh.replace(path)
    message = (
        f"the history {path} was damaged: {'; '.join(lost) or 'a table is lost'}; {n_kept} rows go on, the "
        f"file as it was is {aside.name}"
    )
    logger.error("%s", message)
    return message


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in _BESIDE]


def _put_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    try:
        with suppress(FileNotFoundError):
            aside.unlink()
        try:
            # The name stays, so that no moment is without a history.
            os.link(path, aside)
        except OSError:
            path.replace(aside)
    except OSError as error:
        raise StartupError(
            f"the damaged history {path} cannot be moved away ({error.strerror})",
            cure="see the rights of its folder",
        ) from error
    for old, new in zip(_beside(path), _beside(aside), strict=True):
        with suppress(OSError):
            old.replace(new)
    return aside


def _copy(path: Path, db: sqlite3.Connection) -> tuple[int, list[str]]:
    """Write the rows of a damaged file that can be read into a new one; how many, and what was lost."""
    found, n_kept, lost = UnreadableRows(most_named=0), 0, list[str]()
    try:
        source = open_to_read(path)
    except (sqlite3.Error, UnicodeDecodeError, StartupError) as error:
        return 0, [str(error)]
    with closing(source):
        db.execute("BEGIN IMMEDIATE")
        for form in ALL_ROWS:
            columns = tuple(table_forms()[form.table].columns)
            of_form = [columns.index(name) for name in form.columns]
            insert = f"INSERT OR IGNORE INTO {form.table} VALUES ({', '.join('?' * len(columns))})"
            for row in _rows(source, form.table, columns, lost):
                try:
                    form.value(row[at] for at in of_form)
                    n_kept += db.execute(insert, row).rowcount
                except (sqlite3.Error, *UNREADABLE) as error:
                    found.note(form.table, tuple(row[at] for at in of_form[:2]), str(error))
        db.execute("COMMIT")
    return n_kept, found.words + lost


def _rows(
    db: sqlite3.Connection, table: str, columns: Sequence[str], lost: list[str]
) -> Iterator[tuple[object, ...]]:
    """The rows of a table in their order; of a damaged one those before the damage, then those behind it."""
    keys = table_forms()[table].in_order
    trouble = ""
    for way in ("ASC", "DESC"):
        order = ", ".join(f"{key} {way}" for key in keys)
        try:
            yield from db.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            trouble = str(error)
        else:
            return
    if not trouble.startswith("no such table"):
        lost.append(f"a part of {table} cannot be read ({trouble})")
