"""``emulated``: what no Torque has a command for - clocks, moms, loads, many jobs at once.

``emulated node NAME key=value ...``: mom=up|stopped|hanging, is_failing, flap_s, base_load, fixed_load, ...
``emulated submit-many``: JSON lines on standard input, {"arguments": [...], "user": ..., "script": ...}
``emulated finish JOB [STATUS]``: the job ends now
``emulated trqauthd stop|start``: it refuses connections, or takes them again (done by the server itself)
``emulated tick``: look at the clock file and do what is due
``emulated hooks broken|whole``: of OpenPBS: every hook fails, as with a Python newer than it knows
``emulated confirm RESERVATION VNODES``: of OpenPBS: what its scheduler does with what pbs_rsub asked for
``emulated fields``: the keys of ``node``
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from torque_sched.emulation.call import Answer, Call, Verb
from torque_sched.emulation.model import EmulatedJob, EmulatedNode, Refused
from torque_sched.emulation.mom import before_change, report_now
from torque_sched.emulation.world import World
from torque_sched.errors import ConfigError

_FIXED = frozenset(("name", "mom_changed_s", "marked_down_s"))


class Control:
    """The verb ``emulated``.

    Args:
        qsub: the dialect's.
        end: ends a running job with a status.
        reports: whether moms report to the server, as Torque's do.
    """

    def __init__(
        self, qsub: Verb, end: Callable[[World, EmulatedJob, int], None], *, reports: bool = True
    ) -> None:
        self._qsub = qsub
        self._end = end
        self._reports = reports

    def __call__(self, world: World, call: Call) -> Answer:
        """Run one of the sub-commands above."""
        words = list(call.arguments) or [""]
        if words[0] == "tick":
            return Answer(out=f"{world.now_s:.3f}\n")
        if words[0] == "fields":
            return Answer(out="".join(f"{name}\n" for name in _fields()))
        if words[0] == "node" and len(words) > 1:
            for text in words[2:]:
                set_node(world, words[1], text, reports=self._reports)
            return Answer()
        if words[0] == "finish" and len(words) > 1:
            return _finish(world, self._end, words[1], int(words[2]) if len(words) > 2 else 0)
        if words[0] == "submit-many":
            return _submit_many(world, self._qsub, call)
        return Answer(err=f"emulated: unknown '{' '.join(words)}'\n{__doc__}\n", code=1)


def _fields() -> dict[str, Any]:
    return {entry.name: entry for entry in dataclasses.fields(EmulatedNode) if entry.name not in _FIXED}


def set_node(world: World, name: str, text: str, *, reports: bool = True) -> None:
    """Apply one ``key=value`` to a node.

    Raises:
        ConfigError: no such node or key.
    """
    key, _, value = text.partition("=")
    if name not in world.nodes or key not in _fields():
        raise ConfigError(f"node {name}: '{text}'", cure=f"known keys are {', '.join(_fields())}")
    node = world.nodes[name]
    if reports:
        before_change(world, name)
    convert_into(node, key, value)
    if key == "mom":
        node.mom_changed_s = world.now_s
        node.marked_down = node.marked_down and value != "up"
    if key in ("np", "gpus"):
        world.resize_node(node)
    world.touch_node(name)
    if reports and node.mom == "up":
        report_now(world, name)


def convert_into(node: EmulatedNode, key: str, value: str) -> None:
    """Set a field of a node from text, by the type it has."""
    kind = str(_fields()[key].type)
    if kind == "bool":
        setattr(node, key, value.lower() in ("", "1", "true", "yes"))
    elif kind == "int":
        setattr(node, key, int(value))
    elif kind.startswith("float"):
        setattr(node, key, float(value) if value else None)
    elif kind.startswith("list"):
        setattr(node, key, [each for each in value.split(",") if each])
    elif kind.startswith("dict"):
        setattr(
            node, key, {i: float(p) for i, _, p in (each.partition(":") for each in value.split(",")) if i}
        )
    else:
        setattr(node, key, value)


def _finish(world: World, end: Callable[[World, EmulatedJob, int], None], word: str, status: int) -> Answer:
    try:
        job = world.job(word)
    except Refused as error:
        return Answer(err=f"emulated: {error.text}\n", code=1)
    if job.state != "R":
        return Answer(err=f"emulated: {job.id} is in state {job.state}\n", code=1)
    world.kill.append((job.id, "KILL"))
    end(world, job, status)
    return Answer()


def _submit_many(world: World, qsub: Verb, call: Call) -> Answer:
    if call.stdin is None:
        return Answer(wants_stdin=True)
    answer = Answer()
    for line in call.stdin.decode("utf-8").splitlines():
        entry = json.loads(line)
        single = Call(
            "qsub",
            tuple(entry["arguments"]),
            entry.get("cwd", call.cwd),
            {**call.environment, **entry.get("environment", {})},
            entry.get("user", call.user),
            entry.get("script", "").encode(),
        )
        done = qsub(world, single)
        answer.out += done.out or "\n"
        answer.err += done.err
        answer.code = answer.code or done.code
    return answer
