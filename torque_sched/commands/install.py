"""``torque-sched install``: our shim and unit in pbs_sched's place, or OpenPBS's server hook, and back."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from torque_sched.adapters.home import HIGHEST_TRUSTED_UID
from torque_sched.batch.openpbs import hook, loads
from torque_sched.batch.torque.event_port import DEFAULT_PORT
from torque_sched.daemon.packaging import (
    RECORDS,
    Step,
    apply,
    command_folders,
    init_script_changes,
    plan,
    record_of,
    undo,
)
from torque_sched.daemon.paths import pbs_home
from torque_sched.errors import TorqueSchedError

_FOLDER = click.Path(path_type=Path, file_okay=False)
_THERE = click.Path(path_type=Path, file_okay=False, exists=True)
_INIT_SCRIPT = Path("/etc/init.d/pbs_sched")
_UNITS = Path("/etc/systemd/system")


@click.command()
@click.option(
    "--dry-run",
    "act",
    flag_value="dry-run",
    default="dry-run",
    help="Only print what would be done. [default]",
)
@click.option("--apply", "act", flag_value="apply", help="Do it; what is replaced is kept.")
@click.option("--undo", "act", flag_value="undo", help="Put everything back.")
@click.option("-d", "home", type=_FOLDER, metavar="HOME", help="PBS home. [$PBS_HOME]")
@click.option("--sbin", type=_THERE, help="Folder of pbs_sched. [where it is found on PATH]")
@click.option("--units", type=_THERE, help=f"systemd's folder. [{_UNITS}, if it is there]")
@click.option("--no-shim", is_flag=True, help="Leave pbs_sched as it is; only the unit.")
@click.option("--no-unit", is_flag=True, help="No systemd unit; only the shim.")
@click.option("--records", type=_FOLDER, help=f"Where what was done is recorded. [root: {RECORDS}]")
@click.option("--user", default="root", show_default=True, help="The unit's user: root or an operator.")
@click.option("--openpbs", is_flag=True, help="OpenPBS's server hook, which wakes the scheduler; no files.")
@click.option(
    "--knock", multiple=True, metavar="ADDRESS:PORT", help="Whom the hook wakes. [127.0.0.1, port 15004]"
)
@click.option(
    "--loads",
    "loads_file",
    metavar="FILE",
    help="OpenPBS's MoM hook, which shows the sampler's FILE of each node.",
)
def install(
    act: str,
    home: Path | None,
    sbin: Path | None,
    units: Path | None,
    no_shim: bool,
    no_unit: bool,
    records: Path | None,
    user: str,
    openpbs: bool,
    knock: tuple[str, ...],
    loads_file: str | None,
) -> None:
    """Put torque-sched in pbs_sched's place. No daemon is stopped or started: that stays with you.

    With --openpbs or --loads only hooks are put in place, or printed; a manager must do it. --openpbs --undo
    takes both away.
    """
    if openpbs or loads_file:
        _hook(act, knock, loads_file, wakes=openpbs)
        return
    place = pbs_home(home)
    record = record_of(place, records)
    try:
        if act == "undo":
            for line in undo(record):
                click.echo(line)
            click.echo(f"next: stop torque-sched, {_owned(place)}start pbs_sched")
            return
        if not command_folders():
            click.echo(
                "Torque's commands are not on this PATH, so the daemon will not find them either: "
                "put them there, or set `commands` in torque_sched.yaml",
                err=True,
            )
        shim, unit = None if no_shim else _sbin(sbin), None if no_unit else _units(units)
        steps = plan(place, shim, unit, user, record=record)
        for step in steps:
            click.echo(("" if act == "apply" else "would ") + step.done)
        if not steps:
            click.echo("nothing to do")
        elif act == "apply":
            apply(steps, record)
            for line in _next(steps, place, user):
                click.echo(line)
    except TorqueSchedError as error:
        click.echo(f"torque-sched install: {error}", err=True)
        sys.exit(error.exit_code)


def _hook(act: str, knock: tuple[str, ...], loads_file: str | None, *, wakes: bool) -> None:
    """OpenPBS's hooks, the one that wakes and the one of loads: print them with their qmgr lines, or act."""
    try:
        if act == "undo":
            objects = ((("hook", hook.NAME),) if wakes else ()) + loads.OBJECTS
            for line in hook.undo(objects):
                click.echo(f"qmgr -c '{line}'")
            return
        if wakes:
            text = hook.hook_text([_address(each) for each in knock or (f"127.0.0.1:{DEFAULT_PORT}",)])
            _put(act, hook.NAME, text, hook.qmgr_lines)
        if loads_file:
            _put(act, loads.HOOK_NAME, loads.hook_text(loads_file), loads.qmgr_lines)
    except TorqueSchedError as error:
        click.echo(f"torque-sched install: {error}", err=True)
        sys.exit(error.exit_code)


def _put(act: str, name: str, text: str, lines: Callable[[str], Sequence[str]]) -> None:
    if act == "apply":
        for line in hook.apply(text, name, lines):
            click.echo(f"qmgr -c '{line}'")
        return
    click.echo(text, nl=False)
    click.echo(f"# As a manager, with the lines above in {name}.py:")
    for line in lines(f"{name}.py"):
        click.echo(f"# qmgr -c '{line}'")


def _address(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise click.BadParameter(f"{text}: as in 127.0.0.1:15004", param_hint="--knock")
    return address, int(port)


def _next(steps: Sequence[Step], home: Path, user: str) -> Iterator[str]:
    """What is left to the administrator."""
    names = {Path(step.path).name for step in steps}
    if user != "root":
        yield (
            f"next: qmgr -c 'set server operators += {user}@{socket.gethostname()}'; "
            f"chown -R {user} {home}/sched_priv {home}/sched_logs"
        )
    if "pbs_sched" in names:
        for change in init_script_changes(_INIT_SCRIPT):
            yield f"next: {change} (start-stop-daemon would look for our Python)"
    ways = (
        ("torque-sched.service", "`systemctl daemon-reload && systemctl start torque-sched`"),
        ("pbs_sched", "start pbs_sched as you always did: it is ours now"),
    )
    yield "next: stop pbs_sched; then " + ", or ".join(words for name, words in ways if name in names)


def _owned(home: Path) -> str:
    """What pbs_sched needs after us: it runs as root and refuses a folder of an ordinary user."""
    owners = {(home / name).stat().st_uid for name in ("sched_priv", "sched_logs") if (home / name).exists()}
    is_ours = any(uid > HIGHEST_TRUSTED_UID for uid in owners)
    return f"`chown -R root {home}/sched_priv {home}/sched_logs`, " if is_ours else ""


def _sbin(named: Path | None) -> Path | None:
    if named is not None:
        return named
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/opt/torque/sbin"))
    found = shutil.which("pbs_sched", path=path)
    if found is None:
        click.echo("no pbs_sched found on PATH, so no shim; name its folder with --sbin", err=True)
        return None
    return Path(found).parent


def _units(named: Path | None) -> Path | None:
    if named is not None:
        return named
    return _UNITS if _UNITS.is_dir() else None
