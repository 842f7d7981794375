"""qsub: options, script directives, the checks a server makes at submission, and the new job."""

from __future__ import annotations

import re

from torque_sched.emulation.call import DENIED, Answer, Call, Options, check_listed, unknown_host
from torque_sched.emulation.checks import Misused, canonical, execution_time_s
from torque_sched.emulation.depend import link, set_depends
from torque_sched.emulation.lifecycle import COMMANDS, hold_text, settle
from torque_sched.emulation.model import NO_SLOTS, EmulatedJob, EmulatedQueue, Refused, range_indices, size_kb
from torque_sched.emulation.placing import NeverFits, SpecError, can_ever_fit, parse_spec
from torque_sched.emulation.qsub_client import (
    NeedsInput,
    Stopped,
    Submission,
    escaped,
    parse_pairs,
    read_submission,
    variables,
)
from torque_sched.emulation.routing import RETRY_S, check_kind, check_limits, check_room, check_server, route
from torque_sched.emulation.world import World

RESOURCES = frozenset(
    (
        "nodes", "nodect", "neednodes", "walltime", "mem", "pmem", "vmem", "pvmem", "cput", "pcput", "ncpus",
        "procs", "procct", "gres", "feature", "host", "hostlist", "naccesspolicy", "nallocpolicy", "arch",
        "opsys", "os", "software", "file", "nice", "qos", "other", "prologue", "epilogue", "size",
        "partition", "gpus", "mics", "advres", "flags", "procs_bitmap", "trl", "var", "template", "depend",
        "nodeset", "select", "mppwidth", "mppdepth", "mppnppn", "mppnodes", "mpplabels", "mpptime",
        "mpphost", "mpparch", "mppmem", "mppnodect", "deadline", "ddisk", "dmem", "gattr", "geometry",
        "gmetric", "image", "jgroup", "jobflags", "latency", "loglevel", "minprocspeed", "minpreempttime",
        "minwclimit", "pref", "queuejob", "reqattr", "retrycount", "retrycc", "rmtype", "sid", "signal",
        "stagein", "spriority", "subnode", "subnode_list", "taskdistpolicy", "taskspn", "termsig",
        "termtime", "tid", "tpn", "trig", "vcores", "wcrequeue", "tokens", "reject", "cpuclock",
    )
)  # fmt: skip
_READ_ONLY_RESOURCES = frozenset(("neednodes", "nodect"))
_INFEASIBLE = "Job exceeds queue resource limits MSG=cannot locate feasible nodes"
_PROHIBITED = (
    "Invalid gpu mode requested. Prohibited mode is not allowed. "
    "Check the spelling of the mode request for errors"
)
_BAD_GPU_MODE = 68
_NUMBER = "\0"
"""Stands for the job's number in the names of files until there is one."""
_READ_ONLY = "Cannot set attribute, read only or insufficient permission "
_EXTRA = {
    "A": "Account_Name", "F": "job_arguments", "M": "Mail_Users", "S": "Shell_Path_List", "T": "jobtype",
    "u": "User_List",
}  # fmt: skip
_CONFLICT = "This job's resource request conflicts with the queue's default resources."


def qsub(world: World, call: Call) -> Answer:
    """The command: prints the new id, or refuses with the error number modulo 256."""
    is_old = world.settings.is_old
    try:
        asked = read_submission(call, world.now_s, is_old=is_old)
    except NeedsInput:
        return Answer(wants_stdin=True)
    except (Misused, Stopped) as error:
        return Answer(err=error.text, code=error.code)
    if call.user == "root":
        text = "qsub can not be run as root\n"
        return Answer(out=text, code=1) if is_old else Answer(err=text, code=1)
    try:
        check_listed(world, call)
    except Refused as error:
        return Answer(err=f"qsub: submit error ({error.text})\n", code=error.exit_code)
    try:
        job = _submit(world, call, asked)
    except (Misused, Stopped) as error:
        return Answer(err=error.text, code=error.code)
    except Refused as error:
        _spend_numbers(world)
        return Answer(err=f"{asked.warning}qsub: submit error ({error.text})\n", code=error.exit_code)
    return Answer(out="" if asked.options.has("z") else f"{job.id}\n", err=asked.warning)


def _spend_numbers(world: World) -> None:
    """A refused job has had a number all the same; the client of 4.2 tries three times."""
    world.next_job += 3 if world.settings.is_old else 1
    world.touch("server", "")


