"""``yarn-accel start | status | top | explain | rebind | drain | undrain | stop | launch``.

The commands find the cluster through ``HADOOP_CONF_DIR`` and the application through the ResourceManager.
They sign requests to its master with the secret that `start` retained on this machine.  ``launch`` shows
what a start uses, packs an environment, and removes old ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport, ApplicationState
from yarn_accel.adapters.repeated_output import repeated_output
from yarn_accel.adapters.settings_file import described
from yarn_accel.errors import UnavailableError
from yarn_accel.hadoop.control import Control, RetainedApplication, asked, with_control
from yarn_accel.hadoop.delegation import ending, renewing
from yarn_accel.hadoop.rm_client import RmClient, find_running, one_of
from yarn_accel.launch import stop as stopping
from yarn_accel.launch.config import LaunchConfig, load_launch_config, with_kerberos
from yarn_accel.launch.keytab import log_in
from yarn_accel.launch.node_checks import gpu_note, packed_extras
from yarn_accel.launch.packing import pack
from yarn_accel.launch.staging import role_settings
from yarn_accel.launch.start import DryRun, dry_run
from yarn_accel.launch.start import start as start_application
from yarn_accel.launch.status_view import n_serving, status_table, tokens_end_s
from yarn_accel.launch.stop import ProgressReport
from yarn_accel.launch.uploads import look, remove

#: A table in a file is not folded.
FILE_WIDTH = 140
_POLL_S = 0.2
_KEEPS_SETTINGS = "note: it keeps the settings it was started with; for others: yarn-accel stop, then start"
_OF_ANOTHER = (
    "note: it is another user's; for one of your own beside it: `app: {name: NAME}` in the launch settings"
)
_AFTER_A_KILL = "slots that a killed one left on nodes: yarn-accel stop --force"
_PLACES = {
    "one": "one node",
    "accelerator": "each accelerator node",
    "every": "every node",
    "chosen": "nodes that the task service chooses",
}
application_option = click.option(
    "--application", default="", metavar="ID", help="Which one, where several run."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Everything the master knows, as JSON.")
interval_option = click.option(
    "--interval",
    "interval_s",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.2, 60),
    help="Seconds.",
)
config_option = click.option(
    "--config", "config_file", default=None, type=click.Path(path_type=Path), help="YAML configuration file."
)
start_wait_option = click.option(
    "--wait-s",
    default=120.0,
    show_default=True,
    type=click.FloatRange(1, 86400),
    help="How long to wait, in seconds.",
)


@click.command("start")
@config_option
@click.option("--dry-run", "is_dry", is_flag=True, help="Print what would be done; change nothing.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait until every accelerator node serves.")
@start_wait_option
@click.option("--principal", default="", metavar="NAME", help="Kerberos: whose keys the keytab has.")
@click.option(
    "--keytab",
    default="",
    metavar="FILE",
    help="Kerberos: the master gets it, and renews the application's tokens; for weeks.",
)
@click.option(
    "--keytab-on-nodes",
    default="",
    metavar="PATH",
    help="Where the nodes that may run the master have it already; then it is not uploaded.",
)
def start(config_file: Path | None, is_dry: bool, is_waiting: bool, wait_s: float, **kerberos: str) -> None:
    """Give the cluster's nodes accelerators: submit the application, or find it.

    A start that finds the application of this name running says so and ends with 0.
    """
    config = with_kerberos(launch_config(config_file), kerberos)
    log_in(config.kerberos, os.environ)
    rm_client = RmClient.load()
    if is_dry:
        _print_dry_run(rm_client, asyncio.run(dry_run(rm_client, config, _line)))
        return
    until_s = time.monotonic() + wait_s
    with progress() as report:
        started = asyncio.run(start_application(rm_client, config, report, wait_s))
    found = started.report
    if started.is_new:
        click.echo(f"{found.id} runs after {started.took_s:.2f} s")
    else:
        click.echo(f"{found.id} {_standing(found)} ({found.name}, submitted by {found.user})")
        if found.user != rm_client.user:
            _line(_OF_ANOTHER)
        if config_file is not None:
            _line(_KEEPS_SETTINGS)
    click.echo(f"page: {rm_client.page_of(found)}")
    if is_waiting:
        with progress() as report:
            seconds = asyncio.run(_until_serving(rm_client, found, until_s, report))
        click.echo(f"every accelerator node serves after another {seconds:.1f} s")


@click.command("status")
@application_option
@_json_option
def status(application: str, as_json: bool) -> None:
    """Show the application, its servers and bindings."""
    rm_client = RmClient.load()
    found, answer = asyncio.run(asked(rm_client, application, "status"))
    ends_s = RetainedApplication.of(str(found.id)).ends_s()
    if as_json:
        ending_of = {"ends_s": ends_s} if ends_s else {}
        click.echo(json.dumps({**answer, "page": rm_client.page_of(found), **ending_of}, indent=1))
    else:
        console().print(status_table(found, rm_client.page_of(found), answer))
        if sentence := ending(ends_s) or renewing(tokens_end_s(answer)):
            click.echo(f"{found.id} {sentence}")


@click.command("top")
@application_option
@interval_option
def top(application: str, interval_s: float) -> None:
    """Show the same again and again, until ^C."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_top(application, interval_s))


