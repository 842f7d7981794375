"""pbs_rsub, pbs_rstat and pbs_rdel, and what a reservation does at its time.

A server without a scheduler leaves a reservation unconfirmed; ``emulated confirm RESERVATION VNODES`` plays
the scheduler's part. Alike with captures are the record of a confirmed one, its vnodes and its queue; what
happens at start and end, and all refusals, is as the manual says and was not seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from torque_sched.emulation.call import Answer, Call, read_options
from torque_sched.emulation.checks import execution_time_s
from torque_sched.emulation.model import EmulatedObject, EmulatedQueue, Refused, seconds_of, walltime_text
from torque_sched.emulation.openpbs import lifecycle
from torque_sched.emulation.openpbs.submit import resources_of
from torque_sched.emulation.openpbs.values import chunks_of, ctime, elements_of, multiply, n_chunks
from torque_sched.emulation.world import World

_KIND = "reservation "
_TIMES = ("reserve_start", "reserve_end", "ctime", "mtime")
_USAGE = "usage: pbs_rsub [-N name] [-R start] [-E end | -D duration] [-U users] [-l resource_list]\n"
_UNKNOWN = Refused(15131, "Unknown Reservation Id")


def reservations(world: World) -> dict[str, EmulatedObject]:
    """All there are, by id."""
    return {name.removeprefix(_KIND): each for name, each in world.objects.items() if name.startswith(_KIND)}


def pbs_rsub(world: World, call: Call) -> Answer:
    """Ask for a reservation: its id, and that nobody has confirmed it."""
    options = read_options(call.arguments, "N:R:E:D:U:l:I:q:u:G:H:m:M:W:r:")
    resources: dict[str, str] = {}
    for text in options.values.get("l", []):
        resources.update(resources_of(text))
    try:
        if options.error or not (options.has("R") and (options.has("E") or options.has("D"))):
            raise ValueError(options.error)
        start_s = execution_time_s(options.last("R"), world.now_s)
        if options.has("D"):
            duration_s = seconds_of(options.last("D"))
        else:
            duration_s = execution_time_s(options.last("E"), world.now_s) - start_s
        if duration_s <= 0 or start_s <= world.now_s:
            return Answer(err="pbs_rsub: Bad time specification(s)\n", code=1)
        name = _make(
            world, call, options.last("N", "NULL"), options.last("U"), resources, start_s, duration_s
        )
    except (ValueError, Refused):
        return Answer(err=_USAGE, code=2)
    return Answer(out=f"{name} UNCONFIRMED\n")


def _make(
    world: World,
    call: Call,
    title: str,
    users: str,
    resources: dict[str, str],
    start_s: int,
    duration_s: float,
) -> str:
    select = resources.get("select", "1:ncpus=1")
    server, owner = world.settings.server, call.requestor(world)
    sums: dict[str, str] = {}
    for count, pairs in chunks_of(select):
        sums.update({name: _sum(sums.get(name, "0"), multiply(value, count)) for name, value in pairs})
    name = f"R{world.next_job}.{server}"
    world.next_job += 1
    now = str(int(world.now_s))
    attributes = {
        "Reserve_Name": title, "Reserve_Owner": owner, "reserve_state": "RESV_UNCONFIRMED",
        "reserve_substate": "1", "reserve_start": str(start_s), "reserve_end": str(int(start_s + duration_s)),
        "reserve_duration": str(int(duration_s)), "queue": name.partition(".")[0],
        **{f"Resource_List.{key}": value for key, value in sums.items()},
        "Resource_List.nodect": str(n_chunks(select)), "Resource_List.select": select,
        "Resource_List.place": resources.get("place", "free"),
        "Resource_List.walltime": walltime_text(duration_s), "schedselect": select, "resv_nodes": "",
        "Authorized_Users": users or owner, "server": server, "ctime": now, "mtime": now,
        "Variable_List": f"PBS_O_LOGNAME={call.user},PBS_O_HOST={server}", "euser": call.user,
        "egroup": call.user, "reserve_count": "1", "partition": "pbs-default",
    }  # fmt: skip
    _keep(world, EmulatedObject(_KIND + name, attributes))
    return name


def _sum(one: str, other: str) -> str:
    return str(int(one) + int(other)) if one.isdigit() and other.isdigit() else other


def _keep(world: World, found: EmulatedObject) -> None:
    world.objects[found.name] = found
    world.touch("object", found.name)


def confirm(world: World, name: str, vnodes: str) -> Answer:
    """What a scheduler does: choose its vnodes. A queue for its jobs comes with that."""
    found = reservations(world).get(name)
    if found is None:
        return Answer(err=f"emulated: {_UNKNOWN.text} {name}\n", code=1)
    known = found.attributes
    known |= {"reserve_state": "RESV_CONFIRMED", "reserve_substate": "2", "resv_nodes": vnodes}
    ncpus = {"ncpus": known["Resource_List.ncpus"]} if "Resource_List.ncpus" in known else {}
    queue = known["queue"]
    world.queues[queue] = EmulatedQueue(
        queue,
        {
            "queue_type": "Execution", "acl_user_enable": "True", "acl_users": known["Authorized_Users"],
            **{f"resources_max.{key}": value for key, value in ncpus.items()},
            **{f"resources_available.{key}": value for key, value in ncpus.items()},
            "enabled": "True", "started": "False", "partition": "pbs-default",
        },
        int(world.now_s),
    )  # fmt: skip
    world.touch("queue", queue)
    _keep(world, found)
    due_again(world, name, found)
    return Answer()


def due_again(world: World, name: str, found: EmulatedObject) -> None:
    """It begins and ends at its times."""
    if found.attributes["reserve_state"] in {"RESV_CONFIRMED", "RESV_RUNNING"}:
        for kind in ("reserve_start", "reserve_end"):
            world.due(float(found.attributes[kind]), kind, name)


def fire(world: World, kind: str, name: str) -> None:
    """Its queue is started as it begins, and is gone with its jobs as it ends."""
    found = reservations(world).get(name)
    if found is None:
        return
    if kind == "reserve_end":
        _end(world, name)
    elif found.attributes["reserve_state"] == "RESV_CONFIRMED":
        found.attributes |= {"reserve_state": "RESV_RUNNING", "reserve_substate": "5"}
        world.queues[found.attributes["queue"]].attributes["started"] = "True"
        world.touch("queue", found.attributes["queue"])
        _keep(world, found)


def _end(world: World, name: str) -> None:
    queue = world.objects.pop(_KIND + name).attributes["queue"]
    world.touch("object", _KIND + name)
    for job in list(world.jobs.values()):
        if job.queue == queue and job.state != "F":
            lifecycle.delete(world, job, f"Scheduler@{world.settings.server}")
    if world.queues.pop(queue, None) is not None:
        world.touch("queue", queue)


def pbs_rdel(world: World, call: Call) -> Answer:
    """End reservations now."""
    answer = Answer()
    for word in call.arguments:
        name = world.full_id(word)
        found = reservations(world).get(name)
        owner = found.attributes["euser"] if found is not None else ""
        if found is None or not (world.is_admin(call.user) or call.user == owner):
            why = _UNKNOWN.text if found is None else "Unauthorized Request "
            answer.err += f"pbs_rdel: {why} {name}\n"
            answer.code = 1
            continue
        _end(world, name)
    return answer


def pbs_rstat(world: World, call: Call) -> Answer:
    """Reservations; -f in full, which is the form that is captured."""
    options = read_options(call.arguments, "fFBS")
    zone = call.environment.get("TZ", "")
    names = [world.full_id(word) for word in options.words] or list(reservations(world))
    out = ""
    for name in names:
        found = reservations(world).get(name)
        if found is None:
            return Answer(out=out, err=f"pbs_rstat: {_UNKNOWN.text} {name}\n", code=1)
        if not (options.has("f") or options.has("F")):
            out += f"Resv ID: {name}\n"
            continue
        pairs = (
            (key, ctime(int(value), zone) if key in _TIMES else value)
            for key, value in found.attributes.items() if value
        )  # fmt: skip
        out += f"Resv ID: {name}\n" + "".join(f"{key} = {value}\n" for key, value in pairs) + "\n"
    return Answer(out=out)


def on_vnode(world: World, vnode: str) -> list[str]:
    """Ids of the confirmed reservations that have this vnode."""
    return [
        name
        for name, found in reservations(world).items()
        if any(vnode == part for part, _ in _vnodes(found))
    ]


def held_on(world: World, vnode: str) -> Iterable[tuple[str, dict[str, str]]]:
    """Of reservations that run: their queue, and what they hold of this vnode."""
    for found in reservations(world).values():
        if found.attributes["reserve_state"] == "RESV_RUNNING":
            yield from ((found.attributes["queue"], held) for part, held in _vnodes(found) if part == vnode)


def _vnodes(found: EmulatedObject) -> list[tuple[str, dict[str, str]]]:
    text = found.attributes.get("resv_nodes", "")
    return [(name, dict(pairs)) for element in elements_of(text) if text for name, pairs in element]