def array_indices(text: str, *, is_old: bool) -> tuple[list[int], int]:
    """``0-3%2`` -> ([0, 1, 2, 3], 2); 0 without a limit, `NO_SLOTS` for a limit of nothing.

    Raises:
        Refused: not such a text.
    """
    body, sign, limit = text.partition("%")
    try:
        indices = range_indices(body)
        # The older reader takes no blanks, nothing twice, and nothing below zero.
        if is_old and (not indices or " " in body or len(body.split(",")) > len(indices)):
            raise ValueError(text)
        indices = sorted(indices) if is_old else indices
    except ValueError as error:
        raise Refused(15083, "Bad Job Array Request") from error
    most = re.match(r"\s*-?\d+", limit)
    number = int(most[0]) if most else 0
    # A limit below zero is none.
    return indices, max(0, number) if number or not sign or not limit else NO_SLOTS


def _submit(world: World, call: Call, asked: Submission) -> EmulatedJob:
    options = asked.options
    requested = _requested(options, is_old=world.settings.is_old)
    variables_ = _variables(call, options, is_old=world.settings.is_old)
    queue = _queue(world, call, options)
    _check_user(world, call, options)
    job = _new_job(world, call, asked, queue)
    _set_resources(world, job, queue, requested, options)
    _set_extensions(world, job, asked.extras)
    _check(world, job, queue, is_array=bool(options.last("t")))
    _set_variables(world, call, options, job, variables_)
    is_array = bool(options.last("t"))
    n_new = len(_array_size(world, options.last("t"))[0]) if is_array else 1
    waits_for_room = route(world, job, n_new)
    _set_waits(world, job, asked)
    job.script = asked.text
    job.id = world.full_id(str(world.next_job))
    world.next_job += 1
    world.touch("server", "")
    members = _members(world, job, options.last("t")) if is_array else []
    _name_files(job)
    for each in [job, *members]:
        world.jobs[each.id] = each
        link(world, each)
        if each is not job or not is_array:
            settle(world, each)
            if "stagein" in each.attributes and each.state == "Q":
                each.substate = 11
            world.account("Q", each.id, f"queue={each.queue}")
    if waits_for_room:
        world.due(world.now_s + RETRY_S, "route", job.id)
    if is_array:
        _settle_array(world, job)
    world.notify(COMMANDS["new"])
    return job


def _set_waits(world: World, job: EmulatedJob, asked: Submission) -> None:
    options = asked.options
    if "depend" in asked.extras:
        set_depends(world, job, asked.extras["depend"])
    if options.has("a"):
        at_s = execution_time_s(options.last("a"), world.now_s)
        if at_s > world.now_s or world.settings.is_old:
            job.attributes["Execution_Time"] = str(at_s)
    if options.has("h"):
        job.holds = "u"


def _settle_array(world: World, job: EmulatedJob) -> None:
    """Seen on real servers: an array waits in state Q whatever holds its members."""
    if job.holds or job.depends:
        job.substate = 22 if job.depends else 20
        job.attributes["Hold_Types"] = hold_text(world, job)
    elif job.seconds("Execution_Time") > world.now_s:
        job.substate = 30
    job.attributes["etime"] = job.attributes["ctime"]
    if not world.settings.is_old:
        job.attributes.pop("qtime", None)
    world.touch_job(job)


def _queue(world: World, call: Call, options: Options) -> EmulatedQueue:
    name, _, host = options.last("q").partition("@")
    if host not in ("", world.settings.server, "localhost"):
        text = unknown_host(host, 1, is_old=world.settings.is_old)
        text += f"qsub: cannot connect to server {host} (errno=15010) {DENIED}\n"
        raise Stopped(text, 15010 % 256)
    name = name or world.server.get("default_queue", "")
    if not name:
        raise Refused(15039, "No default queue specified MSG=requested queue not found")
    queue = world.queues.get(name)
    if queue is None:
        raise Refused(15020, "Unknown queue MSG=requested queue not found")
    check_room(world, queue, call.user, call.environment.get("EMULATED_GROUP", "users"))
    return queue


def _requested(options: Options, *, is_old: bool) -> dict[str, str]:
    """Resources as asked for; the client looks at their form, the server at names and values."""
    found: dict[str, str] = {}
    texts = options.values.get("l", [])
    for text in texts:
        if ",procs=" in text and "nodes=" in text:
            raise Misused("qsub", "illegal -l value")
        if not parse_pairs(text) or text.startswith("="):
            raise Misused("qsub", "illegal -l value")
        for key, value in parse_pairs(text).items():
            if f"{key}=" not in text:
                raise Stopped(f"Cannot find an attr=value pair in comma separated value '{key}'\n", 1)
            found[key] = value.strip()
    if not is_old and "nodes" in found and {"ncpus", "size"} & found.keys():
        raise Stopped("qsub: Jobs may not mix -l nodes with -l size or -l ncpus\n", 4)
    for key, value in found.items():
        if key not in RESOURCES:
            raise Refused(15037, f"Unknown resource type  Resource_List.{key}")
        if key in _READ_ONLY_RESOURCES:
            raise Refused(15003, f"{_READ_ONLY} Resource_List.{key}")
        found[key] = canonical(key, value, is_old=is_old) if value else ""
    return {key: value for key, value in found.items() if value or key == "nodes"}


