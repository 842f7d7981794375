"""What happens to jobs: queued, started, suspended, ended, forgotten; holds, dependencies, array limits.

Functions over a :class:`~torque_sched.emulation.world.World`; the order of records, events and timers
follows what real servers were seen to do.
"""

from __future__ import annotations

import heapq

from torque_sched.emulation.model import EmulatedJob, Refused, range_text, seconds_of
from torque_sched.emulation.mom import before_change, refresh_used, report_now
from torque_sched.emulation.placing import Placement
from torque_sched.emulation.routing import RETRY_S, route
from torque_sched.emulation.world import World

__all__ = [
    "COMMANDS",
    "advance",
    "delete",
    "end",
    "requeue",
    "resume",
    "settle",
    "start",
    "suspend",
    "update_parent",
]

COMMANDS = {"null": 0, "new": 1, "term": 2, "time": 3, "recyc": 4, "cmd": 5, "first": 10}
"""Event codes of pbs_server, by name."""
_WALLTIME_GRACE_S = 1.0
KILLED = 271
OVER_WALLTIME = -11


def settle(world: World, job: EmulatedJob) -> None:
    """Give a job that is not running the state its holds, time and dependencies ask for."""
    waits = job.seconds("Execution_Time") > world.now_s
    # Unmet dependencies count as a system hold.
    holds = "".join(letter for letter in "uosl" if letter in job.holds or (letter == "s" and job.depends))
    if holds:
        state, substate = "H", 22 if job.depends else 20
    elif waits:
        state, substate = "W", 30
        world.due(job.seconds("Execution_Time"), "release", job.id)
    else:
        state, substate = "Q", 10
    job.state, job.substate = state, substate
    if "Hold_Types" in job.attributes or holds:
        job.attributes["Hold_Types"] = holds or "n"
    if state == "Q" and "etime" not in job.attributes:
        job.attributes["etime"] = str(int(world.now_s))
    world.touch_job(job)


def start(world: World, job: EmulatedJob, placement: Placement, mode: int, *, fails: bool = False) -> None:
    """Put a job on its nodes; with ``fails`` the mom will not take it and it falls back in two seconds."""
    for name in {name for name, _ in placement.slots}:
        before_change(world, name)
    now = str(int(world.now_s))
    job.slots, job.gpus = list(placement.slots), list(placement.gpus)
    job.state, job.substate = "R", 40
    job.start_s = world.now_s
    _exec_host(world, job)
    job.attributes.update(mtime=now, hashname=job.id.replace("[", "-").replace("]", ""))
    if job.gpus:
        job.attributes["gpu_flags"] = str(mode)
    job.attributes.setdefault("etime", now)
    world.occupy(job)
    _note_assigned(world, job)
    world.touch_job(job)
    if fails:
        world.due(world.now_s + 2.0, "abort", job.id)
    elif world.settings.mom_start_s > 0:
        world.due(world.now_s + world.settings.mom_start_s, "begin", job.id)
    else:
        _begin(world, job)
    update_parent(world, job)


def _begin(world: World, job: EmulatedJob) -> None:
    """The mom has the job: substate 42, session, S record, end timer."""
    job.substate = 42
    job.attributes["session_id"] = str(20000 + job.rank * 13 % 40000)
    job.attributes["start_time"] = str(int(world.now_s))
    job.attributes["start_count"] = str(int(job.attributes.get("start_count", "0")) + 1)
    world.account("S", job.id, _record(job) + " ")
    walltime = _walltime_s(job)
    if job.runtime_s is not None:
        limit = job.runtime_s if walltime is None else min(job.runtime_s, walltime + _WALLTIME_GRACE_S)
        job.ends_s = world.now_s + limit
    elif job.executes:
        job.ends_s = None if walltime is None else world.now_s + walltime + _WALLTIME_GRACE_S
        world.spawn.append(job.id)
    else:
        job.ends_s = None if walltime is None else world.now_s + walltime
    if job.ends_s is not None:
        world.due(job.ends_s, "end", job.id)
    world.touch_job(job)


