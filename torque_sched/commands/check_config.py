"""``torque-sched check-config``: every setting in effect, and what is wrong with them."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import yaml

from torque_sched.adapters.settings_file import described
from torque_sched.batch.connect import command_environment
from torque_sched.batch.documents import plain
from torque_sched.commands._console import options_of
from torque_sched.commands.serve import with_options
from torque_sched.errors import TorqueSchedError


@click.command("check-config")
@with_options
@click.option("-c", "callers_file", type=click.Path(path_type=Path), help="Also check this -c file.")
def check_config(home: Path | None, config_file: Path | None, callers_file: Path | None) -> None:
    """Print the settings in effect: our own file, and what pbs_sched's own files say.

    Exit code 2 when the daemon would not start with it, 0 also where there are warnings.
    """
    from torque_sched.daemon.c_policy import SettingsInForce, read_c_files
    from torque_sched.daemon.config import read_config
    from torque_sched.daemon.startup import read_callers

    options = replace(options_of(home, config_file), callers_file=callers_file)
    try:
        config = read_config(options.config)
        c_files = read_c_files(options.sched_priv, config)
        in_force = SettingsInForce(config, c_files)
        read_callers(options, config)
    except TorqueSchedError as error:
        click.echo(f"torque-sched check-config: {error}", err=True)
        sys.exit(2)
    click.echo(f"# {options.config or 'no settings file: all defaults'}")
    for line in described(config):
        click.echo(line)
    click.echo(f"# the batch system: {config.server(options.home).dialect_text()}")
    read = [name for name, _ in c_files.texts]
    click.echo(f"# of pbs_sched's files in {options.sched_priv}: {', '.join(read) or 'none'}")
    for line in _lines(in_force):
        click.echo(f"# {line}")
    for warning in (*c_files.warnings, *config.warnings(), *_missing_commands(config.commands)):
        click.echo(f"warning: {warning}", err=True)


def _missing_commands(folder: str) -> Iterator[str]:
    """Torque's commands that the daemon would not find."""
    path = command_environment(folder).get("PATH")
    for name in ("pbsnodes", "qstat", "qrun", "qalter"):
        if shutil.which(name, path=path) is None:
            where = f"in {folder} or on PATH" if folder else "on PATH"
            yield f"{name} is not {where}: set `commands` to the folder of Torque's commands"


def _lines(in_force: Any) -> Iterator[str]:
    """What schedules by now, in the words of our settings file."""
    from torque_sched.decide.settings import BACKFILLS, ORDERS, PLACEMENTS
    from torque_sched.decide.throttling import QosOrder

    names = {made: name for table in (ORDERS, PLACEMENTS, BACKFILLS) for name, made in table.items()}
    is_always = in_force.prime == in_force.non_prime
    times = {"": in_force.prime} if is_always else {"prime": in_force.prime, "non-prime": in_force.non_prime}
    for when, settings in times.items():
        yield f"in force in {when} time:" if when else "in force:"
        for key in ("order", "placement", "backfill", "queues"):
            policy = getattr(settings, key)
            policy = policy.order if isinstance(policy, QosOrder) else policy
            name = names.get(type(policy))
            values = {**({"name": name} if name else {}), **plain(policy)}
            words = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=math.inf)
            yield f"  {key}: {words.strip()}"