def _check_user(world: World, call: Call, options: Options) -> None:
    if options.has("P") and not world.is_admin(call.user, manager=True):
        who = f"User '{call.user}' is attempting to submit a proxy job for user '{options.last('P')}'"
        raise Refused(15025, f"Bad UID for job execution MSG={who} but is not a manager")
    wanted = options.last("u", call.user).split(",")[0].split("@")[0]
    if wanted != call.user:
        whom = f"{call.user}/{wanted} from {world.settings.server}"
        raise Refused(15025, f"Bad UID for job execution MSG=ruserok failed validating {whom}")


def _new_job(world: World, call: Call, asked: Submission, queue: EmulatedQueue) -> EmulatedJob:
    options, script = asked.options, asked.script
    now = str(int(world.now_s))
    rank = world.next_rank
    world.next_rank += 1
    host = world.settings.server
    place = options.last("w") or options.last("d") or call.cwd
    name = script.rsplit("/", 1)[-1] if script else "STDIN"
    if options.has("N"):
        name = options.last("N") or "none"
    base = name.rsplit("/", 1)[-1]
    attributes = {
        "Job_Name": name,
        "Job_Owner": f"{call.user}@{host}",
        "Checkpoint": options.last("c", "u"),
        "ctime": now,
        "Error_Path": _file_path(options.last("e"), host, place, f"{base}.e{_NUMBER}"),
        "Hold_Types": "n",
        "Join_Path": options.last("j", "n"),
        "Keep_Files": options.last("k", "n"),
        "Mail_Points": options.last("m", "a"),
        "mtime": now,
        "Output_Path": _file_path(options.last("o"), host, place, f"{base}.o{_NUMBER}"),
        "Priority": str(int(options.last("p", "0"))),
        "qtime": now,
        "Rerunable": "False" if options.last("r") == "n" else "True",
        "submit_args": " ".join(call.arguments),
        "fault_tolerant": str(options.has("f")),
        "job_radix": "0",
        "submit_host": host,
    }
    _add_optional(world, attributes, options, place)
    group = call.environment.get("EMULATED_GROUP", "users")
    return EmulatedJob("", rank, call.user, group, queue.name, "Q", 10, attributes)


def _add_optional(world: World, attributes: dict[str, str], options: Options, place: str) -> None:
    """What a job has only if something asks for it."""
    attributes.update({_EXTRA[letter]: options.last(letter) for letter in _EXTRA if options.last(letter)})
    if attributes["Join_Path"] == "oe" and options.has("o") and not options.has("e"):
        attributes["Error_Path"] = attributes["Output_Path"]
    if "dir=" in attributes["Checkpoint"]:
        attributes["checkpoint_dir"] = attributes["Checkpoint"].partition("dir=")[2].partition(",")[0]
    if options.has("n") or options.has("E"):
        attributes["node_exclusive"] = "True"
    if options.has("w") or not world.settings.is_old:
        attributes["init_work_dir"] = place
    if not world.settings.is_old:
        attributes["request_version"] = "1"


def _file_path(text: str, host: str, place: str, default: str) -> str:
    path = output_path(text, host, place) or f"{host}:"
    if path.endswith(":"):
        return f"{path}{place}/{default}"
    return f"{path}{default}" if path.endswith("/") else path


def output_path(text: str, host: str, place: str) -> str:
    """Where output goes, as the server keeps it: with a host, from the root."""
    if not text or ":" in text:
        return text
    return f"{host}:{text}" if text.startswith("/") else f"{host}:{place}/{text}"


def _set_resources(
    world: World, job: EmulatedJob, queue: EmulatedQueue, asked: dict[str, str], options: Options
) -> None:
    defaults = {
        key.partition(".")[2]: value
        for source in (queue.attributes, world.server)
        for key, value in source.items()
        if key.startswith("resources_default.")
    }
    if options.has("L"):
        if "nodes" in defaults:
            raise Refused(55, _CONFLICT)
        _set_tasks(job, options)
    resources = _derived(asked)
    if "nodes" in resources:
        _place_needs(resources, world.settings.is_old)
    for key, value in defaults.items():
        if key == "neednodes" or key in resources:
            continue
        others = not world.settings.is_old and {"procs", "ncpus", "size"} & resources.keys()
        if key == "nodes" and (options.has("L") or others):
            continue
        resources[key] = value
        job.defaulted.append(key)
    if "features_required" in queue.attributes:
        resources.setdefault("feature", queue.attributes["features_required"])
    if "nodes" in resources and "nodect" not in resources:
        _place_needs(resources, world.settings.is_old)
    job.resources = resources


