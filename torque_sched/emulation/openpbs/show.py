"""pbsnodes and qstat of OpenPBS."""

from __future__ import annotations

from torque_sched.emulation.call import Answer, Call, Options, read_options
from torque_sched.emulation.model import EmulatedJob, EmulatedNode, EmulatedQueue, seconds_of
from torque_sched.emulation.openpbs.form import (
    JOB,
    NODE,
    QUEUE,
    SERVER,
    Form,
    Pairs,
    document,
    dsv,
    ordered,
    text,
)
from torque_sched.emulation.openpbs.lifecycle import array_counts, host_of, refresh_used, state_of
from torque_sched.emulation.openpbs.reservations import held_on, on_vnode
from torque_sched.emulation.openpbs.values import add, ctime, size_bytes, taken
from torque_sched.emulation.qsub_client import parse_pairs
from torque_sched.emulation.world import World

PBSNODES_USAGE = """usage:\tpbsnodes [-{o|r}][-C comment][-s server] host host ...
\tpbsnodes -l [-s server]
\tpbsnodes [-s server] -v vnode vnode ...
\tpbsnodes -a[v][S[j][L]][-F format][-D delim][-s server]
\tpbsnodes -[H][S[j][L]][-F format][-D delim] host host ...
\tpbsnodes --version

"""
_QSTAT_USAGE = """\
usage:
qstat [-f] [-J] [-p] [-t] [-x] [-E] [-F format] [-D delim] [ job_identifier... | destination... ]
"""
_TIMES = frozenset(
    ("ctime", "mtime", "qtime", "etime", "stime", "obittime", "Execution_Time", "eligible_start")
)
_MANAGERS_ONLY = ("schedselect", "euser", "egroup", "hashname", "queue_rank", "queue_type", "run_version")
_NOT_OF_QUEUED_MEMBERS = (
    "array", "array_indices_submitted", "max_run_subjobs", "project", "Submit_Host", "history_timestamp",
    "Exit_status", "Stageout_status", "obittime",
)  # fmt: skip
_NOT_OF_STARTED_MEMBERS = ("Checkpoint", "Hold_Types", "Submit_arguments")
_STATES = {
    "Transit": "T", "Queued": "Q", "Held": "H", "Waiting": "W", "Running": "R", "Exiting": "E", "Begun": "B",
}  # fmt: skip
_UNKNOWN_JOB, _FINISHED = 153, 35
_OUT_OF_USE = ("offline", "down", "Stale", "state-unknown")


def version_of(world: World) -> str:
    """``pbs_version``: the dialect, and that it is emulated."""
    return world.settings.pbs_version


def form_of(options: Options) -> Form:
    """-F, -D and -w."""
    return Form(options.last("F", "text").lower(), options.has("w"), options.last("D", "|"))


# -- nodes


def pbsnodes(world: World, call: Call) -> Answer:
    """Show vnodes, list those out of use, or set them offline."""
    options = read_options(call.arguments, "aC:dD:F:HjlLoprs:Sv")
    if options.error or not (options.values or options.words):
        head = f"pbsnodes: {options.error}\n" if options.error else ""
        return Answer(err=head + PBSNODES_USAGE, code=1)
    if options.has("o") or options.has("r") or (options.has("C") and options.words):
        return _change(world, call, options)
    nodes = list(world.nodes.values())
    if options.has("l"):
        return Answer(out="".join(_out_of_use(world, node) for node in nodes))
    if not options.has("a") and not options.words:
        return Answer(err=PBSNODES_USAGE, code=1)
    if options.has("a") and not options.has("v"):
        nodes = [node for node in nodes if _is_natural(node)]
    unknown = []
    if options.words and not options.has("a"):
        nodes = [world.nodes[word] for word in options.words if word in world.nodes]
        unknown = [word for word in options.words if word not in world.nodes]
    if options.has("S"):
        return Answer(out=_table(world, nodes, jobs=options.has("j")))
    return _show_nodes(world, call, form_of(options), nodes, unknown)


def _show_nodes(
    world: World, call: Call, form: Form, nodes: list[EmulatedNode], unknown: list[str]
) -> Answer:
    zone = call.environment.get("TZ", "")
    if form.kind == "json":
        found = [(node.name, _node(world, node, "json", zone)) for node in nodes]
        found += [(name, [("Error", "Unknown node ")]) for name in unknown]
        out = document(world.settings.server, version_of(world), world.now_s, "nodes", found)
        return Answer(out=out)
    write = dsv if form.kind == "dsv" else None
    out = ""
    for node in nodes:
        pairs = _node(world, node, form.kind, zone)
        if write:
            out += dsv(f"Name={node.name}", pairs, form)
        else:
            out += text(node.name, pairs, Form(is_wide=True), "     ")
    err = "".join(f"Node: {name},  Error: Unknown node \n" for name in unknown)
    return Answer(out=out, err=err, code=1 if unknown else 0)


