"""What happens to jobs of OpenPBS: queued, started, failed, suspended, ended, kept as history.

Functions over a :class:`~torque_sched.emulation.world.World`; what they do was seen on 23.06.06.
"""

from __future__ import annotations

from torque_sched.emulation.model import EmulatedJob, EmulatedNode, seconds_of, walltime_text
from torque_sched.emulation.openpbs.values import add, elements_of, moment, n_chunks, remaining_text, taken
from torque_sched.emulation.world import World

KILLED, OVER_WALLTIME, NOT_STARTED = 271, -29, -3
MOST_STARTS = 20
"""After more failed starts than that a job is held."""
STARTING, RUNNING = 41, 42
"""Substates: sent to its MoM, and taken by it."""
_FALL_BACK_S = 2.0
_GRACE_S = 1.0
_UNKNOWN_S = 5.0
"""After a restart of the server it takes so long until the MoMs have called."""
_EXCLUSIVE = ("excl", "exclhost")


def settle(world: World, job: EmulatedJob) -> None:
    """Give a job that does not run the state its holds, time and dependencies ask for."""
    if job.holds or job.depends:
        job.state, job.substate = "H", 22 if job.depends else 20
    elif job.seconds("Execution_Time") > world.now_s:
        job.state, job.substate = "W", 30
        world.due(job.seconds("Execution_Time"), "release", job.id)
    else:
        job.state, job.substate = "Q", 10
        job.attributes.setdefault("etime", str(int(world.now_s)))
    if job.state != "Q":
        job.attributes.pop("etime", None)
    letters = job.holds + ("s" if job.depends and "s" not in job.holds else "")
    job.attributes["Hold_Types"] = "".join(each for each in "uos" if each in letters) or "n"
    if job.is_array and any(world.jobs[name].has_executed for name in job.members if name in world.jobs):
        job.state, job.substate = "B", 70
    for name in job.members:
        member = world.jobs.get(name)
        if member is not None and member.state in "QHW" and not member.has_executed:
            member.state, member.substate = ("Q", 10) if job.state == "B" else (job.state, job.substate)
            member.attributes["Hold_Types"] = job.attributes["Hold_Types"]
            world.touch_job(member)
    world.touch_job(job)


def start(world: World, job: EmulatedJob, exec_vnode: str) -> None:
    """Put a job on its vnodes; what is wrong with the order shows two seconds later."""
    now = str(int(world.now_s))
    parent = world.jobs.get(job.parent)
    elements = elements_of(exec_vnode)
    fails = len(elements) < n_chunks(job.attributes["schedselect"])
    job.attributes["exec_vnode"] = exec_vnode
    _stand(world, job)
    if parent is not None and not job.has_executed:
        _begin_member(world, parent, job)
    count = str(int(job.attributes.get("run_count", "0")) + 1)
    job.attributes.update(
        stime=now, mtime=now, run_count=count, run_version=count, hashname=job.id,
        comment=f"Job run at {moment(world.now_s)} on {exec_vnode}",
    )  # fmt: skip
    job.attributes.pop("Exit_status", None)
    job.has_executed = True
    job.state, job.start_s = "R", world.now_s
    nodes = [world.nodes[name] for name, _ in job.slots]
    if fails or any(node.is_failing for node in nodes):
        job.substate = STARTING
        world.due(world.now_s + _FALL_BACK_S, "abort", job.id)
    elif any(node.mom == "hanging" for node in nodes):
        job.substate = STARTING
    elif world.settings.mom_start_s > 0:
        job.substate = STARTING
        world.due(world.now_s + world.settings.mom_start_s, "begin", job.id)
    else:
        begin(world, job)
    world.happened.append(("runjob", job.id))
    _tell_nodes(world, job)
    world.touch_job(job)
    if parent is not None:
        settle(world, parent)


def _begin_member(world: World, parent: EmulatedJob, job: EmulatedJob) -> None:
    """A member becomes a job of its own with its first start, and its array has begun."""
    if "stime" not in parent.attributes:
        parent.attributes.update(
            stime=str(int(world.now_s)),
            mtime=str(int(world.now_s)),
            comment=f"Job Array Began at {moment(world.now_s)}",
        )
        world.account("S", parent.id, _record(parent))
    job.attributes["queue_rank"] = str(int(world.now_s * 1e6))


