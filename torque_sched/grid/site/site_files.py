"""The files of a site: their paths, checks of them, the state that `status` shows, and the store.

The store (SQLite) keeps holds, blocks of others and jobs of ours. Each write is one transaction and on the
disk when it returns, so a process killed at any point, or a machine that lost power, goes on from the last
answer it gave.
"""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torque_sched.adapters.state_file import lives
from torque_sched.errors import ConfigError, StartupError
from torque_sched.grid.handshake.coordinator import Ask, Candidate, CoordinatorState, Drain, Setback
from torque_sched.grid.handshake.guest import Block, GuestState, Kept, RunBlock
from torque_sched.grid.handshake.holder import Closed, Grant, HolderState
from torque_sched.grid.handshake.home_job import BlockView, HomeState
from torque_sched.grid.handshake.messages import Claim, Codec, Piece, Token
from torque_sched.grid.site.authentication import Identities, client_context, read_shared_key, server_context
from torque_sched.grid.site.config import SiteConfig
from torque_sched.grid.site.torque_jobs import local_user

DEFAULT_NAME = "site.yaml"
"""Settings looked for in ``sched_priv`` when no file is named."""


@dataclass(frozen=True, slots=True)
class SitePlaces:
    """Paths of one site."""

    home: Path
    folder: Path
    spool: Path
    history: Path
    """Where the scheduler keeps promises and reservations."""

    @classmethod
    def of(cls, home: Path, config: SiteConfig) -> SitePlaces:
        """As the settings say, else under the home."""
        folder = Path(config.folder) if config.folder else home / "sched_priv" / "site"
        spool = Path(config.grid.spool) if config.grid.spool else home / "server_priv" / "jobs"
        history = Path(config.history) if config.history else home / "sched_priv" / "history.sqlite"
        return cls(home, folder, spool, history)

    def make(self) -> None:
        """The folders, not to be changed by others; users only pass through, to their block's script.

        Raises:
            StartupError: they cannot be made, or belong to somebody else.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder.stat().st_uid not in {0, os.geteuid()}:
                raise StartupError(f"{self.folder} belongs to another user", cure="chown it, or set `folder`")
            self.folder.chmod(0o711)
            self.scripts.mkdir(exist_ok=True)
            self.scripts.chmod(0o711)
        except OSError as error:
            raise StartupError(f"{self.folder}: {error.strerror}", cure="set the key `folder`") from None

    @property
    def store(self) -> Path:
        """What must not be forgotten."""
        return self.folder / "site.sqlite"

    @property
    def audit(self) -> Path:
        """Requests of others."""
        return self.folder / "audit.jsonl"

    @property
    def state(self) -> Path:
        """How it is, for `status` and `peers`."""
        return self.folder / "state.json"

    @property
    def lock(self) -> Path:
        """One process at a time."""
        return self.folder / "site.lock"

    @property
    def scripts(self) -> Path:
        """Job scripts between us and qsub."""
        return self.folder / "scripts"

    @property
    def cycle_lock(self) -> Path:
        """The scheduler's."""
        return self.home / "sched_priv" / "cycle.lock"


def check_files(home: Path, config: SiteConfig) -> None:
    """Open every certificate and key, and look every mapped user up.

    Raises:
        ConfigError: the first that cannot be used.
    """
    if not (home / "server_priv").is_dir() and not config.grid.spool:
        raise ConfigError(f"{home} has no server_priv", cure="name the PBS home with -d, or set grid.spool")
    if not config.become and os.geteuid() == 0:
        raise ConfigError(
            "become: without a command blocks would be submitted as root", cure="use the default, runuser"
        )
    server_context(config)
    Identities(config)
    for peer in config.peers:
        client_context(config, peer)
        if peer.shared_key:
            read_shared_key(Path(peer.shared_key))
        for theirs, ours in peer.users.items():
            try:
                local_user(ours, config.min_uid)
            except ConfigError as error:
                raise ConfigError(
                    f"peers: {peer.name}: users: {theirs!r}: {error.message}", cure=error.cure
                ) from None


def read_state(home: Path, config: SiteConfig) -> dict[str, Any]:
    """What the site's process wrote last, and whether it lives.

    Raises:
        StartupError: it never wrote anything.
    """
    path = SitePlaces.of(home, config).state
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise StartupError(f"{path}: not written yet", cure="torque-sched site serve") from None
    state["alive"] = lives(int(state.get("pid", 0)))
    return state


STATE_FORM = Codec(
    (
        *(Token, Piece, Claim, Grant, Closed, HolderState, Block, Kept, GuestState, RunBlock),
        *(Ask, Candidate, Setback, Drain, CoordinatorState, BlockView, HomeState),
    )
)
"""The states of the engines, and orders to run a block, as plain data for the store."""
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
