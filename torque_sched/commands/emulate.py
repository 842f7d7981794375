"""``torque-sched emulate DIR ...``: an emulated Torque or OpenPBS to try a scheduler without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from torque_sched.emulation import EmulatedOpenPbs, EmulatedTorque, Fault
from torque_sched.emulation.faults import KINDS
from torque_sched.errors import TorqueSchedError

Result = TypeVar("Result")


@click.group()
@click.argument("directory", type=click.Path(path_type=Path))
@click.pass_context
def emulate(context: click.Context, directory: Path) -> None:
    """Run an EMULATED Torque or OpenPBS in DIRECTORY; put DIRECTORY/bin first on PATH.

    `torque-sched emulate openpbs init` makes an OpenPBS in the folder openpbs.
    """
    context.obj = directory


@emulate.command("init")
@click.option(
    "--nodes", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A Torque nodes file."
)
@click.option("--shape", default="", help="Instead: 16xnp=8,physmem=64gb+4xnp=32,gpus=4,has_nvml,gpunode")
@click.option(
    "--system",
    type=click.Choice(["torque", "openpbs"]),
    help="What to emulate. [openpbs in a folder of that name, else torque]",
)
@click.option("--torque-version", type=click.Choice(["6.1.3", "4.2.10"]), default="6.1.3", show_default=True)
@click.option("--clock", type=click.Choice(["real", "manual"]), default="real", show_default=True)
@click.option("--execute", is_flag=True, help="Really run the jobs' scripts (as the user who runs this).")
@click.option("--scheduler", default="127.0.0.1:15004", show_default=True, help="Where events go.")
@click.option("--server-name", default="head", show_default=True)
@click.pass_obj
def _init(
    directory: Path, nodes: Path | None, shape: str, system: str | None, torque_version: str, clock: str,
    execute: bool, scheduler: str, server_name: str,
) -> None:  # fmt: skip
    """Make the folder: programs, state, accounting."""
    text = nodes.read_text(encoding="utf-8") if nodes else ""
    is_openpbs = (system or directory.name) == "openpbs"
    version = EmulatedOpenPbs.version if is_openpbs else torque_version
    kind = EmulatedOpenPbs if is_openpbs else EmulatedTorque
    made = _tell(
        lambda: kind.create(
            directory, nodes=text, shape=shape, version=version, clock=clock, execute=execute,
            event_target=scheduler, server_name=server_name,
        )
    )  # fmt: skip
    click.echo(
        f"emulated {'OpenPBS' if is_openpbs else 'Torque'} {version} in {directory}; next: start, then "
        f"export PATH={made.path}:$PATH PBS_HOME={made.home}"
    )


@emulate.command("start")
@click.option("-l", "--listener", multiple=True, metavar="HOST:PORT", help="Another listener for the events.")
@click.pass_obj
def _start(directory: Path, listener: tuple[str, ...]) -> None:
    """Start the server in the background."""
    torque = EmulatedTorque(directory)
    torque.listeners = listener
    _tell(lambda: torque.start(detached=True))
    tail = (
        f"; batch protocol at 127.0.0.1:{torque.port}, trqauthd at {torque.trqauthd}" if torque.port else ""
    )
    click.echo(f"emulated pbs_server runs, process {torque.pid}{tail}")


@emulate.command("stop")
@click.pass_obj
def _stop(directory: Path) -> None:
    """End the server and the scripts that run; the state stays."""
    EmulatedTorque(directory).stop()


@emulate.command("kill")
@click.pass_obj
def _kill(directory: Path) -> None:
    """Kill the server with SIGKILL; `start` goes on where it was."""
    EmulatedTorque(directory).kill()


@emulate.command("advance")
@click.argument("seconds", type=float)
@click.pass_obj
def _advance(directory: Path, seconds: float) -> None:
    """Move a manual clock."""
    click.echo(f"{_tell(lambda: EmulatedTorque(directory).clock.advance(seconds)):.0f}")


@emulate.command("node")
@click.argument("name")
@click.argument("changes", nargs=-1, metavar="KEY=VALUE...")
@click.pass_obj
def _node(directory: Path, name: str, changes: tuple[str, ...]) -> None:
    """Change a node or its mom: mom=stopped, fixed_load=3.5, is_failing=true, flap_s=20 ..."""
    _tell(lambda: EmulatedTorque(directory).control("node", name, *changes))


@emulate.command("fault")
@click.argument("command", default="")
@click.argument("kind", type=click.Choice(KINDS), default="slow")
@click.option("--seconds", type=float, default=5.0, show_default=True, help="For slow.")
@click.option("--fraction", type=float, default=0.5, show_default=True, help="For partial.")
@click.option("--code", type=int, default=1, show_default=True, help="For exit.")
@click.option("--text", default="", help="Standard error, for exit.")
@click.option("--times", type=int, default=0, help="How often; 0 = until changed.")
@click.option("--after", type=int, default=0, show_default=True, help="Bytes of request and reply, for cut.")
@click.option("--performs", is_flag=True, help="The command takes effect all the same.")
@click.pass_obj
def _fault(
    directory: Path, command: str, kind: str, seconds: float, fraction: float, code: int, text: str,
    times: int, after: int, performs: bool,
) -> None:  # fmt: skip
    """Order a fault for COMMAND (a program, a request such as AsyncRunJob, trqauthd, or '*').

    Without COMMAND all is well again. A program's name stands for the requests it sends, too.
    """
    order = Fault(command, kind, seconds, fraction, code, text, times, performs=performs, after=after)
    EmulatedTorque(directory).set_faults(*([order] if command else []))


def _tell(act: Callable[[], Result]) -> Result:
    try:
        return act()
    except TorqueSchedError as error:
        raise click.ClickException(str(error)) from error
