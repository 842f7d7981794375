"""Keeps a pipeline server for as long as its owner lives: ``python -m ...server_guard FOLDER OWNER_PID``.

Its standard input is a pipe from its owner. When that ends, because the owner closes it or dies in whatever
way, or when the server ends, the server is ended and the folder removed. If this process is killed, the
kernel kills the server. Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable, List, Optional

CONFIG_FILE = "config.json"
LOG_FILE = "log"
#: So often it looks whether the owner is still the parent: a copy of the owner may hold the pipe, too.
_LOOK_S = 1.0
_STOP_LIMIT_S = 5.0
_MAX_LINE = 500
_PR_SET_PDEATHSIG = 1


def main(argv: List[str]) -> int:
    """Run until the owner is gone; the exit status is the server's, or 0.

    When the server ends first, its last line goes to standard error.
    """
    folder, owner = Path(argv[0]), int(argv[1])
    command = [sys.executable, "-m", "yarn_accel.pipeline.serve", str(folder / CONFIG_FILE)]
    server = None
    try:
        with (folder / LOG_FILE).open("wb") as log:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent(),
            )
        while server.poll() is None and not _owner_is_gone(owner):
            pass
        if server.poll() is not None:
            sys.stderr.write(_last_line(folder / LOG_FILE) + "\n")
        return server.poll() or 0
    finally:
        if server is not None:
            _stop(server)
        shutil.rmtree(str(folder), ignore_errors=True)


def _owner_is_gone(owner: int) -> bool:
    ready, _, _ = select.select([0], [], [], _LOOK_S)
    return bool(ready) or os.getppid() != owner


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:_MAX_LINE] if lines else "it ended without a word"


def _die_with_parent() -> Optional[Callable[[], None]]:
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _stop(server: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        server.terminate()
    try:
        server.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    # The owner's signals are not meant for it: the pipe says when to end.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
