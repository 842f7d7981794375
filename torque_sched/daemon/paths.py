"""Where everything of one scheduler is: the PBS home, and the options pbs_sched takes."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torque_sched.errors import StartupError

DEFAULT_HOME = Path("/var/spool/torque")
DEFAULT_NAME = "torque_sched.yaml"
"""Our settings; looked for in ``sched_priv`` when no file is named."""


def pbs_home(option: Path | None = None, env: Mapping[str, str] | None = None) -> Path:
    """The PBS home: the option, else ``PBS_HOME``, else the product's default."""
    if option is not None:
        return option.absolute()
    named = (os.environ if env is None else env).get("PBS_HOME", "")
    return Path(named).absolute() if named else DEFAULT_HOME


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; names as in pbs_sched's manual."""

    home: Path
    alarm_s: int = 180
    log_file: Path | None = None
    out_file: Path | None = None
    port: int | None = None
    mom_port: int | None = None
    callers_file: Path | None = None
    config_file: Path | None = None
    shadow: bool = False
    daemonize: bool = False

    @property
    def sched_priv(self) -> Path:
        """pbs_sched's private folder."""
        return self.home / "sched_priv"

    @property
    def own(self) -> Path:
        """Where our files go; a shadow's are apart from those of the scheduler it watches."""
        return self.sched_priv / "shadow" if self.shadow else self.sched_priv

    @property
    def logs(self) -> Path:
        """Folder of the daily logs."""
        return self.own / "logs" if self.shadow else self.home / "sched_logs"

    @property
    def lock(self) -> Path:
        """Lock and pid file."""
        return self.own / "sched.lock"

    @property
    def cycle_lock(self) -> Path:
        """Held while a cycle looks and starts."""
        from torque_sched.batch.cycle_lock import LOCK_NAME

        return self.own / LOCK_NAME

    @property
    def state(self) -> Path:
        """What the last cycle did, for `status`."""
        return self.own / "torque_sched_state.json"

    @property
    def journal(self) -> Path:
        """Folder of the journal."""
        return self.own / "journal"

    @property
    def history(self) -> Path:
        """The learning store."""
        return self.own / "history.sqlite"

    @property
    def config(self) -> Path | None:
        """Our settings file, if there is one.

        Raises:
            StartupError: this user may not look.
        """
        if self.config_file is not None:
            return self.config_file
        default = self.sched_priv / DEFAULT_NAME
        try:
            return default if default.exists() else None
        except PermissionError as error:
            raise StartupError(
                f"{self.sched_priv}: {error.strerror}",
                cure="run this as root or the scheduler's user, or let users read the folder (chmod go+rx)",
            ) from error


def this_user() -> str:
    """``USER@HOST`` as the server's lists of managers and operators have it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.geteuid()}"
    return f"{name}@{socket.gethostname()}"
