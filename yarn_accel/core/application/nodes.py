"""The state of nodes: the containers, the request and the last report of every role on each; and timers.

::

    requested ─allocated─▶ GRANTED ──launch──▶ LAUNCHING ──started, report──▶ RUNNING
                              │                    │                             │
                              └── surplus, not wanted, failed, hung ─────────────┴──▶ RETIRING ─completed─▶
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from yarn_accel.core.application.events import ContainerRef, NodeView, ServerGauges
from yarn_accel.core.application.settings import ContainerRole, Settings

NEVER = float("inf")
_LONG_AGO = -NEVER
_N_REFUSALS = 3


class Phase(enum.Enum):
    """The phase of one of our containers."""

    GRANTED = "granted"
    LAUNCHING = "launching"
    RUNNING = "running"
    RETIRING = "retiring"


class DesiredState(enum.Enum):
    """The containers of a role that a node should have: a running one; those it has but no new one; none."""

    RUNNING = "running"
    RETAINED = "retained"
    ABSENT = "absent"


@dataclass(slots=True, eq=False)
class ContainerRecord:
    """One of our containers.

    Attributes:
        since_s: when its phase began.
        ordered_s: when the last command of its phase went out.
        was_launched: its program may be running and hold the device.
        checked_s: when the NM was last queried about it.
        gone_s: when a report first said that its process is dead; None: no report does.
        is_hung: by its last report, its process hangs.
    """

    container: ContainerRef
    phase: Phase
    since_s: float
    ordered_s: float = _LONG_AGO
    was_launched: bool = False
    checked_s: float = _LONG_AGO
    gone_s: float | None = None
    is_hung: bool = False
    reason: str = ""

    @property
    def is_live(self) -> bool:
        """Whether it is not retiring."""
        return self.phase is not Phase.RETIRING


@dataclass(slots=True, eq=False)
class StatusReport:
    """The last status report of a role on a node.

    Attributes:
        silent_from_s: from then on it counts as silent.
    """

    container: str
    at_s: float
    silent_from_s: float
    endpoint: Hashable
    is_healthy: bool
    detail: str
    gauges: ServerGauges


@dataclass(slots=True)
class Backoff:
    """Failures of one role on one node.

    The first failure costs nothing, so that a server that was killed is back at once; the second costs
    `first_delay_s`, each later one twice as much as the one before, up to `max_delay_s`. A failure whose
    cause lasts costs `max_delay_s` at once; so does the third refusal to start in a row: the first may be
    because of a container that is about to end.
    """

    n_failures: int = 0
    until_s: float = 0.0
    reason: str = ""
    is_lasting: bool = False
    n_refusals: int = 0

    def failed(
        self,
        settings: Settings,
        well_for_s: float,
        reason: str,
        now_s: float,
        *,
        is_lasting: bool = False,
        is_refusal: bool = False,
    ) -> None:
        """A container failed after `well_for_s` healthy seconds; `healthy_s` of them clear older failures."""
        if well_for_s >= settings.healthy_s:
            self.n_failures = 0
        self.n_failures += 1
        self.n_refusals = self.n_refusals + 1 if is_refusal else 0
        self.reason = reason
        self.is_lasting = is_lasting or self.n_refusals >= _N_REFUSALS
        self.until_s = now_s + self.delay_s(settings)

    def forgive(self) -> None:
        """Clear all failures, after an admin has repaired the node."""
        self.n_failures, self.n_refusals, self.until_s = 0, 0, 0.0
        self.reason, self.is_lasting = "", False

    def delay_s(self, settings: Settings) -> float:
        """The wait after the failures so far."""
        if self.is_lasting:
            return settings.max_delay_s
        if self.n_failures < 2:
            return 0.0
        doublings = min(self.n_failures - 2, 60)
        return float(min(settings.first_delay_s * 2**doublings, settings.max_delay_s))


@dataclass(slots=True, eq=False)
class RoleInstance:
    """One role on one node.

    Attributes:
        records: our containers there by id; at most one is live after each event.
        request_id: of the request that waits at the RM; None: none does.
        first_asked_s, asked_s: when the request was sent, first and last.
        well_s, well_since_s: last and first healthy report of the container that is there.
        ending_s: since when its server is being drained; None: it is not drained.
        used_s: when a report last showed that its server had a request.
        is_done: its program ended well, and the role wants no other one then.
    """

    node: str
    role: ContainerRole
    records: dict[str, ContainerRecord] = field(default_factory=dict)
    backoff: Backoff = field(default_factory=Backoff)
    request_id: int | None = None
    first_asked_s: float = _LONG_AGO
    asked_s: float = _LONG_AGO
    report: StatusReport | None = None
    well_s: float = _LONG_AGO
    well_since_s: float | None = None
    ending_s: float | None = None
    used_s: float = _LONG_AGO
    is_done: bool = False

    def live(self) -> Iterator[ContainerRecord]:
        """The containers that are not retiring."""
        return (record for record in self.records.values() if record.phase is not Phase.RETIRING)

    def is_vacating(self) -> bool:
        """Whether a program that is being stopped may still use the device."""
        return any(record.was_launched and not record.is_live for record in self.records.values())

    def well_for_s(self) -> float:
        """How long the container that is there has been well, up to its last report."""
        return self.well_s - self.well_since_s if self.well_since_s is not None else 0.0


@dataclass(slots=True, eq=False)
class Node:
    """One node.

    Attributes:
        view: None: the RM has reported containers there, but not the node yet.
        instances: by the role's name, in the order of the table.
        heard_s: time of the last report from it.
        reached_s: the same, with what its NM answered.
        is_serving: whether its server took requests when the node was last reconciled.
        down_s: since when it lacks the serving server that it should have; None: it lacks none.
        missing_s: since when complete reports of the RM lack it; None: the last one has it.
    """

    host: str
    view: NodeView | None
    instances: dict[str, RoleInstance]
    heard_s: float = _LONG_AGO
    reached_s: float = _LONG_AGO
    is_serving: bool = False
    down_s: float | None = None
    missing_s: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the RM can start containers there, or let them finish."""
        return self.view is not None and self.view.is_usable


