"""The ``torque-sched`` command: it only parses arguments and calls.

A command is imported when it is called, so that each loads only what it needs.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Mapping
from typing import Any

import click

from torque_sched import __version__

#: Every command with its line in the list: the first sentence of its own help.
COMMANDS: Mapping[str, str] = {
    "check-config": "Print the settings in effect: our own file, and what pbs_sched's own files say.",
    "cycle": "Run one cycle and print every decision.",
    "doctor": "Examine commands, rights, versions, clock, names and ports.",
    "emulate": "Run an EMULATED Torque or OpenPBS in DIRECTORY; put DIRECTORY/bin first on PATH.",
    "explain": "Say why JOB waits, node by node, its guaranteed start, what it will use; or all about NODE.",
    "install": "Put torque-sched in pbs_sched's place.",
    "parse": "Show what was understood of an output saved in FILE (``-`` for standard input).",
    "replay": "Decide every cycle of JOURNAL (a file, or a folder of them) again.",
    "report": "Tell of the last DAYS, or write a page that needs no other file and names no other address.",
    "reserve": "Keep nodes for somebody: from the next cycle on no other job may run into that time.",
    "serve": "Schedule in pbs_sched's place (or, with --shadow, beside it).",
    "showbf": "Show free slots and GPUs, and until when: what asks for no more and no longer can start now.",
    "showstart": "Say when JOB will start, whether that is guaranteed, and why.",
    "simulate": "Simulate the log of a machine, or a site's last month, under a policy, and show figures.",
    "simulate-grid": "Simulate the grid paper's four ways to run a job, with exact run times.",
    "site": "Link this Torque or OpenPBS with other sites: jobs run there, or as blocks at several at once.",
    "status": "Show the scheduler's last cycle, the cluster, and why jobs wait.",
    "top": "Show the busiest nodes, the queue and the daemon until Ctrl-C.",
    "whatif": "Say what would become of a job; nothing is submitted.",
}


class _Commands(click.Group):
    """Imports a command when it is called; a package of an extra that is not installed is one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            from torque_sched.extras import missing_package

            missing = missing_package(error)
            if missing is None:
                raise
            click.echo(f"torque-sched: {missing}", err=True)
            ctx.exit(missing.exit_code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"torque_sched.commands.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click would import every command to guess what a wrong name should have been.
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}; there are {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)
        ]


@click.group(cls=_Commands, invoke_without_command=True)
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