@click.command("explain")
@click.argument("node")
@application_option
def explain(node: str, application: str) -> None:
    """Say why NODE is bound to its server, and what was refused."""
    _, answer = asyncio.run(asked(RmClient.load(), application, "explain", {"node": node}))
    click.echo(answer.get("text", ""))


@click.command("rebind")
@application_option
def rebind(application: str) -> None:
    """Compute all bindings anew, as if all nodes had just joined."""
    found, answer = asyncio.run(asked(RmClient.load(), application, "rebind"))
    click.echo(answer.get("text") or f"{found.id} binds all nodes anew")


@click.command("drain")
@click.argument("node")
@application_option
def drain(node: str, application: str) -> None:
    """Take the server of NODE out of use; it finishes what it has."""
    _, answer = asyncio.run(asked(RmClient.load(), application, "drain", {"node": node}))
    click.echo(answer.get("text") or f"{node} is drained; yarn-accel undrain {node} brings it back")


@click.command("undrain")
@click.argument("node")
@application_option
def undrain(node: str, application: str) -> None:
    """Take the server of NODE back into use."""
    _, answer = asyncio.run(asked(RmClient.load(), application, "undrain", {"node": node}))
    click.echo(answer.get("text") or f"{node} is in use again")


@click.command("stop")
@application_option
@click.option("--force", "is_forced", is_flag=True, help="Without its master: for one that does not answer.")
@click.option(
    "--wait-s",
    default=120.0,
    show_default=True,
    type=click.FloatRange(1, 3600),
    help="How long to wait for the end, in seconds.",
)
def stop(application: str, is_forced: bool, wait_s: float) -> None:
    """End the application and restore the cluster.

    Its containers end, the nodes' slots get their configured values, the bindings are removed. The packed
    environment stays in the cluster's storage for the next start (`yarn-accel launch clean` removes old
    ones). With --force the nodes are restored also when nothing runs any more, as after `yarn application
    -kill`.
    """
    with progress() as report:
        ended, is_restored = asyncio.run(_stop(application, is_forced, wait_s, report))
    if ended is None:
        click.echo(f"nothing runs; {'the nodes are as configured' if is_restored else _AFTER_A_KILL}")
        return
    final = ended.final_status.name if ended.final_status is not None else "UNDEFINED"
    click.echo(f"{ended.id} has ended: {ended.state.name if ended.state is not None else ''} ({final})")


# ---- behind the commands


def _standing(found: ApplicationReport) -> str:
    if found.state is None or found.state is ApplicationState.RUNNING:
        return "runs already"
    return f"was submitted already and is {found.state.name}"


async def _top(application: str, interval_s: float) -> None:
    rm_client = RmClient.load()

    async def follow(found: ApplicationReport, control: Control) -> None:
        with repeated_output(FILE_WIDTH) as show:
            while True:
                try:
                    shown: Any = status_table(found, rm_client.page_of(found), await control.ask("status"))
                except UnavailableError as error:
                    shown = Text(f"{error}\nasking again; end with ^C")
                show(shown)
                await asyncio.sleep(interval_s)

    await with_control(rm_client, application, follow)


async def _until_serving(
    rm_client: RmClient, found: ApplicationReport, until_s: float, report: ProgressReport
) -> float:
    """Wait until every accelerator node that the master knows serves; the seconds it took."""
    began_s = time.monotonic()
    shown_last = (-1, -1)
    secret = RetainedApplication.of(str(found.id)).secret()
    # Nodes that unpack the environment are busy, and the master runs on one of them.
    patience_s = max(0.0, until_s - began_s)
    async with (
        rm_client.manager() as manager,
        Control(rm_client, manager, found.id, secret, patience_s) as control,
    ):
        while True:
            serving, there_are = n_serving(await control.ask("status"))
            if there_are and serving == there_are:
                return time.monotonic() - began_s
            if (serving, there_are) != shown_last:
                shown_last = (serving, there_are)
                report(_progress_of(serving, there_are))
            if time.monotonic() >= until_s:
                raise _not_all_serve(serving, there_are)
            await asyncio.sleep(_POLL_S)


def _progress_of(serving: int, there_are: int) -> str:
    return (
        f"{serving} of {there_are} accelerator nodes serve"
        if there_are
        else "no accelerator node is known yet"
    )


def _not_all_serve(serving: int, there_are: int) -> UnavailableError:
    if there_are:
        cure = "see what the others wait for: yarn-accel status"
        return UnavailableError(f"{serving} of {there_are} accelerator nodes serve", cure=cure)
    return UnavailableError(
        "no node is known to have an accelerator",
        cure="a node has one when YARN gives out its yarn.io/gpu, when its agent sees one, or when it is "
        "named in `accelerator_nodes` of the master's settings",
    )


