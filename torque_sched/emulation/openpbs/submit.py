"""qsub of OpenPBS: options and directives, the select that the server makes of them, and the new job."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePath

from torque_sched.emulation.call import Answer, Call, Options, read_options, resolve
from torque_sched.emulation.checks import execution_time_s
from torque_sched.emulation.model import EmulatedJob, EmulatedQueue, Refused, seconds_of, size_kb
from torque_sched.emulation.openpbs.lifecycle import settle
from torque_sched.emulation.openpbs.values import (
    Chunk,
    add,
    chunks_of,
    indices_of,
    multiply,
    select_text,
    size_bytes,
)
from torque_sched.emulation.qsub_client import parse_pairs
from torque_sched.emulation.world import World

CONSUMABLE = frozenset(("ncpus", "mem", "vmem", "mpiprocs", "naccelerators", "accelerator_memory", "hbmem"))
CHUNK = frozenset((*CONSUMABLE, "ompthreads", "host", "vnode", "arch", "accelerator", "accelerator_model"))
JOB_WIDE = frozenset(
    (
        "walltime", "cput", "pcput", "pmem", "pvmem", "software", "file", "nice", "min_walltime",
        "max_walltime", "soft_walltime", "select", "place", "nodes", "nodect", "preempt_targets",
    )
)  # fmt: skip
_LETTERS = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:XzG"
_HOUSE = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL")
_PATH = "/opt/pbs/bin:/opt/pbs/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_CLIENT_ERROR = 2
LONGEST_ARRAY = 10_000


@dataclass(slots=True)
class _NewJob:
    """One submission as the client sends it."""

    options: Options
    resources: dict[str, str]
    script: str
    name: str
    extras: dict[str, str]
    executable: list[str] = field(default_factory=list)


def qsub(world: World, call: Call) -> Answer:
    """Print the new id, or refuse with the error number modulo 256."""
    try:
        asked = _read(call)
        if asked is None:
            return Answer(wants_stdin=True)
        job = _submit(world, call, asked)
    except Refused as error:
        return Answer(err=f"qsub: {error.text}\n", code=error.exit_code)
    except ValueError as error:
        return Answer(err=f"qsub: {error}\n", code=_CLIENT_ERROR)
    return Answer(out="" if asked.options.has("z") else f"{job.id}\n")


def _read(call: Call) -> _NewJob | None:
    """The command line and the script's directives; None: send standard input first."""
    words = list(call.arguments)
    executable: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, executable = words[:at], words[at + 1 :]
    own = read_options(tuple(words), _LETTERS, permute=False)
    if own.error:
        raise ValueError(own.error)
    script_text, name = "", "STDIN"
    if executable:
        script_text, name = shlex.join(executable) + "\n", PurePath(executable[0]).name
    elif own.words:
        path = resolve(call, own.words[0])
        try:
            script_text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise Refused(1, f"script file:: {error.strerror}") from error
        name = path.name
    elif call.stdin is None:
        return None
    else:
        script_text = call.stdin.decode("utf-8", "replace")
    found = read_options(_directives(own, script_text), _LETTERS, permute=False)
    values = {**found.values, **own.values}
    for letter in "lWv":
        values[letter] = found.values.get(letter, []) + own.values.get(letter, [])
    options = Options({key: value for key, value in values.items() if value}, own.words)
    resources: dict[str, str] = {}
    for text in options.values.get("l", []):
        resources.update(resources_of(text))
    extras: dict[str, str] = {}
    for text in options.values.get("W", []):
        extras.update(parse_pairs(text))
    return _NewJob(options, resources, script_text, options.last("N", name), extras, executable)


def _directives(own: Options, text: str) -> tuple[str, ...]:
    prefix = own.last("C", "#PBS")
    words: list[str] = []
    for line in text.splitlines():
        if prefix and line.startswith(prefix):
            words += shlex.split(line[len(prefix) :], comments=True)
        elif line.strip() and not line.lstrip().startswith(("#", ":")):
            break
    return tuple(words)


def resources_of(text: str) -> dict[str, str]:
    """``-l`` as the client takes it apart: a comma separates unless it is quoted; quotes go.

    >>> resources_of("select=2:ncpus=1:tag='a,b',walltime=60")
    {'select': '2:ncpus=1:tag=a,b', 'walltime': '60'}
    """
    parts, quote, is_in = [""], "", False
    for letter in text:
        if letter == quote or (not quote and letter in "\"'"):
            quote, is_in = letter, not is_in
        elif letter == "," and not is_in:
            parts.append("")
        else:
            parts[-1] += letter
    pairs = (part.partition("=") for part in parts)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _custom(world: World) -> dict[str, dict[str, str]]:
    """The resources that the site made: name -> type and flag."""
    return {
        name.partition(" ")[2]: each.attributes
        for name, each in world.objects.items()
        if name.startswith("resource ")
    }