def _exec_host(world: World, job: EmulatedJob) -> None:
    """Write exec_host, exec_port and exec_gpus in the dialect's form."""
    if world.settings.is_old:
        hosts = [f"{name}/{index}" for name, indices in job.slots for index in indices]
        job.attributes["exec_port"] = "+".join("15003" for _ in hosts)
    else:
        hosts = [f"{name}/{range_text(indices)}" for name, indices in job.slots]
    job.attributes["exec_host"] = "+".join(hosts)
    if job.gpus:
        job.attributes["exec_gpus"] = "+".join(f"{name}-gpu/{index}" for name, index in job.gpus)
    else:
        job.attributes.pop("exec_gpus", None)


def end(world: World, job: EmulatedJob, exit_status: int) -> None:
    """A running job is over: E record, event 2, state C, dependants and the next array members move."""
    refresh_used(world, job)
    for name in {name for name, _ in job.slots}:
        before_change(world, name)
    now = str(int(world.now_s))
    world.vacate(job)
    _jobend_reports(world, job)
    job.state, job.substate = "C", 59
    job.ends_s = None
    runtime_s = world.now_s - job.start_s
    job.attributes.update(
        mtime=now, comp_time=now, exit_status=str(exit_status), total_runtime=f"{runtime_s:.6f}"
    )
    slots = sum(len(indices) for _, indices in job.slots)
    nodes = len({name for name, _ in job.slots})
    used = " ".join(f"resources_used.{key}={_plain(key, value)}" for key, value in job.used.items())
    world.account(
        "E",
        job.id,
        f"{_record(job)} session={job.attributes.get('session_id', '0')} total_execution_slots={slots} "
        f"unique_node_count={nodes} end={now} Exit_status={exit_status} {used}".rstrip(),
    )
    _finished(world, job, exit_status)


def delete(world: World, job: EmulatedJob, requestor: str) -> None:
    """What qdel does to one job, running or not."""
    if job.members:
        for member in [world.jobs[name] for name in job.members if name in world.jobs]:
            if member.state != "C":
                delete(world, member, requestor)
        return
    world.account("D", job.id, f"requestor={requestor}")
    if job.is_active:
        world.kill.append((job.id, "TERM"))
        end(world, job, KILLED)
        return
    _drop(world, job)


def requeue(world: World, job: EmulatedJob, record: str = "R") -> None:
    """Back to the queue: a failed start or qrerun."""
    for name in {name for name, _ in job.slots}:
        before_change(world, name)
    world.vacate(job)
    if record:
        world.account(record, job.id, _record(job))
        world.kill.append((job.id, "KILL"))
    job.slots, job.gpus, job.ends_s, job.is_suspended = [], [], None, False
    for name in ("exec_host", "exec_port", "exec_gpus", "session_id", "start_time", "gpu_flags"):
        job.attributes.pop(name, None)
    job.used.clear()
    settle(world, job)
    update_parent(world, job)


def suspend(world: World, job: EmulatedJob) -> None:
    """State S: the slots look free, exec_host stays, the clock of the job stops."""
    for name in {name for name, _ in job.slots}:
        before_change(world, name)
    refresh_used(world, job)
    if job.ends_s is not None:
        job.runtime_s = max(0.0, job.ends_s - world.now_s)
        job.ends_s = None
    job.state, job.substate, job.is_suspended = "S", 43, True
    world.vacate(job)
    world.touch_job(job)


def resume(world: World, job: EmulatedJob) -> None:
    """Run on, without a second look at whether the slots are still free."""
    for name in {name for name, _ in job.slots}:
        before_change(world, name)
    job.state, job.substate, job.is_suspended = "R", 42, False
    if job.runtime_s is not None:
        job.ends_s = world.now_s + job.runtime_s
        world.due(job.ends_s, "end", job.id)
    world.occupy(job)
    world.touch_job(job)


