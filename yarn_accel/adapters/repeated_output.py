"""Shows a picture again and again on standard output, for commands such as ``top``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live


@contextlib.contextmanager
def repeated_output(file_width: int) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that shows a picture.

    On a terminal each picture replaces the one before. In a pipe or a file each one follows the one before,
    after an empty line, and is written at once.

    Args:
        file_width: columns of a picture that goes to no terminal.
    """
    if sys.stdout.isatty():
        with Live(auto_refresh=False, screen=True) as live:
            yield lambda picture: live.update(picture, refresh=True)
        return
    console = Console(width=file_width)
    is_first = True

    def show(picture: RenderableType) -> None:
        nonlocal is_first
        if not is_first:
            console.print()
        is_first = False
        console.print(picture)
        sys.stdout.flush()

    yield show
