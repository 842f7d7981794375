"""What `start` retains on the user's machine for each application: the secret that signs control requests."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.adapters.credentials import create_master_secret, read_master_secret
from yarn_accel.errors import AuthenticationError, ConfigError, StartupError
from yarn_accel.local_filesystem import write_atomic

_SECRET = "control-secret"
_NOTES = "start.json"
_VERSION = 1
_CURE = "set XDG_STATE_HOME to a folder you can write"


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of this user's state: under XDG_STATE_HOME or ~/.local/state."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local" / "state")
    return Path(home).absolute() / "cluster-accel"


@dataclass(frozen=True, slots=True)
class RetainedApplication:
    """One application's folder (0700).

    Attributes:
        application: its id.
        folder: where the secret (0600) and the notes lie.
    """

    application: str
    folder: Path

    @staticmethod
    def of(application: str, environ: Mapping[str, str] | None = None) -> RetainedApplication:
        """The folder of an application, there or not."""
        return RetainedApplication(application, state_dir(environ) / "applications" / application)

    def create(self, staging_uri: str) -> bytes:
        """Make the folder and a fresh secret of 32 bytes; to be called before the application exists.

        Raises:
            StartupError: the folder cannot be written.
            ConfigError: there is a secret for this application already.
        """
        try:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            write_atomic(self.folder / _NOTES, json.dumps({"version": _VERSION, "staging_uri": staging_uri}))
        except OSError as error:
            raise StartupError(f"{self.folder}: {error.strerror}", cure=_CURE) from None
        create_master_secret(self.folder / _SECRET)
        return self.secret()

    def secret(self) -> bytes:
        """The secret that signs control requests.

        Raises:
            AuthenticationError: it is not on this machine.
            ConfigError: others may read it, or it is damaged.
        """
        path = self.folder / _SECRET
        if not _may_be_there(path):
            raise AuthenticationError(
                f"the control secret of {self.application} is not here ({path})",
                cure="work as the user and on the machine that ran `yarn-accel start`, or copy the file; an "
                "administrator of YARN can end it all the same: yarn-accel stop --force",
            )
        return read_master_secret(path, "the control secret", "")

    def staging_uri(self) -> str:
        """The application's folder in the cluster's storage; empty when that is not known here.

        Raises:
            ConfigError: the notes are damaged.
        """
        path = self.folder / _NOTES
        try:
            notes = json.loads(path.read_text(encoding="utf-8"))
            return str(notes["staging_uri"])
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged: {error}") from None

    def remove(self) -> None:
        """Delete the folder, if it exists."""
        shutil.rmtree(self.folder, ignore_errors=True)


def retained_applications(environ: Mapping[str, str] | None = None) -> tuple[RetainedApplication, ...]:
    """All that is retained on this machine, the oldest application first.

    Raises:
        StartupError: the folder cannot be read.
    """
    folder = state_dir(environ) / "applications"
    try:
        names = sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise StartupError(f"{folder}: {error.strerror}", cure=_CURE) from None
    return tuple(RetainedApplication(name, folder / name) for name in names)


def own_master_secret(environ: Mapping[str, str] | None = None) -> Path:
    """The pipeline servers' master secret where the site names none: this user's, made when first needed.

    Raises:
        StartupError: its folder cannot be made.
        ConfigError: it cannot be written.
    """
    path = state_dir(environ) / "master-secret"
    if _may_be_there(path):
        return path
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{path.parent}: {error.strerror}", cure=_CURE) from None
    try:
        create_master_secret(path)
    except ConfigError:
        # Another start may have made it meanwhile.
        if not _may_be_there(path):
            raise
    return path


def _may_be_there(path: Path) -> bool:
    """Whether a file exists, or may exist in a folder that we cannot read: opening it names the reason."""
    try:
        return path.exists()
    except OSError:
        return True
