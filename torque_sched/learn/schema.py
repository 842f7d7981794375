"""The tables of the history file, version by version.

A version is a list of statements; a file of version n gets those of n+1 and later, in one transaction. A
statement that was released is never changed: add a version instead.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import stat
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from torque_sched.errors import NoSpaceError, StartupError

BUSY_S = 5.0
"""So long one process waits for another's transaction."""

_VERSIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE jobs (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            job TEXT NOT NULL, ctime_s REAL NOT NULL,
            user TEXT NOT NULL, script TEXT NOT NULL, shape TEXT NOT NULL, time_limit TEXT NOT NULL,
            queue TEXT NOT NULL, nodes TEXT NOT NULL, n_procs INTEGER NOT NULL, n_gpus INTEGER NOT NULL,
            queued_s REAL, start_s REAL, end_s REAL, exit_status INTEGER,
            runtime_s REAL, cpu_cores REAL, mem_bytes REAL, gpus REAL, gpu_mem_bytes REAL, rate REAL NOT NULL,
            source TEXT NOT NULL, said TEXT NOT NULL,
            UNIQUE (job, ctime_s))""",
        """CREATE TABLE uses (
            job TEXT NOT NULL, ctime_s REAL NOT NULL, node TEXT NOT NULL,
            n INTEGER NOT NULL, last_s REAL NOT NULL, cpu_cores REAL NOT NULL, mem_bytes REAL NOT NULL,
            gpus REAL NOT NULL, gpu_mem_bytes REAL NOT NULL,
            knows_cpu INTEGER NOT NULL, knows_gpu INTEGER NOT NULL,
            PRIMARY KEY (job, ctime_s, node)) WITHOUT ROWID""",
        """CREATE TABLE pending (
            job TEXT NOT NULL, ctime_s REAL NOT NULL, since_s REAL NOT NULL, said TEXT NOT NULL,
            PRIMARY KEY (job, ctime_s)) WITHOUT ROWID""",
        """CREATE TABLE position (
            id INTEGER PRIMARY KEY CHECK (id = 1), file TEXT NOT NULL, offset INTEGER NOT NULL)""",
    ),
    (
        """CREATE TABLE balance (
            at_s REAL PRIMARY KEY,
            n_nodes INTEGER NOT NULL, n_running INTEGER NOT NULL, n_queued INTEGER NOT NULL,
            cpu_mean REAL NOT NULL, cpu_stdev REAL NOT NULL, cpu_range REAL NOT NULL,
            mem_mean REAL NOT NULL, mem_stdev REAL NOT NULL,
            gpus INTEGER NOT NULL, gpus_reserved INTEGER NOT NULL, gpus_unused INTEGER NOT NULL,
            gpu_jobs_waiting INTEGER NOT NULL, wait_mean_s REAL NOT NULL)""",
    ),
    (
        """CREATE TABLE promises (
            job TEXT NOT NULL, ctime_s REAL NOT NULL,
            start_s REAL NOT NULL, allocation TEXT NOT NULL, length_s REAL NOT NULL, made_s REAL NOT NULL,
            first_s REAL NOT NULL, first_made_s REAL NOT NULL, why_broken TEXT NOT NULL,
            is_withdrawn INTEGER NOT NULL, n_better INTEGER NOT NULL, n_broken INTEGER NOT NULL,
            changes TEXT NOT NULL,
            PRIMARY KEY (job, ctime_s)) WITHOUT ROWID""",
        """CREATE TABLE outcomes (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            job TEXT NOT NULL, ctime_s REAL NOT NULL, start_s REAL NOT NULL,
            made_s REAL NOT NULL, first_s REAL NOT NULL, last_s REAL NOT NULL,
            n_better INTEGER NOT NULL, n_broken INTEGER NOT NULL, changes TEXT NOT NULL,
            UNIQUE (job, ctime_s))""",
        """CREATE TABLE pauses (
            kind TEXT NOT NULL, job TEXT NOT NULL, node TEXT NOT NULL,
            failures INTEGER NOT NULL, until_s REAL NOT NULL, why TEXT NOT NULL,
            PRIMARY KEY (kind, job, node)) WITHOUT ROWID""",
        """CREATE TABLE reservations (
            name TEXT PRIMARY KEY, nodes TEXT NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL,
            users TEXT NOT NULL, made_by TEXT NOT NULL, made_s REAL NOT NULL,
            token TEXT UNIQUE, lease_until_s REAL, boot_id TEXT NOT NULL) WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE usage (
            kind TEXT NOT NULL, name TEXT NOT NULL,
            proc_s REAL NOT NULL, gpu_s REAL NOT NULL, at_s REAL NOT NULL,
            PRIMARY KEY (kind, name)) WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE expected (
            job TEXT NOT NULL, ctime_s REAL NOT NULL,
            told_s REAL NOT NULL, expected_s REAL NOT NULL, start_s REAL,
            PRIMARY KEY (job, ctime_s)) WITHOUT ROWID""",
    ),
)

VERSION = len(_VERSIONS)
"""The version this release reads and writes."""


@dataclass(frozen=True, slots=True)
class TableForm:
    """A table as this release declares it.

    Attributes:
        columns: of each the type, and whether it may be NULL.
        in_order: the columns by which SQLite keeps its rows in order.
    """

    columns: Mapping[str, tuple[str, bool]]
    in_order: tuple[str, ...]


@functools.cache
def table_forms() -> Mapping[str, TableForm]:
    """All tables of this release, by name."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, ":memory:")
        found = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name: _form(db, name, sql) for name, sql in found if not name.startswith("sqlite_")}


