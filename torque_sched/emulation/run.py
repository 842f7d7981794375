"""qrun: the checks the server makes, and none of those it leaves to the scheduler."""

from __future__ import annotations

import functools
import re

from torque_sched.emulation.call import Answer, Call, read_options
from torque_sched.emulation.lifecycle import start, write_exec_host
from torque_sched.emulation.model import EmulatedJob, Refused
from torque_sched.emulation.placing import NeverFits, NotNow, Placement, find_placement, gpu_flags, with_mode
from torque_sched.emulation.routing import is_route
from torque_sched.emulation.world import World

WELL_FORMED = re.compile(r"\d+(\[\d*\])?(\.[\w.-]+)?(@[\w.-]+)?$")
_STATE_WORDS = {
    "W": "WAITING", "E": "EXITING", "T": "TRANSIT", "R": "RUNNING", "S": "SUSPENDED",
}  # fmt: skip
_USAGE = "Usage: qrun [-a] [-H host] job_id ...\n"
_UNKNOWN_NODE = 15064
_HANGING_S = 300.0
_REFUSED_S = 2.0


def qrun(world: World, call: Call) -> Answer:
    """The command: silent on success; 1 for usage or a malformed id, else 2."""
    options = read_options(call.arguments, "aH:", program="qrun")
    wrong = f"qrun: {options.error}\n" if options.error else ""
    if options.has("H") and not options.last("H"):
        wrong = "qrun: illegal -H value\n"
    if wrong or not options.words:
        return Answer(err=wrong + _USAGE, code=1)
    answer = Answer()
    for word in options.words:
        if not WELL_FORMED.match(word):
            answer.err += f"qrun: illegally formed job identifier: {word}\n"
            answer.code = 1
            continue
        full, hosts = world.full_id(word.split("@")[0]), options.last("H")
        try:
            answer.delay_s += run_job(world, call.user, full, hosts, in_background=options.has("a"))
        except Refused as error:
            text = error.text
            if error.code == _UNKNOWN_NODE:
                # Its own words, whatever the server said.
                text = f"Unknown node in hostlist '{hosts[:16] or '(null)'}...' for job {full}"
            answer.err += f"qrun: {text}\n"
            answer.code = 2
    if answer.delay_s and not answer.err:
        # The mom did not take it: the waiting client learns it when the server gives up.
        full = world.full_id(options.words[-1])
        answer.err = (
            f"qrun: Execution server rejected request MSG=cannot send job to mom, state=PRERUN {full}\n"
        )
        answer.code = 2
    return answer


def run_job(world: World, user: str, full: str, hosts: str, *, in_background: bool) -> float:
    """Start a job; after how many seconds the mom is known to have refused it, 0 if it has not.

    Args:
        world: where it starts.
        user: who orders it.
        full: the job's id.
        hosts: as for ``qrun -H``.
        in_background: the job is started by `World.do_granted`; as real servers answer such an order once
            everything is checked, before they do it.

    Raises:
        Refused: the server does not try; the text ends with the job's id.
    """
    world.do_granted()
    job = world.job(full)
    if job.state in "RS" and not job.members:
        raise Refused(15018, f"Request invalid for state of job MSG=job already running {full}")
    if not world.is_admin(user):
        detail = "" if world.settings.is_old else "MSG=operation not permitted "
        raise Refused(15007, f"Unauthorized Request  {detail}{full}")
    _check_state(world, job)
    needs = with_mode(hosts, job.resources.get("neednodes", "")) if hosts else _own_needs(job)
    try:
        placement = find_placement(world, job, needs)
    except NeverFits as error:
        raise Refused(_UNKNOWN_NODE, f"Unknown node  {full}") from error
    except NotNow as error:
        raise Refused(
            15046,
            "Resource temporarily unavailable MSG=job allocation request exceeds currently available cluster "
            f"nodes, {error.requested} requested, {error.available} available {full}",
        ) from error
    _check_slot_limit(world, job, placement)
    fails, hangs = _mom_refuses(world, [name for name, _ in placement.slots])
    begin = functools.partial(start, world, job, placement, gpu_flags(needs), fails=fails)
    if in_background:
        world.granted.append(begin)
        return 0.0
    begin()
    if not fails:
        return 0.0
    return _HANGING_S if hangs else _REFUSED_S


def _check_state(world: World, job: EmulatedJob) -> None:
    word = _STATE_WORDS.get(job.state)
    if job.members:
        if job.state in "QH":
            raise Refused(15004, f"Invalid request MSG=cannot run a job array {job.id}")
        raise Refused(15018, f"Request invalid for state of job MSG=job {job.id} state {word} {job.id}")
    if word is not None:
        raise Refused(15018, f"Request invalid for state of job MSG=job {job.id} state {word} {job.id}")
    queue = world.queues[job.queue]
    if is_route(queue) or not queue.is_true("started"):
        word = "execution" if queue.is_true("started") else "started"
        raise Refused(15004, f"Invalid request MSG=attempt to start job in non-{word} queue {job.id}")
    if job.state == "C":
        raise Refused(
            15018, f"Request invalid for state of job MSG=invalid state for job - COMPLETE {job.id}"
        )


def _check_slot_limit(world: World, job: EmulatedJob, placement: Placement) -> None:
    """The limit of an array, looked at last: the refused member shows where it would have gone."""
    parent = world.jobs.get(job.parent)
    if parent is not None and parent.slot_limit:
        members = [world.jobs[name] for name in parent.members if name in world.jobs]
        # Seen on 6.1.3: one that the mom has not got yet does not count.
        running = sum(each.state in "RE" and each.substate != 40 for each in members)
        limit = max(0, parent.slot_limit)
        if running >= limit:
            write_exec_host(world, job, placement)
            world.touch_job(job)
            raise Refused(
                15004,
                f"Invalid request MSG=Cannot run job. Array slot limit is {limit} and there are "
                f"already {running} jobs running\n {job.id}",
            )


def _own_needs(job: EmulatedJob) -> str:
    needs = job.resources.get("neednodes")
    if needs is not None:
        return needs
    if "procs" in job.resources:
        raise Refused(15065, f"Unknown node-attribute  {job.id}")
    if "L_Request" in job.attributes:
        raise Refused(_UNKNOWN_NODE, f"Unknown node  {job.id}")
    return "1"


def _mom_refuses(world: World, names: list[str]) -> tuple[bool, bool]:
    nodes = [world.nodes[name] for name in names]
    hangs = any(node.mom == "hanging" for node in nodes)
    return hangs or any(node.is_failing or node.mom == "stopped" for node in nodes), hangs
