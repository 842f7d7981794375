"""qsub: options, script directives, the checks a server makes at submission, and the new job."""

from __future__ import annotations

import re
import shlex
import time

from torque_sched.emulation.call import Answer, Call, Options, read_options, resolve
from torque_sched.emulation.lifecycle import COMMANDS, settle
from torque_sched.emulation.model import EmulatedJob, EmulatedQueue, Refused, size_kb
from torque_sched.emulation.placing import NeverFits, can_ever_fit
from torque_sched.emulation.routing import RETRY_S, check_limits, check_room, route
from torque_sched.emulation.spec import SpecError, parse_spec
from torque_sched.emulation.world import World

__all__ = ["array_indices", "execution_time_s", "parse_pairs", "qsub"]

_LETTERS = "a:A:b:c:C:d:D:e:fF:hIj:k:K:l:L:m:M:nN:o:p:P:q:r:S:t:T:u:v:Vw:W:xXz"
_RESOURCES = frozenset(
    [
        "nodes",
        "nodect",
        "neednodes",
        "walltime",
        "mem",
        "pmem",
        "vmem",
        "pvmem",
        "cput",
        "pcput",
        "ncpus",
        "procs",
        "gres",
        "feature",
        "host",
        "naccesspolicy",
        "arch",
        "opsys",
        "software",
        "file",
        "nice",
        "qos",
        "other",
        "prologue",
        "epilogue",
        "size",
        "partition",
        "gpus",
        "advres",
        "flags",
        "procs_bitmap",
        "trl",
        "var",
        "template",
        "depend",
        "nodeset",
        "reject",
        "tokens",
    ]
)
_INFEASIBLE = (
    "Job exceeds queue resource limits MSG=cannot locate feasible nodes (nodes file is empty, all systems "
    "are busy, or no nodes have the requested feature)"
)
_CONFLICT = "This job's resource request conflicts with the queue's default resources."


def qsub(world: World, call: Call) -> Answer:
    """The command: prints the new id, or refuses with the error number modulo 256."""
    options = read_options(call.arguments, _LETTERS, permute=False)
    if options.error:
        return Answer(
            err=f"qsub: {options.error}\nusage: qsub [-a date_time] [-A account_string] ...\n", code=1
        )
    if call.user == "root" and world.server.get("acl_roots") is None:
        return Answer(err="qsub can not be run as root\n", code=1)
    script = options.words[0] if options.words else ""
    if script:
        try:
            text = resolve(call, script).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return Answer(err=f"qsub: script file:: {error.strerror}\n", code=1)
    elif options.has("I"):
        text = ""
    elif call.stdin is None:
        return Answer(wants_stdin=True)
    else:
        text = call.stdin.decode("utf-8", "replace")
    options = _with_directives(options, text)
    try:
        job = _submit(world, call, options, script, text)
    except Refused as error:
        return Answer(err=f"qsub: submit error ({error.text})\n", code=error.exit_code)
    return Answer(out=f"{job.id}\n")


def _with_directives(options: Options, text: str) -> Options:
    prefix = options.last("C", "#PBS")
    words: list[str] = []
    for line in text.splitlines():
        if line.startswith(prefix):
            words += shlex.split(line[len(prefix) :], comments=True)
        elif line.strip() and not line.startswith(("#", ":")):
            break
    found = read_options(tuple(words), _LETTERS, permute=False).values
    # What the command line says wins; `-l`, `-v` and `-W` add up, the line's last.
    values = {**found, **options.values}
    for letter in "lvW":
        if letter in found or letter in options.values:
            values[letter] = found.get(letter, []) + options.values.get(letter, [])
    return Options(values, options.words)


def parse_pairs(text: str) -> dict[str, str]:
    """``a=1,b=x,y,c=`` -> a, b = ``x,y``, c: a comma separates only in front of ``name=``."""
    pairs: dict[str, str] = {}
    last = ""
    for piece in text.split(","):
        match = re.match(r"\s*([A-Za-z_][\w.]*)=(.*)", piece, re.DOTALL)
        if match:
            last = match[1]
            pairs[last] = match[2]
        elif last:
            pairs[last] += f",{piece}"
        elif piece.strip():
            last = piece.strip()
            pairs[last] = ""
    return pairs


