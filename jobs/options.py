"""Command line options that every job has: the runner, the interpreter, the credential, where results go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from jobs.runners.registry import RUNNERS, RunnerOptions

Command = TypeVar("Command", bound=Callable[..., Any])

RENAMED_RUNNERS = {"inprocess": "inline", "pipe": "local", "cluster": "hadoop"}
"""Values of the former option ``--rung``, which this version still takes, and what they are called now."""

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_HOURS = click.FloatRange(min=0, min_open=True)
_META_KEY = "jobs.runner"


def _take_rung(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    name = RENAMED_RUNNERS.get(value, value)
    click.echo(f"jobs: --rung {value} is called --runner {name} now; the next version drops --rung", err=True)
    context.meta[_META_KEY] = name


def _runner(context: click.Context, _: click.Parameter, value: str | None) -> str:
    return value or context.meta.get(_META_KEY) or "local"


_OPTIONS = (
    # Eager, so that --runner's callback finds its value.
    click.option("--rung", type=click.Choice((*RENAMED_RUNNERS, *RUNNERS)), is_eager=True, hidden=True,
                 expose_value=False, callback=_take_rung),
    click.option("--runner", type=click.Choice(RUNNERS), callback=_runner,
                 help="Where it runs: in this process, with a server on this machine, on a cluster by Hadoop "
                      "Streaming or by Spark  [default: local]"),
    click.option("--out", type=_FOLDER, default=Path("out"), show_default=True,
                 help="Folder for the tables."),
    click.option("--home", type=_FOLDER, default=None,
                 help="Folder for data on this machine (inline, local) [default: a temporary one]."),
    click.option("--python", default="python3", show_default=True,
                 help="Interpreter of mappers and reducers."),
    click.option("--binding", "binding_file", type=_FILE, default=None,
                 help="Which node sends to which server (hadoop) [default: the site's]."),
    click.option("--credential", "credential_file", type=_FILE, default=None,
                 help="Token file from the site's administrator (hadoop) [default: of the site's secret]."),
    click.option("--credential-hours", type=_HOURS, default=24.0, show_default=True,
                 help="Life of the credential the job gets."),
    click.option("--servers", type=click.IntRange(0, 16), default=1, show_default=True,
                 help="Pipeline servers to start (local); 0: mappers compute themselves."),
    click.option("--strict", is_flag=True, help="Fail at the first bad record and name it."),
    click.option("--no-fallback", is_flag=True, help="Mappers never compute on their own CPU."),
)  # fmt: skip


def with_runner_options(command: Command) -> Command:
    """Add the options of this module to a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def runner_options(values: dict[str, Any]) -> RunnerOptions:
    """The part of a command's values that opens the runner."""
    return RunnerOptions(
        home=values["home"],
        python=values["python"],
        credential_hours=values["credential_hours"],
        binding_file=values["binding_file"],
        credential_file=values["credential_file"],
        n_servers=values["servers"],
    )
