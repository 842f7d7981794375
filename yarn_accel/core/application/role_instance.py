"""The state of one role on one node: its containers, its request, its last report.

::

    Ask ──Allocated──> GRANTED ──Launch──> LAUNCHING ──Started, Heard──> RUNNING
                          │                    │                            │
                          └── surplus, not wanted, failed to start, hung ───┴──> RETIRING ──Completed──>
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from yarn_accel.core.application.backoff import Backoff
from yarn_accel.core.application.events import ContainerRef, NodeView, ServerGauges
from yarn_accel.core.application.roles import ContainerRole

_LONG_AGO = float("-inf")


class Phase(enum.Enum):
    """The phase of a container of ours."""

    GRANTED = "granted"
    LAUNCHING = "launching"
    RUNNING = "running"
    RETIRING = "retiring"


class DesiredState(enum.Enum):
    """What a node should have of a role: a running container; what it has but nothing new; nothing."""

    RUNNING = "running"
    RETAINED = "retained"
    ABSENT = "absent"


@dataclass(slots=True, eq=False)
class ContainerRecord:
    """A container of ours.

    Attributes:
        since_s: when its phase began.
        ordered_s: when the last command of its phase went out.
        was_launched: its program may be running and hold the device.
        checked_s: when the NM was asked about it.
        gone_s: when it was first said that its process is dead; None: it is not, as far as we know.
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
        """It is not retiring."""
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


@dataclass(slots=True, eq=False)
class RoleInstance:
    """One role on one node.

    Attributes:
        records: our containers there by id; at most one is live after each event.
        request_id: of the request that waits at the RM; None: none does.
        first_asked_s, asked_s: when it was asked for, first and last.
        well_s, well_since_s: last and first healthy report of the container that is there.
        ending_s: since when its server is being drained; None: it is not.
        is_done: it ended well and its role says that it was meant to.
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
    is_done: bool = False

    def live(self) -> Iterator[ContainerRecord]:
        """The containers that are not retiring."""
        return (record for record in self.records.values() if record.phase is not Phase.RETIRING)

    def is_vacating(self) -> bool:
        """A program that is being stopped may still use the device."""
        return any(record.was_launched and not record.is_live for record in self.records.values())

    def well_for_s(self) -> float:
        """How long the container that is there has been well, up to its last report."""
        return self.well_s - self.well_since_s if self.well_since_s is not None else 0.0


@dataclass(slots=True, eq=False)
class Node:
    """One node.

    Attributes:
        view: None: the RM has reported containers there, but not the node yet.
        places: by the role's name, in the order of the table.
        heard_s: time of the last report from it.
        reached_s: the same, its NM included.
        is_serving: its server takes requests, by the last look at it.
        down_s: since when it should have a server and has none that serves; None: otherwise.
        missing_s: since when complete reports of the RM lack it; None: the last one does not.
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
        """The RM can use it."""
        return self.view is not None and self.view.is_usable
