"""The files of a task: inputs by URI, and an output that Hadoop commits together with the task.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Mapping, Optional

from yarn_accel.client.webhdfs import DEFAULT_MAX_BYTES, WebHdfs
from yarn_accel.errors import StartupError, StorageError

__all__ = ["TaskFiles"]

#: Where Hadoop's output committer wants an attempt's files until the attempt is the one that counts.
_OUTPUT_VARIABLE = "mapreduce_task_output_dir"


class TaskFiles:
    """Reads ``file:`` and ``hdfs:`` URIs (these over WebHDFS) and hands over output files.

    Args:
        environ: the task's environment.
    """

    def __init__(self, environ: Optional[Mapping[str, str]] = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._hdfs: Optional[WebHdfs] = None

    def read(self, uri: str, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
        """The content of a file.

        Raises:
            StorageError: it cannot be read.
        """
        path = _local_path(uri)
        if path is None:
            return self._webhdfs().open(uri, max_bytes)
        try:
            return path.read_bytes()
        except OSError as error:
            raise StorageError("{} cannot be read: {}".format(uri, error.strerror)) from None

    def check_output(self) -> None:
        """Whether `commit_with_task` can work at all.

        Raises:
            StartupError: nobody commits files of this process.
        """
        if not self._environ.get(_OUTPUT_VARIABLE):
            raise StartupError(
                "{} is not set, so nobody would commit a file of this task".format(_OUTPUT_VARIABLE),
                cure="run it by Hadoop Streaming, with an output folder",
            )

    def commit_with_task(self, path: Path, name: str) -> None:
        """Put a local file into the attempt's work folder, as ``name``.

        Hadoop moves it to the job's output folder when it commits the attempt. Of several attempts at a task
        only one is committed, so there is one complete file, or none.

        Raises:
            StorageError: it cannot be written.
            StartupError: as `check_output`.
        """
        self.check_output()
        uri = "{}/{}".format(self._environ[_OUTPUT_VARIABLE].rstrip("/"), name)
        target = _local_path(uri)
        if target is None:
            self._webhdfs().upload(uri, path)
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(path), str(target))
        except OSError as error:
            raise StorageError("{} cannot be written: {}".format(uri, error.strerror)) from None

    def _webhdfs(self) -> WebHdfs:
        if self._hdfs is None:
            self._hdfs = WebHdfs(environ=self._environ)
        return self._hdfs


def _local_path(uri: str) -> Optional[Path]:
    """The path of a ``file:`` URI, taken literally; None for every other one."""
    if not uri.startswith("file:"):
        return None
    rest = uri[len("file:") :]
    return Path("/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest)
