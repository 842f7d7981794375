"""What happens to jobs: queued, started, suspended, ended, forgotten; holds, dependencies, array limits.

Functions over a :class:`~torque_sched.emulation.world.World`; the order of records, events and timers
follows what real servers were seen to do.
"""

from __future__ import annotations

from torque_sched.emulation.depend import drop, followers, is_met
from torque_sched.emulation.model import EmulatedJob, Refused, range_text
from torque_sched.emulation.mom import before_change, refresh_used, report_now
from torque_sched.emulation.placing import Placement
from torque_sched.emulation.routing import RETRY_S, is_route, route
from torque_sched.emulation.world import World

COMMANDS = {"null": 0, "new": 1, "term": 2, "time": 3, "recyc": 4, "cmd": 5, "first": 10}
"""Event codes of pbs_server, by name."""
_WALLTIME_GRACE_S = 1.0
KILLED = 271
OVER_WALLTIME = -11


def settle(world: World, job: EmulatedJob) -> None:
    """Give a job that is not running the state its holds, time and dependencies ask for."""
    waits = job.seconds("Execution_Time") > world.now_s
    if job.holds or job.depends:
        state, substate = "H", 20
        if job.depends:
            substate = 21 if job.depends[0][0] == "synccount" else 22
    elif waits:
        state, substate = "W", 30
        world.due(job.seconds("Execution_Time"), "release", job.id)
    else:
        state, substate = "Q", 10
    job.state, job.substate = state, substate
    if "Hold_Types" in job.attributes or job.holds or job.depends:
        job.attributes["Hold_Types"] = hold_text(world, job)
    if job.queue in world.queues and is_route(world.queues[job.queue]):
        job.attributes.pop("etime", None)
    elif state == "Q" and "etime" not in job.attributes:
        job.attributes["etime"] = str(int(world.now_s))
    elif state != "Q" and "l" not in job.holds:
        job.attributes.pop("etime", None)
    world.touch_job(job)


def hold_text(world: World, job: EmulatedJob) -> str:
    """``Hold_Types``: unmet dependencies count as a system hold; ``l`` is shown by 6.1 only."""
    letters = job.holds + ("s" if job.depends else "")
    shown = "".join(letter for letter in "soul" if letter in letters)
    if world.settings.is_old:
        # 4.2.10 has no letter for the slot limit: it shows nothing.
        return shown.replace("l", "") if shown else "n"
    return shown or "n"


def start(world: World, job: EmulatedJob, placement: Placement, mode: int, *, fails: bool = False) -> None:
    """Put a job on its nodes; with ``fails`` the mom will not take it and it falls back in two seconds."""
    for name in {name for name, _ in placement.slots}:
        before_change(world, name)
    now = str(int(world.now_s))
    job.slots, job.gpus = list(placement.slots), list(placement.gpus)
    job.state, job.substate = "R", 40
    job.start_s = world.now_s
    write_exec_host(world, job, placement)
    job.attributes.update(mtime=now, hashname=job.id.replace("[", "-").replace("]", ""))
    if job.gpus:
        job.attributes["gpu_flags"] = str(mode)
    world.occupy(job)
    _note_assigned(world, job)
    world.touch_job(job)
    _tell_started(world, job)
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
    walltime = job.walltime_s
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


def write_exec_host(world: World, job: EmulatedJob, placement: Placement) -> None:
    """Write exec_host, exec_port and exec_gpus in the dialect's form."""
    if world.settings.is_old:
        hosts = [f"{name}/{index}" for name, indices in placement.slots for index in indices]
        job.attributes["exec_port"] = "+".join("15003" for _ in hosts)
    else:
        hosts = [f"{name}/{range_text(indices)}" for name, indices in placement.slots]
    job.attributes["exec_host"] = "+".join(hosts)
    if placement.gpus:
        job.attributes["exec_gpus"] = "+".join(f"{name}-gpu/{index}" for name, index in placement.gpus)
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
    if not world.settings.is_old and job.slots:
        _keep_files(job)
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