def _is_natural(node: EmulatedNode) -> bool:
    return node.attributes.get("Mom", node.name) == node.name


def _node(world: World, node: EmulatedNode, kind: str, zone: str) -> Pairs:
    """The attributes of one vnode."""
    attributes = dict(node.attributes)
    attributes.setdefault("Mom", node.name)
    unseen = state_of(world, node) == "state-unknown,down"
    attributes.update(
        Port="15002", pbs_version="unavailable" if unseen else version_of(world), ntype="PBS",
        state=state_of(world, node), resv_enable="True",
    )  # fmt: skip
    if not unseen:
        attributes.setdefault("license", "l")
    if _is_natural(node) and not unseen:
        attributes["pcpus"] = str(node.ncpus or node.np)
    if unseen:
        attributes.pop("last_state_change_time", None)
        attributes.pop("resources_available.arch", None)
    for name in ("last_state_change_time", "last_used_time"):
        if name in attributes and kind == "text":
            attributes[name] = ctime(int(attributes[name]), zone)
    held = assigned_on(world, node.name)
    if kind != "json":
        zeros = {"accelerator_memory": "0kb", "hbmem": "0kb", "mem": "0kb", "naccelerators": "0"}
        held = {**zeros, "ncpus": "0", "vmem": "0kb", **held}
    attributes.update({f"resources_assigned.{key}": value for key, value in held.items()})
    pairs = ordered(attributes, NODE)
    if not held:
        at = next(i for i, (name, _) in enumerate(pairs) if name == "resources_available") + 1
        pairs.insert(at, ("resources_assigned", []))
    found = on_vnode(world, node.name)
    if found:
        at = next(i for i, (name, _) in enumerate(pairs) if name == "resources_available")
        pairs.insert(at, ("resv", ", ".join(found)))
    jobs = _jobs_on(world, node)
    if jobs:
        at = next(i for i, (name, _) in enumerate(pairs) if name in ("resources_available", "resv"))
        ids = [job for job, _ in jobs]
        once = [each for i, each in enumerate(ids) if i == 0 or ids[i - 1] != each]
        shown = once if kind == "json" else ", ".join(f"{job}/{slot}" for job, slot in jobs)
        pairs.insert(at, ("jobs", shown))
    return pairs


def assigned_on(world: World, name: str) -> dict[str, str]:
    """Resource -> what jobs and running reservations hold of a vnode; what nobody holds is left out."""
    sums: dict[str, list[str]] = {}
    reserved = list(held_on(world, name))
    for _, held in reserved:
        for key, value in held.items():
            sums.setdefault(key, []).append(value)
    queues = {queue for queue, _ in reserved}
    for job_id in world.jobs_on(name):
        # What jobs of a reservation hold, it holds already.
        if world.jobs[job_id].queue in queues:
            continue
        for vnode, resources in taken(world.jobs[job_id]):
            for key, value in resources.items() if vnode == name else ():
                sums.setdefault(key, []).append(value)
    found = {}
    for key, values in sums.items():
        total = add(values)
        if size_bytes(total) and not key.startswith(("host", "vnode", "mpiprocs", "ompthreads")):
            found[key] = total
    return found


def _jobs_on(world: World, node: EmulatedNode) -> list[tuple[str, int]]:
    """(job, slot) in the order of pbsnodes: by slot; of several on one slot the newest first."""
    chains: dict[int, list[str]] = {}
    for job_id, indices in world.standing.get(node.name, ()):
        for index in indices:
            chains.setdefault(index, []).insert(0, job_id)
    return [(job_id, index) for index in sorted(chains) for job_id in chains[index]]


def _out_of_use(world: World, node: EmulatedNode) -> str:
    state = state_of(world, node)
    if not any(word in _OUT_OF_USE for word in state.split(",")):
        return ""
    return f"{node.name:<20} {state} {node.attributes.get('comment', '')}\n"


def _mark(world: World, node: EmulatedNode, options: Options) -> None:
    if options.has("o") or options.has("r"):
        change = "0->1" if options.has("o") else "1->0"
        world.happened.append(("modifyvnode", f"{node.name} {change}"))
        node.offline = options.has("o")
        node.attributes["last_state_change_time"] = str(int(world.now_s))
    if options.has("C"):
        node.attributes["comment"] = options.last("C")
        if not options.last("C"):
            del node.attributes["comment"]
    world.touch_node(node.name)