def _form(db: sqlite3.Connection, table: str, sql: str) -> TableForm:
    rows = db.execute(f"PRAGMA table_info({table})").fetchall()
    columns = {name: (kind, not (is_set or key)) for _, name, kind, is_set, _, key in rows}
    keys = sorted((key, name) for _, name, _, _, _, key in rows if key)
    has_rowid = "WITHOUT ROWID" not in sql
    return TableForm(columns, ("rowid",) if has_rowid else tuple(name for _, name in keys))


def text_or_bytes(data: bytes) -> str | bytes:
    """A text of the file; where it is none the bytes, so that reading goes on behind that row."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def open_file(path: Path | None) -> sqlite3.Connection:
    """Open or create a history file, and bring it to this release's version; None: in memory.

    Raises:
        NoSpaceError: the disk is full.
        StartupError: the file is no history, damaged, newer, or cannot be written.
    """
    name = str(path) if path is not None else ":memory:"
    if path is not None:
        check_files(path)
    try:
        if path is not None:
            _for_us_alone(path)
        db = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            db.text_factory = text_or_bytes
            db.execute("PRAGMA journal_mode = WAL")
            # A power cut may cost the last cycles, never the file.
            db.execute("PRAGMA synchronous = NORMAL")
            migrate(db, name)
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        text = f"the history {name} cannot be used ({error})"
        if "is full" in str(error):
            raise NoSpaceError(text, cure="make space on that disk") from error
        cure = "move it away to begin a new one, or see the rights of its folder"
        raise StartupError(text, cure=cure) from error
    return db


def check_files(path: Path) -> None:
    """Refuse what SQLite would wait for without end (a FIFO), or make where a link leads.

    Raises:
        StartupError: the file, or one that SQLite keeps beside it, is there and is no file.
    """
    for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))):
        try:
            mode = each.lstat().st_mode
            if each == path and stat.S_ISLNK(mode):
                mode = each.stat().st_mode
        except FileNotFoundError:
            if not each.is_symlink():
                continue
            mode = 0
        except OSError as error:
            cure = "see the rights of its folder, and where it leads if it is a link"
            raise StartupError(f"the history {each}: {error.strerror}", cure=cure) from error
        if not stat.S_ISREG(mode):
            raise StartupError(f"the history {each} is no file", cure="move it away to begin a new one")


def _for_us_alone(path: Path) -> None:
    """Who ran what is nobody's business but the owner's and the group's; its log and index become alike."""
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))
    for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        with suppress(OSError):
            # Closing any other descriptor of the file would end SQLite's locks on it.
            fd = os.open(each, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                if stat.S_ISREG(status.st_mode) and status.st_mode & 0o027:
                    os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(status.st_mode) & ~0o027)  # noqa: PTH101
            finally:
                os.close(fd)


def newer(name: str, found: int) -> StartupError:
    """What is said of a file that a newer release has written."""
    return StartupError(
        f"{name} has version {found} and this release knows up to {VERSION}",
        cure="install the newer release again, or set `learning.history` to another file",
    )


def migrate(connection: sqlite3.Connection, name: str, *, up_to: int = VERSION) -> None:
    """Bring a file, also an empty one, to a version.

    Args:
        connection: in autocommit mode.
        name: of the file, for the message.
        up_to: the version wanted.

    Raises:
        StartupError: a newer release wrote the file.
        sqlite3.Error: it cannot be written.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if found > VERSION:
            raise newer(name, found)
        for statements in _VERSIONS[found:up_to]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {max(found, up_to)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
