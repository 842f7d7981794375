"""``torque-sched reserve``: keep nodes for somebody for a time, or for nobody (maintenance)."""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import click

from torque_sched.commands.serve import with_options
from torque_sched.errors import ConfigError, TorqueSchedError

_WAKE_S = 2.0


@click.command()
@with_options
@click.option(
    "--start", metavar="WHEN", help="now, +2:00:00, 14:30, 2026-12-24T08:00[+01:00], or epoch seconds."
)
@click.option("--end", metavar="WHEN", help="In the same form; + counts from now.")
@click.option("--length", metavar="HH:MM:SS", help="Instead of --end.")
@click.option("--nodes", metavar="NODES", help='Names "n1,n2", or how many of which kind: "4", "2:gpunode".')
@click.option(
    "--user", "users", default="", metavar="USERS", help="Who may use them: u1,u2. [nobody: maintenance]"
)
@click.option("--name", default="", help="Shown to those who wait. [RESERVATION-number]")
@click.option("--list", "lists", is_flag=True, help="Show what is reserved.")
@click.option("--delete", "deleted", metavar="NAME", help="Give its nodes back.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def reserve(home: Path | None, config_file: Path | None, **asked: Any) -> None:
    """Keep nodes for somebody: from the next cycle on no other job may run into that time.

    The scheduler reads this in every cycle, so no signal is needed. Running jobs are left alone.
    """
    from torque_sched.adapters.home import check_folder
    from torque_sched.commands._console import options_of

    try:
        _check(asked)
        options = options_of(home, config_file)
        if os.geteuid() == 0:
            check_folder(options.sched_priv)
        if asked["deleted"]:
            _delete(options, asked)
        elif asked["lists"]:
            _list(options, asked)
        else:
            _make(options, asked)
    except TorqueSchedError as error:
        click.echo(f"torque-sched reserve: {error}", err=True)
        sys.exit(error.exit_code)


def _check(asked: dict[str, Any]) -> None:
    """Exactly one thing is wanted."""
    makes = [f"--{key}" for key in ("start", "end", "length", "nodes") if asked[key]]
    wanted = (["--list"] if asked["lists"] else []) + (["--delete"] if asked["deleted"] else [])
    if len(wanted) > 1 or (wanted and makes):
        raise ConfigError(f"{' and '.join(wanted + makes)} do not go together", cure="see --help")
    if wanted:
        return
    missing = [f"--{key}" for key in ("start", "nodes") if not asked[key]]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} missing", cure="see --help; --list shows what there is")
    if bool(asked["end"]) == bool(asked["length"]):
        raise ConfigError("either --end or --length is needed", cure="for example --length 8:00:00")


def _make(options: Any, asked: dict[str, Any]) -> None:
    from torque_sched.batch.connect import look_once
    from torque_sched.commands._console import notes
    from torque_sched.daemon.config import read_config
    from torque_sched.learn.reservations import KeptReservation, Reservations
    from torque_sched.report.booking import chosen_nodes, running_into, span_of
    from torque_sched.report.picture import history_file

    config = read_config(options.config)
    snapshot = look_once(config.server(options.home), notes("reserve")).snapshot
    now_s = time.time()
    start_s, end_s = span_of(asked["start"], asked["end"] or "", asked["length"] or "", now_s)
    fixed = (*(each.value() for each in config.reservations), *config.standing_during(start_s, end_s))
    reservations = Reservations.open(history_file(options, config))
    try:
        others = (*fixed, *(each.value() for each in reservations.live(now_s)))
        nodes = chosen_nodes(snapshot, asked["nodes"], start_s, end_s, others)
        name = asked["name"] or _free_name({each.name for each in others})
        users = frozenset(user.strip() for user in asked["users"].split(",") if user.strip())
        made = KeptReservation(name, nodes, start_s, end_s, users, getpass.getuser(), now_s)
        reservations.add(made, now_s, fixed)
    finally:
        reservations.close()
    if asked["as_json"]:
        click.echo(json.dumps(_document(made), indent=1))
    else:
        click.echo(f"{name}: {','.join(sorted(nodes))} {_when(made)} for {_whom(made)}")
    _tell_of_two(asked, now_s)
    _wake(options)
    for job, node, until_s in running_into(snapshot, nodes, start_s):
        until = "has no walltime" if until_s is None else f"may run until {_clock(until_s)}"
        click.echo(f"torque-sched reserve: note: {job} on {node} {until}; it is left alone", err=True)


