"""The accounts of all nodes during one cycle, opened from a snapshot and what happened since."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from torque_sched.decide.context import Context, Lengths, Load, Measured, measured_by_node
from torque_sched.decide.needs import ResourceChunk, Shape, memory_of_share
from torque_sched.decide.node_ledger import Held, NodeLedger, Refusal
from torque_sched.decide.rules import GpuRules, MemoryRules, NodeRules, Rates
from torque_sched.model.cluster import GpuDevice, Job, JobId, Node, NodeName
from torque_sched.model.decisions import NodeShare
from torque_sched.model.request import AccessPolicy, Request
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.states import JobState, NodeState

_NO_RATES = Rates()


class Ledger:
    """All nodes in the server's order, and which of them changed."""

    def __init__(self, snapshot: Snapshot, nodes: tuple[NodeLedger, ...]) -> None:
        self.snapshot = snapshot
        self.nodes = nodes
        self.by_name: dict[NodeName, NodeLedger] = {entry.name: entry for entry in nodes}
        #: Indices of nodes in the order in which they changed.
        self.changed: list[int] = []
        #: What jobs hold of each node, pending starts and those of this cycle included.
        self.held: dict[NodeName, list[Held]] = {}
        #: Slots may be kept for idle GPUs on some node.
        self.keeps_slots = True
        self._tick = len(nodes)
        self._with_free_slots: dict[int, list[NodeLedger]] = {}
        self._most_slots = max((entry.slots for entry in nodes), default=0)

    def with_free_slots(self, slots: int) -> list[NodeLedger]:
        """Open nodes that had so many free slots when first asked in this cycle: no others do now."""
        slots = min(slots, self._most_slots + 1)
        found = self._with_free_slots.get(slots)
        if found is None:
            found = self._with_free_slots[slots] = [
                entry for entry in self.nodes if entry.slots_free >= slots and entry.blocked is None
            ]
        return found

    def take(
        self, job: Job, shape: Shape, parts: Iterable[tuple[NodeLedger, ResourceChunk]], until_s: float
    ) -> None:
        """The job starts on these nodes now."""
        for entry, piece in parts:
            entry.take(piece, shape, job.user, until_s)
            self._tick += 1
            entry.tick = self._tick
            entry.version += 1
            self.changed.append(entry.index)
            held = Held(job, piece.slots, piece.gpus, piece.mem_bytes, piece.vmem_bytes, piece.others)
            self.held.setdefault(entry.name, []).append(held)

    def touch(self, entry: NodeLedger) -> None:
        """Something other than a start changed this node."""
        entry.version += 1
        self.changed.append(entry.index)


Loads = dict[NodeName, list[tuple[float, Load]]]


@dataclass(slots=True)
class KeptAccounts:
    """The accounts of the cycle before, of which those are used again whose nodes did not change.

    What is the same object in both snapshots did not change; so a daemon that reads each snapshot anew opens
    all accounts anew. Equal facts give equal accounts, whatever was kept.

    Attributes:
        ledger: of the cycle before; None: there was none.
        rules: all that decides about accounts of nodes beside nodes, jobs and loads.
        jobs: that held nodes.
        pending: nodes of starts that were on their way.
        newest_s: when the newest report of all nodes came.
        ages: of each node, whether its sample was old.
    """

    ledger: Ledger | None = None
    rules: tuple[object, ...] = ()
    jobs: dict[JobId, Job] = field(default_factory=dict)
    pending: frozenset[NodeName] = frozenset()
    loads: Loads = field(default_factory=dict)
    measured: Mapping[NodeName, Measured] = field(default_factory=dict)
    newest_s: float = 0.0
    ages: list[bool | None] = field(default_factory=list)

    def changed(self, now: KeptAccounts, snapshot: Snapshot) -> Iterable[int]:
        """The places of nodes whose accounts have to be opened anew in this cycle."""
        ledger = self.ledger
        if ledger is None or self.rules != now.rules or len(ledger.nodes) != len(snapshot.nodes):
            return range(len(snapshot.nodes))
        names = set(self.pending | now.pending)
        for jobs, others in ((self.jobs, now.jobs), (now.jobs, self.jobs)):
            for job_id, job in jobs.items():
                if others.get(job_id) is not job:
                    names.update(part.node for part in job.allocated_slots)
                    names.update(slot.node for slot in job.allocated_gpus)
        names |= _differing(self.loads, now.loads) | _differing(self.measured, now.measured)
        places = {ledger.by_name[name].index for name in names if name in ledger.by_name}
        both = zip(ledger.nodes, snapshot.nodes, strict=True)
        places.update(
            place for place, (entry, node) in enumerate(both) if entry.node is not node or entry.is_taken
        )
        if self.ages != now.ages or None in now.ages:
            ages = zip(self.ages, now.ages, strict=True)
            places.update(place for place, (was, age) in enumerate(ages) if age is None or was != age)
        return sorted(places)


