"""``yarn-accel cluster``: parses, calls, prints. Nothing is decided here."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from yarn_accel.core.units import format_bytes
from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.java import HADOOP_VERSION
from yarn_accel.testbed.backends import take_down, take_down_all
from yarn_accel.testbed.cluster import Cluster, ClusterStatus
from yarn_accel.testbed.container_node import run_node
from yarn_accel.testbed.daemons import tail
from yarn_accel.testbed.plan import MASTER, MODES, PROTECTIONS, UpOptions
from yarn_accel.testbed.state import ClusterPaths, known_names, load

FOLLOW_POLL_S = 0.3
PIPE_WIDTH = 120
DEFAULT_NAME = "default"
_COLOURS = {"healthy": "green", "starting": "yellow", "safe mode": "yellow"}


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.group(name="cluster")
def group() -> None:
    """A real Hadoop cluster of several nodes on this one machine.

    As root every node is a network namespace with its own address and host name; else they share one. With
    --mode docker every node is a container.
    """


def _the_one(context: click.Context, parameter: click.Parameter, name: str) -> str:
    """The cluster meant when none is named: the only one there is, else the one called ``default``."""
    names = known_names()
    if name or not names:
        return name or DEFAULT_NAME
    if len(names) == 1:
        return names[0]
    if DEFAULT_NAME in names:
        return DEFAULT_NAME
    raise ConfigError(f"there are {len(names)} clusters", cure=f"name one of {', '.join(names)}")


def _size_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, default, text in (
        ("--slots", UpOptions.slots, "acct/slot of each worker."),
        ("--accel-nodes", UpOptions.accel_nodes, "Workers with an accelerator."),
        ("--racks", UpOptions.racks, "Racks the workers are spread over."),
        ("--nodes", UpOptions.nodes, "Workers, besides the master."),
    ):
        command = click.option(name, default=default, show_default=True, help=text)(command)
    return command


def _name_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--cluster", "-c", "name", default="", callback=_the_one, help="Which one [default: the only one]."
    )(command)


@group.command()
@click.argument("name", default=DEFAULT_NAME)
@_size_options
@click.option(
    "--late",
    default=UpOptions.late,
    show_default=True,
    help="Last workers whose NodeManagers wait for `start`.",
)
@click.option(
    "--storage-nodes",
    default=UpOptions.storage_nodes,
    show_default=True,
    help="First workers that hold all data, run no containers, and have links without --link.",
)
@click.option("--link", default="", help="Rate of every node's link in both directions, such as 1gbit.")
@click.option(
    "--delay", default="", help="Delay of every node's link, such as 2ms (if the kernel has netem)."
)
@click.option("--mode", default="auto", show_default=True, type=click.Choice(MODES))
@click.option("--image", default="", help="Image of the nodes (docker mode) [default: this version's].")
@click.option("--node-memory", default="", help="Memory of each node, such as 2gb (docker mode).")
@click.option("--node-cpus", default=0.0, help="Cores of each node, such as 1.5 (docker mode).")
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Folder here that nodes see at the same path (docker mode).",
)
@click.option("--publish/--no-publish", default=False, help="The master's pages at 127.0.0.1 (docker mode).")
@click.option("--pipeline/--no-pipeline", default=True, show_default=True, help="Run pipeline servers.")
@click.option(
    "--hadoop-version", default="", help=f"Fetched when it is not there [default: {HADOOP_VERSION}]."
)
@click.option("--ha/--no-ha", default=False, help="A second master, and ZooKeeper (netns mode).")
@click.option("--secure/--no-secure", default=False, help="Kerberos, with a KDC on the master (netns mode).")
@click.option(
    "--protection",
    default="",
    type=click.Choice(["", *PROTECTIONS]),
    help="Of RPC and data, with --secure [default: what each client chooses].",
)
@click.option(
    "--token-life", "token_life_s", default=0, help="Seconds a delegation token lives [default: 7 days]."
)
@click.option("--json", "as_json", is_flag=True, help="Print what `status --json` prints.")
@click.pass_context
def up(ctx: click.Context, /, as_json: bool, **values: Any) -> None:
    """Bring the cluster NAME up, or repair it, or find that all is well.

    For a cluster that exists, options that are not given keep their values.
    """
    given = {key: value for key, value in values.items() if _is_given(ctx, key)}
    cluster = Cluster.up(_merge_options(values, given), _say)
    if as_json:
        click.echo(json.dumps(cluster.description(), indent=1))
        return
    status = cluster.status()
    _say(f"memory: {_memory(status)}")
    if cluster.plan.options.secure:
        _say(f"a ticket: kinit -kt {cluster.keytab('alice')} alice  (also bob and accel)")
    words = [f"{name}={shlex.quote(value)}" for name, value in cluster.client_environ.items()]
    click.echo(f"export {' '.join(words)}")


def _is_given(ctx: click.Context, key: str) -> bool:
    return ctx.get_parameter_source(key) is not click.core.ParameterSource.DEFAULT


def _merge_options(values: Mapping[str, Any], given: Mapping[str, Any]) -> UpOptions:
    existing = load(ClusterPaths.of(values["name"]))
    return UpOptions(**values) if existing is None else replace(existing.options, **given)


@group.command()
@click.argument("name", default="", callback=_the_one)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(name: str, as_json: bool) -> None:
    """Show each daemon's pid, health, memory and web address; exit code 1 unless all are healthy.

    Without NAME: the only cluster there is.
    """
    cluster = Cluster.open(name)
    if as_json:
        description = cluster.description()
        click.echo(json.dumps(description, indent=1))
        sys.exit(0 if description["is_healthy"] else 1)
    else:
        found = cluster.status()
        console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
        console.print(_table(found))
        click.echo(f"HADOOP_CONF_DIR={found.conf_dir}")
    sys.exit(0 if found.is_healthy else 1)


def _memory(found: ClusterStatus) -> str:
    rss, pss, peak = (format_bytes(size) for size in (found.rss_bytes, found.pss_bytes, found.peak_bytes))
    return f"{rss} resident ({pss} counting shared pages once), at most {peak} so far"


def _table(found: ClusterStatus) -> Table:
    title = f"cluster {found.name} ({found.mode} mode)"
    table = Table(title=title, caption=_memory(found), box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for header, justify in (
        ("node", "left"),
        ("daemon", "left"),
        ("pid", "right"),
        ("health", "left"),
        ("RSS", "right"),
        ("PSS", "right"),
        ("address", "left"),
    ):
        table.add_column(header, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for daemon in found.daemons:
        colour = _COLOURS.get(daemon.health, "red")
        table.add_row(
            daemon.node,
            daemon.role,
            str(daemon.pid or "-"),
            f"[{colour}]{daemon.health}[/]",
            format_bytes(daemon.rss_bytes) if daemon.pid else "-",
            format_bytes(daemon.pss_bytes) if daemon.pid else "-",
            daemon.web,
        )
    return table


@group.command(name="list")
def list_() -> None:
    """Print the names of the clusters."""
    for name in known_names():
        click.echo(name)


@group.command(
    name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@_name_option
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, node: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on NODE; terminal, signals and exit code are the command's own."""
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise ConfigError("exec needs a command", cure=f"such as: yarn-accel cluster exec {node} hostname")
    argv = Cluster.open(name).exec_argv(node, words)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        raise ConfigError(f"{argv[0]} cannot be run: {error.strerror}") from error


