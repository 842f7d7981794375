"""The ``torque-sched`` command: it only parses arguments and calls."""

from __future__ import annotations

import click

from torque_sched import __version__
from torque_sched.commands.emulate import emulate
from torque_sched.commands.parse import parse

__all__ = ["main"]


@click.group(invoke_without_command=True)
@click.version_option(__version__, prog_name="torque-sched")
@click.pass_context
def main(context: click.Context) -> None:
    """Schedule a Torque cluster in place of pbs_sched.

    This release holds the model only; there is no `serve` yet. Keep your pbs_sched running.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


main.add_command(parse)
main.add_command(emulate)