def _change(world: World, call: Call, options: Options) -> Answer:
    """-o, -r and -C of hosts, for all their vnodes; the comment stays when they come back."""
    answer = Answer()
    for word in options.words:
        nodes = [node for node in world.nodes.values() if host_of(node) == word]
        if not nodes or not world.is_admin(call.user):
            why = "Unauthorized Request " if nodes else "Unknown node "
            answer.err += f"Error marking node {word} - {why}\n"
            answer.code = 1
            continue
        for node in nodes:
            _mark(world, node, options)
    return answer


_SUMMARY = (
    "vnode           state           OS       hardware host            queue        mem     ncpus   nmics   "
    "ngpus  comment\n--------------- --------------- -------- -------- --------------- ---------- -------- "
    "------- ------- ------- ---------\n"
)
_OF_JOBS = """\
                                                        mem       ncpus   nmics   ngpus
vnode           state           njobs   run   susp      f/t        f/t     f/t     f/t   jobs
--------------- --------------- ------ ----- ------ ------------ ------- ------- ------- -------
"""


def _table(world: World, nodes: list[EmulatedNode], *, jobs: bool) -> str:
    """-S, with -j the one of jobs."""
    return "".join([_OF_JOBS if jobs else _SUMMARY, *(_row(world, node, jobs=jobs) for node in nodes)])


def _row(world: World, node: EmulatedNode, *, jobs: bool) -> str:
    state = state_of(world, node).split(",")[0]
    known = node.attributes
    memory = known.get("resources_available.mem", "0")
    gpus = int(known.get("resources_available.ngpus", "0"))
    if not jobs:
        host, comment = known["resources_available.host"], known.get("comment", "--")
        return (
            f"{node.name:<15} {state:<15} {'--':<8} {'--':<8} {host:<15} {'--':<10} {_short(memory):>8} "
            f"{node.np:>7} {0:>7} {gpus:>7} {comment}\n"
        )
    held = assigned_on(world, node.name)
    listed = [job for job, _ in _jobs_on(world, node)]
    once = [each for i, each in enumerate(listed) if i == 0 or listed[i - 1] != each]
    free = _short(size_bytes(memory) - size_bytes(held.get("mem", "0")))
    cpus = f"{node.np - int(held.get('ncpus', '0'))}/{node.np}"
    left = f"{gpus - int(held.get('ngpus', '0'))}/{gpus}"
    names = ",".join(each.partition(".")[0] for each in once) or "--"
    return (
        f"{node.name:<15} {state:<15} {len(once):>6} {len(once):>5} {0:>6} {free + '/' + _short(memory):>12} "
        f"{cpus:>7} {'0/0':>7} {left:>7} {names}\n"
    )


def _short(size: str | int) -> str:
    """A size in the largest unit that leaves a whole number before the point."""
    number = size if isinstance(size, int) else size_bytes(size)
    for unit, name in ((40, "tb"), (30, "gb"), (20, "mb"), (10, "kb")):
        if abs(number) >> unit:
            return f"{number >> unit}{name}"
    return f"{number}b"


# -- jobs, queues, the server


def qstat(world: World, call: Call) -> Answer:
    """Jobs, with -Q queues, with -B the server."""
    options = read_options(call.arguments, "aBD:EfF:GHiJMnpqQrsStTu:wx1")
    if options.error:
        return Answer(err=f"qstat: {options.error}\n{_QSTAT_USAGE}", code=2)
    form = form_of(options)
    if options.has("B"):
        name = world.settings.server
        return _show(world, form, "Server", f"Server: {name}", [(name, _server(world, call))])
    if options.has("Q"):
        queues = [world.queues[word] for word in options.words if word in world.queues]
        found = [(queue.name, _queue(world, queue)) for queue in queues or world.queues.values()]
        return _show(world, form, "Queue", "Queue: ", found)
    jobs, answer = _chosen(world, call, options)
    if options.has("f"):
        shown = [(job.id, job_pairs(world, job, call)) for job in jobs]
        done = _show(world, form, "Jobs", "Job Id: ", shown)
        return Answer(done.out, answer.err, answer.code)
    if any(options.has(letter) for letter in "anrs"):
        return Answer(_alternate(world, jobs, options), answer.err, answer.code)
    return Answer(_job_table(world, jobs), answer.err, answer.code)


