"""The ``torque-sched`` command: it only parses arguments and calls."""

from __future__ import annotations

import io
import sys

import click

from torque_sched import __version__
from torque_sched.commands.check_config import check_config
from torque_sched.commands.cycle import cycle
from torque_sched.commands.doctor import doctor
from torque_sched.commands.emulate import emulate
from torque_sched.commands.explain import explain
from torque_sched.commands.install import install
from torque_sched.commands.parse import parse
from torque_sched.commands.replay import replay
from torque_sched.commands.report import report
from torque_sched.commands.reserve import reserve
from torque_sched.commands.serve import serve
from torque_sched.commands.showbf import showbf
from torque_sched.commands.showstart import showstart
from torque_sched.commands.simulate import simulate
from torque_sched.commands.simulate_grid import simulate_grid
from torque_sched.commands.site import site
from torque_sched.commands.status import status
from torque_sched.commands.top import top
from torque_sched.commands.whatif import whatif

__all__ = ["main"]


@click.group(invoke_without_command=True)
@click.version_option(__version__, prog_name="torque-sched")
@click.pass_context
def main(context: click.Context) -> None:
    """Schedule a Torque cluster in place of pbs_sched.

    Begin with `doctor`, then `serve --shadow` beside your pbs_sched, then `install`.
    """
    for stream in (sys.stdout, sys.stderr):
        # Names may be of a language that this terminal cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


main.add_command(parse)
main.add_command(serve)
main.add_command(cycle)
main.add_command(check_config)
main.add_command(install)
main.add_command(doctor)
for command in (status, top, explain, whatif, showstart, showbf, reserve, report, replay):
    main.add_command(command)
main.add_command(emulate)
main.add_command(simulate)
main.add_command(simulate_grid)
main.add_command(site)
