"""Whether the library runs compiled (by mypyc, from a copy of this repository) or is interpreted.

Figures of both must not be mixed up, so every JSON says it; a server is another process and is looked at
itself.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from yarn_accel.errors import StartupError

__all__ = ["is_compiled", "is_process_compiled", "require_alike"]

_MODULE = "yarn_accel.wire.frames"
"""One that both ends use and that is compiled whenever anything is."""
_FOLDER = "/yarn_accel/wire/"
"""Where its extension lies; which of those there are mapped depends on who imports whom first."""


def is_compiled() -> bool:
    """Whether this process has the module from an extension."""
    spec = importlib.util.find_spec(_MODULE)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def is_process_compiled(pid: int) -> bool:
    """The same of another process that uses the library: are its extensions mapped into the memory?"""
    lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return any(_FOLDER in line and line.endswith(".so") for line in lines)


def require_alike(pid: int) -> None:
    """See to it that one word about both ends is true.

    Raises:
        StartupError: of that server and this process one is compiled and the other is not.
    """
    found, ours = (
        "compiled" if each else "interpreted" for each in (is_process_compiled(pid), is_compiled())
    )
    if found != ours:
        raise StartupError(f"the server runs {found}, the benchmark {ours}: start it from one checkout")
