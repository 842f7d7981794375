"""The site's list of revoked credentials, read again when its file changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from yarn_accel.core.revocations import Revocations, parse_revocations
from yarn_accel.errors import ConfigError

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


class RevocationList:
    """What a file says now, looked at once a second at most.

    A list that becomes unreadable stays as it was, with an error in the log, until it can be read again.

    Args:
        path: the file; empty: nothing is revoked.

    Raises:
        ConfigError: it is not there, it is no such list, or others may write it.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._stamp: object = None
        self._list = Revocations()
        self._problem = ""
        self._look_s = 0.0
        if self._path is not None:
            self._read(self._path)

    def now(self) -> Revocations:
        """The list."""
        if self._path is not None and self._clock() >= self._look_s:
            try:
                self._read(self._path)
                self._problem = ""
            except ConfigError as error:
                if error.message != self._problem:
                    self._problem = error.message
                    logger.error("the list of revoked credentials stays as it was: %s", error)
        return self._list

    def _read(self, path: Path) -> None:
        self._look_s = self._clock() + _LOOK_S
        try:
            found = path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)
            if stamp == self._stamp:
                return
            if found.st_mode & 0o022:
                raise ConfigError(f"revoked_file {path}: others may write it", cure=f"chmod go-w {path}")
            self._list = parse_revocations(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"revoked_file {path}: {error.strerror}", cure="an empty file will do"
            ) from None
        except ValueError as error:
            raise ConfigError(f"revoked_file {path}: {error}") from None
        self._stamp = stamp
