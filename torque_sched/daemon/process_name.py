"""The name under which ``ps``, ``pidof`` and ``start-stop-daemon --name`` find this process.

A script's process is called after its interpreter. ``pidof`` reads the first word of its command line, which
is in this process's own memory; ``--name`` reads another name, of at most 15 characters. What
``start-stop-daemon --exec`` compares, the file that is executed, stays the interpreter: the kernel lets
nobody change that while the file is in use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

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
