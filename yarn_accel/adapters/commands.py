"""Runs other programs: an argument list in, a completed run out, never a shell string.

Every program that this package starts and waits for goes through `run` or `stream`, so a missing program, a
hang and a failure are reported the same way everywhere.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.errors import StartupError, UnavailableError


@dataclass(frozen=True, slots=True)
class CompletedCommand:
    """How one program ended.

    Attributes:
        argv: what was run.
        exit_code: its exit status; negative is the number of the signal that ended it.
        stdout: its standard output as text (for :func:`stream`: empty).
        stderr: its standard error as text (for :func:`stream`: the last lines of both).
        wall_s: seconds from start to end.
    """

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether the program ended with status 0."""
        return self.exit_code == 0

    def last_line(self) -> str:
        """The last line with text on standard error, else on standard output: usually the diagnosis."""
        for text in (self.stderr, self.stdout):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1]
        return "no output"


def run(
    argv: Sequence[str],
    timeout_s: float,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> CompletedCommand:
    """Run a program to its end.

    Args:
        argv: program and arguments; no shell interprets them.
        timeout_s: the program is killed after this time.
        cwd: working directory; the caller's own when None.
        env: the whole environment; the caller's own when None.
        stdin: text for its standard input, which is otherwise empty.

    Raises:
        StartupError: the program is not there or may not be run.
        UnavailableError: it did not end in time.
    """
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            cwd=cwd,
            env=env,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{argv[0]} did not end within {timeout_s:g} s") from None
    except OSError as error:
        raise _cannot_start(argv, error) from error
    return CompletedCommand(
        tuple(argv), done.returncode, done.stdout, done.stderr, time.monotonic() - started_s
    )


def stream(
    argv: Sequence[str],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    keep_lines: int = 400,
) -> CompletedCommand:
    """Run a program and hand over each line of its output (both streams, mixed) as it appears.

    The program is ended (SIGTERM, after 5 s SIGKILL) when ``on_line`` raises, KeyboardInterrupt included.

    Returns:
        The end of the program, with the last ``keep_lines`` lines in ``stderr``.

    Raises:
        StartupError: the program is not there or may not be run.
    """
    started_s = time.monotonic()
    kept: list[str] = []
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=env,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise _cannot_start(argv, error) from error
    try:
        assert process.stdout is not None
        with process.stdout as lines:
            for raw in lines:
                line = raw.rstrip("\n")
                kept.append(line)
                del kept[:-keep_lines]
                on_line(line)
        exit_code = process.wait()
    except BaseException:
        _end(process)
        raise
    return CompletedCommand(tuple(argv), exit_code, "", "\n".join(kept), time.monotonic() - started_s)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _cannot_start(argv: Sequence[str], error: OSError) -> StartupError:
    if isinstance(error, FileNotFoundError):
        return StartupError(
            f"{argv[0]} is not on this machine", cure=f"install it or put it on PATH: {argv[0]}"
        )
    return StartupError(f"{argv[0]} cannot be started: {error.strerror}", cure="see its permissions")