def _stand(world: World, job: EmulatedJob) -> None:
    """Slots for the jobs' list of each vnode, and exec_host: the index of the chunk on its host."""
    job.slots = []
    used: dict[str, set[int]] = {}
    hosts: list[str] = []
    for name, resources in taken(job):
        # Seen on 23.06.06: where the last parenthesis is not closed, exec_host counts no CPU.
        is_closed = job.attributes["exec_vnode"].count("(") == job.attributes["exec_vnode"].count(")")
        n_cpus = int(resources.get("ncpus", "0")) if is_closed else 0
        table = world.slots.get(name, [])
        taken_now = {index for node, indices in job.slots if node == name for index in indices}
        free = [i for i, holder in enumerate(table) if holder is None and i not in taken_now]
        last = max(0, len(table) - 1)
        indices = free[: max(1, n_cpus)]
        indices += [last] * (max(1, n_cpus) - len(indices))
        job.slots.append((name, indices))
        host = host_of(world.nodes[name])
        numbers = used.setdefault(host, _numbers_on(world, host))
        number = next(i for i in range(len(numbers) + 1) if i not in numbers)
        numbers.add(number)
        hosts.append(f"{host}/{number}" + (f"*{n_cpus}" if n_cpus != 1 else ""))
    job.attributes["exec_host"] = "+".join(hosts)
    world.occupy(job)


def host_of(node: EmulatedNode) -> str:
    """The host a vnode is on."""
    return node.attributes.get("resources_available.host", node.name)


def _numbers_on(world: World, host: str) -> set[int]:
    """The numbers of chunks that stand on a host."""
    found = set()
    for name, node in world.nodes.items():
        if host_of(node) != host:
            continue
        for job_id in world.jobs_on(name):
            for part in world.jobs[job_id].attributes.get("exec_host", "").split("+"):
                place, _, rest = part.partition("/")
                if place == host:
                    found.add(int(rest.partition("*")[0]))
    return found


def _tell_nodes(world: World, job: EmulatedJob) -> None:
    for name in dict.fromkeys(name for name, _ in job.slots):
        node = world.nodes[name]
        node.attributes["last_used_time"] = str(int(world.now_s))
        world.touch_node(name)
        world.happened.append(("modifyvnode", name))


def begin(world: World, job: EmulatedJob) -> None:
    """The MoM has the job."""
    job.substate = RUNNING
    job.attributes["session_id"] = str(20000 + job.rank * 13 % 40000)
    job.attributes["jobdir"] = f"/home/{job.user}"
    n_cpus = job.resources.get("ncpus", "0")
    job.used = {
        "cpupercent": "0", "cput": "00:00:00", "mem": "0kb", "ncpus": n_cpus, "vmem": "0kb",
        "walltime": "00:00:00",
    }  # fmt: skip
    world.account("S", job.id, _record(job))
    walltime_s = job.walltime_s
    limit_s = None if walltime_s is None else walltime_s + _GRACE_S
    if job.runtime_s is not None:
        limit_s = job.runtime_s if limit_s is None else min(job.runtime_s, limit_s)
    elif job.executes:
        world.spawn.append(job.id)
    elif limit_s is not None:
        limit_s = walltime_s
    job.ends_s = None if limit_s is None else world.now_s + limit_s
    if job.ends_s is not None:
        world.due(job.ends_s, "end", job.id)
    _dependants(world, job, "after", None)
    world.touch_job(job)


def refresh_used(world: World, job: EmulatedJob) -> None:
    """Bring ``resources_used`` of a running job up to now."""
    if job.state == "R" and job.used:
        passed_s = world.now_s - job.start_s
        cpu_s = passed_s * job.profile.get("cpu", 0.0) * int(job.used["ncpus"])
        job.used["walltime"] = walltime_text(passed_s)
        job.used["cput"] = walltime_text(cpu_s)
        if "mem_kb" in job.profile:
            job.used["mem"] = f"{int(job.profile['mem_kb'])}kb"