@group.command()
@_name_option
@click.argument("node", default="")
@click.argument("role", default="")
@click.option("-n", "n_lines", default=10, show_default=True, help="Last lines of each log.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added.")
def logs(name: str, node: str, role: str, n_lines: int, follow: bool) -> None:
    """Print the daemons' logs: of all, of a NODE, or of one ROLE on it."""
    files = Cluster.open(name).log_files(node, role)
    offsets = {}
    for path in files:
        offsets[path] = path.stat().st_size
        _print_lines(path, tail(path, n_lines), is_only=len(files) == 1)
    while follow:
        time.sleep(FOLLOW_POLL_S)
        for path in files:
            offsets[path] = _print_added(path, offsets[path], is_only=len(files) == 1)


def _print_lines(path: Path, lines: list[str], *, is_only: bool) -> None:
    label = "" if is_only else f"{path.parent.name}/{path.stem}: "
    for line in lines:
        click.echo(label + line)


def _print_added(path: Path, offset: int, *, is_only: bool) -> int:
    """Print the whole lines after `offset` and return where the next look begins."""
    if not path.exists():
        return 0
    with path.open("rb") as stream:
        stream.seek(min(offset, path.stat().st_size))
        offset = stream.tell()
        added, newline, _ = stream.read().rpartition(b"\n")
    _print_lines(path, added.decode(errors="replace").splitlines(), is_only=is_only)
    return offset + len(added) + len(newline)


