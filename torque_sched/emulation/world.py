"""The whole emulated cluster as one object: jobs, nodes, queues, server attributes, and who stands where.

The clock is an argument: the owner of a :class:`World` sets ``now_s`` before each use. Nothing here but
`NetCounter` reads a clock, and nothing a file or a socket; what has changed is collected in ``dirty`` and
``records`` for the journal.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torque_sched.emulation.model import (
    EmulatedJob,
    EmulatedNode,
    EmulatedObject,
    EmulatedQueue,
    Refused,
    size_kb,
)

STATE_NAMES = {
    "T": "Transit", "Q": "Queued", "H": "Held", "W": "Waiting", "R": "Running", "E": "Exiting",
    "C": "Complete",
}  # fmt: skip
_LISTED_S, _OLD_LISTED_S = 10.0, 45.0
_NET_WINDOWS_S = (5.0, 30.0, 60.0)
_ASSIGNED = ("nodect", "mem", "ncpus", "vmem")


@dataclass(slots=True)
class Settings:
    """What a cluster was initialised with and never changes."""

    server: str = "head"
    version: str = "6.1.3"
    """Torque's 6.1.3 or 4.2.10, or OpenPBS's 23.06.06."""
    home: str = "/home"
    report_s: float = 45.0
    """How often a mom reports ($status_update_time)."""
    executes: bool = False
    """Run the jobs' scripts as processes unless a job declares EMULATED_RUNTIME."""
    clock: str = "real"
    scheduler: str = "127.0.0.1:15004"
    """Where events go; empty for nowhere."""
    listeners: tuple[str, ...] = ()
    event_gap_s: float = 0.3
    admins: tuple[str, ...] = ("root",)
    load_tau_s: float = 60.0
    """Time constant of the load average."""
    mom_start_s: float = 0.0
    """How long a mom needs to start a job; until then substate 40."""
    port: int = 0
    """Where the batch protocol is spoken; 0: a free port, which is kept."""
    most_connections: int = 54
    """With more open ones every request is refused as too busy; as seen on two cores."""
    trqauthd_tries_s: float = 6.5
    """How long trqauthd tries to vouch for a connection that the server does not know."""
    takes_time: bool = True
    """A request of the batch protocol takes at least the time that a real server took for it."""

    @property
    def is_old(self) -> bool:
        """Whether this is the dialect of 4.2.10."""
        return self.version.startswith("4.")

    @property
    def is_openpbs(self) -> bool:
        """Whether this is an OpenPBS."""
        return not self.version.startswith(("4.", "6."))

    @property
    def kept_s(self) -> str:
        """How long completed jobs are shown where neither queue nor server says it."""
        return "0" if self.is_old else "300"

    @property
    def pbs_version(self) -> str:
        """What ``pbs_version`` says: the dialect, and that it is emulated."""
        if self.is_openpbs:
            return f"{self.version}-emulated"
        return "4.2.10-emulated" if self.is_old else "6.1.3.h5-emulated"


class NetCounter:
    """What ``net_counter`` shows: how many connections came of late, those of who asks for it included.

    Recordings show three figures that fall from the first to the last; their windows are taken to be 5, 30
    and 60 s, and the figures those per 5 s.
    """

    def __init__(self) -> None:
        self._came_s: deque[float] = deque(maxlen=100_000)

    def came(self) -> None:
        """A connection was made."""
        self._came_s.append(time.monotonic())

    @property
    def text(self) -> str:
        """The three figures."""
        now_s = time.monotonic()
        ages_s = [now_s - at_s for at_s in reversed(self._came_s) if now_s - at_s <= _NET_WINDOWS_S[-1]]
        return " ".join(
            str(math.ceil(sum(age_s <= window_s for age_s in ages_s) * _NET_WINDOWS_S[0] / window_s))
            for window_s in _NET_WINDOWS_S
        )