def serves(node: Node, instance: RoleInstance, now_s: float) -> StatusReport | None:
    """The last report of the node's server if it takes requests from other nodes now, else None."""
    report = instance.report
    if report is None or not report.is_healthy or not node.is_usable or instance.ending_s is not None:
        return None
    return report if now_s < report.silent_from_s else None


def reason_not_serving(node: Node, instance: RoleInstance, now_s: float) -> str:
    """Why a server does not serve, for people."""
    report = instance.report
    if not node.is_usable:
        return "its node is gone"
    if instance.ending_s is not None:
        return "it is being drained"
    if report is None:
        failure = instance.backoff.reason
        return f"no server has reported: {failure}" if failure else "not heard yet"
    if now_s >= report.silent_from_s:
        return f"silent for {now_s - report.at_s:.1f} s"
    return report.detail or "it says that it is not healthy"


class Timers:
    """Timers by key, each with one time, cheap to postpone.

    A timer that is postponed keeps its old entry in the heap, which is moved when it becomes due. So a
    heartbeat that postpones a timer costs one dictionary entry.
    """

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}
        self._heaped_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, key: str, at_s: float) -> None:
        """Set the one timer of `key`; `NEVER` cancels it."""
        if at_s == NEVER:
            self._at_s.pop(key, None)
            return
        self._at_s[key] = at_s
        if at_s < self._heaped_s.get(key, NEVER):
            self._heaped_s[key] = at_s
            heapq.heappush(self._heap, (at_s, key))

    def at(self, key: str) -> float:
        """When the timer of `key` fires."""
        return self._at_s.get(key, NEVER)

    def due(self, now_s: float, n_max: int) -> list[str]:
        """Remove and return at most `n_max` keys whose timers are due."""
        keys: list[str] = []
        while self._heap and self._heap[0][0] <= now_s and len(keys) < n_max:
            heaped_s, key = heapq.heappop(self._heap)
            if heaped_s != self._heaped_s.get(key):
                continue
            del self._heaped_s[key]
            at_s = self._at_s.get(key, NEVER)
            if at_s <= now_s:
                del self._at_s[key]
                keys.append(key)
            else:
                self.set(key, at_s)
        return keys

    def next_s(self) -> float:
        """A lower bound of the time at which the next timer fires."""
        return self._heap[0][0] if self._heap else NEVER


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One event; an empty `node` means all nodes."""

    at_s: float
    node: str
    what: str
    reason: str


class EventHistory:
    """The last events with their reasons, oldest first; for people."""

    def __init__(self, n_history: int) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=n_history)

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(self._entries)

    def add(self, at_s: float, node: str, what: str, reason: str = "") -> None:
        """Add an entry."""
        self._entries.append(HistoryEntry(at_s, node, what, reason))

    def about(self, node: str, n_history: int) -> list[HistoryEntry]:
        """The last entries about a node, oldest first."""
        return [note for note in self._entries if note.node == node][-n_history:]
