"""``torque-sched top``: the cluster, renewed every few seconds.

The daemon shows its last look; where it does not answer, the server is looked at.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from torque_sched.commands._answering import shown_by_daemon
from torque_sched.commands._console import notes, options_of, out
from torque_sched.commands.serve import with_options
from torque_sched.errors import TorqueSchedError

Screen = Callable[[int, Callable[[str], None]], Any]
"""Makes what is shown, with so many nodes; the function is called with what a look waits for."""


@click.command()
@with_options
@click.option("--shadow", is_flag=True, help="Of the shadow, not of the scheduler itself.")
@click.option(
    "--interval", type=click.FloatRange(1, 3600), default=10.0, show_default=True, metavar="SECONDS"
)
@click.option("--once", is_flag=True, help="Show it once and end.")
def top(home: Path | None, config_file: Path | None, shadow: bool, interval: float, once: bool) -> None:
    """Show the busiest nodes, the queue and the daemon until Ctrl-C."""
    options = options_of(home, config_file, shadow=shadow)
    console = out()

    def screen(n_nodes: int, note: Callable[[str], None]) -> Any:
        return _screen(options, config_file is None and not shadow, n_nodes, note)

    try:
        if once:
            console.print(screen(0, notes("top")))
        elif console.is_terminal:
            _follow(screen, console, interval)
        else:
            _print(screen, console, interval)
    except TorqueSchedError as error:
        click.echo(f"torque-sched top: {error}", err=True)
        sys.exit(error.exit_code)


def _follow(screen: Screen, console: Any, interval: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    shown: Any = Text()
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def note(text: str) -> None:
            live.update(Group(Text(text), shown), refresh=True)

        while True:
            try:
                shown = screen(max(5, console.height - 18), note)
            except TorqueSchedError as error:
                shown = Text(f"{error}\ntrying again")
            live.update(shown, refresh=True)
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return


def _print(screen: Screen, console: Any, interval: float) -> None:
    """One screen below the other, into a pipe or a file."""
    while True:
        try:
            console.print(screen(0, notes("top")))
        except TorqueSchedError as error:
            click.echo(f"torque-sched top: {error}", err=True)
        try:
            time.sleep(interval)
        except KeyboardInterrupt:
            return


def _screen(options: Any, is_its: bool, n_nodes: int, note: Callable[[str], None]) -> Any:
    from rich.text import Text

    shown = shown_by_daemon("top", options.home, {"n_nodes": n_nodes}) if is_its else None
    if shown is not None:
        return Text(shown.rstrip("\n"))
    from torque_sched.report.picture import take_picture

    return _shown(take_picture(options, note), n_nodes)


def tell(picture: Any, asked: Mapping[str, Any]) -> None:
    """Print it once."""
    out().print(_shown(picture, max(0, asked["n_nodes"])))


def _shown(picture: Any, n_nodes: int) -> Any:
    """The screen with so many nodes; 0: with all."""
    from rich.console import Group
    from rich.text import Text

    from torque_sched.report.tables import daemon_line, jobs_line, nodes_line, nodes_table, reasons_table

    lines = (
        daemon_line(picture.state, picture.snapshot.now_s),
        nodes_line(picture.snapshot),
        jobs_line(picture.snapshot),
        *picture.troubles[:3],
    )
    return Group(*(Text(line) for line in lines), reasons_table(picture.state), nodes_table(picture, n_nodes))