def _differing(before: Mapping[NodeName, object], now: Mapping[NodeName, object]) -> set[NodeName]:
    """Nodes of which something else is known now."""
    if before is now:
        return set()
    return {name for name in {*before, *now} if before.get(name) != now.get(name)}


def open_ledger(
    snapshot: Snapshot,
    context: Context,
    rules: NodeRules,
    gpu_rules: GpuRules,
    memory: MemoryRules,
    kept: KeptAccounts | None = None,
) -> Ledger:
    """The accounts at the begin of a cycle.

    Args:
        snapshot: now.
        context: of the same moment.
        rules: which nodes are used.
        gpu_rules: which GPUs are.
        memory: how memory decides.
        kept: of the cycle before; this one's are kept there.
    """
    loads = _placed_loads(snapshot, context)
    kept_per_gpu = rules.cores_per_idle_gpu if _is_gpu_work(snapshot, context, rules) else 0
    now = KeptAccounts(loads=loads, measured=context.measured)
    places: Iterable[int] = range(len(snapshot.nodes))
    if kept is not None:
        paused = frozenset(
            (name, p) for name, p in context.back_off.nodes.items() if p.until_s > snapshot.now_s
        )
        now.rules = (rules, gpu_rules, memory, kept_per_gpu, context.reservations, paused)
        now.jobs = {job.id: job for job in (*snapshot.suspended, *snapshot.running)}
        now.pending = frozenset(share.node for start in context.pending for share in start.allocation)
        now.newest_s = snapshot.report_age_s(0.0)
        now.ages = _ages(snapshot, context.measured, rules, kept if kept.rules == now.rules else None)
        names = {name for each in context.reservations for name, _ in each.held}
        own = {place for place, node in enumerate(snapshot.nodes) if node.name in names} if names else set()
        # What they leave beside what runs changes with time.
        places = sorted({*kept.changed(now, snapshot), *own})
    before = kept.ledger if kept is not None else None
    ledger = _with_fresh(snapshot, before, places, rules)
    ledger.keeps_slots = kept_per_gpu > 0 and any(node.gpus for node in snapshot.nodes)
    fresh = [ledger.nodes[place] for place in places]
    used_gpus = _occupy_by_jobs(ledger, fresh, rules)
    for entry in fresh:
        _open_gpus(entry, used_gpus.get(entry.name, {}), gpu_rules)
        measured = context.measured.get(entry.name) or measured_by_node(entry.node)
        _open_load(entry, measured, loads.get(entry.name, ()), snapshot, rules)
        _close(entry, snapshot, context, rules)
        _forget_memory(entry, memory)
        entry.kept_per_gpu = kept_per_gpu
        entry.unknown_is_mean = rules.unknown_is_mean
    _open_pending(ledger, context)
    _open_reservations(ledger, fresh, context.reservations)
    _open_ticks(ledger, context.last_node)
    if kept is not None:
        kept.ledger = ledger
        kept.rules, kept.jobs, kept.pending = now.rules, now.jobs, now.pending
        kept.loads, kept.measured = loads, now.measured
        kept.newest_s, kept.ages = now.newest_s, now.ages
    return ledger


def _with_fresh(snapshot: Snapshot, before: Ledger | None, places: Iterable[int], rules: NodeRules) -> Ledger:
    """The ledger with fresh accounts at these places, and all others as they were opened before."""
    nodes: list[NodeLedger] = []
    held: dict[NodeName, list[Held]] = {}
    if before is not None and len(before.nodes) == len(snapshot.nodes):
        nodes, held = list(before.nodes), dict(before.held)
    for place in places:
        node = snapshot.nodes[place]
        entry = NodeLedger(place, node, _capacity(node), _rates(node, rules.rates))
        if place < len(nodes):
            held.pop(nodes[place].name, None)
            nodes[place] = entry
        else:
            nodes.append(entry)
    for entry in nodes:
        if entry.version:
            entry.forget_promises()
    ledger = Ledger(snapshot, tuple(nodes))
    ledger.held = held
    return ledger


