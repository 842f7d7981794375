"""What a site must not forget: holds, blocks of others, jobs of ours. SQLite, written before answers.

Each write is one transaction and on the disk when it returns, so a process killed at any point, or a machine
that lost power, goes on from the last answer it gave.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from torque_sched.errors import StartupError

_VERSION = 1
_BUSY_S = 5.0
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE blocks (token TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE jobs (job TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class SiteStore:
    """The store of one site, for one process.

    Args:
        path: the file; made when missing, readable for its owner alone.

    Raises:
        StartupError: it is another file, newer, damaged, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.touch(mode=0o600)
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise StartupError(
                f"the store {path} cannot be used ({error})",
                cure="see the rights and the space of its folder; it holds what other sites were granted",
            ) from error

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > _VERSION:
            raise sqlite3.DatabaseError(f"version {version} is newer than this release's {_VERSION}")
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def fact(self, name: str) -> Any:
        """A value by name; None when there is none."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set_fact(self, name: str, value: Any) -> None:
        """Keep a value."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def blocks(self) -> dict[str, Any]:
        """Every block here, by token."""
        return self._all("SELECT token, value FROM blocks")

    def set_block(self, token: str, value: Any) -> None:
        """Keep a block; None forgets it."""
        if value is None:
            self._db.execute("DELETE FROM blocks WHERE token = ?", (token,))
        else:
            self._db.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?)", (token, json.dumps(value)))

    def jobs(self) -> dict[str, Any]:
        """Every job of ours under way, by id."""
        return self._all("SELECT job, value FROM jobs")

    def set_job(self, job: str, value: Any) -> None:
        """Keep a job; None forgets it."""
        if value is None:
            self._db.execute("DELETE FROM jobs WHERE job = ?", (job,))
        else:
            self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (job, json.dumps(value)))

    def _all(self, query: str) -> dict[str, Any]:
        return {str(key): json.loads(value) for key, value in self._db.execute(query)}
