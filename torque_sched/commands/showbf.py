"""``torque-sched showbf``: what could start now?"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from torque_sched.commands.serve import with_options
from torque_sched.errors import ConfigError, TorqueSchedError, UnitError

__all__ = ["showbf"]


@click.command()
@with_options
@click.option("--property", "kind", default="", metavar="P[:P]", help="Only nodes with all of these.")
@click.option("--walltime", metavar="HH:MM:SS", help="Only what is free for so long.")
@click.option("--names", "shows_names", is_flag=True, help="Name every node.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def showbf(
    home: Path | None,
    config_file: Path | None,
    kind: str,
    walltime: str | None,
    shows_names: bool,
    as_json: bool,
) -> None:
    """Show free slots and GPUs, and until when: what asks for no more and no longer can start now."""
    from torque_sched.commands.status import notes, options_of, out
    from torque_sched.core.units import duration_s
    from torque_sched.policies.backfilling.show import showbf as free_nodes
    from torque_sched.report.openings import document, openings, openings_table
    from torque_sched.report.picture import take_picture

    try:
        least_s = _length_s(walltime, duration_s)
        picture = take_picture(options_of(home, config_file), notes("showbf"))
        now_s = picture.snapshot.now_s
        properties = frozenset(filter(None, kind.split(":")))
        free = [
            each
            for each in free_nodes(picture.snapshot, picture.settings, picture.context)
            if properties <= {*each.properties, each.node} and each.until_s - now_s >= least_s
        ]
    except TorqueSchedError as error:
        click.echo(f"torque-sched showbf: {error}", err=True)
        sys.exit(error.exit_code)
    if as_json:
        click.echo(json.dumps(document(free, now_s), indent=1))
    elif free:
        out().print(openings_table(openings(free), now_s, shows_names=shows_names), markup=False)
    else:
        click.echo("nothing that is free could be used now")


def _length_s(text: str | None, duration_s: Any) -> float:
    try:
        length_s = 0.0 if text is None else float(duration_s(text))
    except UnitError as error:
        raise ConfigError(f"--walltime {text!r}: {error.message}", cure=error.cure) from error
    return length_s if math.isfinite(length_s) else 0.0
