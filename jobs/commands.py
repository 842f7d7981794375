"""Runs the product's commands, as a user types them, and reads what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from yarn_accel.errors import AccelError, ConfigError, JobError, StartupError

Report = Callable[[str], None]
_ERROR = "yarn-accel: "


def run_command(
    words: Sequence[str], report: Report = lambda _: None, environ: Mapping[str, str] | None = None
) -> str:
    """Standard output of ``yarn-accel WORDS``; each line of its standard error is reported.

    Args:
        environ: variables that it gets besides this process's own.

    Raises:
        AccelError: it failed; of the kind and with the text that it says itself.
    """
    process = start_command(words, environ)
    assert process.stderr is not None
    assert process.stdout is not None
    last = ""
    try:
        for line in process.stderr:
            last = line.strip()
            if not last.startswith(_ERROR):
                report(last)
        out = process.stdout.read()
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        process.stderr.close()
        process.stdout.close()
    if status != 0:
        raise _error(status, last.removeprefix(_ERROR) or f"yarn-accel {words[0]} ended with {status}")
    return out


def start_command(words: Sequence[str], environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start ``yarn-accel WORDS`` with pipes for its output."""
    return subprocess.Popen(
        [sys.executable, "-m", "yarn_accel", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
    )


def _error(status: int, message: str) -> AccelError:
    kinds: dict[int, type[AccelError]] = {kind.exit_code: kind for kind in (ConfigError, StartupError)}
    return kinds.get(status, JobError)(message)
