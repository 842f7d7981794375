"""What every command needs: where the files are, where it says what it waits for, and where it prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from torque_sched.model.texts import is_plain, one_line

terminal_width: int | None = None
"""Columns of the terminal that somebody else's output is for; None: ours, or no terminal."""


def options_of(home: Path | None, config_file: Path | None, *, shadow: bool = False) -> Any:
    """Where the files of the scheduler of this home are; root acts as their owner from then on.

    Raises:
        click.BadParameter: what was named is no folder; a host without one may still ask the server.
    """
    from torque_sched.adapters.home import act_as_owner
    from torque_sched.daemon.paths import DEFAULT_HOME, Options, pbs_home

    place = pbs_home(home)
    if not place.is_dir() and (place != DEFAULT_HOME or place.exists()):
        raise click.BadParameter(f"{place} is no folder", param_hint="'-d' or PBS_HOME")
    options = Options(place, config_file=config_file, shadow=shadow)
    act_as_owner(options.sched_priv)
    return options


def notes(command: str) -> Callable[[str], None]:
    """Where a command says what it waits for: standard error."""
    return lambda text: click.echo(f"torque-sched {command}: {text}", err=True)


def out() -> Any:
    """The console; wide where nobody sees it, so that no line of a file is folded.

    Texts are shown as they are: none is markup, an emoji's name or a sequence that controls the terminal.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or is_plain(segment.text) or segment.text == "\n":
                    yield segment
                else:
                    lines = "\n".join(map(one_line, segment.text.split("\n")))
                    yield Segment(lines, segment.style)

    width = None if sys.stdout.isatty() else terminal_width or 200
    return Plain(width=width, highlight=False, markup=False, emoji=False)
