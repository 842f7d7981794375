"""Keeps what a task service learned of a user's applications in one file, over masters and services.

Services of one user share it. Each writes what it measured itself, and what the file has of other names; a
file that is lost or damaged costs that the first tasks are measured again.
"""

from __future__ import annotations

import asyncio
import json
import logging

from yarn_accel.adapters.signed_http import decode_json
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.errors import AccelError, ConfigError, RemoteProtocolError, StorageError
from yarn_accel.storage import Store

logger = logging.getLogger(__name__)

_INTERVAL_S = 10.0
_MAX_BYTES = 4 * 1024 * 1024
_CLOSE_S = 5.0


class FigureFile:
    """One file; used from one event loop.

    Args:
        uri: of the file; empty: nothing is kept.
        figures: what the policy believes, and learns into.
        interval_s: between two writes.
    """

    def __init__(self, store: Store, uri: str, figures: FigureStore, interval_s: float = _INTERVAL_S) -> None:
        self._store = store
        self._uri = uri
        self._figures = figures
        self._interval_s = interval_s
        self._n_written = 0
        self._problem = ""
        self._is_damaged = False

    async def read(self) -> None:
        """Believe what the file says of names that were not measured here; never raises."""
        if self._uri:
            await self._take_over()

    async def work(self) -> None:
        """Write what was learned from time to time, until it is cancelled."""
        while self._uri:
            await asyncio.sleep(self._interval_s)
            await self.write()

    async def close(self) -> None:
        """Write what was learned since the last time, where the storage takes it soon."""
        try:
            await asyncio.wait_for(self.write(), _CLOSE_S)
        except asyncio.TimeoutError:
            logger.warning("%s: not written in time", self._uri)

    async def write(self) -> None:
        """Write what was learned, if there is anything new; never raises."""
        n_observed = self._figures.n_observed
        # What others wrote meanwhile stays; where that is not known, nothing is written.
        if not self._uri or n_observed == self._n_written or not await self._take_over():
            return
        document = json.dumps(self._figures.to_document(), separators=(",", ":")).encode()
        try:
            await asyncio.to_thread(self._store.write_atomic, self._uri, lambda: [document])
        except AccelError as error:
            self._note(str(error))
            return
        self._n_written, self._is_damaged = n_observed, False
        self._note("")

    async def _take_over(self) -> bool:
        """Whether the file is known, or does not count."""
        try:
            content = await asyncio.to_thread(self._content)
            if content is not None:
                self._figures.take_over(decode_json(content, self._uri))
        except StorageError as error:
            self._note(str(error))
            return False
        except (ConfigError, RemoteProtocolError) as error:
            if not self._is_damaged:
                self._is_damaged = True
                logger.warning("%s: damaged, begun anew: %s", self._uri, error)
        return True

    def _content(self) -> bytes | None:
        """The file; None: there is none."""
        try:
            n_bytes = self._store.size(self._uri)
            if n_bytes > _MAX_BYTES:
                raise ConfigError(f"{n_bytes} bytes, at most {_MAX_BYTES} are read")
            return self._store.read_bytes(self._uri, _MAX_BYTES)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _note(self, problem: str) -> None:
        """Log a problem once."""
        if problem and problem != self._problem:
            logger.warning("what is learned of applications is not kept: %s", problem)
        self._problem = problem
