"""Where a site's files are, under the PBS home and in its own folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torque_sched.errors import StartupError
from torque_sched.site.config import SiteConfig

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
