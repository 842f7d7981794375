"""``torque-sched serve``: the daemon, with pbs_sched's options and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from torque_sched import __version__
from torque_sched.errors import TorqueSchedError

_FILE = click.Path(path_type=Path)
_DEFAULT = "sched_priv/torque_sched.yaml"


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where the scheduler's files are."""
    config = click.option("--config", "config_file", type=_FILE, help=f"Our settings. [{_DEFAULT}]")
    home = click.option("-d", "home", type=_FILE, metavar="HOME", help="PBS home. [$PBS_HOME]")
    return config(home(command))


class _AsPbsSched(click.Command):
    """Wrong usage ends with exit code 1, as pbs_sched's does."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.UsageError as error:
            error.show()
            context.exit(1)


def _show_version(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        click.echo(f"version: {__version__}", err=True)
        context.exit()


@click.command(cls=_AsPbsSched)
@click.option("-a", "alarm_s", type=click.IntRange(min=0), default=180, show_default=True, metavar="SECONDS",
              help="A cycle that takes longer makes the daemon begin anew; 0: never.")  # fmt: skip
@click.option("-L", "log_file", type=_FILE, metavar="FILE", help="Log. [HOME/sched_logs/YYYYMMDD]")
@click.option("-p", "out_file", type=_FILE, metavar="FILE",
              help="Standard output and error in the background. [HOME/sched_priv/sched_out]")  # fmt: skip
@click.option(
    "-S", "port", type=click.IntRange(0, 65535), help="Port on which the server sends events. [15004]"
)
@click.option("-R", "mom_port", type=click.IntRange(1, 65535), help="As pbs_sched; no mom is asked.")
@click.option("-c", "callers_file", type=_FILE, metavar="FILE", help="$clienthost and $restricted lines.")
@click.option("--shadow", is_flag=True, help="Beside the real pbs_sched: start nothing, only report.")
@click.option("--daemon", "daemonize", is_flag=True, help="Go into the background, unless PBSDEBUG is set.")
@with_options
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Print the version on standard error.")  # fmt: skip
@click.argument("ignored", nargs=-1, metavar="")
def serve(home: Path | None, daemonize: bool, ignored: tuple[str, ...], **given: Any) -> None:
    """Schedule in pbs_sched's place (or, with --shadow, beside it)."""
    from torque_sched.daemon.paths import Options, pbs_home

    if ignored:
        click.echo(f"pbs_sched: ignored, as by the C daemon: {' '.join(ignored)}", err=True)

    if daemonize:
        from torque_sched.daemon.process import be_called

        be_called(sys.argv[0] if Path(sys.argv[0]).name == "pbs_sched" else "pbs_sched", sys.argv[1:])
    is_again = os.environ.pop("TORQUE_SCHED_AGAIN", "") == "1"
    wants_background = daemonize and "PBSDEBUG" not in os.environ and not is_again
    options = Options(home=pbs_home(home), daemonize=wants_background, **_absolute(given))
    sys.exit(_run(options))


def _absolute(given: dict[str, Any]) -> dict[str, Any]:
    """Paths as they are before the daemon changes its folder."""
    return {name: value.absolute() if isinstance(value, Path) else value for name, value in given.items()}


def _run(options: Any) -> int:
    from torque_sched.daemon.process import into_background
    from torque_sched.daemon.startup import prepare, run

    try:
        prepared = prepare(options)
        os.chdir(options.own)
        if options.daemonize:
            out_file = options.out_file or options.own / "sched_out"
            return into_background(lambda ready: run(prepared, ready, _teller), out_file)
        return run(prepared, new_teller=_teller)
    except TorqueSchedError as error:
        click.echo(f"pbs_sched: {error}" if "pbs_sched:" not in error.message else str(error), err=True)
        return 1


def _teller() -> Any:
    """What answers users' questions; loaded when the first is asked."""
    return importlib.import_module("torque_sched.commands._answering").load_teller()
