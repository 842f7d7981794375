"""Routing queues: a job goes on to the first of ``route_destinations`` that takes it.

As in the source of 6.1.3: tried once at submission, if the routing queue is started. Where every destination
refuses for good, so does qsub; a destination that is full or disabled is tried again every ten seconds.
Destinations on other servers are not emulated: they never take a job.
"""

from __future__ import annotations

from torque_sched.emulation.call import DENIED
from torque_sched.emulation.model import EmulatedJob, EmulatedQueue, Refused, seconds_of, size_kb
from torque_sched.emulation.placing import parse_spec
from torque_sched.emulation.world import World

RETRY_S = 10.0
_MAX_QUEUED, _MAX_USER_QUEUED, _DISABLED, _REJECTED = 15048, 15076, 15023, 15041
_PASSES = frozenset({_MAX_QUEUED, _MAX_USER_QUEUED, _DISABLED})
"""What a destination says no to now and may take later."""


def is_route(queue: EmulatedQueue) -> bool:
    """Whether its jobs only pass through."""
    return queue.attributes.get("queue_type", "Execution").lower().startswith("r")


def check_kind(world: World, queue: EmulatedQueue, job: EmulatedJob, *, is_array: bool) -> None:
    """Whether a queue takes jobs of this kind from a user.

    Raises:
        Refused: it does not.
    """
    who = f"user {job.user}@{world.settings.server}, queue {queue.name}"
    kinds = queue.attributes.get("disallowed_types", "").split(",")
    is_rerunable = job.attributes["Rerunable"] == "True"
    for kind, applies, code, text, detail in (
        ("batch", True, 15079, "batch jobs", "batch job is"),
        ("rerunable", is_rerunable, 15080, "rerunable jobs", "rerunable job is"),
        ("nonrerunable", not is_rerunable, 15081, "nonrerunable jobs", "only rerunable jobs are"),
    ):
        if kind in kinds and applies:
            but = "allowed" if detail.startswith("only") else "not allowed"
            raise Refused(code, f"Queue does not allow {text} MSG={detail} {but} for queue: {who}")
    if "job_array" in kinds and is_array:
        detail = f"job arrays are not allowed for queue: queue {queue.name}"
        raise Refused(15089, f"Queue does not allow job arrays MSG={detail}")
    if queue.is_true("from_route_only"):
        detail = f"queue accepts only routed jobs, no direct submission: {who}"
        raise Refused(15024, f"Access to queue is denied MSG={detail}")


def check_room(world: World, queue: EmulatedQueue, user: str, group: str, n_new: int = 1) -> None:
    """Whether a queue takes a job of this user at all.

    Raises:
        Refused: it is disabled, or full.
    """
    who = f"user {user}@{world.settings.server}, queue {queue.name}"
    if not queue.is_true("enabled"):
        raise Refused(_DISABLED, f"Queue is not enabled MSG=queue is disabled: {who}")
    _check_acl(world, queue, user, group, who)
    for key, code, whose, text, detail in (
        ("max_queuable", _MAX_QUEUED, "", "", "total number of jobs in queue"),
        ("max_user_queuable", _MAX_USER_QUEUED, user, " for user", "total number of current user's jobs"),
    ):
        most = queue.attributes.get(key)
        if most is None:
            continue
        n_there = sum(
            job.queue == queue.name and job.state != "C" and not job.members and whose in {"", job.user}
            for job in world.jobs.values()
        )
        if n_there + n_new > int(most):
            raise Refused(
                code,
                f"Maximum number of jobs already in queue{text} MSG={detail} exceeds the queue limit: {who}",
            )


def _check_acl(world: World, queue: EmulatedQueue, user: str, group: str, who: str) -> None:
    host = world.settings.server
    hosts, denied = queue.attributes.get("acl_hosts", ""), "Unauthorized Request  MSG="
    if queue.is_true("acl_host_enable") and host not in _names(hosts):
        detail = f"host ACL rejected the submitting host: {who}, host {host}"
        raise Refused(15010, f"{DENIED} MSG={detail}")
    is_user = user in _names(queue.attributes.get("acl_users", ""))
    is_member = group in _names(queue.attributes.get("acl_groups", ""))
    if queue.is_true("acl_logic_or") and (is_user or is_member):
        return
    if queue.is_true("acl_user_enable") and not is_user:
        raise Refused(15007, f"{denied}user ACL rejected the submitting user: {who}")
    if queue.is_true("acl_group_enable") and not is_member:
        raise Refused(15007, f"{denied}group ACL is not satisfied: {who}")