def _ages(
    snapshot: Snapshot, measured: Mapping[NodeName, Measured], rules: NodeRules, kept: KeptAccounts | None
) -> list[bool | None]:
    """Of each node whether its sample is old; None: silent for so long that its words change with time."""
    now_s, ages = snapshot.report_age_s(0.0), list[bool | None]()
    before = kept.ledger if kept is not None else None
    if kept is not None and before is not None and not (measured or kept.measured):
        both = zip(before.nodes, snapshot.nodes, strict=False)
        is_same = now_s == kept.newest_s and len(before.nodes) == len(snapshot.nodes)
        if is_same and all(e.node is n or _report_s(e.node) == _report_s(n) for e, n in both):
            return kept.ages
    dead_s, old_s = rules.dead_after_s or math.inf, rules.stale_after_s
    for node in snapshot.nodes:
        sample_s = report_s = node.status.rectime_s if node.status is not None else None
        if measured and node.name in measured:
            sample_s = measured[node.name].sample_s
        if report_s is not None and now_s - report_s > dead_s:
            ages.append(None)
        else:
            ages.append(sample_s is None or now_s - sample_s > old_s)
    return ages


def _report_s(node: Node) -> float | None:
    return None if node.status is None else node.status.rectime_s


def _is_gpu_work(snapshot: Snapshot, context: Context, rules: NodeRules) -> bool:
    if not rules.cores_per_idle_gpu or snapshot.has_gpu_work:
        return True
    seen_s = context.gpu_work_s
    return seen_s is not None and 0 <= snapshot.now_s - seen_s <= rules.gpu_work_recent_s


def _forget_memory(entry: NodeLedger, rules: MemoryRules) -> None:
    """Leave out of the account what the rules do not look at."""
    if not rules.sum_requests:
        entry.mem_free_bytes = entry.vmem_free_bytes = math.inf
    if not (rules.check_available or rules.admission):
        entry.avail_bytes = math.inf


def _capacity(node: Node) -> Load:
    status = node.status
    cores = float((status and status.ncpus) or node.slots or 1)
    gpu_mem = 0
    if node.gpu_report is not None:
        gpu_mem = sum(device.memory_total_bytes or 0 for device in node.gpu_report.devices)
    return Load(cores, float(node.mem_bytes), float(node.gpus), float(gpu_mem))


def _rates(node: Node, rates: Mapping[str, Rates]) -> Rates:
    if not rates:
        return _NO_RATES
    names = (node.name, *node.properties)
    return next((rates[name] for name in names if name in rates), _NO_RATES)


def _occupy_by_jobs(
    ledger: Ledger, fresh: Iterable[NodeLedger], rules: NodeRules
) -> dict[NodeName, dict[int, bool]]:
    """Book slots, memory and company of every job that runs, on these nodes.

    Returns the GPUs in use by node, each with whether its job is suspended.
    ``pbsnodes`` and ``qstat`` are not of the same instant: a running job counts if either shows it.
    """
    snapshot = ledger.snapshot
    listed: dict[NodeName, set[JobId]] = {}
    for entry in fresh:
        entry.occupy(entry.node.slots_used, 0)
        names = {part.job for part in entry.node.jobs}
        entry.n_jobs = len(names)
        listed[entry.name] = names
    gpus: dict[NodeName, dict[int, bool]] = {}
    for job in (*snapshot.suspended, *snapshot.running):
        if not any(part.node in listed for part in job.allocated_slots) and not job.allocated_gpus:
            continue
        for slot in job.allocated_gpus:
            gpus.setdefault(slot.node, {})[slot.index] = job.state is JobState.SUSPENDED
        for name, slots in job.slots_by_node().items():
            if name not in listed:
                continue
            known = ledger.by_name[name]
            is_listed = job.id in listed[name]
            if not is_listed:
                if job.state is JobState.EXITING:
                    continue
                counts = job.state is JobState.RUNNING or rules.keep_suspended_slots
                known.occupy(slots if counts else 0, 0)
            _book(ledger, known, job, slots, is_listed)
    return gpus


def _book(ledger: Ledger, entry: NodeLedger, job: Job, slots: int, is_listed: bool) -> None:
    """Memory and company of a job on a node; what the node's own account has is not counted twice."""
    request = job.request
    mem, vmem = memory_of_share(request, slots)
    if not is_listed or entry.node.mem_assigned_bytes is None:
        entry.commit_memory(mem, vmem)
        entry.commit_others(_others_of_share(request, slots))
    entry.job_users.add(job.user)
    if not is_listed and entry.parts is not None:
        entry.parts.take(_as_piece(request, slots, 0), request.access)
    if entry.closes_for(request.access, is_empty=request.wants_empty_nodes):
        entry.is_closed = True
    elif request.access is AccessPolicy.SINGLE_USER:
        entry.single_user = job.user
    n_gpus = sum(1 for slot in job.allocated_gpus if slot.node == entry.name)
    others = tuple(_others_of_share(request, slots))
    ledger.held.setdefault(entry.name, []).append(Held(job, slots, n_gpus, mem, vmem, others))


