"""Hooks of OpenPBS: the file that a manager imported is run at each event it is for, as root would.

A hook sees a module ``pbs`` with as much of the real one as a hook that only tells somebody needs. One that
raises refuses the request it stands before (``queuejob``), and is only logged elsewhere; an alarm ends one
that takes too long. As on real servers the whole server waits for it. Of MoM hooks there is
`exechost_periodic`.
"""

from __future__ import annotations

import runpy
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torque_sched.emulation.call import Answer
from torque_sched.emulation.world import World

EVENTS = (
    "queuejob", "postqueuejob", "modifyjob", "movejob", "runjob", "jobobit", "management", "modifyvnode",
    "periodic", "resvsub", "resv_end", "provision", "execjob_begin", "execjob_end", "exechost_periodic",
)  # fmt: skip
_REFUSED = 32


class _Left(BaseException):
    """accept() or reject(): the hook ends here."""


class _TooLong(Exception):
    """The alarm rang."""


PERIODIC = "exechost_periodic"


def _module(event: str, key: str, requestor: str, shown: dict[str, str] | None = None) -> types.ModuleType:
    """The ``pbs`` that a hook imports; `shown` takes what it sets of a MoM's vnode."""
    pbs = types.ModuleType("pbs")

    def leave(*words: object) -> None:
        raise _Left(*words)

    def say(*words: object) -> None:
        del words

    codes = {name.upper(): number for number, name in enumerate(EVENTS)}
    job = types.SimpleNamespace(id=key) if event != "modifyvnode" else None
    name, _, states = key.partition(" ")
    before, _, after = (states or "0->0").partition("->")
    vnode, vnode_o = (types.SimpleNamespace(name=name, state=int(state)) for state in (after, before))
    found = types.SimpleNamespace(
        type=codes[event.upper()], requestor=requestor, job=job, vnode=vnode, vnode_o=vnode_o, accept=leave,
        reject=leave, hook_name="hook",
        vnode_list={key: types.SimpleNamespace(resources_available=shown)},
    )  # fmt: skip
    vars(pbs).update(get_local_nodename=lambda: key)
    vars(pbs).update(codes, event=lambda: found, logmsg=say, LOG_DEBUG=1, LOG_WARNING=2, LOG_ERROR=3)
    return pbs


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def file_of(directory: Path, name: str) -> Path:
    """Where the server keeps what was imported for a hook."""
    return directory / "server_priv" / "hooks" / f"{name}.PY"


def _due(world: World, event: str) -> list[str]:
    """Names of the enabled hooks for an event, in their order."""
    found = []
    for key, each in world.objects.items():
        events = each.attributes.get("event", "").replace('"', "").split(",")
        if key.startswith("hook ") and event in events and each.attributes.get("enabled") == "true":
            found.append((int(each.attributes.get("order", "1")), key.partition(" ")[2]))
    return [name for _, name in sorted(found)]


def run_on_moms(world: World, directory: Path, next_s: dict[str, float]) -> None:
    """Run the periodic hooks that are due, on each vnode with a MoM; what they set shows at once.

    Args:
        world: the cluster.
        directory: of the server's state.
        next_s: by hook, when its next run is due; it is brought up to date.
    """
    for name in _due(world, PERIODIC):
        if next_s.get(name, world.now_s) > world.now_s or not file_of(directory, name).exists():
            continue
        next_s[name] = world.now_s + float(world.objects[f"hook {name}"].attributes.get("freq", "120"))
        world.due(next_s[name], "hook", name)
        for node in world.nodes.values():
            if node.mom != "up" or node.message == "Stale":
                continue
            shown: dict[str, str] = {}
            run(world, directory, PERIODIC, node.name, "root", names=(name,), shown=shown)
            for resource, text in shown.items():
                if f"resource {resource}" in world.objects:
                    node.attributes[f"resources_available.{resource}"] = str(text)
                    world.touch_node(node.name)


def run(
    world: World, directory: Path, event: str, key: str, requestor: str, names: tuple[str, ...] = (),
    shown: dict[str, str] | None = None,
) -> str:  # fmt: skip
    """Run what is due at an event, or these hooks; the name of the one that failed, empty where none did."""
    failed = ""
    for name in names or _due(world, event):
        path = file_of(directory, name)
        if not path.exists():
            continue
        attributes = world.objects[f"hook {name}"].attributes
        kept = sys.modules.get("pbs")
        sys.modules["pbs"] = _module(event, key, requestor, shown)
        try:
            # Seen on 23.06.06 without its two later commits: with Python 3.10 and newer every hook fails.
            if "emulated hooks" in world.objects:
                failed = failed or name
                continue
            with _alarm(float(attributes.get("alarm", "30"))):
                runpy.run_path(str(path), run_name="__main__")
        except _Left:
            continue
        except Exception as error:  # noqa: BLE001 -- whatever a hook raises
            with (directory / "server_logs" / "hooks").open("a", encoding="utf-8") as log:
                log.write(f"{event} {key} {name}: {type(error).__name__}: {error}\n")
            failed = failed or name
        finally:
            if kept is None:
                del sys.modules["pbs"]
            else:
                sys.modules["pbs"] = kept
    return failed


def refusal(name: str) -> Answer:
    """What qsub prints when a hook failed."""
    why = f"request rejected as filter hook '{name}' encountered an exception. Please inform Admin"
    return Answer(err=f"qsub: {why}\n", code=_REFUSED)
