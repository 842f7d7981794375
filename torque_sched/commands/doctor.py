"""``torque-sched doctor``: is everything there that scheduling needs? One line each, with the cure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import click

from torque_sched.commands._console import notes
from torque_sched.commands.serve import with_options
from torque_sched.errors import TorqueSchedError


@click.command()
@with_options
@click.option(
    "-S", "port", type=click.IntRange(0, 65535), help="Port on which the server sends events. [15004]"
)
@click.option("--submit", is_flag=True, help="OpenPBS: submit a held job and delete it, to try the hooks.")
def doctor(home: Path | None, config_file: Path | None, port: int | None, submit: bool) -> None:
    """Examine commands, rights, versions, clock, names and ports. Exit code 1 when something is wrong.

    Nothing is changed unless --submit is given; only pbsnodes, qstat and, at OpenPBS, qmgr's list are run.
    """
    from torque_sched.adapters.home import act_as_owner
    from torque_sched.daemon.checks import Level, examine
    from torque_sched.daemon.openpbs_checks import openpbs_checks
    from torque_sched.daemon.paths import Options, pbs_home

    is_wrong = False
    options = Options(pbs_home(home), config_file=config_file, port=port)
    act_as_owner(options.sched_priv)
    checks = (examine(options, notes("doctor")), openpbs_checks(options, submits=submit), _troubles(options))
    for check in chain(*checks):
        click.echo(check.line)
        is_wrong = is_wrong or check.level == Level.WRONG
    sys.exit(1 if is_wrong else 0)


def _troubles(options: Any) -> Iterator[Any]:
    """What the daemon that runs here complains of: its PATH and rights may be other than ours."""
    from torque_sched.daemon.checks import Check, Level
    from torque_sched.report.picture import read_state

    with suppress(TorqueSchedError):
        state = read_state(options)
        for trouble in state.trouble if state.is_alive else ():
            yield Check(Level.WARNING, "daemon", trouble, "see its log")