def array_indices(text: str) -> tuple[list[int], int]:
    """``0-3%2`` -> ([0, 1, 2, 3], 2); limit 0 means none.

    Raises:
        Refused: not such a text.
    """
    body, _, limit = text.partition("%")
    indices: list[int] = []
    try:
        for part in body.split(","):
            first, _, last = part.partition("-")
            indices += range(int(first), int(last or first) + 1)
        return indices, int(limit or 0)
    except ValueError as error:
        raise Refused(15083, "Bad Job Array Request") from error


def execution_time_s(text: str, now_s: float) -> int:
    """``[[[[CC]YY]MM]DD]hhmm[.SS]`` -> epoch seconds, the next such moment.

    Raises:
        Refused: not such a text.
    """
    digits, _, seconds = text.partition(".")
    if not digits.isdigit() or len(digits) not in (4, 6, 8, 10, 12) or (seconds and not seconds.isdigit()):
        raise Refused(15016, "illegal -a value")
    here = time.localtime(now_s)
    full = {4: "{0:04d}{1:02d}{2:02d}", 6: "{0:04d}{1:02d}", 8: "{0:04d}", 10: "20", 12: ""}[len(digits)]
    whole = full.format(here.tm_year, here.tm_mon, here.tm_mday) + digits
    parts = [int(whole[:4]), *[int(whole[i : i + 2]) for i in range(4, 12, 2)]]
    at_s = time.mktime((parts[0], parts[1], parts[2], parts[3], parts[4], int(seconds or 0), 0, 0, -1))
    if at_s <= now_s and len(digits) == 4:
        at_s += 86400
    return int(at_s)


def _submit(world: World, call: Call, options: Options, script: str, text: str) -> EmulatedJob:
    queue = _queue(world, call, options)
    requested = _requested(options)
    job = _new_job(world, call, options, queue, script)
    _set_resources(world, job, queue, requested, options)
    _check(world, job, queue)
    _set_variables(world, call, options, job)
    n_new = len(array_indices(options.last("t"))[0]) if options.has("t") else 1
    waits_for_room = route(world, job, n_new)
    _set_depends(world, job, parse_pairs(",".join(options.values.get("W", []))))
    if options.has("a"):
        job.attributes["Execution_Time"] = str(execution_time_s(options.last("a"), world.now_s))
    if options.has("h"):
        job.holds = "u"
    job.script = text
    job.id = world.full_id(str(world.next_job))
    world.next_job += 1
    world.touch("server", "")
    members = _members(world, job, options.last("t")) if options.has("t") else []
    _name_files(job)
    for each in [job, *members]:
        world.jobs[each.id] = each
        _link_depends(world, each)
        if each is not job or not members:
            settle(world, each)
            world.account("Q", each.id, f"queue={each.queue}")
    if waits_for_room:
        world.due(world.now_s + RETRY_S, "route", job.id)
    if members:
        job.state = "H" if all(each.state == "H" for each in members) else "Q"
        job.attributes["etime"] = job.attributes["ctime"]
        job.attributes.pop("qtime", None)
        world.touch_job(job)
    world.notify(COMMANDS["new"])
    return job


def _queue(world: World, call: Call, options: Options) -> EmulatedQueue:
    name = (options.last("q") or world.server.get("default_queue", "")).split("@")[0]
    if not name:
        raise Refused(15039, "No default queue specified MSG=requested queue not found")
    queue = world.queues.get(name)
    if queue is None:
        raise Refused(15020, "Unknown queue MSG=requested queue not found")
    check_room(world, queue, call.user)
    return queue


def _requested(options: Options) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in options.values.get("l", []):
        for key, value in parse_pairs(text).items():
            if key not in _RESOURCES:
                raise Refused(15037, f"Unknown resource type  Resource_List.{key}")
            found[key] = value
    return found


