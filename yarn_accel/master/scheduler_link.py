"""The connection to the ResourceManager's scheduler: registers, sends heartbeats, unregisters.

Requests are collected between heartbeats.  The interval is shorter while requests are open, because the RM
answers a request only at a later heartbeat, and shortest just after a request, as most are answered with the
next heartbeat of the node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from yarn_accel.adapters.hadoop_rpc import (
    AllocateResponse,
    AlreadyRegisteredError,
    ApplicationMaster,
    ContainerId,
    NodeManager,
    NotRegisteredError,
    RegisterResponse,
    RemoteCallError,
)
from yarn_accel.adapters.hadoop_rpc.records import (
    FinalStatus,
    ResourceRequest,
    YarnContainer,
    YarnResource,
    pinned,
)
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.errors import UnavailableError
from yarn_accel.master.inventory import Inventory

logger = logging.getLogger(__name__)

_MEMORY, _VCORES = "memory-mb", "vcores"
#: Of the queue that has no access to a node label that a request names.
_LABEL_REFUSED = "InvalidLabelResourceRequestException"
_AWAY_PAUSE_S = 0.5
#: A request that is not answered for so long waits for free resources, and a shorter interval does not help.
_BUSY_FOR_S = 10.0
#: For so long after a request the pauses are a quarter of those with open requests.
_HASTY_FOR_S = 1.0


@dataclass(slots=True)
class LinkStatistics:
    """Counts and times of the connection.

    Attributes:
        last_s: how long the last answer took.
        answered_s: when it came, by the monotonic clock.
    """

    heartbeats: int = 0
    failed: int = 0
    last_s: float = 0.0
    answered_s: float = 0.0
    is_away: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    """An open request as it was sent: to take it back, the same place and size must be named."""

    node: str
    rack: str
    priority: int
    resource: YarnResource
    label: str | None


def open_pause_s(open_s: float, busy_s: float) -> float:
    """How long to wait for the next heartbeat while a request is open.

    Args:
        open_s: since the last request was made.
        busy_s: the pause with open requests.
    """
    return busy_s / 4 if open_s < _HASTY_FOR_S else busy_s


class SchedulerLink:
    """The connection; used from one event loop, and `run` is its task.

    Args:
        tell: takes events.
        clock: of events.
        attempt: number of this attempt.
        address: host, port and tracking URL to register; asked for when it happens.
        before_end: awaited before unregistering: from then on a NodeManager may kill this process.
        registered: the answer to a registration that was made already.
        idle_s, busy_s: pauses between heartbeats, without and with open requests.
    """

    def __init__(
        self,
        master: ApplicationMaster,
        nodes: NodeManager,
        inventory: Inventory,
        tell: Callable[[ev.Event], None],
        clock: Callable[[], float],
        attempt: int,
        address: Callable[[], tuple[str, int, str]],
        before_end: Callable[[], Awaitable[None]],
        registered: RegisterResponse | None = None,
        *,
        idle_s: float,
        busy_s: float,
    ) -> None:
        self._master = master
        self._nodes = nodes
        self._inventory = inventory
        self._tell = tell
        self._clock = clock
        self._attempt = attempt
        self._address = address
        self._before_end = before_end
        self._early = registered
        self._idle_s, self._busy_s = idle_s, busy_s
        self._is_to_register = False
        self._is_registered = False
        self._ending: FinalStatus | None = None
        self._asks: list[ResourceRequest] = []
        self._releases: list[ContainerId] = []
        self._open: dict[int, _Asked] = {}
        self._asked_s = -_BUSY_FOR_S
        self._are_labels_refused = False
        self._wake = asyncio.Event()
        #: Containers as the RM describes them, with the tokens that start them.
        self.containers: dict[str, YarnContainer] = {}
        #: Names of the resource types the cluster counts; empty: not known.
        self.resource_types: tuple[str, ...] = ()
        self.figures = LinkStatistics()

    # ---- orders

    def register(self) -> None:
        """Register, or register again."""
        self._is_to_register = True
        self._wake.set()

    def ask(self, order: cmd.RequestContainer) -> None:
        """Request a container; the same request again is the same request."""
        amounts = dict(order.resource)
        size = YarnResource.of(amounts.pop(_MEMORY), amounts.pop(_VCORES), amounts)
        asked = _Asked(order.node, order.rack, order.priority, size, self._label_of(order.node))
        self._open[order.request_id] = asked
        self._asked_s = self._clock()
        logger.info("request %d: %s on %s", order.request_id, order.role, order.node)
        self._request(order.request_id, asked, 1)

    def unask(self, order: cmd.CancelRequest) -> None:
        """Take a request back."""
        asked = self._open.pop(order.request_id, None)
        if asked is not None:
            self._request(order.request_id, asked, 0)

    def release(self, container: ContainerId) -> None:
        """Give a container back."""
        self._releases.append(container)
        self._wake.set()

    def finish(self, status: FinalStatus) -> None:
        """Tell the ResourceManager that the application is over."""
        self._ending = status
        self._wake.set()

    # ---- the task

    async def run(self) -> None:
        """Work until the ResourceManager has accepted the end.

        Raises:
            AttemptGoneError: this attempt is over, the next one may run.
            AccelError: the ResourceManager refuses us; another attempt is to try.
        """
        while True:
            try:
                if await self._turn():
                    return
            except UnavailableError as error:
                self._failed(error)
                await asyncio.sleep(_AWAY_PAUSE_S)
                continue
            await self._pause()

    async def _turn(self) -> bool:
        """One exchange with the ResourceManager; whether it was the last."""
        if self._is_to_register:
            await self._register()
        if not self._is_registered:
            return False
        if self._ending is not None:
            await self._finish(self._ending)
            return True
        await self._heartbeat()
        return False

    async def _pause(self) -> None:
        """Until the next heartbeat is due, or an order waits and the shorter pause is over."""
        busy_s = min(self._busy_s, self._idle_s)
        open_s = self._clock() - self._asked_s
        if self._open and open_s < _BUSY_FOR_S:
            await asyncio.sleep(open_pause_s(open_s, busy_s))
            return
        since_s = self._clock()
        try:
            await asyncio.wait_for(self._wake.wait(), self._idle_s)
        except asyncio.TimeoutError:
            return
        # Orders come in groups: a moment later the others are there too.
        await asyncio.sleep(max(0.0, min(busy_s / 4, self._idle_s - (self._clock() - since_s))))

    async def _register(self) -> None:
        early, self._early = self._early, None
        response = early if early is not None else await self._registration()
        self._is_to_register, self._is_registered = False, True
        self._nodes.learn(response.node_tokens)
        self.resource_types = tuple(each.name for each in response.resource_types)
        logger.info(
            "registered attempt %d, %d containers of before", self._attempt, len(response.previous_containers)
        )
        self._answered(response)

    async def _registration(self) -> RegisterResponse:
        """The answer to a registration; an empty one where it was lost and had nothing that is needed."""
        try:
            return await self._master.register(*self._address())
        except AlreadyRegisteredError as error:
            if self._attempt == 1 and not self.figures.heartbeats:
                logger.warning("registered, but the answer was lost; there is nothing of before: %s", error)
                return RegisterResponse()
            raise AlreadyRegisteredError(
                error.exception_class,
                f"{error.message}; the answer to that was lost, and with it which containers run: "
                "YARN tells them to the next attempt, which takes over",
            ) from None

    def _answered(self, response: RegisterResponse) -> None:
        previous = self._known(response.previous_containers)
        self._tell(ev.Registered(previous, self._attempt, self._clock()))

    async def _heartbeat(self) -> None:
        asks, releases = self._asks, self._releases
        if self.figures.is_away:
            # The last heartbeats may still be under way: new requests follow when one was answered.
            asks, releases = [], []
        else:
            self._asks, self._releases = [], []
        self._wake.clear()
        began_s = time.perf_counter()
        try:
            response = await self._master.allocate(asks, releases)
        except NotRegisteredError as error:
            logger.warning("to register again: %s", error)
            self._is_registered = False
            # The core asks for everything anew; releases have no other way to come again so soon.
            self._asks = []
            self._releases = releases + self._releases
            self._open.clear()
            self._tell(ev.Resynced(self._clock()))
            return
        except RemoteCallError as error:
            if not error.exception_class.endswith(_LABEL_REFUSED) or self._are_labels_refused:
                raise
            # A queue without access to a partition may still get what others leave of it.
            logger.warning("requests name no node labels any more: %s", error)
            self._are_labels_refused = True
            self._asks = [replace(each, label=None) for each in asks] + self._asks
            self._releases = releases + self._releases
            return
        figures = self.figures
        figures.last_s = time.perf_counter() - began_s
        figures.heartbeats += 1
        figures.answered_s = self._clock()
        if figures.is_away:
            figures.is_away = False
            self._wake.set()
            logger.info("the resource manager answers again")
        self._take(response)

    def _take(self, response: AllocateResponse) -> None:
        """Events of an answer, in the order in which they make sense together."""
        now_s = self._clock()
        self._nodes.learn(response.node_tokens)
        if response.updated_nodes:
            self._tell(ev.NodesReported(self._inventory.updated(response.updated_nodes), now_s))
        if response.previous_containers:
            self._tell(ev.ContainersRecovered(self._known(response.previous_containers), now_s))
        for status in response.completed:
            self._tell(ev.ContainerCompleted(str(status.id), status.exit_status, status.diagnostics, now_s))
            self.containers.pop(str(status.id), None)
        if response.preemption is not None and response.preemption.containers:
            named = tuple(str(each) for each in response.preemption.containers)
            self._tell(ev.PreemptionAnnounced(named, now_s))
        if response.allocated:
            for container in response.allocated:
                self._open.pop(container.allocation_request_id, None)
            self._tell(ev.ContainersAllocated(self._known(response.allocated), now_s))

    async def _finish(self, status: FinalStatus) -> None:
        await self._before_end()
        is_stored = await self._master.finish(status)
        while not is_stored:
            await asyncio.sleep(_AWAY_PAUSE_S / 5)
            is_stored = await self._master.finish(status)
        self._tell(ev.Unregistered(self._clock()))

    def _failed(self, error: UnavailableError) -> None:
        self.figures.failed += 1
        if not self.figures.is_away:
            self.figures.is_away = True
            logger.warning("the resource manager is away: %s", error)

    def _request(self, request_id: int, asked: _Asked, n: int) -> None:
        self._asks += pinned(
            asked.node,
            asked.rack,
            asked.priority,
            asked.resource,
            n,
            allocation_request_id=request_id,
            label=None if self._are_labels_refused else asked.label,
        )
        self._wake.set()

    def _label_of(self, host: str) -> str | None:
        """The partition of a node, where it is in one: YARN gives its containers to requests that name it."""
        report = self._inventory.report(host)
        return report.labels[0] if report is not None and report.labels else None

    def _known(self, containers: Sequence[YarnContainer]) -> tuple[ev.ContainerRef, ...]:
        for each in containers:
            self.containers[str(each.id)] = each
        return tuple(
            ev.ContainerRef(
                str(each.id),
                each.node.host,
                each.priority.value if each.priority is not None else -1,
                each.allocation_request_id,
            )
            for each in containers
        )