@group.command()
@_name_option
@click.argument("node")
def cut(name: str, node: str) -> None:
    """Cut NODE off: its link goes down, its processes go on."""
    Cluster.open(name).cut(node)
    _say(f"node {node} is cut off; heal it: yarn-accel cluster heal {node}")


@group.command()
@_name_option
@click.argument("node")
def heal(name: str, node: str) -> None:
    """Join NODE again after `cut`."""
    Cluster.open(name).heal(node)
    _say(f"node {node} is joined again")


@group.command()
@_name_option
@click.argument("node")
@click.argument("rate", default="")
def slow(name: str, node: str, rate: str) -> None:
    """Limit NODE's link to RATE, such as 10mbit; without RATE it is as at first again."""
    Cluster.open(name).slow(node, rate)
    _say(f"the link of node {node} carries {rate or 'what it did at first'}")


@group.command()
@_name_option
@click.argument("node")
def pause(name: str, node: str) -> None:
    """Freeze all processes of NODE: its kernel still takes connections, and nobody answers them."""
    Cluster.open(name).pause(node)
    _say(f"node {node} is paused; have it go on: yarn-accel cluster resume {node}")


@group.command()
@_name_option
@click.argument("node")
def resume(name: str, node: str) -> None:
    """Have NODE go on after `pause`."""
    Cluster.open(name).resume(node)
    _say(f"node {node} goes on")


@group.command()
@_name_option
@click.argument("node")
@click.argument("role")
@click.option(
    "--signal", "signal_name", default="KILL", show_default=True, help="Which signal, such as TERM or STOP."
)
def kill(name: str, node: str, role: str, signal_name: str) -> None:
    """Send SIGKILL to the daemon ROLE of NODE; `start` or `up` brings it back."""
    try:
        number = signal.Signals["SIG" + signal_name.upper().removeprefix("SIG")]
    except KeyError:
        raise ConfigError(
            f"there is no signal {signal_name!r}", cure="give one such as KILL, TERM or STOP"
        ) from None
    pid = Cluster.open(name).kill(node, role, number)
    _say(f"sent {number.name} to {role} of node {node} (pid {pid})")


@group.command()
@_name_option
@click.argument("node")
@click.argument("role")
def start(name: str, node: str, role: str) -> None:
    """Start the daemon ROLE of NODE again and wait until it is healthy."""
    Cluster.open(name).start(node, role, _say)


@group.command()
@click.argument("name", default="")
@click.option("--all", "is_all", is_flag=True, help="Every cluster of this user.")
@click.pass_context
def down(ctx: click.Context, name: str, is_all: bool) -> None:
    """Take the cluster NAME down and remove all that bears its name, whatever state it is in.

    Without NAME: the only cluster there is.
    """
    if is_all:
        take_down_all(_say)
    else:
        take_down(_the_one(ctx, ctx.command.params[0], name), _say)


@group.command("run-node")
@click.argument("node", default=MASTER)
@click.option(
    "--directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder that all nodes share.",
)
@click.option("--name", default="hadoop", show_default=True, help="The cluster's name: a folder in there.")
@click.option(
    "--health-file", default="/tmp/node-is-healthy", show_default=True, type=click.Path(path_type=Path)
)
@click.option(
    "--subnet", default=200, show_default=True, type=click.IntRange(0, 255), help="K of 10.231.K.0/24."
)
@_size_options
def run_node_(
    node: str, directory: Path, name: str, health_file: Path, subnet: int, nodes: int, racks: int,
    accel_nodes: int, slots: int,
) -> None:  # fmt: skip
    """Be NODE of a cluster whose nodes are containers: run its daemons here until SIGTERM.

    The options from --subnet on count at the master; workers read what it wrote into the folder.
    """
    options = UpOptions(name=name, nodes=nodes, racks=racks, accel_nodes=accel_nodes, slots=slots)
    run_node(ClusterPaths.of(name, directory), node, options, subnet, health_file, _say)