def _new_job(world: World, call: Call, options: Options, queue: EmulatedQueue, script: str) -> EmulatedJob:
    now = str(int(world.now_s))
    rank = world.next_rank
    world.next_rank += 1
    host = world.settings.server
    home = call.environment.get("EMULATED_HOME", f"{world.settings.home}/{call.user}")
    name = options.last("N") or (script.rsplit("/", 1)[-1] if script else "STDIN")
    attributes = {
        "Job_Name": name,
        "Job_Owner": f"{call.user}@{host}",
        "Checkpoint": "u",
        "ctime": now,
        "Error_Path": options.last("e") or f"{host}:{home}/{name}.e",
        "Hold_Types": "n",
        "Join_Path": options.last("j", "n"),
        "Keep_Files": options.last("k", "n"),
        "Mail_Points": options.last("m", "a"),
        "mtime": now,
        "Output_Path": options.last("o") or f"{host}:{home}/{name}.o",
        "Priority": options.last("p", "0"),
        "qtime": now,
        "Rerunable": "False" if options.last("r") == "n" or options.has("I") else "True",
        "submit_args": " ".join(call.arguments),
        "fault_tolerant": "False",
        "job_radix": "0",
        "submit_host": host,
    }
    extra = {"A": "Account_Name", "M": "Mail_Users", "S": "Shell_Path_List", "u": "User_List"}
    attributes.update({extra[letter]: options.last(letter) for letter in extra if options.has(letter)})
    if options.has("I"):
        attributes["interactive"] = "True"
    if options.has("n"):
        attributes["node_exclusive"] = "True"
    if not world.settings.is_old:
        attributes.update(init_work_dir=options.last("d") or call.cwd, request_version="1")
    group = call.environment.get("EMULATED_GROUP", "users")
    return EmulatedJob("", rank, call.user, group, queue.name, "Q", 10, attributes)


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
    gpus = asked.pop("gpus", "")
    if gpus:
        asked["gres"] = ",".join(filter(None, [asked.get("gres", ""), f"gpus:{gpus}"]))
    asked.pop("neednodes", None)
    resources = dict(asked)
    if "nodes" in resources:
        _place_needs(resources)
    for key, value in defaults.items():
        if key == "neednodes" or key in resources:
            continue
        if key == "nodes" and (options.has("L") or "procs" in resources or "ncpus" in resources):
            continue
        resources[key] = value
    if "nodes" in resources and "nodect" not in resources:
        _place_needs(resources)
    job.resources = resources
    _set_extensions(job, options)


def _set_extensions(job: EmulatedJob, options: Options) -> None:
    extra = parse_pairs(",".join(options.values.get("W", [])))
    if "x" in extra:
        job.attributes["x"] = extra["x"]
    if "group_list" in extra:
        job.attributes["group_list"] = extra["group_list"]
        job.group = extra["group_list"].split("@")[0]


def _place_needs(resources: dict[str, str]) -> None:
    try:
        count = sum(chunk.count for chunk in parse_spec(resources["nodes"]))
    except SpecError as error:
        raise Refused(15016, "Illegal attribute or resource value  Resource_List.nodes") from error
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


def _check(world: World, job: EmulatedJob, queue: EmulatedQueue) -> None:
    check_limits(job, queue)
    needs = job.resources.get("nodes")
    single = needs is not None and ":" not in needs and "+" not in needs and not needs.isdigit()
    if needs is None or single:
        procs = job.resources.get("procs", "0")
        if procs.isdigit() and int(procs) > sum(node.np for node in world.nodes.values()):
            raise Refused(15038, _INFEASIBLE)
        if single and not any(needs in (n.name, *n.properties) for n in world.nodes.values()):
            raise Refused(15038, _INFEASIBLE)
        return
    try:
        can_ever_fit(world, needs)
    except NeverFits as error:
        raise Refused(15038, _INFEASIBLE) from error


def _set_variables(world: World, call: Call, options: Options, job: EmulatedJob) -> None:
    mine = call.environment
    host = world.settings.server
    asked = parse_pairs(",".join(options.values.get("v", [])))
    asked = {key: value or mine.get(key, "") for key, value in asked.items()}
    if options.has("V"):
        asked = {**{k: v for k, v in mine.items() if "," not in v and "\n" not in v}, **asked}
    home = mine.get("EMULATED_HOME", f"{world.settings.home}/{call.user}")
    variables = {
        "PBS_O_QUEUE": job.queue,
        "PBS_O_HOME": home,
        "PBS_O_LOGNAME": call.user,
        "PBS_O_PATH": mine.get("PATH", ""),
        "PBS_O_SHELL": mine.get("SHELL", "/bin/sh"),
        "PBS_O_LANG": mine.get("LANG", "C.UTF-8"),
        **asked,
        "PBS_O_WORKDIR": options.last("d") or call.cwd,
        "PBS_O_HOST": host,
        "PBS_O_SERVER": host,
    }
    job.attributes["Variable_List"] = ",".join(f"{key}={value}" for key, value in variables.items())
    _declare(world, job, asked)


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