def advance(world: World, now_s: float) -> None:
    """Let the time run to ``now_s``; what falls due on the way happens at its own second."""
    while world.timers and world.timers[0][0] <= now_s:
        at_s, kind, key = heapq.heappop(world.timers)
        world.now_s = max(world.now_s, at_s)
        _fire(world, at_s, kind, key)
    world.now_s = max(world.now_s, now_s)


def _fire(world: World, at_s: float, kind: str, key: str) -> None:
    if kind == "iteration":
        world.notify(COMMANDS["time"])
        world.due(at_s + max(1.0, float(world.server.get("scheduler_iteration", "600"))), "iteration", "")
        return
    job = world.jobs.get(key)
    if job is None:
        return
    if kind == "end" and job.state == "R" and job.ends_s is not None and job.ends_s <= at_s:
        _end_of_time(world, job)
    elif kind == "begin" and job.state == "R" and job.substate == 40:
        _begin(world, job)
    elif kind == "abort" and job.state == "R" and job.substate == 40:
        _fall_back(world, job)
    elif kind == "route" and job.state in "QHW":
        _route_again(world, job)
    elif kind == "release" and job.state == "W" and job.seconds("Execution_Time") <= at_s:
        settle(world, job)
        world.notify(COMMANDS["new"])
    elif kind == "forget" and job.state == "C":
        _forget(world, job)


def _route_again(world: World, job: EmulatedJob) -> None:
    """A job (or an array) that waits in a routing queue is tried once more; if refused for good, it ends."""
    members = [world.jobs[name] for name in job.members if name in world.jobs]
    try:
        if route(world, job, max(1, len(members))):
            world.due(world.now_s + RETRY_S, "route", job.id)
            return
    except Refused:
        for each in members or [job]:
            world.account("A", each.id, "")
            _drop(world, each)
        return
    for each in members:
        each.queue = job.queue
        each.resources = {**job.resources, **each.resources}
        world.touch_job(each)
    world.touch_job(job)
    for each in members or [job]:
        world.account("Q", each.id, f"queue={job.queue}")
    world.notify(COMMANDS["new"])


def _end_of_time(world: World, job: EmulatedJob) -> None:
    walltime = _walltime_s(job)
    declared = job.runtime_s is not None or job.executes
    over = declared and walltime is not None and world.now_s - job.start_s > walltime
    if job.executes:
        world.kill.append((job.id, "TERM"))
    end(world, job, OVER_WALLTIME if over else job.exit_with)


def _fall_back(world: World, job: EmulatedJob) -> None:
    names = {name for name, _ in job.slots}
    bad = next((n for n, _ in job.slots if world.nodes[n].is_failing or world.nodes[n].mom != "up"), "")
    if world.settings.is_old and len(names) > 1:
        # Seen on 4.2.10: the slots of a failed multi-node start stay taken until the server restarts.
        for name, indices in job.slots:
            world.leaked.setdefault(name, set()).update(indices)
    requeue(world, job, record="")
    if bad:
        node = world.nodes[bad]
        node.marked_down, node.marked_down_s = True, world.now_s
        world.touch_node(bad)


def _finished(world: World, job: EmulatedJob, exit_status: int) -> None:
    _dependants(world, job, exit_status)
    parent = world.jobs.get(job.parent)
    if parent is not None and parent.slot_limit:
        held = next(
            (world.jobs[m] for m in parent.members if m in world.jobs and "l" in world.jobs[m].holds), None
        )
        if held is not None:
            held.holds = held.holds.replace("l", "")
            held.attributes["Hold_Types"] = "n"
            settle(world, held)
    update_parent(world, job)
    keep = world.queues[job.queue].attributes.get("keep_completed") if job.queue in world.queues else None
    keep_s = float(keep or world.server.get("keep_completed", "0"))
    if keep_s > 0:
        world.due(world.now_s + keep_s, "forget", job.id)
        world.touch_job(job)
    else:
        _forget(world, job)
    world.notify(COMMANDS["term"])


