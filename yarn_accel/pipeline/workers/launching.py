"""Starts worker processes, with no more than that takes.

The libraries of a worker take longest to load of all that a server needs, so a server starts its first worker
before it loads its own modules; `process.WorkerProcess` takes it over.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from yarn_accel.pipeline.workers.affinity import thread_environment
from yarn_accel.pipeline.workers.control import ControlWord


class Launched(NamedTuple):
    """A process that was started: our end of its channel, its control word, and itself."""

    channel: socket.socket
    control: ControlWord
    process: subprocess.Popen[bytes]


def launch(n_threads: int, extra_operations: Sequence[str]) -> Launched:
    """Start a worker.  It ends with the *thread* that does this, which therefore has to stay."""
    control = ControlWord()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        numbers = (theirs.fileno(), control.fd, os.getpid())
        # In a packed environment everything is on the path that is passed on: the node's own start-up files,
        # which this process has been through, are not run once more.
        flags = ["-S"] if "ACCEL_ENVIRONMENT" in os.environ else []
        words = ["-m", "yarn_accel.pipeline.workers.main", *map(str, numbers), *extra_operations]
        process = subprocess.Popen(
            [sys.executable, *flags, *words],
            stdin=subprocess.DEVNULL,
            pass_fds=numbers[:2],
            # Kernels that share out processor time by session count it as one, and not as a part of ours.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _path(), **thread_environment(n_threads)},
        )
    return Launched(ours, control, process)


def _path() -> str:
    """Where this process finds modules, so that the worker finds the same."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