def _derived(asked: dict[str, str]) -> dict[str, str]:
    """What was asked for, with what the server makes of it."""
    resources = dict(asked)
    if "mppwidth" in resources:
        resources["mppnodect"] = "-1"
    gpus = resources.pop("gpus", "")
    if gpus:
        resources["gres"] = ",".join(filter(None, [resources.get("gres", ""), f"gpus:{gpus}"]))
    return resources


def _set_extensions(world: World, job: EmulatedJob, extras: dict[str, str]) -> None:
    for key, value in extras.items():
        if key in ("x", "stagein", "stageout", "job_radix", "fault_tolerant"):
            job.attributes[key] = value
        elif key == "umask":
            if not value.isdigit():
                gap = "  " if world.settings.is_old else " "
                raise Refused(15016, f"Illegal attribute or resource value for{gap}umask")
            job.attributes[key] = value
        elif key == "group_list":
            wanted = value.split("@")[0]
            if wanted != job.group:
                text = f"cannot locate group {wanted} in server group file"
                raise Refused(15047, f"Bad GID for job execution MSG={text}")
            job.attributes[key] = value
        elif key != "depend":
            raise Refused(15002, "Undefined attribute  MSG=detected presence of an unknown attribute")


def _place_needs(resources: dict[str, str], is_old: bool) -> None:
    try:
        count = sum(chunk.count for chunk in parse_spec(resources["nodes"]))
    except SpecError as error:
        if error.is_amount:
            raise Refused(15131, "Command syntax invalid MSG=Invalid Syntax") from error
        gap = "  " if is_old else " "
        raise Refused(15016, f"Illegal attribute or resource value for{gap}Resource_List.nodes") from error
    resources["nodect"] = str(count)
    resources["neednodes"] = resources["nodes"]


def _set_tasks(job: EmulatedJob, options: Options) -> None:
    job.attributes["request_version"] = "2"
    for number, text in enumerate(options.values["L"]):
        for part in text.split(":"):
            key, _, value = part.partition("=")
            if key == "tasks":
                job.attributes[f"req_information.task_count.{number}"] = value
            elif key == "memory":
                job.attributes[f"req_information.memory.{number}"] = f"{size_kb(value)}kb"
            elif value:
                job.attributes[f"req_information.{key}.{number}"] = value
    job.attributes["L_Request"] = "-L " + " -L ".join(options.values["L"])


def _check(world: World, job: EmulatedJob, queue: EmulatedQueue, *, is_array: bool) -> None:
    check_kind(world, queue, job, is_array=is_array)
    check_limits(world, job, queue)
    check_server(world, job, queue)
    if world.settings.is_old and int(job.resources.get("procs", "0")) > sum(
        n.np for n in world.nodes.values()
    ):
        raise Refused(15038, f"{_INFEASIBLE} (nodes file is empty or requested nodes exceed system)")
    needs = job.resources.get("nodes")
    if needs is None:
        return
    if "prohibited" in needs.split(":") and not world.settings.is_old:
        raise Refused(_BAD_GPU_MODE, _PROHIBITED)
    try:
        can_ever_fit(world, needs, at_submission=True)
    except NeverFits as error:
        reason = "nodes file is empty, all systems are busy, or no nodes have the requested feature"
        raise Refused(15038, f"{_INFEASIBLE} ({reason})") from error


def _variables(call: Call, options: Options, *, is_old: bool) -> list[tuple[str, str]]:
    return variables(options.last("v") if options.has("v") else None, call.environment, is_old=is_old)