@dataclass
class World:
    """The state of one emulated server."""

    settings: Settings
    server: dict[str, str] = field(default_factory=dict)
    queues: dict[str, EmulatedQueue] = field(default_factory=dict)
    nodes: dict[str, EmulatedNode] = field(default_factory=dict)
    jobs: dict[str, EmulatedJob] = field(default_factory=dict)
    objects: dict[str, EmulatedObject] = field(default_factory=dict)
    """OpenPBS's hooks, resources and schedulers, by kind and name."""
    now_s: float = 0.0
    next_job: int = 1
    next_rank: int = 1
    assigned: list[str] = field(default_factory=lambda: ["nodect"])
    was_scheduling: bool = False
    """Whether the first-cycle event (10) was sent in this life of the server."""
    slots: dict[str, list[str | None]] = field(default_factory=dict)
    gpu_slots: dict[str, list[str | None]] = field(default_factory=dict)
    standing: dict[str, list[tuple[str, list[int]]]] = field(default_factory=dict)
    """Node name -> (job, its slots there) in the order in which they came; a resumed job may overlap."""
    leaked: dict[str, set[int]] = field(default_factory=dict)
    dirty: dict[str, set[str]] = field(default_factory=dict)
    altered: dict[str, set[str]] = field(default_factory=dict)
    """Job id -> attributes changed, where nothing else of the job did: ten thousand comments are cheap."""
    records: list[tuple[float, str]] = field(default_factory=list)
    """(second, text) for the accounting file."""
    events: list[int] = field(default_factory=list)
    happened: list[tuple[str, str]] = field(default_factory=list)
    """(event, job or vnode) for the hooks of OpenPBS."""
    granted: list[Callable[[], None]] = field(default_factory=list)
    """Starts in the background that passed every check: done once their client has its answer."""
    spawn: list[str] = field(default_factory=list)
    kill: list[tuple[str, str]] = field(default_factory=list)
    timers: list[tuple[float, str, str]] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    """Node name -> how often what stands on it changed (for the formatters' cache)."""
    reported: dict[str, tuple[float, object]] = field(default_factory=dict)
    restarted_s: float = 0.0
    """When the server came back to jobs of an earlier life; 0: it did not."""
    connections: NetCounter = field(default_factory=NetCounter)

    def touch(self, kind: str, key: str) -> None:
        """Mark something as changed, so that the journal writes it."""
        self.dirty.setdefault(kind, set()).add(key)

    def touch_job(self, job: EmulatedJob) -> None:
        """Mark a job as changed and drop its rendered texts."""
        job.cached.clear()
        self.touch("job", job.id)

    def touch_attributes(self, job: EmulatedJob, names: Iterable[str]) -> None:
        """Mark some plain attributes of a job as changed, and nothing else of it."""
        job.cached.clear()
        self.altered.setdefault(job.id, set()).update(names)

    def touch_node(self, name: str) -> None:
        """Mark a node as changed."""
        self.touch("node", name)
        self.versions[name] = self.versions.get(name, 0) + 1

    def advance(self, now_s: float, fire: Callable[[World, float, str, str], None]) -> None:
        """Let the time run to ``now_s``; what falls due on the way happens (`fire`) at its own second."""
        while self.timers and self.timers[0][0] <= now_s:
            at_s, kind, key = heapq.heappop(self.timers)
            self.now_s = max(self.now_s, at_s)
            fire(self, at_s, kind, key)
        self.now_s = max(self.now_s, now_s)

    def due(self, at_s: float, kind: str, key: str) -> None:
        """Ask for ``kind`` to happen to ``key`` at ``at_s``."""
        heapq.heappush(self.timers, (at_s, kind, key))

    def notify(self, code: int) -> None:
        """Queue an event for the scheduler; nothing is sent while scheduling is off."""
        if self.server.get("scheduling") == "True":
            self.events.append(code)

    def account(self, kind: str, job_id: str, text: str) -> None:
        """Add one line of the accounting file: type, job, ``key=value`` text."""
        self.records.append((self.now_s, f"{kind};{job_id};{text}"))

    def do_granted(self) -> None:
        """Do the starts that were granted."""
        for start in self.granted:
            start()
        self.granted.clear()

    # -- who stands where

    def add_node(self, node: EmulatedNode) -> None:
        """Put a node at the end of the nodes file."""
        self.nodes[node.name] = node
        self.slots[node.name] = [None] * node.np
        self.gpu_slots[node.name] = [None] * node.gpus
        self.touch_node(node.name)

    def resize_node(self, node: EmulatedNode) -> None:
        """Follow a change of np or gpus; slots in use stay."""
        for table, amount in ((self.slots, node.np), (self.gpu_slots, node.gpus)):
            old = table.get(node.name, [])
            table[node.name] = old[:amount] + [None] * (amount - len(old))
        self.touch_node(node.name)

    def occupy(self, job: EmulatedJob) -> None:
        """Write the job's own allocation into the nodes."""
        for name, indices in job.slots:
            self.standing.setdefault(name, []).append((job.id, indices))
        for table, taken in ((self.slots, job.slots), (self.gpu_slots, [(n, [g]) for n, g in job.gpus])):
            for name, indices in taken:
                for index in indices:
                    if name in table and index < len(table[name]):
                        table[name][index] = job.id
                self.versions[name] = self.versions.get(name, 0) + 1

    def vacate(self, job: EmulatedJob) -> None:
        """Free what the job stands on."""
        for name in {name for name, _ in job.slots} | {name for name, _ in job.gpus}:
            for table in (self.slots, self.gpu_slots):
                table[name] = [None if holder == job.id else holder for holder in table.get(name, [])]
            left = [pair for pair in self.standing.get(name, []) if pair[0] != job.id]
            self.standing[name] = left
            for holder, indices in left:
                for index in indices:
                    if index < len(self.slots[name]):
                        self.slots[name][index] = holder
            self.versions[name] = self.versions.get(name, 0) + 1

    def jobs_on(self, name: str) -> list[str]:
        """Ids of the jobs with a slot there, in the order in which they came, each once."""
        return list(dict.fromkeys(holder for holder, _ in self.standing.get(name, ())))

    # -- questions

    def is_down(self, node: EmulatedNode) -> bool:
        """Whether the server takes the node for down now."""
        if self.is_unlisted(node):
            return True
        if node.flap_s and int(self.now_s / node.flap_s) % 2 == 1:
            return True
        if node.message.startswith("ERROR") and self.server.get("down_on_error") == "True":
            return True
        if node.mom != "up":
            return self.now_s - node.mom_changed_s >= float(self.server.get("node_check_rate", "150")) or (
                node.marked_down
            )
        return node.marked_down and self.now_s - node.marked_down_s < self.settings.report_s

    def is_unlisted(self, node: EmulatedNode) -> bool:
        """Whether qmgr has made the node just now, so that no mom knows of it."""
        within_s = _OLD_LISTED_S if self.settings.is_old else _LISTED_S
        return bool(node.listed_s) and self.now_s - node.listed_s < within_s

    def counts(self, queue: str = "") -> dict[str, int]:
        """Jobs by state name, of one queue or of all; arrays count by their members."""
        found = dict.fromkeys(("Transit", "Queued", "Held", "Waiting", "Running", "Exiting", "Complete"), 0)
        for job in self.jobs.values():
            if not job.members and (not queue or job.queue == queue):
                found[STATE_NAMES["R" if job.state == "S" else job.state]] += 1
        return found

    def total_assigned(self, queue: str = "") -> dict[str, int]:
        """Resources held by running jobs: nodect and ncpus as counts, sizes in bytes."""
        total = dict.fromkeys(_ASSIGNED, 0)
        for job in self.jobs.values():
            if job.members or not job.is_active or (queue and job.queue != queue):
                continue
            for name in _ASSIGNED:
                if name in job.resources:
                    text = job.resources[name]
                    total[name] += size_kb(text) * 1024 if name.endswith("mem") else int(text)
        return total

    def full_id(self, text: str) -> str:
        """``44`` -> ``44.head``; an id that already names the server stays."""
        return text if "." in text else f"{text}.{self.settings.server}"

    def job(self, text: str) -> EmulatedJob:
        """The job with that id.

        Raises:
            Refused: no such job.
        """
        found = self.jobs.get(self.full_id(text))
        if found is None:
            raise Refused(15001, f"Unknown Job Id Error MSG=cannot locate job {self.full_id(text)}")
        return found

    def is_admin(self, user: str, *, manager: bool = False) -> bool:
        """Whether ``user`` at the server's host is a manager (or an operator, unless ``manager``)."""
        # Seen on real servers: root at the server is one, whoever is listed.
        if user == "root":
            return True
        host = self.settings.server
        # Seen on 6.1.3: a list that is not set means root at the server.
        listed = self.server.get("managers", f"root@{host}").split(",")
        if not manager:
            listed += self.server.get("operators", f"root@{host}").split(",")
        return any(name.strip() in (f"{user}@{host}", f"{user}@*") for name in listed)
