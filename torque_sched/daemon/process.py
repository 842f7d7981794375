"""The daemon as a process of its system: in the background, and under the name by which it is looked for.

The caller waits until the daemon is up or has failed (`into_background`). ``ps``, ``pidof`` and
``start-stop-daemon --name`` find it under pbs_sched's name (`be_called`): a script's process is called after
its interpreter, so the first word of its command line, which lies in its own memory, and the kernel's name of
at most 15 characters are written over. ``start-stop-daemon --exec`` compares the file that is executed, which
nobody can change while it is in use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from torque_sched.errors import TorqueSchedError

_READY = b"\0"


def into_background(serve: Callable[[Callable[[], None]], int], out_file: Path) -> int:
    """Run ``serve`` in a child process of its own session.

    Args:
        serve: the daemon; it calls its argument once it is up and returns its exit code. It only ever runs
            in the child.
        out_file: where the child's standard output and error go.

    Returns:
        0 in the caller's process as soon as the daemon is up, 1 when it failed before (said on stderr).
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read()
        if text == _READY:
            return 0
        sys.stderr.write(text.decode("utf-8", "replace") or "the daemon ended before it was up\n")
        return 1
    os.close(reader)
    os._exit(_child(serve, out_file, writer))


def _child(serve: Callable[[Callable[[], None]], int], out_file: Path, writer: int) -> int:
    is_up = False

    def ready() -> None:
        nonlocal is_up
        is_up = True
        os.write(writer, _READY)
        os.close(writer)

    try:
        os.setsid()
        _redirect(out_file)
        return serve(ready)
    except (TorqueSchedError, OSError) as error:
        if not is_up:
            os.write(writer, f"{_named(error)}\n".encode("utf-8", "replace"))
        else:
            sys.stderr.write(f"{_named(error)}\n")
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _named(error: Exception) -> str:
    """The error with the program's name, which some have already, as the C daemon's."""
    return str(error) if str(error).startswith("pbs_sched:") else f"pbs_sched: {error}"


def _redirect(out_file: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(out_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(nothing)
    os.close(out)


_ARG_START, _ARG_END = 45, 46
"""Places in ``/proc/self/stat`` behind the name, counted from 0."""


def be_called(name: str, words: Sequence[str] = ()) -> None:
    """Take a name; where the system does not allow it, nothing happens.

    Args:
        name: the last part of a path counts.
        words: what follows it in the command line, as far as there is space.
    """
    with suppress(OSError, ValueError, IndexError):
        Path("/proc/self/comm").write_bytes(os.fsencode(Path(name).name))
        numbers = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(numbers[_ARG_START]), int(numbers[_ARG_END])
        text = b"".join(os.fsencode(word) + b"\0" for word in (name, *words))[: end - start - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 -- without a buffer
            memory.seek(start)
            memory.write(text.ljust(end - start, b"\0"))
