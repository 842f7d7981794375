"""The server hook that wakes the scheduler, and what a manager tells qmgr to have it or to be rid of it.

A hook runs in the server's only thread: one datagram to a numeric address, no answer waited for, nothing ever
raised (a hook that raises refuses the user's qsub). A lost knock costs no more than the daemon's own timer.
Not heard by it: qrls, qhold, qdel of a queued job, a queue that is started (no event of OpenPBS's says so).
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from torque_sched.errors import StartupError

NAME = "torque_sched"
EVENTS = ("postqueuejob", "movejob", "jobobit", "modifyvnode")
ALARM_S = 2
GREETING = b"torque-sched "
"""What a knock begins with; the name of the event follows."""
LONGEST_KNOCK = 64
_TIMEOUT_S = 30.0
_TEXT = """\
# torque-sched: tell the scheduler what happened; `torque-sched install --openpbs --undo` removes it.
try:
    import socket

    import pbs

    PLACES = {places!r}
    event = pbs.event()
    word = ""
    for name in {events!r}:
        if event.type == getattr(pbs, name.upper(), None):
            word = name
    if word == "modifyvnode" and event.vnode.state == event.vnode_o.state:
        # A job came or went, often one that the scheduler has started itself; jobobit says when it ends.
        word = ""
    if word:
        knock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            knock.setblocking(False)
            for place in PLACES:
                try:
                    knock.sendto(("torque-sched " + word).encode("ascii"), place)
                except Exception:
                    pass
        finally:
            knock.close()
except Exception:
    pass
try:
    pbs.event().accept()
except Exception:
    pass
"""


def hook_text(places: Sequence[tuple[str, int]]) -> str:
    """The hook's source, at most 60 lines; old and new Pythons run it.

    Args:
        places: numeric addresses and UDP ports of the schedulers.

    Raises:
        StartupError: an address is a name, which the server would have to look up at each event.
    """
    for address, _ in places:
        try:
            ipaddress.IPv4Address(address)
        except ValueError as error:
            raise StartupError(
                f"--knock {address}: no numeric IPv4 address", cure="as in --knock 127.0.0.1:15004"
            ) from error
    return _TEXT.format(places=list(places), events=EVENTS)


def qmgr_lines(file: str) -> list[str]:
    """What a manager tells qmgr, in this order.

    Args:
        file: where the hook's source lies for qmgr.
    """
    return [
        f"create hook {NAME}",
        f'set hook {NAME} event = "{",".join(EVENTS)}"',
        f"set hook {NAME} alarm = {ALARM_S}",
        f"import hook {NAME} application/x-python default {file}",
    ]


def apply(
    text: str, name: str = NAME, lines: Callable[[str], Sequence[str]] = qmgr_lines, qmgr: str = "qmgr"
) -> list[str]:
    """Have the server run a hook; a second time renews it. Returns the lines that were done.

    Args:
        text: the hook's source.
        name: of the hook.
        lines: what to tell qmgr, given where the source lies; a ``create`` of what is there is left out.
        qmgr: the program.

    Raises:
        StartupError: qmgr refuses a line; what was new is gone again.
    """
    done: list[str] = []
    with tempfile.TemporaryDirectory(prefix="torque-sched-") as folder:
        file = Path(folder) / f"{name}.py"
        file.write_text(text, encoding="ascii")
        for line in lines(str(file)):
            verb, kind, what = line.split()[:3]
            if verb == "create" and _exists(qmgr, kind, what):
                continue
            try:
                _tell(qmgr, line)
            except StartupError:
                made = [each.split()[1:3] for each in done if each.startswith("create ")]
                for kind, what in reversed(made):
                    _tell(qmgr, f"delete {kind} {what}")
                raise
            done.append(line)
    return done


def undo(objects: Sequence[tuple[str, str]], qmgr: str = "qmgr") -> list[str]:
    """Take hooks and resources away; ``print server`` and the like are then as they were before `apply`.

    Args:
        objects: kind and name of each, in this order; what is not there is left out.
        qmgr: the program.

    Raises:
        StartupError: there is none of them, or qmgr refuses.
    """
    lines = [f"delete {kind} {name}" for kind, name in objects if _exists(qmgr, kind, name)]
    if not lines:
        names = " nor ".join(f"{kind} {name}" for kind, name in objects)
        raise StartupError(f"the server has no {names}", cure="nothing was installed")
    for line in lines:
        _tell(qmgr, line)
    return lines


def _exists(qmgr: str, kind: str, name: str) -> bool:
    """Whether the server has this object; False as well where this user may not know."""
    done = _run(qmgr, f"list {kind} {name}")
    return done.returncode == 0 and f"{kind.capitalize()} {name}" in done.stdout


def _tell(qmgr: str, line: str) -> None:
    done = _run(qmgr, line)
    if done.returncode:
        raise StartupError(
            f"qmgr -c '{line}': {' '.join(done.stderr.split())[:300]}",
            cure="hooks are for root on the server's host, as a manager: run it there, or the printed lines",
        )


def _run(qmgr: str, line: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [qmgr, "-c", line], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S,
            check=False, stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise StartupError(f"{qmgr}: {error}", cure="put OpenPBS's commands on PATH") from error