def _show(world: World, form: Form, kind: str, head: str, found: list[tuple[str, Pairs]]) -> Answer:
    if form.kind == "json":
        out = document(world.settings.server, version_of(world), world.now_s, kind, found)
        return Answer(out=out)
    lead = head if head.endswith(" ") else head.partition(" ")[0] + " "
    if form.kind == "dsv":
        return Answer(out="".join(dsv(f"{lead}{name}", pairs, form) for name, pairs in found))
    return Answer(out="".join(text(f"{lead}{name}", pairs, form) for name, pairs in found))


def _chosen(world: World, call: Call, options: Options) -> tuple[list[EmulatedJob], Answer]:
    """The jobs that a qstat is about, and what it says of those that are not there."""
    answer = Answer()
    has_history = options.has("x") or options.has("H")
    jobs: list[EmulatedJob] = []
    for word in options.words:
        if word in world.queues:
            jobs += [job for job in world.jobs.values() if job.queue == word and not job.parent]
        else:
            jobs += _job_named(world, word, answer, has_history=has_history)
    if not options.words:
        jobs = [job for job in world.jobs.values() if not job.parent]
    if world.server.get("query_other_jobs") != "True" and not world.is_admin(call.user):
        jobs = [job for job in jobs if job.user == call.user]
    if options.has("u"):
        users = {each.partition("@")[0] for each in options.last("u").split(",")}
        jobs = [job for job in jobs if job.user in users]
    if options.has("r"):
        jobs = [job for job in jobs if job.state in "RSB"]
    if not options.has("x"):
        jobs = [job for job in jobs if (job.state == "F") == options.has("H") or job.parent]
    if options.has("t"):
        jobs = [each for job in jobs for each in [job, *_members(world, job)]]
    return jobs, answer


def _job_named(world: World, word: str, answer: Answer, *, has_history: bool) -> list[EmulatedJob]:
    job = world.jobs.get(world.full_id(word))
    if job is None:
        answer.err += f"qstat: Unknown Job Id {world.full_id(word)}\n"
        answer.code = _UNKNOWN_JOB
        return []
    if job.state == "F" and not job.parent and not has_history:
        why = "Job has finished, use -x or -H to obtain historical job information"
        answer.err += f"qstat: {job.id} {why}\n"
        answer.code = _FINISHED
        return []
    return [job]


def _members(world: World, job: EmulatedJob) -> list[EmulatedJob]:
    return [world.jobs[name] for name in job.members if name in world.jobs]


def job_pairs(world: World, job: EmulatedJob, call: Call) -> Pairs:
    """The attributes of one job, as this user may see them."""
    refresh_used(world, job)
    known = job.attributes
    parent = world.jobs.get(job.parent)
    letter = "X" if job.parent and job.state == "F" and (parent is None or parent.state != "F") else job.state
    attributes = {
        **known, "job_state": letter, "queue": job.queue, "server": world.settings.server,
        "substate": str(job.substate),
    }  # fmt: skip
    if parent is not None and not job.has_executed:
        # A member that has not started is shown with what its array has.
        attributes = {
            **{key: value for key, value in parent.attributes.items() if key not in _NOT_OF_QUEUED_MEMBERS},
            **{key: attributes[key] for key in ("job_state", "queue", "server", "substate", "Hold_Types")},
        }
        attributes.pop("depend", None)
        if "comment" in known:
            attributes["comment"] = known["comment"]
    elif parent is not None:
        attributes = {key: value for key, value in attributes.items() if key not in _NOT_OF_STARTED_MEMBERS}
        for name in ("Output_Path", "Error_Path"):
            attributes[name] = attributes[name].replace("^array_index^", known["array_index"])
    if job.is_array:
        counts, remaining = array_counts(world, job)
        attributes.update(array_state_count=counts, array_indices_remaining=remaining)
    if not world.is_admin(call.user, manager=True):
        for name in _MANAGERS_ONLY:
            attributes.pop(name, None)
    zone = call.environment.get("TZ", "")
    for name in _TIMES & attributes.keys():
        attributes[name] = ctime(int(attributes[name]), zone)
    variables = attributes.pop("Variable_List", "")
    attributes.update({f"Resource_List.{key}": value for key, value in job.resources.items()})
    attributes.update({f"resources_used.{key}": value for key, value in job.used.items()})
    pairs = ordered(attributes, JOB)
    at = 1 + next(i for i, (name, _) in enumerate(pairs) if name == "substate")
    pairs.insert(at, ("Variable_List", list(parse_pairs(variables).items())))
    return pairs


