"""``torque-sched showbf``: what could start now?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from torque_sched.commands._answering import respond
from torque_sched.commands._console import out
from torque_sched.commands.serve import with_options
from torque_sched.errors import ConfigError, UnitError


@click.command()
@with_options
@click.option("--property", "kind", default="", metavar="P[:P]", help="Only nodes with all of these.")
@click.option("--walltime", metavar="HH:MM:SS", help="Only what is free for so long.")
@click.option("--names", "shows_names", is_flag=True, help="Name every node.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def showbf(home: Path | None, config_file: Path | None, **asked: Any) -> None:
    """Show free slots and GPUs, and until when: what asks for no more and no longer can start now."""
    respond("showbf", home, config_file, asked, tell)


def tell(picture: Any, asked: Mapping[str, Any]) -> None:
    """Print what is free.

    Raises:
        ConfigError: the length is none.
    """
    from torque_sched.decide.explain import showbf as free_nodes
    from torque_sched.model.units import duration_s
    from torque_sched.report.tables import document, openings, openings_table

    least_s = _length_s(asked["walltime"], duration_s)
    now_s = picture.snapshot.now_s
    properties = frozenset(filter(None, asked["kind"].split(":")))
    free = [
        each
        for each in free_nodes(picture.snapshot, picture.settings, picture.context)
        if properties <= {*each.properties, each.node} and each.until_s - now_s >= least_s
    ]
    if asked["as_json"]:
        click.echo(json.dumps(document(free, now_s), indent=1))
    elif free:
        out().print(openings_table(openings(free), now_s, shows_names=asked["shows_names"]), markup=False)
    else:
        click.echo("nothing that is free could be used now")


def _length_s(text: str | None, duration_s: Any) -> float:
    try:
        length_s = 0.0 if text is None else float(duration_s(text))
    except UnitError as error:
        raise ConfigError(f"--walltime {text!r}: {error.message}", cure=error.cure) from error
    return length_s if math.isfinite(length_s) else 0.0