def end(world: World, job: EmulatedJob, status: int, why: str = "") -> None:
    """A job that ran is over.

    Args:
        world: the cluster.
        job: running or suspended.
        status: Exit_status.
        why: the end of its comment; by default after its status.
    """
    refresh_used(world, job)
    _free(world, job)
    words = why or {0: "finished", OVER_WALLTIME: "exceeded resource walltime"}.get(status, "failed")
    job.attributes["comment"] = f"{job.attributes.get('comment', '')} and {words}".strip()
    now = str(int(world.now_s))
    job.attributes.update(obittime=now, Exit_status=str(status), Stageout_status="1")
    used = " ".join(f"resources_used.{key}={value}" for key, value in job.used.items())
    tail = f"session={job.attributes.get('session_id', '0')} end={now} Exit_status={status} {used}"
    world.account("E", job.id, f"{_record(job)} {tail} run_count={job.attributes.get('run_count', '0')}")
    world.happened.append(("jobobit", job.id))
    _over(world, job, status, 91 if status == KILLED else 92 if status == 0 else 93)


def _free(world: World, job: EmulatedJob) -> None:
    for name in dict.fromkeys(name for name, _ in job.slots):
        if name in world.nodes:
            world.touch_node(name)
            world.happened.append(("modifyvnode", name))
    world.vacate(job)
    job.slots, job.ends_s = [], None


def _over(world: World, job: EmulatedJob, status: int | None, substate: int) -> None:
    """No longer a live job: kept as history, or gone."""
    now = str(int(world.now_s))
    job.attributes.update(mtime=now, history_timestamp=now)
    job.state, job.substate, job.holds = "F", substate, ""
    _dependants(world, job, "afterok" if status == 0 else "afternotok", status)
    parent = world.jobs.get(job.parent)
    if parent is not None:
        _look_at_parent(world, parent)
    if world.server.get("job_history_enable") == "True":
        kept_s = seconds_of(world.server.get("job_history_duration", "336:00:00"))
        world.due(world.now_s + kept_s, "forget", job.id)
        world.touch_job(job)
    elif not job.parent:
        for name in [job.id, *job.members]:
            world.jobs.pop(name, None)
            world.touch("job", name)
    else:
        world.touch_job(job)


def _look_at_parent(world: World, parent: EmulatedJob) -> None:
    members = [world.jobs[name] for name in parent.members if name in world.jobs]
    if parent.state == "F" or any(each.state != "F" for each in members):
        world.touch_job(parent)
        return
    bad = any(each.attributes.get("Exit_status", "1") != "0" for each in members)
    if "stime" in parent.attributes:
        now = str(int(world.now_s))
        parent.attributes.update(Exit_status=str(int(bad)), Stageout_status="1", obittime=now)
        if not parent.attributes["comment"].endswith(" and terminated"):
            parent.attributes["comment"] += " and " + ("failed" if bad else "finished")
        world.account("E", parent.id, f"{_record(parent)} end={now} Exit_status={int(bad)}")
    _over(world, parent, int(bad), 91)


def delete(world: World, job: EmulatedJob, requestor: str) -> None:
    """qdel of one job, array or member."""
    world.account("D", job.id, f"requestor={requestor}")
    if job.is_array:
        began = "stime" in job.attributes
        if began:
            job.attributes["comment"] += " and terminated"
        for name in job.members:
            member = world.jobs.get(name)
            if member is not None and member.state != "F":
                _delete_one(world, member, requestor)
        if job.state != "F":
            _over(world, job, None, 91)
        return
    _delete_one(world, job, requestor)


def _delete_one(world: World, job: EmulatedJob, requestor: str) -> None:
    if job.is_active:
        world.kill.append((job.id, "TERM"))
        end(world, job, KILLED, f"terminated by {requestor}")
        return
    if job.has_executed:
        job.attributes["comment"] += " and terminated"
    _over(world, job, None, 91)