def _set_variables(
    world: World, call: Call, options: Options, job: EmulatedJob, asked: list[tuple[str, str]]
) -> None:
    mine = call.environment
    host = world.settings.server
    pairs = [
        ("PBS_O_QUEUE", job.queue),
        ("PBS_O_HOME", mine.get("EMULATED_HOME", f"{world.settings.home}/{call.user}")),
        ("PBS_O_LOGNAME", call.user),
        ("PBS_O_PATH", mine.get("PATH", "")),
        ("PBS_O_SHELL", mine.get("SHELL", "/bin/sh")),
        ("PBS_O_LANG", mine.get("LANG", "C.UTF-8")),
        *([] if options.has("V") else asked),
        *([("PBS_O_ROOTDIR", options.last("D"))] if options.has("D") else []),
        *([("PBS_O_INITDIR", options.last("d"))] if options.has("d") else []),
        ("PBS_O_WORKDIR", options.last("w") or options.last("d") or call.cwd),
        ("PBS_O_HOST", host),
        ("PBS_O_SERVER", host),
    ]
    if options.has("V"):
        own = (pair for pair in mine.items() if not pair[0].startswith("EMULATED_"))
        pairs += [*asked, *((key, escaped(value)) for key, value in own)]
    job.attributes["Variable_List"] = ",".join(f"{key}={value}" for key, value in pairs)
    _declare(world, job, dict(asked) if not options.has("V") else {**mine, **dict(asked)})


def _declare(world: World, job: EmulatedJob, asked: dict[str, str]) -> None:
    """Read what the job says of itself: run time, exit status, load."""
    try:
        if "EMULATED_RUNTIME" in asked:
            job.runtime_s = float(asked["EMULATED_RUNTIME"])
        job.exit_with = int(asked.get("EMULATED_EXIT", "0"))
        for key, name in (("CPU", "cpu"), ("GPU", "gpu"), ("GPU_MEM", "gpu_mem_mb")):
            if f"EMULATED_{key}" in asked:
                job.profile[name] = float(asked[f"EMULATED_{key}"])
        if "EMULATED_MEM" in asked:
            job.profile["mem_kb"] = float(size_kb(asked["EMULATED_MEM"]))
    except ValueError as error:
        raise Refused(15016, f"Illegal attribute or resource value  EMULATED_*: {error}") from error
    job.executes = world.settings.executes and job.runtime_s is None


def _members(world: World, parent: EmulatedJob, text: str) -> list[EmulatedJob]:
    indices, parent.slot_limit = _array_size(world, text)
    number, _, host = parent.id.partition(".")
    parent.id = f"{number}[].{host}"
    parent.attributes["job_array_request"] = text.partition("%")[0] if world.settings.is_old else text
    members = []
    for place, index in enumerate(indices):
        member = _member(parent, number, index, world.next_rank)
        world.next_rank += 1
        if (
            parent.slot_limit
            and place >= max(0, parent.slot_limit)
            and world.server.get("moab_array_compatible") == "True"
        ):
            if not member.holds and not member.depends and "Execution_Time" not in member.attributes:
                member.attributes["etime"] = member.attributes["ctime"]
            member.holds += "l"
        members.append(member)
    parent.members = [member.id for member in members]
    return members


def _array_size(world: World, text: str) -> tuple[list[int], int]:
    """Indices and slot limit, within the server's own limits."""
    indices, limit = array_indices(text, is_old=world.settings.is_old)
    most, largest = (int(world.server.get(key, "0")) for key in ("max_slot_limit", "max_job_array_size"))
    if most and limit > most:
        raise Refused(15083, f"Bad Job Array Request MSG=Requested slot limit invalid, limit is {most}")
    if largest and len(indices) > largest:
        raise Refused(15083, f"Bad Job Array Request MSG=Requested array size too large, limit is {largest}")
    return indices, limit or most


def _member(parent: EmulatedJob, number: str, index: int, rank: int) -> EmulatedJob:
    attributes = dict(parent.attributes)
    # Seen on real servers: members have no Hold_Types until something holds them.
    del attributes["job_array_request"], attributes["Hold_Types"]
    attributes.update(
        Job_Name=f"{attributes['Job_Name']}-{index}",
        job_array_id=str(index),
        Variable_List=f"PBS_ARRAYID={index},{attributes['Variable_List']}",
    )
    for key in ("Error_Path", "Output_Path"):
        named = attributes[key].replace(_NUMBER, number)
        attributes[key] = f"{named}-{index}"
    name = parent.id.replace("[]", f"[{index}]")
    member = EmulatedJob(name, rank, parent.user, parent.group, parent.queue, "Q", 10, attributes)
    member.resources, member.profile = dict(parent.resources), dict(parent.profile)
    member.holds, member.parent, member.depends = parent.holds, parent.id, list(parent.depends)
    member.runtime_s, member.exit_with = parent.runtime_s, parent.exit_with
    member.script, member.executes = parent.script, parent.executes
    return member


def _name_files(job: EmulatedJob) -> None:
    number = job.id.split(".")[0].split("[")[0]
    for key in ("Error_Path", "Output_Path"):
        job.attributes[key] = job.attributes[key].replace(_NUMBER, number)
