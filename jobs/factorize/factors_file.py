"""The factors of a whole task in one SequenceFile of Text and BytesWritable: a key, and an ``.npz``.

A file for each matrix costs the NameNode calls and memory for each; a file for each task does not. Standard
library only, Python 3.8.
"""

from __future__ import annotations

from pathlib import Path

from yarn_accel.client import Reply, SequenceFileWriter, TaskFiles

PREFIX = "factors-"
"""How the files are called, beside the parts of the job's output."""


class FactorsFile:
    """Written to the node's own disk, and complete when Hadoop commits the attempt.

    Args:
        files: hands it over to Hadoop.
        folder: the task's own.
        partition: the task's number within its job.
    """

    def __init__(self, files: TaskFiles, folder: Path, partition: int) -> None:
        files.check_output()
        self._files = files
        self._name = f"{PREFIX}{partition:05d}.seq"
        self._path = folder / self._name

    def __enter__(self) -> FactorsFile:
        self._stream = self._path.open("wb")
        self._writer = SequenceFileWriter(self._stream)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stream.close()
        self._path.unlink()

    def append(self, key: str, reply: Reply) -> None:
        """Add the factors of a matrix."""
        self._writer.append(key, reply.npz())

    def commit(self) -> None:
        """Hand the complete file over."""
        self._stream.flush()
        self._files.commit_with_task(self._path, self._name)
