"""``torque-sched doctor``: is everything there that scheduling needs? One line each, with the cure."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torque_sched.commands.serve import with_options

__all__ = ["doctor"]


@click.command()
@with_options
@click.option("-S", "port", type=click.IntRange(0, 65535), help="Port the server knocks at. [15004]")
def doctor(home: Path | None, config_file: Path | None, port: int | None) -> None:
    """Examine commands, rights, versions, clock, names and ports. Exit code 1 when something is wrong.

    Nothing is changed; only pbsnodes and qstat are run.
    """
    from torque_sched.daemon.checks import Level, examine
    from torque_sched.daemon.place import Options, pbs_home

    is_wrong = False
    for check in examine(Options(pbs_home(home), config_file=config_file, port=port)):
        click.echo(check.line)
        is_wrong = is_wrong or check.level == Level.WRONG
    sys.exit(1 if is_wrong else 0)