def _wake(options: Any) -> None:
    """Have the daemon decide anew at once; where it cannot be reached, its timer does that."""
    from torque_sched.adapters.answer_socket import ask

    with suppress(BlockingIOError):
        ask(options.home, {"ask": "wake"}, _WAKE_S)


def _free_name(taken: set[str]) -> str:
    return next(name for number in range(1, len(taken) + 2) if (name := f"reservation-{number}") not in taken)


def _list(options: Any, asked: dict[str, Any]) -> None:
    from torque_sched.commands._console import out
    from torque_sched.daemon.config import read_config
    from torque_sched.report.tables import table

    found = _kept(options)
    config = read_config(options.config)
    standing = {each.name: each.value().when for each in config.standing_reservations}
    if asked["as_json"]:
        shown = [(each, "" if each.made_s else standing.get(each.name, "")) for each in found]
        documents = [{**_document(each), **({"again": again} if again else {})} for each, again in shown]
        click.echo(json.dumps(documents, indent=1))
        return
    made = table("name", "when", "for", ">nodes", "which", "made by")
    for each in found:
        again = f"; {standing[each.name]}" if each.name in standing and not each.made_s else ""
        names = ",".join(sorted(each.nodes))
        by = "settings" if not each.made_s else each.made_by or "?"
        held = " (held, not committed)" if each.lease_until_s is not None else ""
        made.add_row(each.name, _when(each) + again + held, _whom(each), str(len(each.nodes)), names, by)
    out().print(made if found else "nothing is reserved", markup=False)


def _kept(options: Any) -> list[Any]:
    """Those of the settings and of the file, soonest first."""
    from torque_sched.daemon.config import read_config
    from torque_sched.daemon.standing_reservations import BEYOND_S
    from torque_sched.learn.reservations import KeptReservation
    from torque_sched.learn.store import Store
    from torque_sched.report.picture import history_file

    config = read_config(options.config)
    now_s = time.time()
    found = [
        KeptReservation(
            each.name, frozenset(each.value().nodes), each.start_s, each.end_s, frozenset(each.users)
        )
        for each in config.reservations
        if each.end_s > now_s
    ]
    for standing in config.standing_reservations:
        # Of each its present or next time.
        times = standing.value().during(now_s, now_s + BEYOND_S)
        found += [KeptReservation(e.name, e.nodes, e.start_s, e.end_s, e.users) for e in islice(times, 1)]
    path = history_file(options, config)
    if path.exists():
        with Store.looked_at(path) as store:
            found += store.reservations().live(now_s)
    return sorted(found, key=lambda each: each.start_s)


def _delete(options: Any, asked: dict[str, Any]) -> None:
    from torque_sched.daemon.config import read_config
    from torque_sched.learn.reservations import Reservations
    from torque_sched.report.picture import history_file

    config, name = read_config(options.config), asked["deleted"]
    for key in ("reservations", "standing_reservations"):
        if any(each.name == name for each in getattr(config, key)):
            raise ConfigError(f"{name!r} stands in the settings", cure=f"take it out of `{key}` there")
    path = history_file(options, config)
    is_gone = False
    if path.exists():
        reservations = Reservations.open(path)
        is_gone = reservations.delete(name)
        reservations.close()
    if not is_gone:
        known = ", ".join(each.name for each in _kept(options)) or "none"
        raise ConfigError(f"no reservation {name!r}", cure=f"there are: {known}")
    click.echo(f"{name}: deleted")
    _wake(options)


def _document(each: Any) -> dict[str, Any]:
    return {
        "name": each.name, "nodes": sorted(each.nodes), "start_s": each.start_s, "end_s": each.end_s,
        "users": sorted(each.users), "made_by": each.made_by, "made_s": each.made_s,
        "is_held": each.lease_until_s is not None,
    }  # fmt: skip


def _whom(each: Any) -> str:
    return ",".join(sorted(each.users)) or "nobody (maintenance)"


def _when(each: Any) -> str:
    return f"{_clock(each.start_s)} to {_clock(each.end_s)}"


def _clock(at_s: float) -> str:
    from torque_sched.report.booking import with_offset

    return with_offset(at_s)


def _tell_of_two(asked: dict[str, Any], now_s: float) -> None:
    """Say which one is taken of a time that the clocks show twice."""
    from torque_sched.report.booking import moment_s, second_of_two_s

    for text in filter(None, (asked["start"], asked["end"])):
        other_s = second_of_two_s(text, now_s)
        if other_s is not None:
            taken, other = _clock(moment_s(text, now_s)), _clock(other_s)
            words = f"the clocks show {text} twice; {taken} is taken, not {other}"
            click.echo(f"torque-sched reserve: note: {words}", err=True)
