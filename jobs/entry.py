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
from yarn_accel.client import Accelerator, CurrentAttempt, Reporter, TaskFiles, connect
from yarn_accel.errors import AccelError


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
        files=TaskFiles(environ),
        reporter=accel.reporter,
        stdin=stdin,
        stdout=stdout,
        folder=Path.cwd(),
    )
