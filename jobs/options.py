"""Command line options that every job has: the rung, the interpreter, the credential, where results go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from jobs.ladder import RUNGS, RungOptions

__all__ = ["rung_options", "with_rung_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_HOURS = click.FloatRange(min=0, min_open=True)
_OPTIONS = (
    click.option("--rung", type=click.Choice(RUNGS), default="pipe", show_default=True,
                 help="Where it runs."),
    click.option("--out", type=_FOLDER, default=Path("out"), show_default=True,
                 help="Folder for the tables."),
    click.option("--home", type=_FOLDER, default=None,
                 help="Folder for data of the local rungs [default: a temporary one]."),
    click.option("--python", default="python3", show_default=True,
                 help="Interpreter of mappers and reducers."),
    click.option("--binding", "binding_file", type=_FILE, default=None,
                 help="Which node sends to which server (cluster) [default: the site's]."),
    click.option("--credential", "credential_file", type=_FILE, default=None,
                 help="Token file from the site's administrator (cluster) [default: of the site's secret]."),
    click.option("--credential-hours", type=_HOURS, default=24.0, show_default=True,
                 help="Life of the credential the job gets."),
    click.option("--servers", type=click.IntRange(0, 16), default=1, show_default=True,
                 help="Pipeline servers to start (pipe); 0: mappers compute themselves."),
    click.option("--strict", is_flag=True, help="Fail at the first bad record and name it."),
    click.option("--no-fallback", is_flag=True, help="Mappers never compute on their own CPU."),
)  # fmt: skip


def with_rung_options(command: Command) -> Command:
    """Add the options of this module to a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def rung_options(values: dict[str, Any]) -> RungOptions:
    """The part of a command's values that opens the rung."""
    return RungOptions(
        home=values["home"],
        python=values["python"],
        credential_hours=values["credential_hours"],
        binding_file=values["binding_file"],
        credential_file=values["credential_file"],
        n_servers=values["servers"],
    )