def _names(text: str) -> list[str]:
    return [each.strip().split("@")[0] for each in text.split(",")]


def check_server(world: World, job: EmulatedJob, queue: EmulatedQueue) -> None:
    """Whether the server itself takes a job: its ``resources_max``, where the queue has none, and per user.

    Raises:
        Refused: it does not.
    """
    for key, limit in world.server.items():
        kind, _, name = key.partition(".")
        if kind != "resources_max" or name not in job.resources or key in queue.attributes:
            continue
        if _amount(name, job.resources[name]) > _amount(name, limit):
            text = f"cannot satisfy server max {name} requirement"
            raise Refused(15038, f"Job exceeds queue resource limits MSG={text}")
    most = world.server.get("max_user_queuable")
    if most is None:
        return
    mine = sum(
        each.user == job.user and each.state != "C" and not each.members for each in world.jobs.values()
    )
    if mine >= int(most):
        # The client of 4.2 tries three times, and tells of the last.
        name = world.full_id(str(world.next_job + (2 if world.settings.is_old else 0)))
        text = f"Job {name} violates the global server limit of {most} jobs queued per user"
        raise Refused(_MAX_QUEUED, f"Maximum number of jobs already in queue MSG={text}")


def check_limits(world: World, job: EmulatedJob, queue: EmulatedQueue) -> None:
    """Whether what a job asks for is within a queue's ``resources_max`` and ``resources_min``.

    Raises:
        Refused: it is not.
    """
    for key, limit in queue.attributes.items():
        kind, _, resource = key.partition(".")
        asked = str(_processors(job)) if resource == "procct" else job.resources.get(resource)
        if kind in ("resources_max", "resources_min") and asked is not None:
            low = kind == "resources_min"
            value, bound = _amount(resource, asked), _amount(resource, limit)
            if (value < bound) if low else (value > bound):
                words = (
                    f"{'c' if world.settings.is_old else 'C'}annot satisfy queue min"
                    if low
                    else "cannot satisfy queue max"
                )
                raise Refused(15038, f"Job exceeds queue resource limits MSG={words} {resource} requirement")


def route(world: World, job: EmulatedJob, n_new: int = 1) -> bool:
    """Move a job on, if its queue is a started routing queue; True when it has to be tried again.

    Raises:
        Refused: no destination will ever take it.
    """
    queue = world.queues[job.queue]
    if not is_route(queue):
        return False
    if not queue.is_true("started"):
        return True
    may_later = False
    for name in queue.attributes.get("route_destinations", "").split(","):
        found = world.queues.get(name.strip().partition("@")[0])
        if found is None or is_route(found) or "@" in name:
            continue
        try:
            check_room(world, found, job.user, job.group, n_new)
            check_limits(world, job, found)
        except Refused as error:
            may_later = may_later or error.code in _PASSES
            continue
        job.queue = found.name
        for key, value in found.attributes.items():
            family, _, resource = key.partition(".")
            stays = job.has_executed and resource == "nodes"
            if family == "resources_default" and resource and resource != "neednodes" and not stays:
                job.resources.setdefault(resource, value)
        if "nodes" in job.resources and "neednodes" not in job.resources:
            nodes = job.resources["nodes"]
            count = sum(chunk.count for chunk in parse_spec(nodes))
            job.resources.update(nodect=str(count), neednodes=nodes)
        return False
    if not may_later:
        raise Refused(
            _REJECTED, "Job rejected by all possible destinations (check syntax, queue resources, ...)"
        )
    job.is_anonymous = True
    return True


def _processors(job: EmulatedJob) -> int:
    """What the limits called ``procct`` count."""
    n_slots = int(job.resources.get("procs", "0"))
    nodes = job.resources.get("nodes")
    return n_slots + (sum(chunk.count * chunk.ppn for chunk in parse_spec(nodes)) if nodes else 0)


def _amount(resource: str, text: str) -> int:
    try:
        if resource in ("walltime", "cput", "pcput"):
            return seconds_of(text)
        return size_kb(text) if resource.endswith("mem") else int(text)
    except ValueError:
        return 0