def requeue(world: World, job: EmulatedJob, *, failed: bool) -> None:
    """Back to Q: a failed start, or qrerun."""
    world.kill.append((job.id, "KILL"))
    _free(world, job)
    for name in ("exec_host", "exec_vnode", "session_id", "jobdir"):
        job.attributes.pop(name, None)
    job.used.clear()
    now = str(int(world.now_s))
    job.attributes["mtime"] = now
    if failed:
        job.attributes.update(obittime=now, Exit_status=str(NOT_STARTED))
        if int(job.attributes["run_count"]) > MOST_STARTS:
            job.holds = "s"
            job.attributes["comment"] = "job held, too many failed attempts to run"
    world.account("R", job.id, _record(job))
    if not job.holds:
        job.attributes.pop("stime", None)
    settle(world, job)


def suspend(world: World, job: EmulatedJob) -> None:
    """State S: what it held is free, exec_vnode stays."""
    if job.ends_s is not None:
        job.runtime_s = max(0.0, job.ends_s - world.now_s)
    refresh_used(world, job)
    slots = job.slots
    _free(world, job)
    job.slots = slots
    job.state, job.substate, job.is_suspended = "S", 43, True
    world.touch_job(job)


def resume(world: World, job: EmulatedJob) -> None:
    """Run on where it stood."""
    _stand(world, job)
    job.state, job.substate, job.is_suspended = "R", 42, False
    if job.runtime_s is not None:
        job.ends_s = world.now_s + job.runtime_s
        world.due(job.ends_s, "end", job.id)
    world.touch_job(job)


def _dependants(world: World, job: EmulatedJob, met: str, status: int | None) -> None:
    """Tell those that wait: met ones are free, the others of an ended job can never be."""
    over = met != "after"
    for other in [each for each in world.jobs.values() if each.depends]:
        if other.state == "F" or not any(name == job.id for _, name in other.depends):
            continue
        kinds = [kind for kind, name in other.depends if name == job.id]
        free = {met, "afterany", "after"} if over else {"after"}
        if over and status is None:
            free = {"afterany"}
        left = [kind for kind in kinds if kind not in free]
        other.depends = [(k, n) for k, n in other.depends if n != job.id or k not in free]
        if over and left:
            # Seen on 23.06.06: what then runs already is ended, and its vnode stays taken (not emulated).
            if other.is_active:
                end(world, other, KILLED, f"terminated by root@{world.settings.server}")
            else:
                _over(world, other, None, 91)
        elif other.state == "H":
            if not other.depends:
                other.attributes.pop("depend", None)
            settle(world, other)


def fire(world: World, at_s: float, kind: str, key: str) -> None:
    """What is due to happen to a job, or to the server."""
    job = world.jobs.get(key)
    if job is None:
        return
    if kind == "end" and job.state == "R" and job.ends_s is not None and job.ends_s <= at_s:
        walltime_s = job.walltime_s
        declared = job.runtime_s is not None or job.executes
        over = declared and walltime_s is not None and world.now_s - job.start_s > walltime_s
        if job.executes:
            world.kill.append((job.id, "TERM"))
        end(world, job, OVER_WALLTIME if over else job.exit_with)
    elif kind == "begin" and job.state == "R" and job.substate == STARTING:
        begin(world, job)
    elif kind == "abort" and job.state == "R" and job.substate == STARTING:
        requeue(world, job, failed=True)
    elif kind == "release" and job.state == "W" and job.seconds("Execution_Time") <= at_s:
        settle(world, job)
    elif kind == "forget" and job.state == "F":
        del world.jobs[job.id]
        world.touch("job", job.id)


def due_again(world: World, job: EmulatedJob) -> None:
    """What was to happen to a job before the server ended still is."""
    if job.state == "R" and job.substate == STARTING:
        world.due(world.now_s + _FALL_BACK_S, "abort", job.id)
    elif job.state == "R" and job.ends_s is not None:
        world.due(job.ends_s, "end", job.id)
    elif job.state == "W":
        world.due(job.seconds("Execution_Time"), "release", job.id)
    elif job.state == "F":
        kept_s = seconds_of(world.server.get("job_history_duration", "336:00:00"))
        world.due(job.seconds("history_timestamp") + kept_s, "forget", job.id)
    if job.executes and job.state == "R" and job.substate == RUNNING:
        world.spawn.append(job.id)