def _drop(world: World, job: EmulatedJob) -> None:
    now = str(int(world.now_s))
    job.state, job.substate = "C", 59
    job.attributes.update(mtime=now, comp_time=now, exit_status=str(KILLED))
    _finished(world, job, KILLED)


def _forget(world: World, job: EmulatedJob) -> None:
    parent = world.jobs.get(job.parent)
    del world.jobs[job.id]
    world.touch("job", job.id)
    if parent is not None and not any(name in world.jobs for name in parent.members):
        del world.jobs[parent.id]
        world.touch("job", parent.id)


def _dependants(world: World, job: EmulatedJob, exit_status: int) -> None:
    before = [
        part.partition(":")[2] for part in job.attributes.get("depend", "").split(",") if "before" in part
    ]
    for name in [each for group in before for each in group.split(":")]:
        other = world.jobs.get(name)
        if other is None or other.state == "C":
            continue
        mine = [(kind, target) for kind, target in other.depends if target == job.id]
        met = [pair for pair in mine if _is_met(pair[0], exit_status)]
        if len(met) < len(mine):
            world.account("D", other.id, f"requestor=root@{world.settings.server}")
            _drop(world, other)
            continue
        other.depends = [pair for pair in other.depends if pair not in met]
        if not other.depends:
            other.attributes.pop("depend", None)
        settle(world, other)


def _is_met(kind: str, exit_status: int) -> bool:
    if kind.startswith("afterok"):
        return exit_status == 0
    return exit_status != 0 if kind.startswith("afternotok") else True


def update_parent(world: World, job: EmulatedJob) -> None:
    """Give an array the state of its members."""
    parent = world.jobs.get(job.parent)
    if parent is None:
        return
    states = {world.jobs[name].state for name in parent.members if name in world.jobs}
    new = next((letter for letter in "RESQHW" if letter in states), "C")
    if new != parent.state:
        parent.state = new
        parent.substate = 59 if new == "C" else 10
        parent.attributes["mtime"] = str(int(world.now_s))
        world.touch_job(parent)


def _jobend_reports(world: World, job: EmulatedJob) -> None:
    for name in {name for name, _ in job.slots}:
        if world.nodes[name].jobend_report:
            report_now(world, name)


def _note_assigned(world: World, job: EmulatedJob) -> None:
    for name in ("nodect", "mem", "ncpus", "vmem"):
        if name not in job.resources:
            continue
        queue = world.queues[job.queue]
        if name not in queue.assigned:
            queue.assigned.append(name)
            world.touch("queue", queue.name)
        if name not in world.assigned:
            world.assigned.append(name)
            world.touch("server", "")


def _walltime_s(job: EmulatedJob) -> float | None:
    text = job.resources.get("walltime")
    return None if text is None else float(seconds_of(text))


def _record(job: EmulatedJob) -> str:
    known = job.attributes
    fields = [
        f"user={job.user} group={job.group}",
        *([f"account={known['Account_Name']}"] if "Account_Name" in known else []),
        f"jobname={known['Job_Name']} queue={job.queue} ctime={known['ctime']} qtime={known['qtime']}",
        f"etime={known.get('etime', '0')} start_count={known.get('start_count', '0')}",
        f"start={known.get('start_time', '0')} owner={known['Job_Owner']}",
        f"exec_host={known.get('exec_host', '')}",
        *[f"Resource_List.{key}={value}" for key, value in job.resources.items()],
    ]
    return " ".join(fields)


def _plain(key: str, value: str) -> str:
    if key != "cput":
        return value
    hours, minutes, seconds = value.split(":")
    return str(int(hours) * 3600 + int(minutes) * 60 + int(seconds))