def _keep_files(job: EmulatedJob) -> None:
    """Seen on 6.1.3: the mom writes its own host into the paths of files that stay with it."""
    for letter, key in (("o", "Output_Path"), ("e", "Error_Path")):
        if letter in job.attributes["Keep_Files"]:
            _, sign, path = job.attributes[key].partition(":")
            job.attributes[key] = f"{job.slots[0][0]}{sign}{path}"


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
    for name in ("exec_host", "session_id", "comp_time", *(("exec_gpus",) if world.settings.is_old else ())):
        job.attributes.pop(name, None)
    if record:
        job.attributes.setdefault("exit_status", "0")
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
    job.state, job.is_suspended = "S", True
    world.vacate(job)
    world.touch_job(job)


def resume(world: World, job: EmulatedJob) -> None:
    """Run on, without a second look at whether the slots are still free."""
    for name in {name for name, _ in job.slots}:
        before_change(world, name)
    job.state, job.is_suspended = "R", False
    if job.runtime_s is not None:
        job.ends_s = world.now_s + job.runtime_s
        world.due(job.ends_s, "end", job.id)
    world.occupy(job)
    world.touch_job(job)


def fire(world: World, at_s: float, kind: str, key: str) -> None:
    """What is due to happen to a job, or to the server."""
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
        forget(world, job)


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
    for each in members or [job]:
        settle(world, each)
    world.touch_job(job)
    for each in members or [job]:
        world.account("Q", each.id, f"queue={job.queue}")
    world.notify(COMMANDS["new"])


def _end_of_time(world: World, job: EmulatedJob) -> None:
    walltime = job.walltime_s
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


def _finished(
    world: World, job: EmulatedJob, exit_status: int, *, was_deleted: bool = False, is_reported: bool = True
) -> None:
    if not was_deleted:
        # Seen on real servers: the scheduler hears of the end of a job that never ran only when the
        # server forgets it.
        world.notify(COMMANDS["new" if job.parent else "term"])
    _dependants(world, job, exit_status, was_deleted=was_deleted, is_reported=is_reported)
    parent = world.jobs.get(job.parent)
    if parent is not None and parent.slot_limit:
        held = next(
            (
                world.jobs[m]
                for m in parent.members
                # Seen on real servers: one that is over counts as well, but not the one that ends now.
                if m in world.jobs and "l" in world.jobs[m].holds and m != job.id
            ),
            None,
        )
        if held is not None:
            held.holds = held.holds.replace("l", "")
            if held.state != "C":
                held.attributes.pop("exec_host", None)
                settle(world, held)
            world.touch_job(held)
            held.attributes["Hold_Types"] = hold_text(world, held)
            if not held.holds:
                del held.attributes["Hold_Types"]
    update_parent(world, job)
    if parent is not None:
        _array_dependants(world, parent)
    keep = world.queues[job.queue].attributes.get("keep_completed") if job.queue in world.queues else None
    keep_s = float(keep or world.server.get("keep_completed", world.settings.kept_s))
    if keep_s > 0:
        world.due(world.now_s + keep_s, "forget", job.id)
        world.touch_job(job)
    else:
        forget(world, job)


def _drop(world: World, job: EmulatedJob, *, is_reported: bool = False) -> None:
    """A job that never ran is over: no end, no exit status."""
    job.state, job.substate = "C", 59
    job.attributes["mtime"] = str(int(world.now_s))
    # Seen on 4.2.10: nobody tells the jobs that wait for a deleted one, but for `afterany`.
    _finished(world, job, KILLED, was_deleted=True, is_reported=is_reported or not world.settings.is_old)


def forget(world: World, job: EmulatedJob) -> None:
    """The server shows a job no longer."""
    # Seen on real servers, whether it ran or not: the scheduler hears of the end when it is forgotten.
    world.notify(COMMANDS["term"])
    parent = world.jobs.get(job.parent)
    del world.jobs[job.id]
    world.touch("job", job.id)
    if parent is not None and not any(name in world.jobs for name in parent.members):
        del world.jobs[parent.id]
        world.touch("job", parent.id)


