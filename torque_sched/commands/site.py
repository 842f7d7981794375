"""``torque-sched site ...``: this site's link to others."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from torque_sched.adapters.settings_file import described
from torque_sched.errors import TorqueSchedError

_FILE = click.Path(path_type=Path)


@click.group()
@click.option("-d", "home", type=_FILE, metavar="HOME", help="PBS home. [$PBS_HOME]")
@click.option("--config", "config_file", type=_FILE, help="Settings of the link. [HOME/sched_priv/site.yaml]")
@click.pass_context
def site(context: click.Context, home: Path | None, config_file: Path | None) -> None:
    """Link this Torque or OpenPBS with other sites: jobs run there, or as blocks at several at once."""
    from torque_sched.daemon.paths import pbs_home
    from torque_sched.grid.site.site_files import DEFAULT_NAME

    place = pbs_home(home)
    context.obj = (place, config_file or place / "sched_priv" / DEFAULT_NAME)


def _config(context: click.Context) -> tuple[Path, Any]:
    from torque_sched.grid.site.config import read_site_config

    home, path = context.obj
    return home, read_site_config(path)


def _fail(verb: str, error: TorqueSchedError) -> None:
    click.echo(f"torque-sched site {verb}: {error}", err=True)
    sys.exit(error.exit_code)


@site.command("serve")
@click.option(
    "--dry-run", is_flag=True, help="Check everything and every peer, then end; nothing is changed."
)
@click.pass_context
def _serve(context: click.Context, dry_run: bool) -> None:
    """Serve until SIGTERM. Exit code 0: ended on request; 2: wrong settings; 3: could not start; 4:
    something hung at the end, see the log.
    """
    from torque_sched.grid.site.service import dry_run as try_out
    from torque_sched.grid.site.service import serve as run

    try:
        home, config = _config(context)
        if not dry_run:
            run(home, config)
            return
        is_well = True
        for words, is_fine in try_out(home, config):
            is_well = is_well and is_fine
            click.echo(f"{'ok  ' if is_fine else 'FAIL'} {words}")
        sys.exit(0 if is_well else 1)
    except TorqueSchedError as error:
        _fail("serve", error)


@site.command("check-config")
@click.pass_context
def _check_config(context: click.Context) -> None:
    """Print the settings in effect and try every file they name. Exit code 2: it would not start."""
    from torque_sched.grid.site.service import server_settings
    from torque_sched.grid.site.site_files import check_files

    try:
        home, config = _config(context)
        for line in described(config):
            click.echo(line)
        click.echo(f"# the batch system: {server_settings(home, config).dialect_text()}")
        check_files(home, config)
    except TorqueSchedError as error:
        _fail("check-config", error)


def _state(context: click.Context) -> dict[str, Any]:
    from torque_sched.grid.site.site_files import read_state

    home, config = _config(context)
    return read_state(home, config)


@site.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
@click.pass_context
def _status(context: click.Context, as_json: bool) -> None:
    """Show the link: peers, holds, blocks here, our jobs elsewhere. Exit code 1: it does not run."""
    try:
        state = _state(context)
    except TorqueSchedError as error:
        _fail("status", error)
        return
    if as_json:
        click.echo(json.dumps(state, indent=1))
    else:
        age_s = time.time() - state["at_s"]
        word = "runs" if state["alive"] else "does NOT run"
        click.echo(f"site {state['name']} {word}; process {state['pid']}, state of {age_s:.0f} s ago")
        alive = sum(peer["state"] == "alive" for peer in state["peers"])
        click.echo(
            f"{alive} of {len(state['peers'])} peers alive; "
            f"here {state['grants']} holds and claims, "
            f"{state['blocks']} blocks; {len(state['jobs'])} jobs of ours under way"
        )
        if state["trouble"]:
            click.echo(f"our server: {state['trouble']}")
        for line in _details(state):
            click.echo(f"  {line}")
    sys.exit(0 if state["alive"] else 1)


def _details(state: dict[str, Any]) -> Iterator[str]:
    """Our jobs, blocks of others here, and what could not be brought home lately."""
    for job in state["jobs"]:
        yield f"{job['job']} of {job['user']}, try {job['tries']}: {job['words']}"
        for block in job.get("blocks", ()):
            yield f"  at {block['site']}: {block['state']}" + (f" ({block['why']})" if block["why"] else "")
    for block in state["foreign"]:
        job = f" as job {block['job']}" if block["job"] else ""
        why = f": {block['why']}" if block["why"] else ""
        yield f"block {block['token']} of {block['user']}{job} is {block['state']}{why}"
    for trouble in state["troubles"]:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(trouble["at_s"]))
        yield f"{at} block {trouble['token']} of {trouble['user']}: {trouble['why']}"


@site.command("peers")
@click.pass_context
def _peers(context: click.Context) -> None:
    """Show each peer: is it there, since when, and what was wrong last."""
    from rich.table import Table

    from torque_sched.commands._console import out

    try:
        state = _state(context)
    except TorqueSchedError as error:
        _fail("peers", error)
        return
    table = Table("peer", "state", "for", "answers", "failures", "clock", "last trouble")
    for peer in state["peers"]:
        table.add_row(
            peer["name"],
            peer["state"],
            f"{peer['for_s']:.0f} s",
            str(peer["answers"]),
            str(peer["failures"]),
            f"{peer['skew_s']:+.3f} s",
            peer["trouble"],
        )
    out().print(table)
    sys.exit(0 if state["alive"] else 1)
