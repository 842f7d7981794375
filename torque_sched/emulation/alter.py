"""qalter: attributes and resources of jobs that are there."""

from __future__ import annotations

import functools

from torque_sched.emulation.act import change_holds, each_job, permit, refuse_complete, targets
from torque_sched.emulation.call import Answer, Call, Options
from torque_sched.emulation.checks import Misused, canonical, check_options, execution_time_s
from torque_sched.emulation.depend import add_depends, read_depends
from torque_sched.emulation.lifecycle import settle
from torque_sched.emulation.model import EmulatedJob, Refused
from torque_sched.emulation.placing import NeverFits, SpecError, can_ever_fit, parse_spec
from torque_sched.emulation.qsub_client import parse_pairs, unquoted
from torque_sched.emulation.routing import check_limits, check_server
from torque_sched.emulation.submit import RESOURCES, output_path
from torque_sched.emulation.world import World

_READ_ONLY = "Cannot set attribute, read only or insufficient permission "
_OPERATOR_ATTRIBUTES = frozenset(("comment", "exec_host"))
_EXTRAS = frozenset(
    ("comment", "exec_host", "x", "depend", "group_list", "umask", "stagein", "stageout", "job_radix")
)
_MANAGERS_MAY = frozenset(("queue", "Priority", "Job_Name"))
_PLAIN = {
    "A": "Account_Name", "c": "Checkpoint", "M": "Mail_Users", "N": "Job_Name", "S": "Shell_Path_List",
    "j": "Join_Path", "k": "Keep_Files", "m": "Mail_Points", "u": "User_List", "v": "Variable_List",
}  # fmt: skip
_WHEN_QUEUED = frozenset(("nodes", "procs"))


def qalter(world: World, call: Call) -> Answer:
    """Change jobs; many ids at once, and only an operator may set a comment."""

    def check(options: Options) -> str:
        try:
            check_options("qalter", options, world.now_s)
            for text in options.values.get("W", []):
                if not read_depends(parse_pairs(text).get("depend", "after:1")):
                    return "illegal -W value"
        except Misused as error:
            return str(error)
        return ""

    return each_job(world, call, "a:A:c:e:h:j:k:l:L:m:M:n:N:o:p:qr:S:t:u:v:W:x:", _alter, check)