def is_summed(world: World, name: str) -> bool:
    """Whether the chunks' amounts of a resource add up to the job's."""
    flags = _custom(world).get(name, {}).get("flag", "")
    return name in CONSUMABLE or "n" in flags or "f" in flags


def check_known(world: World, names: set[str], *, in_chunk: bool) -> None:
    """Refuse what is no resource.

    Raises:
        Refused: names it.
    """
    known = CHUNK | _custom(world).keys() | (frozenset() if in_chunk else JOB_WIDE)
    for name in sorted(names - known):
        raise Refused(15035, f"Unknown resource: {name}")


def _queue(world: World, options: Options) -> EmulatedQueue:
    name = options.last("q").partition("@")[0] or world.server.get("default_queue", "")
    queue = world.queues.get(name)
    if queue is None:
        raise Refused(15020, "Unknown queue")
    if not queue.is_true("enabled"):
        raise Refused(15024, "Queue is not enabled")
    return queue


def _select(world: World, asked: dict[str, str], queue: EmulatedQueue) -> tuple[str, str]:
    """The select and place that the server makes of what was asked for.

    Raises:
        Refused: unknown resources, or both forms at once.
    """
    defaults = _family(world.server, "default_chunk") | _family(queue.attributes, "default_chunk")
    if "select" in asked:
        if "nodes" in asked:
            raise Refused(6, "Cannot be used with select or place: nodes")
        try:
            chunks = list(chunks_of(asked["select"]))
        except ValueError as error:
            raise Refused(15040, f"Illegal attribute or resource value for {error}") from error
        place = asked.get("place", "free")
    elif "nodes" in asked:
        chunks = _of_nodes(asked)
        place = asked.get("place", "scatter")
    else:
        wanted = {key: value for key, value in asked.items() if key not in JOB_WIDE}
        chunks = [(1, tuple(sorted(wanted.items())))]
        place = asked.get("place", "pack")
    for _, pairs in chunks:
        check_known(world, {key for key, _ in pairs}, in_chunk=True)
    filled = [
        (count, pairs + tuple((k, v) for k, v in defaults.items() if k not in dict(pairs)))
        for count, pairs in chunks
    ]
    return select_text(filled), place


def _of_nodes(asked: dict[str, str]) -> list[Chunk]:
    """``-l nodes=2:ppn=2 -l mem=4gb``: a chunk each, the memory divided."""
    parts = []
    for text in asked["nodes"].split("+"):
        head, *words = text.split(":")
        count = int(head) if head.isdigit() else 1
        n_cpus = next((word.partition("=")[2] for word in words if word.startswith("ppn=")), "1")
        names = [word for word in [*([] if head.isdigit() else [head]), *words] if "=" not in word]
        parts.append((count, n_cpus, names))
    total = sum(count for count, _, _ in parts)
    chunks: list[Chunk] = []
    for count, n_cpus, names in parts:
        pairs = [("ncpus", n_cpus)]
        if "mem" in asked:
            pairs.append(("mem", f"{size_kb(asked['mem']) // total}KB"))
        pairs.append(("mpiprocs", n_cpus))
        chunks.append((count, (*pairs, *(("host", name) for name in names))))
    return chunks


def _family(attributes: dict[str, str], head: str) -> dict[str, str]:
    return {k.partition(".")[2]: v for k, v in attributes.items() if k.partition(".")[0] == head}


def _totals(world: World, select: str) -> dict[str, str]:
    sums: dict[str, list[str]] = {}
    for count, pairs in chunks_of(select):
        for key, value in pairs:
            if is_summed(world, key):
                sums.setdefault(key, []).append(multiply(value, count))
    return {key: add(values) for key, values in sums.items()}


def _check_limits(world: World, queue: EmulatedQueue, resources: dict[str, str]) -> None:
    for attributes in (queue.attributes, world.server):
        for key, most in _family(attributes, "resources_max").items():
            if key in resources and _amount(resources[key]) > _amount(most):
                raise Refused(15036, "Job violates queue and/or server resource limits")


def _amount(text: str) -> int:
    return seconds_of(text) if ":" in text else size_bytes(text)


