"""The files of a task: inputs by URI, and an output that Hadoop commits together with the task.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, Optional, Sequence

from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.client.webhdfs import DEFAULT_MAX_BYTES, WebHdfs
from yarn_accel.errors import StartupError
from yarn_accel.local_filesystem import Buffer, LocalFiles, file_error, pieces, write_whole
from yarn_accel.uris import split_uri

#: Where Hadoop's output committer wants an attempt's files until the attempt is the one that counts.
_OUTPUT_VARIABLE = "mapreduce_task_output_dir"


class TaskFiles:
    """Reads ``file:`` and ``hdfs:`` URIs (these over WebHDFS) and hands over output files.

    Args:
        environ: the task's environment.
        hdfs: reads and writes ``hdfs://``; made from `environ` when it is first needed, unless given.
    """

    def __init__(self, environ: Optional[Mapping[str, str]] = None, hdfs: Optional[WebHdfs] = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._hdfs = hdfs
        self._local = LocalFiles(follow_symlinks=True)

    def read(self, uri: str, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
        """The content of a file of at most `max_bytes`.

        Raises:
            StorageError: it cannot be read.
        """
        scheme, _, path = split_uri(uri)
        if scheme == "hdfs":
            return self._webhdfs().open(uri, max_bytes)
        try:
            return self._local.read(path, max_bytes)
        except OSError as error:
            reraise_from_signal(error)
            raise file_error(uri, error) from error

    def write(self, uri: str, parts: Sequence[Buffer]) -> None:
        """Write a file so that readers see all of it or nothing; an existing one is replaced.

        Raises:
            StorageError: it cannot be written.
        """
        scheme, _, path = split_uri(uri)
        if scheme == "hdfs":
            self._webhdfs().create(uri, b"".join(parts))
            return
        try:
            write_whole(self._local, path, parts)
        except OSError as error:
            reraise_from_signal(error)
            raise file_error(uri, error) from error

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
        scheme, _, target = split_uri(uri)
        if scheme == "hdfs":
            self._webhdfs().upload(uri, path)
            return
        try:
            write_whole(self._local, target, pieces(path))
        except OSError as error:
            reraise_from_signal(error)
            raise file_error(uri, error) from error

    def _webhdfs(self) -> WebHdfs:
        if self._hdfs is None:
            self._hdfs = WebHdfs(environ=self._environ)
        return self._hdfs