def _set_depends(world: World, job: EmulatedJob, pairs: dict[str, str]) -> None:
    text = pairs.get("depend", "")
    if not text:
        return
    shown = []
    for part in text.split(","):
        kind, *names = part.split(":")
        if not kind.startswith(("after", "before")) or not names:
            raise Refused(15016, "Illegal attribute or resource value  depend")
        full = [world.full_id(name) for name in names]
        for name in full:
            if name not in world.jobs:
                raise Refused(15056, f"Invalid Job Dependency MSG=cannot locate job {name}")
        shown.append(":".join([kind, *full]))
        if kind.startswith("after"):
            job.depends += [(kind, name) for name in full if not _already(world, kind, name)]
    job.attributes["depend"] = ",".join(shown)
    if not job.depends:
        del job.attributes["depend"]


def _already(world: World, kind: str, name: str) -> bool:
    other = world.jobs[name]
    if kind == "after":
        return other.state in "RCES"
    if other.state != "C":
        return False
    status = int(other.attributes.get("exit_status", "0"))
    if kind == "afterany" or (kind == "afterok") == (status == 0):
        return True
    raise Refused(15056, f"Invalid Job Dependency MSG={kind} on {name} cannot be met any more")


def _link_depends(world: World, job: EmulatedJob) -> None:
    for kind, name in job.depends:
        other = world.jobs[name]
        before = kind.replace("after", "before")
        groups = dict(part.split(":", 1) for part in other.attributes.get("depend", "").split(",") if part)
        groups[before] = ":".join(filter(None, [groups.get(before, ""), job.id]))
        other.attributes["depend"] = ",".join(f"{key}:{names}" for key, names in groups.items())
        world.touch_job(other)


def _members(world: World, parent: EmulatedJob, text: str) -> list[EmulatedJob]:
    indices, parent.slot_limit = array_indices(text)
    number, _, host = parent.id.partition(".")
    parent.id = f"{number}[].{host}"
    parent.attributes["job_array_request"] = text
    members = []
    for place, index in enumerate(indices):
        member = _member(parent, number, index, world.next_rank)
        world.next_rank += 1
        if parent.slot_limit and place >= parent.slot_limit:
            if not member.holds and not member.depends and "Execution_Time" not in member.attributes:
                member.attributes["etime"] = member.attributes["ctime"]
            member.holds += "l"
        members.append(member)
    parent.members = [member.id for member in members]
    parent.depends = []
    return members


def _member(parent: EmulatedJob, number: str, index: int, rank: int) -> EmulatedJob:
    attributes = dict(parent.attributes)
    # Seen on real servers: members have no Hold_Types until something holds them.
    del attributes["job_array_request"], attributes["Hold_Types"]
    attributes.update(
        Job_Name=f"{attributes['Job_Name']}-{index}",
        job_array_id=str(index),
        Variable_List=f"PBS_ARRAYID={index},{attributes['Variable_List']}",
    )
    for key, letter in (("Error_Path", "e"), ("Output_Path", "o")):
        if attributes[key].endswith(f".{letter}"):
            attributes[key] += f"{number}-{index}"
    name = parent.id.replace("[]", f"[{index}]")
    member = EmulatedJob(name, rank, parent.user, parent.group, parent.queue, "Q", 10, attributes)
    member.resources, member.profile = dict(parent.resources), dict(parent.profile)
    member.holds, member.parent, member.depends = parent.holds, parent.id, list(parent.depends)
    member.runtime_s, member.exit_with = parent.runtime_s, parent.exit_with
    member.script, member.executes = parent.script, parent.executes
    return member


def _name_files(job: EmulatedJob) -> None:
    number = job.id.split(".")[0].split("[")[0]
    for key, letter in (("Error_Path", "e"), ("Output_Path", "o")):
        if job.attributes[key].endswith(f".{letter}"):
            job.attributes[key] += number
