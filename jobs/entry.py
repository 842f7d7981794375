"""What the zipapp runs on a node: find the servers and the credential, then run one verb.

Start-up failures are diagnosed in one line, the first on stderr, because that line is all a Hadoop user sees
of a failed attempt. Exit codes: 0 fine, 1 failed, 2 usage, 3 could not start. Standard library only, Python
3.8.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import BinaryIO, Callable, Mapping, Optional, Sequence, TextIO

from jobs.verbs import TaskContext, parse_verb, run_verb
from yarn_accel.client.accelerator import Accelerator
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.client.reporter import Reporter
from yarn_accel.client.runners import connect
from yarn_accel.client.webhdfs import WebHdfs
from yarn_accel.errors import AccelError, StorageError

__all__ = ["main", "read_uri"]


def main(
    argv: Sequence[str],
    environ: Optional[Mapping[str, str]] = None,
    stdin: Optional[BinaryIO] = None,
    stdout: Optional[BinaryIO] = None,
    stderr: Optional[TextIO] = None,
    parse: Callable[[Sequence[str]], argparse.Namespace] = parse_verb,
    run: Callable[[argparse.Namespace, TaskContext], None] = run_verb,
) -> int:
    """Run one verb; every expected failure becomes one line on stderr and an exit code.

    Args:
        parse, run: another table of verbs than that of `jobs.verbs`.
    """
    errors = sys.stderr if stderr is None else stderr
    environ = os.environ if environ is None else environ
    try:
        options = parse(argv)
        reporter = Reporter(errors)
        accel = connect(
            "hadoop",
            fallback=not options.no_fallback,
            patience_s=options.patience_s,
            count_calls=False,
            reporter=reporter,
            environ=environ,
        )
        with accel, reporter.keep_alive(reporter.progress):
            run(options, _context(accel, environ, stdin or sys.stdin.buffer, stdout or sys.stdout.buffer))
    except AccelError as error:
        errors.write("accel-job: {}\n".format(" ".join(str(error).split())))
        errors.flush()
        return error.exit_code
    return 0


def _context(
    accel: Accelerator, environ: Mapping[str, str], stdin: BinaryIO, stdout: BinaryIO
) -> TaskContext:
    return TaskContext(
        attempt=CurrentAttempt.from_environ(environ),
        map_calls=accel.map,
        read_bytes=lambda uri: read_uri(uri, environ),
        reporter=accel.reporter,
        stdin=stdin,
        stdout=stdout,
        folder=Path.cwd(),
    )


def read_uri(uri: str, environ: Mapping[str, str]) -> bytes:
    """Read a ``file:`` or ``hdfs:`` URI (the latter over WebHDFS) into memory.

    Raises:
        StorageError: it cannot be read.
    """
    if not uri.startswith("file:"):
        return WebHdfs(environ=environ).open(uri)
    path = uri[len("file://") :] if uri.startswith("file://") else uri[len("file:") :]
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StorageError("{} cannot be read: {}".format(uri, error.strerror)) from None
