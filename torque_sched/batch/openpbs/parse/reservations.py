"""Reservations of OpenPBS: which amounts of which vnodes they keep when, and the nodes that their jobs have.

While a reservation runs, its share of each vnode is a vnode here, on a node of its own: jobs of its queue go
there and nowhere else, and all others find on the vnode what the reservation leaves.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timezone, tzinfo

from torque_sched.batch.openpbs.parse.cluster import Vnode
from torque_sched.batch.openpbs.parse.select import amount_of, parse_exec_vnode, parse_place
from torque_sched.batch.openpbs.parse.text import Block, read_blocks
from torque_sched.batch.torque.parse.records import Parsed, as_record_error, listed_once
from torque_sched.batch.torque.parse.times import epoch_s
from torque_sched.errors import RecordError, TorqueSchedError
from torque_sched.model.cluster import Job, NodeName, QueueName
from torque_sched.model.parts import Alone, alone_on
from torque_sched.model.request import AccessPolicy
from torque_sched.model.snapshot import Reservation
from torque_sched.model.states import JobState, NodeState

_CONFIRMED = frozenset(
    {"RESV_CONFIRMED", "RESV_RUNNING", "RESV_TIME_TO_RUN", "RESV_DEGRADED", "RESV_IN_CONFLICT"}
)
_MOST_OCCURRENCES = 60
_COUNT = re.compile(r";?COUNT=\d+", re.ASCII)
_ACCESS = {"excl": AccessPolicy.SINGLE_PART, "exclhost": AccessPolicy.SINGLE_JOB}
_SEPARATOR = ":"
"""Between reservation and vnode in a share's name; no vnode has one, as ``qrun -H`` parts words by it."""


@dataclass(frozen=True, slots=True)
class VnodeReservation:
    """A confirmed reservation.

    Attributes:
        name: its id.
        queue: of its jobs.
        held: amounts by vnode.
        starts_s: of its occurrences that are not over; of one that comes once, the only one.
        length_s: of each.
        rule: by which it comes again, where that could not be followed; empty: nothing is left out.
    """

    name: str
    queue: QueueName
    held: Mapping[str, Mapping[str, int]]
    starts_s: tuple[float, ...]
    length_s: float
    users: frozenset[str] = frozenset()
    rule: str = ""


