"""qselect: ids of the jobs that meet every condition of the command line; array members one by one."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from torque_sched.emulation.call import Answer, Call, Options, read_options
from torque_sched.emulation.checks import canonical, execution_time_s
from torque_sched.emulation.model import EmulatedJob, Refused, job_order, seconds_of, size_kb
from torque_sched.emulation.submit import RESOURCES
from torque_sched.emulation.world import World

_LETTERS = "a:A:ec:h:l:N:p:q:r:s:u:"
_USAGE = "usage: qselect [-a [op]date_time] ...\n"
_COMPARED = {
    "eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "ge": operator.ge, "lt": operator.lt,
    "le": operator.le,
}  # fmt: skip
_CHECKPOINTS = "uncs"
"""From the lowest to the highest, as seen: what is not said, never, at intervals, at shutdown."""
Condition = Callable[[EmulatedJob], bool]


class _Misused(Exception):
    """The client refuses a value."""


def qselect(world: World, call: Call) -> Answer:
    """The command."""
    options = read_options(call.arguments, _LETTERS, program="qselect")
    if options.error or options.words:
        wrong = f"qselect: {options.error}\n" if options.error else ""
        return Answer(err=wrong + _USAGE, code=2)
    sees_all = world.is_admin(call.user) or world.server.get("query_other_jobs") == "True"
    try:
        conditions = list(_conditions(world, options))
    except _Misused as error:
        return Answer(err=f"{error}\n{_USAGE}", code=2)
    except Refused as error:
        return Answer(err=f"qselect: {error.text}\n", code=error.exit_code)
    chosen = [
        job.id
        for job in sorted(world.jobs.values(), key=job_order)
        if not job.is_array
        and (sees_all or job.user == call.user)
        and all(is_met(job) for is_met in conditions)
    ]
    return Answer(out="".join(f"{name}\n" for name in chosen))


def _conditions(world: World, options: Options) -> list[Condition]:
    found: list[Condition] = []
    for letter, read in _READ.items():
        if options.has(letter):
            found.append(read(world, options.last(letter)))
    if options.has("l"):
        found += _resources(options.last("l"), is_old=world.settings.is_old)
    return found


def _split(text: str) -> tuple[str, str]:
    """``.gt.5`` -> gt, 5; without an operator it is eq."""
    match = re.match(r"\.(\w\w)\.(.*)", text, re.DOTALL)
    return (match[1], match[2]) if match is not None and match[1] in _COMPARED else ("eq", text)


def _time(world: World, text: str) -> Condition:
    sign, value = _split(text)
    try:
        at_s = execution_time_s(value, world.now_s)
    except Refused as error:
        raise _Misused("qselect: illegal -a value") from error
    compare = _COMPARED[sign]
    return lambda job: compare(job.seconds("Execution_Time"), at_s)


def _account(world: World, text: str) -> Condition:
    return lambda job: job.attributes.get("Account_Name") == text


def _checkpoint(world: World, text: str) -> Condition:
    sign, value = _split(text)
    if value not in ("n", "s", "c", "u") and not re.fullmatch(r"c=\d+", value):
        raise _Misused("qselect: illegal -c value")
    compare = _COMPARED[sign]
    if sign in ("eq", "ne"):
        return lambda job: compare(job.attributes["Checkpoint"], value)

    def rank(word: str) -> int:
        return _CHECKPOINTS.find(word[:1])

    return lambda job: compare(rank(job.attributes["Checkpoint"]), rank(value))


def _holds(world: World, text: str) -> Condition:
    if not text or not set(text) <= set("uosn"):
        raise _Misused("qselect: illegal -h value")
    wanted = set(text) - {"n"}
    return lambda job: set(job.holds) == wanted


def _name(world: World, text: str) -> Condition:
    return lambda job: job.attributes["Job_Name"] == text


def _priority(world: World, text: str) -> Condition:
    sign, value = _split(text)
    if not re.fullmatch(r"[+-]?\d+", value):
        gap = "  " if world.settings.is_old else " "
        raise Refused(15016, f"Illegal attribute or resource value for{gap}Priority")
    compare = _COMPARED[sign]
    return lambda job: compare(int(job.attributes["Priority"]), int(value))


def _queue(world: World, text: str) -> Condition:
    name = text.partition("@")[0]
    if name and name not in world.queues:
        raise Refused(15020, "Unknown queue destination ")
    return lambda job: name in ("", job.queue)


def _rerunable(world: World, text: str) -> Condition:
    if text not in ("y", "n"):
        # It names the wrong program.
        raise _Misused("qsub: illegal -r value")
    return lambda job: (job.attributes["Rerunable"] == "True") == (text == "y")


def _states(world: World, text: str) -> Condition:
    if not text or not set(text) <= set("CEHQRSTW"):
        raise _Misused("qselect: illegal -s value")
    return lambda job: job.state in text


def _users(world: World, text: str) -> Condition:
    wanted = [name.split("@")[0] for name in text.split(",")]
    return lambda job: job.user in wanted


_READ: dict[str, Callable[[World, str], Condition]] = {
    "a": _time, "A": _account, "c": _checkpoint, "h": _holds, "N": _name, "p": _priority, "q": _queue,
    "r": _rerunable, "s": _states, "u": _users,
}  # fmt: skip


def _resources(text: str, *, is_old: bool) -> list[Condition]:
    """As read in the source: a job without it has less of it. In 6.1.3 all have less of everything."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\.(\w\w)\.(.+)", part)
        if match is None or match[2] not in _COMPARED:
            raise _Misused(f"qselect: illegal -l value\nresource_list: {text}")
        name, compare = match[1], _COMPARED[match[2]]
        if name not in RESOURCES:
            raise Refused(15037, f"Unknown resource type  Resource_List.{name}")
        value = canonical(name, match[3], is_old=is_old)
        found.append(_resource(name, compare, value if is_old else None))
    return found


def _resource(name: str, compare: Callable[[Any, Any], Any], value: str | None) -> Condition:
    def is_met(job: EmulatedJob) -> bool:
        own = job.resources.get(name)
        if own is None or value is None:
            return bool(compare(-1, 0))
        return bool(compare(_amount(name, own), _amount(name, value)))

    return is_met


def _amount(name: str, text: str) -> int | str:
    """A value that can be compared with others of its kind."""
    if name in ("walltime", "cput", "pcput"):
        return seconds_of(text)
    if name.endswith("mem") or name == "file":
        return size_kb(text)
    if name == "nodes":
        count = re.match(r"\d+", text)
        return int(count[0]) if count else 0
    return int(text) if re.fullmatch(r"-?\d+", text) else text