def _as_piece(request: Request, slots: int, gpus: int) -> ResourceChunk:
    """A share of so many processors as one piece: which chunks it is made of nobody said."""
    mem, _ = memory_of_share(request, slots)
    return ResourceChunk(slots, gpus, mem_bytes=mem, others=tuple(_others_of_share(request, slots)))


def _others_of_share(request: Request, slots: int) -> Iterator[tuple[str, int]]:
    """The site's resources of a share of so many processors: of each piece its part, rounded up."""
    for piece in request.pieces:
        for name, amount in piece.others:
            yield name, -(-amount * piece.count * slots // request.n_procs)


def _open_gpus(entry: NodeLedger, used: Mapping[int, bool], rules: GpuRules) -> None:
    """Those that a job started here would get.

    Seen on 6.1.3 and 4.2.10: the server gives the first GPUs that it takes for free, among them a suspended
    job's. So what lies behind such a GPU cannot be had without that one.
    """
    node = entry.node
    if not node.gpus:
        return
    devices = {device.index: device for device in node.gpu_report.devices} if node.gpu_report else {}
    indices = sorted(devices) if len(devices) >= node.gpus else range(node.gpus)
    free = [
        index
        for index in takewhile(lambda index: not used.get(index, False), indices)
        if index not in used and (index not in devices or devices[index].state not in _ALLOCATED)
    ]
    entry.gpus_clean = [index not in devices or not _is_bad(devices[index], rules) for index in free]
    entry.gpus_free = min(len(free), node.gpus)


_ALLOCATED = frozenset({"Exclusive", "Shared"})


def _is_bad(device: GpuDevice, rules: GpuRules) -> bool:
    """Whether a free GPU is used by a stray process, or sick."""
    if rules.avoid_unhealthy and (
        device.mode == "Prohibited"
        or device.state == "Unavailable"
        or (device.double_bit_ecc_errors or 0) > 0
        or (device.temperature_c or 0.0) >= rules.hot_c
    ):
        return True
    return rules.avoid_dirty and (
        (device.utilization or 0.0) > rules.dirty_utilization
        or (device.memory_used_bytes or 0) > rules.dirty_mem_bytes
    )


def _placed_loads(snapshot: Snapshot, context: Context) -> Loads:
    """Predicted loads of jobs that are still there, by node, with the time of their start."""
    loads: Loads = {}
    pending = {start.job for start in context.pending}
    for placed in context.placed:
        job = snapshot.job_by_id.get(placed.job)
        if (job is not None and job.state in _PRESENT) or placed.job in pending:
            loads.setdefault(placed.node, []).append((placed.placed_s, placed.load))
    return loads


_PRESENT = frozenset({JobState.RUNNING, JobState.EXITING})


def _open_load(
    entry: NodeLedger,
    measured: Measured | None,
    placed: Iterable[tuple[float, Load]],
    snapshot: Snapshot,
    rules: NodeRules,
) -> None:
    """Sample, uncertainty if it is old, and the jobs it cannot contain yet."""
    node, capacity = entry.node, entry.capacity
    if node.status is not None:
        entry.loadave = node.status.loadave or 0.0
    is_stale = measured is None or snapshot.report_age_s(measured.sample_s) > rules.stale_after_s
    if measured is not None:
        entry.add_load(measured.load)
    if is_stale:
        # What is known to run there is a floor; what else may be is the uncertainty.
        entry.cpu_cores = max(entry.cpu_cores, float(node.slots_used))
        entry.add_load(capacity.scaled(rules.stale_uncertainty))
    for placed_s, load in placed:
        if measured is None or measured.sample_s < placed_s + rules.sample_lag_s:
            entry.add_load(load)
            entry.avail_bytes -= load.mem_bytes
            entry.loadave += load.cpu_cores


def _close(entry: NodeLedger, snapshot: Snapshot, context: Context, rules: NodeRules) -> None:
    """Why a node takes no job at all, if so."""
    node = entry.node
    words = ", ".join(sorted(state.value for state in node.states)) or node.power_saving
    if not node.is_up:
        entry.block(Refusal.UNUSABLE, words)
    elif node.status is not None:
        _close_by_status(entry, snapshot, rules)
    if NodeState.BUSY in node.states and rules.avoid_busy:
        entry.block(Refusal.BUSY, words)
    if node.note and rules.avoid_noted:
        entry.block(Refusal.NOTED, node.note)
    pause = context.back_off.nodes.get(entry.name)
    if pause is not None and pause.until_s > snapshot.now_s:
        entry.block(Refusal.BACK_OFF, pause.why)
    if NodeState.JOB_EXCLUSIVE in node.states and entry.slots_free:
        # All slots are free or not, the server gives none: a job took the node alone.
        entry.is_closed = True


def _close_by_status(entry: NodeLedger, snapshot: Snapshot, rules: NodeRules) -> None:
    status = entry.node.status
    if status is None:
        return
    if status.message.startswith("ERROR"):
        entry.block(Refusal.UNUSABLE, status.message)
    if rules.dead_after_s and status.rectime_s is not None:
        age_s = snapshot.report_age_s(status.rectime_s)
        if age_s > rules.dead_after_s:
            entry.block(Refusal.UNUSABLE, f"no report for {age_s:.0f} s")


def _open_pending(ledger: Ledger, context: Context) -> None:
    """Starts asked for and not to be seen yet hold their nodes."""
    snapshot = ledger.snapshot
    for start in context.pending:
        job = snapshot.job_by_id.get(start.job)
        if job is None or job.state not in _UNSTARTED:
            continue
        for share in start.allocation:
            _occupy_share(ledger, job, share)


_UNSTARTED = frozenset({JobState.QUEUED, JobState.HELD, JobState.WAITING, JobState.TRANSIT})


def _occupy_share(ledger: Ledger, job: Job, share: NodeShare) -> None:
    entry = ledger.by_name.get(share.node)
    if entry is None:
        return
    # Where the node shows it already its slots are counted, but nobody said whose they are.
    is_listed = any(part.job == job.id for part in entry.node.jobs)
    entry.occupy(0 if is_listed else share.slots, share.gpus)
    mem, vmem = memory_of_share(job.request, share.slots)
    if not is_listed or entry.node.mem_assigned_bytes is None:
        entry.commit_memory(mem, vmem)
        entry.commit_others(_others_of_share(job.request, share.slots))
    entry.job_users.add(job.user)
    if not is_listed and entry.parts is not None:
        entry.parts.take(_as_piece(job.request, share.slots, share.gpus), job.request.access)
    if entry.closes_for(job.request.access, is_empty=job.request.wants_empty_nodes):
        entry.is_closed = True
    elif job.request.access is AccessPolicy.SINGLE_USER:
        entry.single_user = job.user
    others = tuple(_others_of_share(job.request, share.slots))
    held = Held(job, share.slots, share.gpus, mem, vmem, others)
    ledger.held.setdefault(entry.name, []).append(held)


def _open_reservations(
    ledger: Ledger, fresh: Iterable[NodeLedger], reservations: Iterable[Reservation]
) -> None:
    by_name = {entry.name: entry for entry in fresh}
    of_amounts: dict[NodeName, list[tuple[Reservation, dict[str, int]]]] = {}
    for reservation in reservations:
        for name, amounts in reservation.held:
            if name in by_name and reservation.end_s > ledger.snapshot.now_s:
                of_amounts.setdefault(name, []).append((reservation, dict(amounts)))
        for name in reservation.nodes if not reservation.held else ():
            entry = by_name.get(name)
            if entry is not None:
                entry.keep_out([(reservation.start_s, reservation.end_s, reservation.users)])
    for name, found in of_amounts.items():
        _keep_amounts(ledger, by_name[name], found)


def _keep_amounts(
    ledger: Ledger, entry: NodeLedger, found: Sequence[tuple[Reservation, dict[str, int]]]
) -> None:
    """Reservations of a part of a node: what they keep now, and what they leave when they begin."""
    now_s = ledger.snapshot.now_s
    lengths = Lengths(now_s, None, default_s=0.0, slack_s=0.0)
    for one, _ in found:
        if one.start_s <= now_s:
            continue
        together = Counter[str]()
        for other, amounts in found:
            if other.start_s < one.end_s and one.start_s < other.end_s:
                together.update(amounts)
        held = ledger.held.get(entry.name, ())
        ended = [each for each in held if lengths.end_s(each.job) <= one.start_s]
        entry.reserve_later(one.start_s, one.end_s, together, ended)
    for one, amounts in found:
        if one.start_s <= now_s:
            entry.reserve_now(amounts)


def _open_ticks(ledger: Ledger, last_node: NodeName | None) -> None:
    """Number the nodes from the one after ``last_node`` on, for going round."""
    n = len(ledger.nodes)
    last = ledger.by_name.get(last_node) if last_node is not None else None
    first = 0 if last is None else last.index + 1
    for entry in ledger.nodes:
        entry.tick = (entry.index - first) % n