def _submit(world: World, call: Call, asked: _NewJob) -> EmulatedJob:
    options = asked.options
    first = _queue(world, options)
    queue = first
    if first.attributes.get("queue_type") == "Route":
        target = first.attributes.get("route_destinations", "").split(",")[0]
        queue = world.queues.get(target, first)
    check_known(world, set(asked.resources), in_chunk=False)
    defaults = _family(world.server, "resources_default") | _family(queue.attributes, "resources_default")
    wanted = dict(asked.resources)
    select, place = _select(world, wanted, queue)
    resources = {key: value for key, value in wanted.items() if key in JOB_WIDE}
    resources.update(_totals(world, select))
    for key, value in defaults.items():
        resources.setdefault(key, value)
    if "walltime" in resources and ":" not in resources["walltime"]:
        seconds = int(resources["walltime"])
        resources["walltime"] = f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
    resources.update(select=select, place=place, nodect=str(sum(count for count, _ in chunks_of(select))))
    _check_limits(world, queue, resources)
    text = options.last("J")
    indices: list[int] = []
    if text:
        try:
            indices = indices_of(text.partition("%")[0])
        except ValueError as error:
            raise Refused(1, f"illegal -J value\n{error}") from error
        if len(indices) > int(world.server.get("max_array_size", LONGEST_ARRAY)):
            raise Refused(15091, "Array job exceeds server or queue size limit")
    number = world.next_job
    suffix = "[]" if text else ""
    job = EmulatedJob(
        f"{number}{suffix}.{world.settings.server}",
        world.next_rank,
        call.user,
        call.user,
        queue.name,
        "Q",
        10,
    )
    world.next_job += 1
    world.next_rank += 1 + len(indices)
    job.resources, job.script = resources, asked.script
    _write_attributes(world, call, asked, job, queue, first)
    _read_profile(world, job)
    _set_depends(world, job, asked.extras.get("depend", ""))
    job.holds = "u" if options.has("h") else ""
    world.jobs[job.id] = job
    if text:
        _add_members(world, job, text, indices)
    world.touch("server", "")
    settle(world, job)
    world.account("Q", job.id, _queue_record(job))
    world.happened.append(("postqueuejob", job.id))
    return job


def _queue_record(job: EmulatedJob) -> str:
    known = job.attributes
    fields = [f"user={job.user} group={job.group}", "project=_pbs_project_default"]
    fields += [f"jobname={known['Job_Name']} queue={job.queue}"]
    fields += [f"ctime={known['ctime']} qtime={known['qtime']} etime={known.get('etime', '0')}"]
    if job.is_array:
        fields.append(f"array_indices={known['array_indices_submitted']}")
    return " ".join([*fields, *(f"Resource_List.{k}={v}" for k, v in sorted(job.resources.items()))])


def _write_attributes(
    world: World, call: Call, asked: _NewJob, job: EmulatedJob, queue: EmulatedQueue, first: EmulatedQueue
) -> None:
    options, server = asked.options, world.settings.server
    now = str(int(world.now_s))
    number = job.id.partition(".")[0].removesuffix("[]")
    tail = f"{number}.^array_index^" if job.is_array else number
    home = f"/home/{call.user}"
    place = f"{call.cwd if options.has('V') else home}/{asked.name}"
    job.attributes = {
        "Job_Name": asked.name, "Job_Owner": f"{call.user}@{server}", "Checkpoint": options.last("c", "u"),
        "ctime": now, "mtime": now, "qtime": now, "etime": now,
        "Output_Path": _path(options.last("o"), server) or f"{server}:{place}.o{tail}",
        "Error_Path": _path(options.last("e"), server) or f"{server}:{place}.e{tail}",
        "Join_Path": options.last("j", "n"), "Keep_Files": options.last("k", "n"),
        "Mail_Points": options.last("m", "a"), "Priority": options.last("p", "0"),
        "Rerunable": "False" if options.last("r") == "n" else "True", "Hold_Types": "n",
        "schedselect": job.resources["select"], "euser": call.user, "egroup": call.user,
        "queue_rank": str(int(world.now_s * 1e6) + job.rank % 1000), "queue_type": "E",
        "Submit_arguments": " ".join(call.arguments), "project": options.last("P", "_pbs_project_default"),
        "Submit_Host": server, "Variable_List": _variables(call, asked, first.name, server),
    }  # fmt: skip
    for letter, name in (("A", "Account_Name"), ("M", "Mail_Users"), ("S", "Shell_Path_List")):
        if options.has(letter):
            job.attributes[name] = options.last(letter)
    if options.has("a"):
        job.attributes["Execution_Time"] = str(execution_time_s(options.last("a"), world.now_s))
    if asked.executable:
        tag = "<jsdl-hpcpa:{0}>{1}</jsdl-hpcpa:{0}>"
        job.attributes["executable"] = tag.format("Executable", asked.executable[0])
        if asked.executable[1:]:
            arguments = "".join(tag.format("Argument", word) for word in asked.executable[1:])
            job.attributes["argument_list"] = arguments
    del queue


