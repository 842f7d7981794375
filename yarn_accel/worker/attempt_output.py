"""The output of an attempt: a folder of its own while it runs, then one rename to its name.

``FOLDER/_temporary/ATTEMPT/`` has the output as it grows, and side files that a command puts there (as
``mapreduce_task_output_dir`` says). A commit moves side files first; the rename of the output itself counts.
It fails where the name is taken: then another attempt was done first, and this one's output is dropped.
What killed workers leave in ``_temporary`` is the task service's to delete.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable

from yarn_accel.core.tasks.attempt_orders import AttemptOrder, OutputFile
from yarn_accel.errors import StorageError
from yarn_accel.storage import Store
from yarn_accel.worker.streaming import attempt_folder


class AttemptOutput:
    """Writes and commits one attempt's output.

    Raises:
        StorageError: from every method; names the place.
    """

    def __init__(self, store: Store, order: AttemptOrder, output: OutputFile) -> None:
        self._store = store
        self._name = output.name
        self._folder = output.folder.rstrip("/")
        self._own = attempt_folder(order, output)
        self._target = f"{self._folder}/{output.name}"

    def is_committed(self) -> bool:
        """Whether some attempt of this task is done."""
        return self._store.exists(self._target)

    def prepare(self) -> None:
        """Make the attempt's folder: a command may put files there at once."""
        self._store.mkdirs(self._own)

    def write(self, parts: Iterable[bytes]) -> int:
        """Write everything; nobody takes it for output yet."""
        return self._store.write_new(f"{self._own}/{self._name}", parts)

    def commit(self, check: Callable[[], None]) -> bool:
        """Make it the task's output; False where another attempt was first.

        Args:
            check: called right before the step that counts; raises where it must not be done any more.
        """
        if self.is_committed():
            return False
        for uri in self._store.list(self._own):
            name = posixpath.basename(uri)
            if name != self._name:
                self._store.rename(uri, f"{self._folder}/{name}", overwrite=True)
        check()
        try:
            self._store.rename(f"{self._own}/{self._name}", self._target, overwrite=False)
        except StorageError:
            if self.is_committed():
                return False
            raise
        return True

    def clean(self) -> None:
        """Delete what is left of this attempt; fine where that is nothing, or fails."""
        with contextlib.suppress(StorageError):
            self._store.delete(self._own)
