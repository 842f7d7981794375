"""Dependencies between jobs: how they are written, what a submission links, what an end or a start settles.

The attribute ``depend`` of both sides is the truth: ``afterok:44.head`` on the one, ``beforeok:49.head`` on
the other. ``EmulatedJob.depends`` holds what a job still waits for.
"""

from __future__ import annotations

import re

from torque_sched.emulation.model import EmulatedJob, Refused
from torque_sched.emulation.world import World

_KINDS = ("after", "afterok", "afternotok", "afterany")
_ARRAY = re.compile(r"after(start|ok|notok|any)array(\[\d+\])?")
_COUNTS = ("on", "synccount")
Groups = list[tuple[str, list[str]]]


def read_depends(text: str) -> Groups:
    """``afterok:1:2,on:1`` -> kinds with their ids; nothing where the client would not send it."""
    groups: Groups = []
    for part in text.split(","):
        kind, *names = part.split(":")
        if names[1:] and not names[-1]:
            names.pop()
        if kind not in _COUNTS and any(name and not name[0].isdigit() for name in names):
            return []
        known = (*_KINDS, *(each.replace("after", "before") for each in _KINDS), *_COUNTS, "syncwith")
        if kind not in known and not _ARRAY.fullmatch(kind):
            return []
        groups.append((kind, names))
    return groups


def _written(groups: Groups) -> str:
    return ",".join(":".join([kind, *names]) for kind, names in groups if names)


def _store(world: World, job: EmulatedJob, groups: Groups) -> None:
    text = _written(groups)
    job.attributes["depend"] = text
    if not text:
        del job.attributes["depend"]
    world.touch_job(job)


def _groups(job: EmulatedJob) -> Groups:
    text = job.attributes.get("depend", "")
    return [
        (kind, names.split(":"))
        for kind, _, names in (part.partition(":") for part in text.split(",") if part)
    ]


def _invalid() -> Refused:
    return Refused(15056, "Invalid Job Dependency")


def set_depends(world: World, job: EmulatedJob, text: str) -> None:
    """Read what a job asked for; the other side is linked later, by :func:`link`.

    Raises:
        Refused: another job is unknown, or what is asked for has happened.
    """
    groups: Groups = []
    for kind, names in read_depends(text):
        if not names or not all(names):
            raise _invalid()
        if kind in _COUNTS and not all(name.isdigit() and int(name) for name in names):
            gap = "  " if world.settings.is_old else " "
            raise Refused(15016, f"Illegal attribute or resource value for{gap}depend")
        full = names if kind in _COUNTS else [world.full_id(name.partition("@")[0]) for name in names]
        for name in full:
            _check(world, kind, name)
        groups.append((kind, full))
        if not kind.startswith("before"):
            job.depends += [(kind, name) for name in full if not _has_begun(world, kind, name)]
    waited = {name for _, name in job.depends}
    _store(
        world, job, [(k, [n for n in names if k.startswith("before") or n in waited]) for k, names in groups]
    )


def add_depends(world: World, job: EmulatedJob, text: str) -> None:
    """What qalter does: other kinds stay, and of the same kind the new ones are instead of the old ones.

    Raises:
        Refused: another job is unknown; then what was there of the kind is gone, and a hold stays (15001).
    """
    groups = [
        (kind, [world.full_id(name.partition("@")[0]) for name in names])
        for kind, names in read_depends(text)
    ]
    for kind, names in groups:
        for other in [other for each, other in job.depends if each == kind]:
            if other in world.jobs:
                _leave(world, world.jobs[other], kind.replace("after", "before"), job.id)
        job.depends = [pair for pair in job.depends if pair[0] != kind]
        if kind not in _COUNTS and not all(name in world.jobs for name in names):
            job.holds = "".join(letter for letter in "uosl" if letter in job.holds + "s")
            raise Refused(15001, f"Unknown Job Id Error {job.id}")
    kept = [group for group in _groups(job) if group[0] not in dict(groups)]
    waits = list(job.depends)
    job.depends = []
    set_depends(world, job, text)
    link(world, job)
    _store(world, job, [*kept, *_groups(job)])
    job.depends = [*waits, *job.depends]


def _leave(world: World, job: EmulatedJob, kind: str, name: str) -> None:
    """Take a follower off a job's list."""
    _store(world, job, [(k, [n for n in names if (k, n) != (kind, name)]) for k, names in _groups(job)])


def _check(world: World, kind: str, name: str) -> None:
    if kind in _COUNTS:
        return
    other = world.jobs.get(name)
    if other is None or (_ARRAY.fullmatch(kind) and not other.is_array):
        raise _invalid()
    if kind == "syncwith" and not any(each == "synccount" for each, _ in other.depends):
        raise _invalid()
    if kind.startswith("before") and not any(each == "on" for each, _ in other.depends):
        raise _invalid()
    # Seen on real servers: a dependency that a completed job has met already is refused; one that it has not
    # met is accepted, and waits for ever.
    if kind in _KINDS and other.state == "C" and is_met(kind, int(other.attributes.get("exit_status", "0"))):
        raise _invalid()


def _has_begun(world: World, kind: str, name: str) -> bool:
    return kind == "after" and world.jobs[name].state in "RES"


def link(world: World, job: EmulatedJob) -> None:
    """Write the other side of a new job's dependencies."""
    for kind, name in job.depends:
        if "array" in kind and name in world.jobs:
            world.jobs[name].awaited.append(job.id)
            world.touch_job(world.jobs[name])
        elif kind in _KINDS and "[]" not in name:
            _join(world, world.jobs[name], kind.replace("after", "before"), job.id)
    for kind, names in _groups(job):
        for name in names if kind.startswith("before") else ():
            other = world.jobs[name]
            _count_down(world, other)
            after = kind.replace("before", "after")
            other.depends.append((after, job.id))
            _join(world, other, after, job.id)


def _count_down(world: World, job: EmulatedJob) -> None:
    count = next(int(number) for kind, number in job.depends if kind == "on")
    left = [("on", str(count - 1))] if count > 1 else []
    job.depends = [pair for pair in job.depends if pair[0] != "on"] + left
    kept = [group for group in _groups(job) if group[0] != "on"]
    _store(world, job, [*kept, *[(kind, [number]) for kind, number in left]])


def _join(world: World, job: EmulatedJob, kind: str, name: str) -> None:
    groups = _groups(job)
    for known, names in groups:
        if known == kind:
            names.append(name)
            break
    else:
        groups.append((kind, [name]))
    _store(world, job, groups)


def drop(world: World, job: EmulatedJob, kind: str, name: str) -> None:
    """Take one dependency off a job's list: met, or gone."""
    job.depends = [pair for pair in job.depends if pair != (kind, name)]
    _store(world, job, [(k, [n for n in names if (k, n) != (kind, name)]) for k, names in _groups(job)])


def followers(world: World, job: EmulatedJob, kinds: tuple[str, ...]) -> list[tuple[str, EmulatedJob]]:
    """Jobs that wait for this one: (the ``after`` kind, the job)."""
    found = []
    for kind, names in _groups(job):
        after = kind.replace("before", "after")
        if kind.startswith("before") and after in kinds:
            found += [
                (after, world.jobs[n])
                for n in names
                if n in world.jobs and (after, job.id) in world.jobs[n].depends
            ]
    return found


def is_met(kind: str, exit_status: int) -> bool:
    """Whether an end with that status is what the kind waits for."""
    if kind == "afterok":
        return exit_status == 0
    return exit_status != 0 if kind == "afternotok" else True