async def _stop(
    application: str, is_forced: bool, wait_s: float, report: ProgressReport
) -> tuple[ApplicationReport | None, bool]:
    """The application that ended (None: none ran), and whether nodes of no running one were restored."""
    rm_client = RmClient.load()
    async with rm_client.manager() as manager:
        running = await find_running(manager)
        ended, is_restored = None, False
        if running or application:
            found = one_of(running, application, rm_client.user)
            work = stopping.force if is_forced else stopping.stop
            ended = await work(rm_client, manager, found, report, wait_s)
        elif is_forced:
            is_restored = await stopping.restore_nodes(manager, report)
        await stopping.clear_ended(rm_client, manager, report)
        return ended, is_restored


def _print_dry_run(rm_client: RmClient, rehearsal: DryRun) -> None:
    packed, plan = rehearsal.packed, rehearsal.staged.plan
    if rehearsal.running is not None:
        click.echo(f"nothing would be done: {rehearsal.running.id} runs already")
        return
    click.echo(f"as user {rm_client.user} to {', '.join(map(str, rm_client.addresses.client))}:")
    click.echo(f"would upload {packed.path.name} ({packed.n_bytes / 1e6:.0f} MB) unless it is there already")
    click.echo(f"would upload settings and plan to {rehearsal.staged.folder_uri}")
    for role in plan.roles.values():
        other = "".join(f", {name} {amount}" for name, amount in role.other.items())
        other += "".join(f", all {name} of its node where YARN counts it" for name in role.whole)
        place = _PLACES.get(role.nodes, role.nodes)
        click.echo(f"role {role.name} on {place}: {role.memory_mib} MiB, {role.vcores} vcores{other}")
        click.echo(f"    {role.command}")
        delivered = rehearsal.staged.delivered if role.name == "master" else ()
        click.echo(f"    files: {', '.join([*(each.name for each in role.resources), *delivered])}")
    for warning in rehearsal.warnings:
        click.echo(f"note: {warning}")


@contextlib.contextmanager
def progress() -> Iterator[ProgressReport]:
    """A line per step: a spinner on a terminal, plain lines on stderr elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line
        return
    with console.status("") as spinner:

        def report(line: str) -> None:
            if line.startswith("note:"):
                console.print(Text(line))
            spinner.update(Text(line))

        yield report


def _line(line: str) -> None:
    click.echo(line, err=True)


def launch_config(config_file: Path | None) -> LaunchConfig:
    """The settings in a file; all defaults where there is none."""
    return LaunchConfig.model_validate({}) if config_file is None else load_launch_config(config_file)


def console() -> Console:
    """Standard output, for tables."""
    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH)


# ---- yarn-accel launch


@click.group("launch")
def launch_group() -> None:
    """Show and prepare what `start` brings to the cluster."""


@launch_group.command("check-config")
@config_option
def _check_config(config_file: Path | None) -> None:
    """Print the settings in effect, each with what it means."""
    config = launch_config(config_file)
    roles = role_settings(config)
    for line in described(config):
        click.echo(line)
    for name, settings in roles.items():
        click.echo(f"# {name}, with all its keys:")
        for line in described(settings):
            click.echo(f"#   {line}")
    click.echo(f"# {gpu_note(config.environment)}")
    click.echo(f"# memory of an accelerator container: {config.server_memory_mib} MiB")


@launch_group.command("clean")
@config_option
@click.option(
    "--keep",
    "n_keep",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Keep so many of the newest, used or not.",
)
@click.option("--apply", "is_applied", is_flag=True, help="Remove what is unused; else it is only listed.")
def _clean(config_file: Path | None, n_keep: int, is_applied: bool) -> None:
    """List the packed environments in the cluster's storage, and remove those that nobody uses.

    What an application uses stays until the application is over. Do not run `start` at the same time.
    """
    rm_client = RmClient.load()
    store, root = rm_client.store(), rm_client.staging_uri(launch_config(config_file).environment.staging_uri)
    survey = look(store, root, n_keep)
    for each in survey.found:
        why = f"used by {', '.join(each.used_by)}" if each.used_by else "kept" if each.is_recent else "unused"
        click.echo(f"{each.uri} ({each.n_bytes / 1e6:.1f} MB): {why}")
    n_bytes = sum(each.n_bytes for each in survey.unused)
    if is_applied:
        click.echo(f"removed {remove(store, survey)} ({n_bytes / 1e6:.1f} MB)")
        return
    for folder in survey.silent:
        click.echo(f"note: {folder} does not say what its application uses: nothing would be removed")
    click.echo(f"{len(survey.unused)} unused ({n_bytes / 1e6:.1f} MB); --apply removes them")


@launch_group.command("pack")
@config_option
@click.option("--folder", default=None, type=click.Path(path_type=Path), help="Where the archive goes.")
def _pack(config_file: Path | None, folder: Path | None) -> None:
    """Pack the Python environment of the containers; prints what came out as JSON."""
    settings = launch_config(config_file).environment
    packed = pack(packed_extras(settings), settings.packages, folder)
    click.echo(json.dumps({**asdict(packed), "path": str(packed.path)}, indent=1))