def _is_counted(job: EmulatedJob) -> bool:
    return not job.parent or job.has_executed


def _counts(world: World, queue: str = "") -> tuple[str, str]:
    """``total_jobs`` (history counts as well) and ``state_count``."""
    jobs = [job for job in world.jobs.values() if _is_counted(job) and (not queue or job.queue == queue)]
    states = [job.state for job in jobs]
    counts = "".join(f"{name}:{states.count(letter)} " for name, letter in _STATES.items())
    return str(len(jobs)), counts


def _assigned(world: World, queue: str = "") -> dict[str, str]:
    jobs = [
        job for job in world.jobs.values() if job.state in "RE" and (not queue or job.queue == queue)
    ]  # fmt: skip
    found = {}
    for key in ("mem", "ncpus", "nodect"):
        values = [job.resources[key] for job in jobs if key in job.resources]
        if values:
            found[f"resources_assigned.{key}"] = add(values)
    return found


def _queue(world: World, queue: EmulatedQueue) -> Pairs:
    total, counts = _counts(world, queue.name)
    attributes = {
        **queue.attributes, **_assigned(world, queue.name), "total_jobs": total, "state_count": counts,
    }  # fmt: skip
    return ordered(attributes, QUEUE)


def _server(world: World, call: Call) -> Pairs:
    total, counts = _counts(world)
    attributes = {
        **world.server, **_assigned(world), "server_host": world.settings.server, "total_jobs": total,
        "server_state": "Active" if world.server.get("scheduling") == "True" else "Idle",
        "state_count": counts, "pbs_version": version_of(world),
        "license_count": "Avail_Global:1000000 Avail_Local:1000000 Used:0 High_Use:0",
    }  # fmt: skip
    if world.is_admin(call.user, manager=True):
        attributes["power_provisioning"] = "False"
    return ordered(attributes, SERVER)


def _job_table(world: World, jobs: list[EmulatedJob]) -> str:
    if not jobs:
        return ""
    lines = [
        "Job id            Name             User              Time Use S Queue",
        "----------------  ---------------- ----------------  -------- - -----",
    ]
    for job in jobs:
        refresh_used(world, job)
        used = job.used.get("cput", "0")
        lines.append(
            f"{job.id[:17]:<17} {job.attributes['Job_Name'][:16]:<16} {job.user[:16]:<16}  {used:>8} "
            f"{job.state} {job.queue:<16}"
        )
    return "\n".join(lines) + "\n"


def _alternate(world: World, jobs: list[EmulatedJob], options: Options) -> str:
    """-a, -n, -s, -w, -1."""
    if not jobs:
        return ""
    is_wide = options.has("w")
    widths = (30, 15, 15, 15, 8, 4, 5) if is_wide else (15, 8, 8, 10, 6, 3, 3)
    gap = sum(widths) + len(widths)
    head = ["Job ID", "Username", "Queue", "Jobname", "SessID", "NDS", "TSK"]
    lines = [
        "",
        f"{world.settings.server}: ",
        " " * gap + "Req'd  Req'd   Elap",
        " ".join(f"{name:<{width}}" for name, width in zip(head, widths, strict=True))
        + " Memory Time  S Time",
        " ".join("-" * width for width in widths) + " ------ ----- - -----",
    ]
    for job in jobs:
        refresh_used(world, job)
        walltime = job.resources.get("walltime")
        cells = [
            job.id, job.user, job.queue, job.attributes["Job_Name"],
            f"{job.attributes.get('session_id', '--'):>{widths[4]}}",
            f"{job.resources.get('nodect', '--'):>{widths[5]}}",
            f"{job.resources.get('ncpus', '--'):>{widths[6]}}",
        ]  # fmt: skip
        row = " ".join(f"{cell[:width]:<{width}}" for cell, width in zip(cells, widths, strict=True))
        memory = job.resources.get("mem", " -- ").replace("mb", "m") if "mem" in job.resources else " -- "
        used = job.used.get("walltime", "")
        row += f" {memory:>6} {_hours(walltime):>5} {job.state} {_hours(used):>5}"
        if options.has("n"):
            row += f" {job.attributes.get('exec_host', ' -- ')}"
        lines.append(row)
        if options.has("s"):
            lines.append(f"   {job.attributes.get('comment', ' -- ')}")
    return "\n".join(lines) + "\n"


def _hours(walltime: str | None) -> str:
    if not walltime:
        return " -- "
    seconds = seconds_of(walltime)
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}"
