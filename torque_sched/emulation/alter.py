"""qalter: attributes and resources of jobs that are there."""

from __future__ import annotations

import functools

from torque_sched.emulation.act import change_holds, each_job, permit, refuse_complete
from torque_sched.emulation.call import Answer, Call, Options
from torque_sched.emulation.checks import Misused, canonical, check_options, execution_time_s
from torque_sched.emulation.depend import read_depends, set_depends
from torque_sched.emulation.lifecycle import settle
from torque_sched.emulation.model import EmulatedJob, Refused
from torque_sched.emulation.placing import NeverFits, can_ever_fit
from torque_sched.emulation.spec import SpecError, parse_spec
from torque_sched.emulation.submit import RESOURCES, output_path, parse_pairs
from torque_sched.emulation.world import World

__all__ = ["qalter"]

_READ_ONLY = "Cannot set attribute, read only or insufficient permission "
_OPERATOR_ATTRIBUTES = frozenset(("comment", "exec_host"))
_EXTRAS = frozenset(
    ("comment", "exec_host", "x", "depend", "group_list", "umask", "stagein", "stageout", "job_radix")
)
_PLAIN = {"A": "Account_Name", "M": "Mail_Users", "N": "Job_Name", "S": "Shell_Path_List", "j": "Join_Path",
          "k": "Keep_Files", "m": "Mail_Points", "u": "User_List", "v": "Variable_List"}  # fmt: skip
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

    return each_job(world, call, "a:A:c:e:h:j:k:l:m:M:N:o:p:qr:S:t:u:v:W:x:", _alter, check)


def _alter(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    changes = dict(_changes(",".join(options.values.get("W", []))))
    permit(world, call, job)
    refuse_complete(job)
    unknown = changes.keys() - _EXTRAS
    if unknown:
        raise Refused(15002, f"Undefined attribute  {job.id}")
    if not world.is_admin(call.user) and _OPERATOR_ATTRIBUTES & changes.keys():
        raise Refused(15003, f"{_READ_ONLY} {job.id}")
    depends = changes.pop("depend", None)
    for key, value in changes.items():
        job.attributes[key] = _unquoted(value)
        if not value:
            del job.attributes[key]
    job.attributes["mtime"] = str(int(world.now_s))
    if options.values.keys() == {"W"} and depends is None and all(changes.values()):
        world.touch_attributes(job, (*changes, "mtime"))
        return
    members = [world.jobs[name] for name in job.members if name in world.jobs]
    for each in [job, *(member for member in members if member.state != "C")]:
        _alter_resources(world, call, each, options)
        _alter_plain(world, call, each, options)
        world.touch_job(each)
    if options.has("t") and job.members:
        job.slot_limit = int(options.last("t").partition("%")[2] or 0)
    if depends is not None:
        set_depends(world, job, depends)
        settle(world, job)
    _alter_state(world, call, job, options)
    world.touch_job(job)


def _alter_plain(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    for letter, name in _PLAIN.items():
        if options.has(letter):
            job.attributes[name] = options.last(letter)
    if options.has("p"):
        job.attributes["Priority"] = str(int(options.last("p")))
    if options.has("r"):
        job.attributes["Rerunable"] = "True" if options.last("r") == "y" else "False"
    for letter, name in (("o", "Output_Path"), ("e", "Error_Path")):
        if options.has(letter):
            job.attributes[name] = output_path(options.last(letter), world.settings.server, call.cwd)


def _unquoted(value: str) -> str:
    """A value in quotes without them: the client's parser leaves a blank where the closing one was."""
    is_quoted = len(value) > 1 and value[0] in "\"'" and value.rstrip()[-1:] == value[0]
    return value.rstrip()[1:-1] + " " if is_quoted else value


@functools.lru_cache(maxsize=64)
def _changes(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(parse_pairs(text).items())


def _alter_resources(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    for text in options.values.get("l", []):
        for key, value in parse_pairs(text).items():
            _alter_resource(world, call, job, key, value)


def _alter_resource(world: World, call: Call, job: EmulatedJob, key: str, value: str) -> None:
    if key not in RESOURCES:
        raise Refused(15037, f"Unknown resource type  {job.id}")
    if key == "neednodes" and not world.is_admin(call.user):
        raise Refused(15003, f"{_READ_ONLY} {job.id}")
    if job.state not in "QHW" and key in _WHEN_QUEUED:
        raise Refused(15017, f"Cannot modify attribute while job running  Resource_List.{key} {job.id}")
    try:
        kept = canonical(key, value, is_old=world.settings.is_old)
        if key == "nodes":
            count = sum(chunk.count for chunk in parse_spec(value))
            can_ever_fit(world, value, at_submission=True)
            job.resources.update(neednodes=value, nodect=str(count))
    except NeverFits as error:
        raise Refused(15038, f"Job exceeds queue resource limits {job.id}") from error
    except (Refused, SpecError) as error:
        gap = "  " if world.settings.is_old else " "
        raise Refused(15016, f"Illegal attribute or resource value for{gap}{job.id}") from error
    job.resources[key] = kept


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