def _path(text: str, server: str) -> str:
    return text if ":" in text or not text else f"{server}:{text}"


def _variables(call: Call, asked: _NewJob, queue: str, server: str) -> str:
    mine = call.environment
    house = {"HOME": f"/home/{call.user}", "LANG": "C.UTF-8", "LOGNAME": call.user, "PATH": _PATH,
             "SHELL": "/bin/bash"}  # fmt: skip
    # Whoever is named by EMULATED_USER has no environment of his own here.
    named = "EMULATED_USER" in mine
    pairs = {f"PBS_O_{name}": house[name] if named else mine.get(name, house[name]) for name in _HOUSE}
    pairs["PBS_O_WORKDIR"] = house["HOME"] if named else call.cwd
    pairs["PBS_O_SYSTEM"] = "Linux"
    if asked.options.has("V"):
        pairs.update({key: value for key, value in mine.items() if not key.startswith(("EMULATED_", "PBS_"))})
    for text in asked.options.values.get("v", []):
        for name, value in parse_pairs(text).items():
            pairs[name] = value if f"{name}=" in text else mine.get(name, "")
    pairs.update(PBS_O_QUEUE=queue, PBS_O_HOST=server)
    return ",".join(f"{key}={value}" for key, value in pairs.items())


def _read_profile(world: World, job: EmulatedJob) -> None:
    """``EMULATED_RUNTIME`` and its like, as for the emulated Torque."""
    known = parse_pairs(job.attributes["Variable_List"])
    if "EMULATED_RUNTIME" in known:
        job.runtime_s = float(known["EMULATED_RUNTIME"])
    job.exit_with = int(known.get("EMULATED_EXIT", "0"))
    if "EMULATED_CPU" in known:
        job.profile["cpu"] = float(known["EMULATED_CPU"])
    if "EMULATED_MEM" in known:
        job.profile["mem_kb"] = float(size_kb(known["EMULATED_MEM"]))
    job.executes = world.settings.executes and job.runtime_s is None


def _set_depends(world: World, job: EmulatedJob, text: str) -> None:
    shown = []
    for part in text.split(",") if text else ():
        kind, *ids = part.split(":")
        for word in ids:
            other = world.jobs.get(world.full_id(word))
            if other is None:
                raise Refused(15001, f"Unknown Job Id {world.full_id(word)}")
            status = other.attributes.get("Exit_status")
            met = other.state == "F" and (kind == "afterany" or (kind == "afterok") == (status == "0"))
            if met or (kind == "after" and other.has_executed):
                continue
            job.depends.append((kind, other.id))
            shown.append(f"{kind}:{other.id}@{world.settings.server}")
            back = f"{kind.replace('after', 'before')}:{job.id}@{world.settings.server}"
            listed = other.attributes.get("depend", "")
            other.attributes["depend"] = f"{listed},{back}" if listed else back
            world.touch_job(other)
    if shown:
        job.attributes["depend"] = ",".join(shown)


def _add_members(world: World, job: EmulatedJob, text: str, indices: list[int]) -> None:
    body, _, most = text.partition("%")
    job.attributes.update(array="True", array_indices_submitted=body)
    if most:
        job.attributes["max_run_subjobs"] = most
        job.slot_limit = int(most)
    head = re.sub(r"\[\].*", "", job.id)
    for place, index in enumerate(indices):
        attributes = {
            **{key: text for key, text in job.attributes.items() if not key.startswith(("array", "max_run"))},
            "array_id": job.id, "array_index": str(index),
        }  # fmt: skip
        member = EmulatedJob(
            f"{head}[{index}].{world.settings.server}", job.rank + 1 + place, job.user, job.group, job.queue,
            job.state, job.substate, attributes, dict(job.resources),
        )  # fmt: skip
        member.parent, member.script, member.executes = job.id, job.script, job.executes
        member.runtime_s, member.exit_with, member.profile = job.runtime_s, job.exit_with, dict(job.profile)
        job.members.append(member.id)
        world.jobs[member.id] = member
        world.touch("job", member.id)
