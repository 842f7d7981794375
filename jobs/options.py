"""Opens a runner by its name, and the command line options that every job has.

These are the runner, the interpreter, the credential, and the folder where results go.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from jobs.runners.hadoop import HadoopRunner
from jobs.runners.local import InlineRunner, LocalRunner
from jobs.runners.spark import SparkRunner
from jobs.runners.step import Runner
from yarn_accel.storage import Store
from yarn_accel.streaming import SiteSettings

RUNNERS = ("inline", "local", "hadoop", "spark")
Command = TypeVar("Command", bound=Callable[..., Any])
COUNT = click.IntRange(min=1)

RENAMED_RUNNERS = {"inprocess": "inline", "pipe": "local", "cluster": "hadoop"}
"""Values of the former option ``--rung``, which this version still takes, and what they are called now."""

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_HOURS = click.FloatRange(min=0, min_open=True)
_META_KEY = "jobs.runner"


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How to open a runner.

    Args:
        home: folder for data on this machine (inline, local); None: a temporary one.
        python: interpreter of mappers and reducers.
        credential_hours: life of a job's credential (hadoop).
        binding_file: overrides the site's binding (hadoop).
        credential_file: token file from the site's administrator (hadoop).
        n_servers: pipeline servers to start (local).
    """

    home: Path | None = None
    python: str = "python3"
    credential_hours: float = 24.0
    binding_file: Path | None = None
    credential_file: Path | None = None
    n_servers: int = 1


@contextlib.contextmanager
def open_runner(
    name: str,
    options: RunnerOptions,
    report: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> Iterator[tuple[Runner, Store]]:
    """Open the runner called `name`; what it started is stopped at the end of the block.

    Raises:
        StartupError: a server did not start, or HADOOP_CONF_DIR is not set (hadoop, spark), or there is no
            Spark.
        ConfigError: the site's configuration is wrong.
    """
    if name == "inline":
        with InlineRunner(options.home) as runner:
            yield runner, Store()
    elif name == "local":
        with LocalRunner(options.home, options.python, n_servers=options.n_servers) as local:
            yield local, Store()
    else:
        site = SiteSettings.read(os.environ if environ is None else environ)
        runner_class = SparkRunner if name == "spark" else HadoopRunner
        hadoop = runner_class(
            site,
            options.python,
            options.credential_hours,
            options.binding_file,
            credential_file=options.credential_file,
        )
        with hadoop:
            yield hadoop, Store(site.conf_dir)


def _take_rung(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    name = RENAMED_RUNNERS.get(value, value)
    click.echo(f"jobs: --rung {value} is called --runner {name} now; the next version drops --rung", err=True)
    context.meta[_META_KEY] = name


def _runner(context: click.Context, _: click.Parameter, value: str | None) -> str:
    return value or context.meta.get(_META_KEY) or "local"


def shown(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """An option of a click command, whose help shows its default."""
    return click.option(*names, show_default=True, **settings)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Add options to a click command, in the order in which its help has them."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


with_runner_options = with_options(
    # Eager, so that --runner's callback finds its value.
    click.option("--rung", type=click.Choice((*RENAMED_RUNNERS, *RUNNERS)), is_eager=True, hidden=True,
                 expose_value=False, callback=_take_rung),
    click.option("--runner", type=click.Choice(RUNNERS), callback=_runner,
                 help="Where it runs: in this process, with a server on this machine, on a cluster by Hadoop "
                      "Streaming or by Spark  [default: local]"),
    shown("--out", type=_FOLDER, default=Path("out"),
                 help="Folder for the tables."),
    click.option("--home", type=_FOLDER, default=None,
                 help="Folder for data on this machine (inline, local) [default: a temporary one]."),
    shown("--python", default="python3",
                 help="Interpreter of mappers and reducers."),
    click.option("--binding", "binding_file", type=_FILE, default=None,
                 help="Which node sends to which server (hadoop) [default: the site's]."),
    click.option("--credential", "credential_file", type=_FILE, default=None,
                 help="Token file from the site's administrator (hadoop) [default: of the site's secret]."),
    shown("--credential-hours", type=_HOURS, default=24.0,
                 help="Life of the credential the job gets."),
    shown("--servers", type=click.IntRange(0, 16), default=1,
                 help="Pipeline servers to start (local); 0: mappers compute themselves."),
    click.option("--strict", is_flag=True, help="Fail at the first bad record and name it."),
    click.option("--no-fallback", is_flag=True, help="Mappers never compute on their own CPU."),
)  # fmt: skip
"""Adds the options that every job has to a click command."""


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
