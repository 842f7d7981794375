"""qsub: options, script directives, the checks a server makes at submission, and the new job."""

from __future__ import annotations

import re
import shlex

from torque_sched.emulation.call import Answer, Call, Options, read_options, resolve
from torque_sched.emulation.checks import Misused, canonical, check_options, execution_time_s
from torque_sched.emulation.depend import link, read_depends, set_depends
from torque_sched.emulation.lifecycle import COMMANDS, hold_text, settle
from torque_sched.emulation.model import EmulatedJob, EmulatedQueue, Refused, size_kb
from torque_sched.emulation.placing import NeverFits, can_ever_fit
from torque_sched.emulation.routing import RETRY_S, check_limits, check_room, check_server, route
from torque_sched.emulation.spec import SpecError, parse_spec
from torque_sched.emulation.world import World

__all__ = ["RESOURCES", "array_indices", "output_path", "parse_pairs", "qsub"]

_LETTERS = "a:A:b:c:C:d:D:e:fF:hIj:k:K:l:L:m:M:nN:o:p:P:q:r:S:t:T:u:v:Vw:W:xXz"
RESOURCES = frozenset(
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
_INFEASIBLE = "Job exceeds queue resource limits MSG=cannot locate feasible nodes"
_PROHIBITED = (
    "Invalid gpu mode requested. Prohibited mode is not allowed. "
    "Check the spelling of the mode request for errors"
)
_BAD_GPU_MODE = 68
_CONFLICT = "This job's resource request conflicts with the queue's default resources."


def qsub(world: World, call: Call) -> Answer:
    """The command: prints the new id, or refuses with the error number modulo 256."""
    options = read_options(call.arguments, _LETTERS, permute=False)
    if options.error:
        return Answer(
            err=f"qsub: {options.error}\n{Misused('qsub', '').text.replace('qsub: ', 'exiting')}", code=2
        )
    if call.user == "root" and world.server.get("acl_roots") is None:
        text = "qsub can not be run as root\n"
        return Answer(out=text, code=1) if world.settings.is_old else Answer(err=text, code=1)
    script = options.words[0] if options.words else ""
    if script:
        try:
            text = resolve(call, script).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return Answer(err=f"qsub: script file '{script}' cannot be loaded - {error.strerror}\n", code=1)
    elif options.has("I"):
        text = ""
    elif call.stdin is None:
        return Answer(wants_stdin=True)
    else:
        text = call.stdin.decode("utf-8", "replace")
    options = _with_directives(options, text)
    try:
        check_options("qsub", options, world.now_s)
        _check_depends(world, options)
        job = _submit(world, call, options, script, text)
    except Misused as error:
        return Answer(err=error.text, code=2)
    except Refused as error:
        _spend_numbers(world)
        return Answer(err=f"qsub: submit error ({error.text})\n", code=error.exit_code)
    return Answer(out="" if options.has("z") else f"{job.id}\n")


def _check_depends(world: World, options: Options) -> None:
    text = parse_pairs(",".join(options.values.get("W", []))).get("depend", "")
    if text and not read_depends(text):
        shown = "" if world.settings.is_old else f" dependency value: '{text}'"
        raise Misused("qsub", f"illegal -W{shown or ' value'}")


def _spend_numbers(world: World) -> None:
    """A refused job has had a number all the same; the client of 4.2 tries three times."""
    world.next_job += 3 if world.settings.is_old else 1
    world.touch("server", "")


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
        if not indices:
            raise ValueError(text)
        return indices, int(limit or 0)
    except ValueError as error:
        raise Refused(15083, "Bad Job Array Request") from error


def _submit(world: World, call: Call, options: Options, script: str, text: str) -> EmulatedJob:
    queue = _queue(world, call, options)
    requested = _requested(options, world.settings.is_old)
    _check_user(world, call, options)
    job = _new_job(world, call, options, queue, script)
    _set_resources(world, job, queue, requested, options)
    _check(world, job, queue)
    _set_variables(world, call, options, job)
    n_new = len(_array_size(world, options.last("t"))[0]) if options.has("t") else 1
    waits_for_room = route(world, job, n_new)
    _set_waits(world, job, options)
    job.script = text
    job.id = world.full_id(str(world.next_job))
    world.next_job += 1
    world.touch("server", "")
    members = _members(world, job, options.last("t")) if options.has("t") else []
    _name_files(job)
    for each in [job, *members]:
        world.jobs[each.id] = each
        link(world, each)
        if each is not job or not members:
            settle(world, each)
            world.account("Q", each.id, f"queue={each.queue}")
    if waits_for_room:
        world.due(world.now_s + RETRY_S, "route", job.id)
    if members:
        _settle_array(world, job)
    world.notify(COMMANDS["new"])
    return job


def _set_waits(world: World, job: EmulatedJob, options: Options) -> None:
    depends = parse_pairs(",".join(options.values.get("W", []))).get("depend", "")
    if depends:
        set_depends(world, job, depends)
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
    job.attributes["etime"] = job.attributes["ctime"]
    if not world.settings.is_old:
        job.attributes.pop("qtime", None)
    world.touch_job(job)


def _queue(world: World, call: Call, options: Options) -> EmulatedQueue:
    name = options.last("q").split("@")[0] or world.server.get("default_queue", "")
    if not name:
        raise Refused(15039, "No default queue specified MSG=requested queue not found")
    queue = world.queues.get(name)
    if queue is None:
        raise Refused(15020, "Unknown queue MSG=requested queue not found")
    check_room(world, queue, call.user, call.environment.get("EMULATED_GROUP", "users"))
    return queue


def _requested(options: Options, is_old: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in options.values.get("l", []):
        for key, value in parse_pairs(text).items():
            if key not in RESOURCES:
                raise Refused(15037, f"Unknown resource type  Resource_List.{key}")
            found[key] = canonical(key, value, is_old=is_old)
    return found


def _check_user(world: World, call: Call, options: Options) -> None:
    wanted = options.last("u", call.user).split("@")[0]
    if wanted != call.user:
        whom = f"{call.user}/{wanted} from {world.settings.server}"
        raise Refused(15025, f"Bad UID for job execution MSG=ruserok failed validating {whom}")


def _new_job(world: World, call: Call, options: Options, queue: EmulatedQueue, script: str) -> EmulatedJob:
    now = str(int(world.now_s))
    rank = world.next_rank
    world.next_rank += 1
    host = world.settings.server
    place = options.last("d") or call.cwd
    name = script.rsplit("/", 1)[-1] if script else "STDIN"
    if options.has("N"):
        name = options.last("N") or "none"
    attributes = {
        "Job_Name": name,
        "Job_Owner": f"{call.user}@{host}",
        "Checkpoint": options.last("c", "u"),
        "ctime": now,
        "Error_Path": output_path(options.last("e"), host, place) or f"{host}:{place}/{name}.e",
        "Hold_Types": "n",
        "Join_Path": options.last("j", "n"),
        "Keep_Files": options.last("k", "n"),
        "Mail_Points": options.last("m", "a"),
        "mtime": now,
        "Output_Path": output_path(options.last("o"), host, place) or f"{host}:{place}/{name}.o",
        "Priority": str(int(options.last("p", "0"))),
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
    gpus = asked.pop("gpus", "")
    if gpus:
        asked["gres"] = ",".join(filter(None, [asked.get("gres", ""), f"gpus:{gpus}"]))
    asked.pop("neednodes", None)
    resources = dict(asked)
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
    if "nodes" in resources and "nodect" not in resources:
        _place_needs(resources, world.settings.is_old)
    job.resources = resources
    _set_extensions(world, job, options)


def _set_extensions(world: World, job: EmulatedJob, options: Options) -> None:
    extra = parse_pairs(",".join(options.values.get("W", [])))
    words = [text for text in options.values.get("W", []) if re.fullmatch(r"\w+", text)]
    if "x" in extra or words:
        job.attributes["x"] = extra.get("x") or words[-1]
    if "umask" in extra:
        # Shown as a decimal number.
        job.attributes["umask"] = str(int(extra["umask"], 8))
    if "group_list" in extra:
        wanted = extra["group_list"].split("@")[0]
        if wanted != job.group:
            raise Refused(
                15047, f"Bad GID for job execution MSG=cannot locate group {wanted} in server group file"
            )
        job.attributes["group_list"] = extra["group_list"]


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


def _check(world: World, job: EmulatedJob, queue: EmulatedQueue) -> None:
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


def _set_variables(world: World, call: Call, options: Options, job: EmulatedJob) -> None:
    mine = call.environment
    host = world.settings.server
    asked = _variables(",".join(options.values.get("v", [])), mine)
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
        **({"PBS_O_INITDIR": options.last("d")} if options.has("d") else {}),
        "PBS_O_WORKDIR": options.last("d") or call.cwd,
        "PBS_O_HOST": host,
        "PBS_O_SERVER": host,
    }
    job.attributes["Variable_List"] = ",".join(f"{key}={value}" for key, value in variables.items())
    _declare(world, job, asked)


def _variables(text: str, mine: dict[str, str]) -> dict[str, str]:
    """``A=1,B`` -> A as said, B from the client's environment."""
    found: dict[str, str] = {}
    last = ""
    for piece in text.split(",") if text else []:
        name, sign, value = piece.partition("=")
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            last = name
            found[name] = value if sign else mine.get(name, "")
        elif last:
            found[last] += f",{piece}"
    return found


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
            and place >= parent.slot_limit
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
    indices, limit = array_indices(text)
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