def _dependants(
    world: World, job: EmulatedJob, exit_status: int, *, was_deleted: bool, is_reported: bool
) -> None:
    for kind, other in followers(world, job, ("afterok", "afternotok", "afterany", "after")):
        if other.state == "C":
            continue
        if not is_reported and kind != "afterany":
            continue
        if other.state in "RES" or kind == "afterany" or (is_met(kind, exit_status) and not was_deleted):
            drop(world, other, kind, job.id)
            if other.state in "QHW":
                _free(world, other)
        else:
            _give_up(world, other, f"Job deleted as result of dependency on job {job.id}")


def _free(world: World, job: EmulatedJob) -> None:
    """A dependency is met."""
    if job.members:
        job.substate = 22 if job.depends else 10
        job.attributes["Hold_Types"] = hold_text(world, job)
        return
    substate = job.substate
    settle(world, job)
    if job.holds and not job.depends:
        # Held before and after: nothing looks at why.
        job.substate = substate
    if job.state == "Q":
        world.notify(COMMANDS["new"])


def _give_up(world: World, job: EmulatedJob, why: str) -> None:
    """A dependency can never be met: the job is deleted, and says why."""
    world.account("D", job.id, f"requestor=root@{world.settings.server}")
    job.attributes.update(comment=why, exit_status=str(KILLED))
    _drop(world, job, is_reported=True)
    job.substate = 55
    if world.settings.is_old and job.id in world.jobs:
        forget(world, job)


def _array_dependants(world: World, parent: EmulatedJob) -> None:
    """Jobs that wait for a whole array: freed when all its members are done as asked."""
    if not parent.awaited:
        return
    members = [world.jobs[name] for name in parent.members if name in world.jobs]
    over = [each.attributes.get("exit_status", "") for each in members if each.state == "C"]
    for other in [world.jobs[name] for name in parent.awaited if name in world.jobs]:
        for kind in [kind for kind, name in other.depends if name == parent.id and "array" in kind]:
            never = {"afterok": any(status != "0" for status in over), "afterany": False}
            if other.state == "C":
                continue
            # Seen on 6.1.3: `afterstartarray` and `afternotokarray` end with the first member that does.
            if never.get(kind.partition("array")[0], "0" in over) and not world.settings.is_old:
                never_text = f"its dependency of array {parent.id} can never be satisfied"
                _give_up(world, other, f"Job {other.id} deleted because {never_text}")
            elif len(over) == len(members):
                drop(world, other, kind, parent.id)
                _free(world, other)


def _tell_started(world: World, job: EmulatedJob) -> None:
    for kind, other in followers(world, job, ("after",)):
        drop(world, other, kind, job.id)
        if not world.settings.is_old:
            drop(world, job, "before", other.id)
        if other.state in "QHW":
            _free(world, other)


def update_parent(world: World, job: EmulatedJob) -> None:
    """Give an array the state of its members."""
    parent = world.jobs.get(job.parent)
    if parent is None:
        return
    states = {world.jobs[name].state for name in parent.members if name in world.jobs}
    new = next((letter for letter in "RESQHW" if letter in states), "C")
    if not world.settings.is_old and job.state == "C" and "start_time" not in job.attributes:
        # Seen on 6.1.3: the end of a member that never ran ends the array, unless another one runs.
        new = new if new in "RES" else "C"
    if new != parent.state:
        parent.state = new
        parent.attributes["mtime"] = str(int(world.now_s))
        world.touch_job(parent)


def _jobend_reports(world: World, job: EmulatedJob) -> None:
    for name in {name for name, _ in job.slots}:
        if world.nodes[name].jobend_report:
            report_now(world, name)


def _note_assigned(world: World, job: EmulatedJob) -> None:
    for name in job.resources:
        if name not in ("nodect", "mem", "ncpus", "vmem"):
            continue
        queue = world.queues[job.queue]
        if name not in queue.assigned:
            queue.assigned.append(name)
            world.touch("queue", queue.name)
        if name not in world.assigned:
            world.assigned.append(name)
            world.touch("server", "")


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