def _alter(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    changes = dict(_changes(",".join(options.values.get("W", []))))
    permit(world, call, job)
    refuse_complete(job)
    _check_changes(world, call, job, options, changes)
    if "queue" in changes:
        job.queue = changes.pop("queue")
    if "umask" in changes:
        changes["umask"] = str(int(changes["umask"]))
    depends = changes.pop("depend", None)
    for key, value in changes.items():
        job.attributes[key] = unquoted(value)
        if not value:
            del job.attributes[key]
    job.attributes["mtime"] = str(int(world.now_s))
    members = [each for each in targets(world, job, options) if each is not job and each.state != "C"]
    for each in members:
        each.attributes.update({key: unquoted(value) for key, value in changes.items() if value})
    if options.values.keys() == {"W"} and depends is None and all(changes.values()):
        for each in [job, *members]:
            world.touch_attributes(each, (*changes, "mtime"))
        return
    is_ranged = options.has("t") and bool(options.last("t").partition("%")[0])
    for each in members if is_ranged and job.is_array else [job, *members]:
        _alter_resources(world, call, each, options)
        _alter_plain(world, call, each, options)
        world.touch_job(each)
    _alter_slot_limit(world, job, options)
    if depends is not None:
        _alter_depends(world, job, depends)
    _alter_state(world, call, job, options)
    world.touch_job(job)


def _alter_depends(world: World, job: EmulatedJob, text: str) -> None:
    try:
        add_depends(world, job, text)
    finally:
        settle(world, job)
        if job.state == "H" and "s" in job.holds:
            job.substate = 22


def _check_changes(
    world: World, call: Call, job: EmulatedJob, options: Options, changes: dict[str, str]
) -> None:
    """What may be changed by whom, and as whom a job may run.

    Raises:
        Refused: an attribute that is none or not his; another user; a group that is not the user's.
    """
    is_admin = world.is_admin(call.user)
    if changes.keys() - (_EXTRAS | (_MANAGERS_MAY if is_admin else frozenset())):
        raise Refused(15002, f"Undefined attribute  {job.id}")
    if not is_admin and (_OPERATOR_ATTRIBUTES & changes.keys() or options.has("x")):
        raise Refused(15003, f"{_READ_ONLY} {job.id}")
    if options.last("u", job.user).split(",")[0].split("@")[0] != job.user:
        raise Refused(15025, f"Bad UID for job execution {job.id}")
    if changes.get("group_list", job.group).split("@")[0] != job.group:
        raise Refused(15047, f"Bad GID for job execution {job.id}")


def _alter_slot_limit(world: World, job: EmulatedJob, options: Options) -> None:
    """Seen on 6.1.3: as many more are held as the limit is lower, those that are over not excepted."""
    _, sign, text = options.last("t").partition("%")
    if not sign or not job.members:
        return
    old, job.slot_limit = job.slot_limit, int(text) if text.isdigit() else 0
    if world.settings.is_old or old <= 0:
        return
    members = [world.jobs[name] for name in job.members if name in world.jobs]
    free = [each for each in members if each.state not in "RES" and "l" not in each.holds]
    for each in free[: max(0, old - job.slot_limit)]:
        change_holds(world, each, each.holds + "l")


def _alter_plain(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    for letter, name in _PLAIN.items():
        if options.last(letter):
            job.attributes[name] = options.last(letter)
    if options.has("p"):
        job.attributes["Priority"] = str(int(options.last("p")))
    if options.has("r"):
        job.attributes["Rerunable"] = "True" if options.last("r") == "y" else "False"
    for letter, name in (("o", "Output_Path"), ("e", "Error_Path")):
        if options.has(letter):
            job.attributes[name] = output_path(options.last(letter), world.settings.server, call.cwd)


@functools.lru_cache(maxsize=64)
def _changes(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(parse_pairs(text).items())


def _alter_resources(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    for text in options.values.get("l", []):
        for key, value in parse_pairs(text).items():
            _alter_resource(world, call, job, key, value)


def _alter_resource(world: World, call: Call, job: EmulatedJob, key: str, value: str) -> None:
    is_admin = world.is_admin(call.user)
    if key not in RESOURCES:
        raise Refused(15037, f"Unknown resource type  {job.id}")
    if key in ("neednodes", "nodect") and not is_admin:
        raise Refused(15003, f"{_READ_ONLY} {job.id}")
    if job.state not in "QHW" and key in _WHEN_QUEUED:
        raise Refused(15017, f"Cannot modify attribute while job running  Resource_List.{key} {job.id}")
    queue = world.queues.get(job.queue)
    if not value:
        default = queue.attributes.get(f"resources_default.{key}") if queue is not None else None
        job.resources.pop(key, None)
        job.resources.update({key: default} if default is not None else {})
        return
    before = dict(job.resources)
    if key == "gpus":
        job.resources["gres"] = f"gpus:{value}"
        return
    job.resources.update(_wanted(world, job, key, value))
    if queue is not None and key == "nodes" and "features_required" in queue.attributes:
        job.resources["feature"] = queue.attributes["features_required"]
    # Seen on 6.1.3: another number of nodes is checked with the next change only.
    if queue is not None and not is_admin and key != "nodes":
        try:
            check_limits(world, job, queue)
            check_server(world, job, queue)
        except Refused as error:
            job.resources = before
            raise Refused(error.code, f"{error.text.partition(' MSG=')[0]} {job.id}") from error


def _wanted(world: World, job: EmulatedJob, key: str, value: str) -> dict[str, str]:
    """A resource as the server keeps it, with what follows from it."""
    gap = "  " if world.settings.is_old else " "
    try:
        wanted = {key: canonical(key, value, is_old=world.settings.is_old)}
        if key == "nodes":
            count = sum(chunk.count for chunk in parse_spec(value))
            can_ever_fit(world, value, at_submission=True)
            wanted.update(neednodes=value, nodect=str(count))
    except NeverFits as error:
        raise Refused(15038, f"Job exceeds queue resource limits {job.id}") from error
    except (Refused, SpecError) as error:
        raise Refused(15016, f"Illegal attribute or resource value for{gap}{job.id}") from error
    return wanted


def _alter_state(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    if options.has("a"):
        at_s = execution_time_s(options.last("a"), world.now_s)
        job.attributes["Execution_Time"] = str(at_s)
        if at_s <= world.now_s and not world.settings.is_old:
            del job.attributes["Execution_Time"]
        if job.state in "QHW" and not job.members:
            settle(world, job)
    if options.has("h"):
        letters = "" if options.last("h") == "n" else options.last("h")
        if set(letters + job.holds) & set("os") and not world.is_admin(call.user):
            raise Refused(15007, f"Unauthorized Request  {job.id}")
        change_holds(world, job, letters + ("l" if "l" in job.holds else ""))