def array_counts(world: World, job: EmulatedJob) -> tuple[str, str]:
    """``array_state_count`` and ``array_indices_remaining``."""
    members = [world.jobs[name] for name in job.members if name in world.jobs]
    queued = [int(each.attributes["array_index"]) for each in members if each.state in "QHW"]
    running = sum(each.state in "RS" for each in members)
    expired = sum(each.state == "F" and each.has_executed for each in members)
    counts = f"Queued:{len(queued)} Running:{running} Exiting:0 Expired:{expired}"
    return counts, remaining_text(queued)


def follow_mom(world: World, node: EmulatedNode) -> None:
    """Someone has changed a vnode or its MoM: one that is gone is down at once, one that is back goes on."""
    lost = "node down: communication closed"
    node.attributes["last_state_change_time"] = str(int(world.now_s))
    if node.mom == "stopped":
        node.attributes["comment"] = lost
    elif node.attributes.get("comment") == lost:
        del node.attributes["comment"]
    if node.mom == "up":
        for job in [world.jobs[name] for name in world.jobs_on(node.name)]:
            if job.state == "R" and job.substate == STARTING:
                world.due(world.now_s, "begin", job.id)
    change = "2->0" if node.mom == "up" else "0->2"
    world.happened.append(("modifyvnode", f"{node.name} {change}"))


def is_exclusive(job: EmulatedJob, node: EmulatedNode) -> bool:
    """Whether a job keeps a vnode for itself, by its place or by the vnode's sharing."""
    words = job.resources.get("place", "").split(":")
    sharing = node.attributes.get("sharing", "default_shared")
    if sharing.startswith("force_excl"):
        return True
    if sharing == "ignore_excl":
        return False
    if any(word in _EXCLUSIVE for word in words):
        return True
    return sharing.startswith("default_excl") and "shared" not in words


def state_of(world: World, node: EmulatedNode) -> str:
    """The comma list that pbsnodes shows."""
    words = []
    is_new = node.listed_s and world.now_s - node.listed_s < world.settings.report_s
    if is_new or (world.restarted_s and world.now_s - world.restarted_s < _UNKNOWN_S):
        return "state-unknown,down"
    if node.message == "Stale":
        return "Stale"
    jobs = [world.jobs[name] for name in world.jobs_on(node.name)]
    held = sum(int(r.get("ncpus", "0")) for job in jobs for name, r in taken(job) if name == node.name)
    if node.offline:
        words.append("offline")
    if node.mom == "stopped":
        words.append("down")
    if jobs and held >= node.np > 0:
        words.append("job-busy")
    if any(is_exclusive(job, node) for job in jobs):
        words.append("job-exclusive")
    return ",".join(words) or "free"


def _record(job: EmulatedJob) -> str:
    known = job.attributes
    fields = [
        f"user={job.user} group={job.group}",
        *([f'account="{known["Account_Name"]}"'] if "Account_Name" in known else []),
        f"project={known.get('project', '_pbs_project_default')} jobname={known['Job_Name']}",
        f"queue={job.queue}",
        f"ctime={known['ctime']} qtime={known['qtime']} etime={known.get('etime', '0')}",
        *([f"start={known['stime']}"] if "stime" in known else []),
        *([f"array_indices={known['array_indices_submitted']}"] if job.is_array else []),
        *(
            [f"exec_host={known['exec_host']} exec_vnode={known['exec_vnode']}"]
            if "exec_vnode" in known
            else []
        ),
        *[f"Resource_List.{key}={value}" for key, value in sorted(job.resources.items())],
    ]
    if "stime" in known and "exec_vnode" in known:
        fields += [f"resource_assigned.{key}={value}" for key, value in assigned_of(job).items()]
    return " ".join(fields)


def assigned_of(job: EmulatedJob) -> dict[str, str]:
    """What one job's order took, summed over its vnodes."""
    sums: dict[str, list[str]] = {}
    for _, resources in taken(job):
        for key, value in resources.items():
            sums.setdefault(key, []).append(value)
    return {key: add(values) for key, values in sums.items()}