def parse_reservations(
    data: bytes | str, vnodes: Iterable[Vnode], zone: tzinfo = timezone.utc
) -> Parsed[VnodeReservation]:
    """Confirmed reservations of ``pbs_rstat -f``.

    Args:
        data: what it printed.
        vnodes: all there are.
        zone: that of the command's times.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    by_name = {vnode.name: vnode for vnode in vnodes}
    found: list[VnodeReservation] = []
    problems: list[RecordError] = []
    for block in read_blocks(data, "Reservation", "pbs_rstat"):
        try:
            made = _reservation(block, by_name, zone)
        except KeyError as error:
            problems.append(
                RecordError(f"{block.place}: no {error.args[0]}", cure="look at it with pbs_rstat -f")
            )
        except TorqueSchedError as error:
            problems.append(as_record_error(error, block.place))
        else:
            found += [] if made is None else [made]
    return listed_once(found, problems, "pbs_rstat")


def _reservation(block: Block, vnodes: Mapping[str, Vnode], zone: tzinfo) -> VnodeReservation | None:
    given = block.attributes()
    if given.get("reserve_state") not in _CONFIRMED:
        return None
    access = _ACCESS.get(parse_place(given.get("Resource_List.place", "free")).sharing)
    held: dict[str, Counter[str]] = {}
    for share in (each for element in parse_exec_vnode(given.get("resv_nodes", "")) for each in element):
        amounts = held.setdefault(share.vnode, Counter())
        amounts.update({name: amount_of(text) for name, text in share.words})
    for name in tuple(held):
        alone = alone_on(vnodes[name].sharing, access) if name in vnodes else Alone.NOTHING
        host = vnodes[name].host if name in vnodes else ""
        for vnode in vnodes.values() if alone is not Alone.NOTHING else ():
            if vnode.name == name or (alone is Alone.NODE and vnode.host == host):
                held[vnode.name] = Counter(vnode.available)
    start_s, end_s = epoch_s(given["reserve_start"], zone), epoch_s(given["reserve_end"], zone)
    users = {each.strip().partition("@")[0] for each in given.get("Authorized_Users", "").split(",")}
    rule = given.get("reserve_rrule", "")
    left = int(given.get("reserve_count", "1")) - int(given.get("reserve_index", "1"))
    starts_s = tuple(_occurrences(rule, start_s, 1 + max(0, left))) if rule else (start_s,)
    return VnodeReservation(
        block.name, QueueName(given.get("queue", block.name.partition(".")[0])), held,
        starts_s or (start_s,), end_s - start_s, frozenset(users - {""}), "" if starts_s else rule,
    )  # fmt: skip


def _occurrences(rule: str, start_s: float, n_left: int) -> Iterator[float]:
    """When the next ones begin, by an RFC 5545 rule; none: it cannot be followed here."""
    try:
        from dateutil.rrule import rrulestr
    except ModuleNotFoundError:
        return
    first = datetime.datetime.fromtimestamp(start_s).astimezone()
    naive = first.replace(tzinfo=None)
    try:
        # By the clock on the wall, which the rule is meant for.
        times = rrulestr(_COUNT.sub("", rule).strip(";"), dtstart=naive, ignoretz=True)
        for each in itertools.islice(times, min(n_left, _MOST_OCCURRENCES)):
            yield each.timestamp()
    except (ValueError, TypeError, OverflowError):
        return


# -- vnodes of reservations


@dataclass(frozen=True, slots=True)
class Reserved:
    """What reservations make of a look.

    Attributes:
        vnodes: all, those that run reservations have for themselves last.
        reservations: each occurrence, as decisions take it.
        nodes: by queue and vnode, the name of the node that the reservation's jobs have there.
        properties: by queue, what its jobs need of a node.
    """

    vnodes: tuple[Vnode, ...]
    reservations: tuple[Reservation, ...] = ()
    nodes: Mapping[tuple[QueueName, str], str] = field(default_factory=dict)
    properties: Mapping[QueueName, str] = field(default_factory=dict)


def ordered_name(vnode: str) -> str:
    """What an order calls a vnode."""
    return vnode.rpartition(_SEPARATOR)[2]


def apply_reservations(
    found: Sequence[VnodeReservation],
    vnodes: Sequence[Vnode],
    host_of: Mapping[str, str],
    jobs: Iterable[Job],
    started: frozenset[QueueName],
) -> Reserved:
    """Part the vnodes of reservations that run now, and say what all of them keep.

    Args:
        found: those confirmed.
        vnodes: as the server shows them.
        host_of: nodes by vnode.
        jobs: as read, with what they hold by vnodes.
        started: queues that are started: a reservation's is while it runs.
    """
    if not found:
        return Reserved(tuple(vnodes))
    running = [each for each in found if each.queue in started]
    changed = {vnode.name: vnode for vnode in vnodes}
    own: list[Vnode] = []
    nodes: dict[tuple[QueueName, str], str] = {}
    holding = [job for job in jobs if job.state in {JobState.RUNNING, JobState.EXITING}]
    queues = {each.queue for each in running}
    use_of_others = _used(job for job in holding if job.queue not in queues)
    for each in running:
        use = _used(job for job in holding if job.queue == each.queue)
        ids = {str(job.id) for job in holding if job.queue == each.queue}
        for name in each.held:
            if name not in changed:
                continue
            rest, share = _parted(changed[name], each, use_of_others.get(name, {}), use.get(name, {}), ids)
            changed[name] = rest
            own.append(share)
            nodes[each.queue, name] = share.name
    return Reserved(
        (*changed.values(), *own),
        tuple(made for each in found for made in _as_reservations(each, host_of)),
        nodes,
        {each.queue: _property(each) for each in running},
    )


def _property(reservation: VnodeReservation) -> str:
    return f"reservation={reservation.name}"


def _as_reservations(found: VnodeReservation, host_of: Mapping[str, str]) -> Iterator[Reservation]:
    held: dict[NodeName, Counter[str]] = {}
    for vnode, amounts in found.held.items():
        held.setdefault(NodeName(host_of.get(vnode, vnode)), Counter()).update(amounts)
    by_node = tuple((node, tuple(sorted(amounts.items()))) for node, amounts in held.items())
    for start_s in found.starts_s:
        yield Reservation(found.name, frozenset(held), start_s, start_s + found.length_s, held=by_node)


def _used(jobs: Iterable[Job]) -> dict[str, dict[str, int]]:
    """By vnode what jobs hold of processors and GPUs."""
    used: dict[str, dict[str, int]] = {}
    for job in jobs:
        for part in job.allocated_slots:
            here = used.setdefault(part.node, {"ncpus": 0, "ngpus": 0})
            here["ncpus"] += part.n_slots
        for slot in job.allocated_gpus:
            here = used.setdefault(slot.node, {"ncpus": 0, "ngpus": 0})
            here["ngpus"] += 1
    return used


def _parted(
    vnode: Vnode,
    reservation: VnodeReservation,
    others: Mapping[str, int],
    inside: Mapping[str, int],
    ids: frozenset[str] | set[str],
) -> tuple[Vnode, Vnode]:
    """The vnode as all others see it, and the reservation's share of it.

    Whether the server's figures of what is assigned have the reservation, its jobs or both does not matter.
    """
    held = reservation.held[vnode.name]
    has_it = vnode.assigned.get("ncpus", 0) >= others.get("ncpus", 0) + held.get("ncpus", 0)
    rest = {name: max(0, n - held.get(name, 0)) if has_it else n for name, n in vnode.assigned.items()}
    for name in ("ncpus", "ngpus"):
        unknown = vnode.assigned.get(name, 0) - others.get(name, 0) - held.get(name, 0) - inside.get(name, 0)
        rest[name] = others.get(name, 0) + max(0, unknown)
    name = f"{reservation.name}{_SEPARATOR}{vnode.name}"
    share = replace(
        vnode, name=name, host=name, states=vnode.states - {NodeState.RESERVE},
        # What it does not name is all there.
        available={**vnode.available, **held}, only_for=_property(reservation),
        assigned={
            **{each: n for each, n in vnode.assigned.items() if each not in held},
            **{each: n for each, n in inside.items() if n},
        },
        properties=(*vnode.properties, _property(reservation)),
        jobs={job: n for job, n in vnode.jobs.items() if job in ids}, reservations=(),
    )  # fmt: skip
    others_jobs = {job: n for job, n in vnode.jobs.items() if job not in ids}
    kept = Counter(vnode.kept)
    kept.update(held)
    return replace(vnode, assigned=rest, jobs=others_jobs, kept=kept), share
