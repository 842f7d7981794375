"""Actions that need operator rights: set `acct/slot`, and publish bindings as node attributes.

Everything that must outlive this process is stored in node attributes of the prefix ``rm.yarn.io``, which the
ResourceManager keeps over restarts and for the next application too:

===============  ============================================================
accel-bind       the server's node of a bound node
accel-slots      the `acct/slot` it was configured with, while we have changed it
accel-drained    an admin wants no server there
accel-owner      the application that has set these
===============  ============================================================

Of several applications the first one holds the nodes: another one sets neither slots nor attributes while
that one may live, as the ResourceManager says. It asks again every `_HELD_S`, and takes over afterwards.

A value is stored before it is changed, and removed after it was restored, so it can be restored whatever
happens in between.  Commands are collected and executed together, the newest for each node.  Without the
right, or without a store for attributes, that part is switched off with one message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from yarn_accel.adapters.hadoop_rpc import (
    ApplicationGoneError,
    ApplicationId,
    AttributeOperation,
    RemoteCallError,
    ResourceManager,
)
from yarn_accel.adapters.hadoop_rpc.records import NodeReport
from yarn_accel.core.application.commands import PublishBindings, SetSlots
from yarn_accel.core.application.events import Event, SlotsRefused, SlotsSet
from yarn_accel.errors import AccelError, AuthenticationError, ConfigError, UnavailableError
from yarn_accel.master.inventory import BIND, SLOT, attribute_of

logger = logging.getLogger(__name__)

V = TypeVar("V")

SLOTS, DRAINED, OWNER = "accel-slots", "accel-drained", "accel-owner"
#: The refusal of what the settings do not want.
OFF = "switched off"
_PAUSE_S = 1.0
#: How often it is seen whether the application that holds the nodes is over.
_HELD_S = 10.0
_RESOURCE_CURE = f"define {SLOT} in resource-types.xml, or switch `slots` off"


class OperatorCommands:
    """Executes commands one after the other, in a task of its own: `work`.

    Args:
        tell: takes the resulting events.
        clock: of events.
        has_slots: slots are set at all.
        has_attributes: bindings are published as attributes.
        application: the id of ours; empty: none, as of a command that only restores.

    Attributes:
        held_by: the application that holds the nodes, in words; empty: none but ours.
    """

    def __init__(
        self,
        rm: ResourceManager,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        *,
        has_slots: bool = True,
        has_attributes: bool = True,
        application: str = "",
    ) -> None:
        self._rm = rm
        self._tell = tell
        self._clock = clock
        self._slots: dict[str, int | None] = {}
        self._bound: dict[str, str | None] = {}
        self._is_full = False
        self._drained: dict[str, bool] = {}
        #: What we have set, and not taken away: attribute -> host -> value.
        self._set_values: dict[str, dict[str, str]] = {}
        self._lost: dict[str, dict[str, str]] = {}
        self._unchecked: set[str] = set()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._is_over = False
        self._application = application
        self.held_by = ""
        #: Why something is not done; empty: it is.
        self.refusals = {
            "slots": "" if has_slots else OFF,
            "attributes": "" if has_attributes else OFF,
        }

    def set_slots(self, order: SetSlots) -> None:
        """Queue a command; the next one for the same node replaces it."""
        self._slots[order.node] = order.n_slots
        self._wake.set()

    def publish(self, order: PublishBindings) -> None:
        """Queue bindings to be published."""
        if order.is_full:
            self._bound.clear()
            self._is_full = True
        self._bound.update(order.bound)
        self._wake.set()

    def drain(self, node: str, *, is_drained: bool) -> None:
        """Store for the next attempt whether an admin wants no server there."""
        self._drained[node] = is_drained
        self._wake.set()

    def resynced(self) -> None:
        """The ResourceManager was restarted, or another one is active: it may have lost attributes."""
        self._unchecked = {node for values in self._set_values.values() for node in values}

    def put_back(self, reports: Iterable[NodeReport]) -> None:
        """Queue what nodes have lost since `resynced`; each node is looked at once, when it is back."""
        for report in reports:
            host = report.node.host
            if host not in self._unchecked:
                continue
            self._unchecked.discard(host)
            for name, values in self._set_values.items():
                if host in values and attribute_of(report, name) is None:
                    self._lost.setdefault(name, {})[host] = values[host]
                    self._wake.set()

    def lack(self, resource_types: Iterable[str]) -> None:
        """Switch slots off if the cluster's resource types lack them."""
        types = tuple(resource_types)
        if types and SLOT not in types and not self.refusals["slots"]:
            self._refuse_slots(f"the cluster has no resource type {SLOT}: {_RESOURCE_CURE}")

    async def work(self) -> None:
        """Execute commands until cancelled."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _HELD_S if self.held_by else None)
            self._wake.clear()
            try:
                async with self._turn:
                    await self._step()
            except UnavailableError as error:
                logger.warning("orders for nodes wait: %s", error)
                self._wake.set()
                await asyncio.sleep(_PAUSE_S)

    async def restore(self, *, has_drains: bool = True) -> None:
        """At the end of the application: restore the configured slots, and remove our attributes.

        Args:
            has_drains: also those of drained nodes, which otherwise stay for the next application.

        Raises:
            AccelError: something is left.
        """
        async with self._turn:
            self._is_over = True
            reports = await self._rm.nodes()
            if await self.other_holder(reports):
                return
            self._slots = {r.node.host: None for r in reports if attribute_of(r, SLOTS) is not None}
            await self._step_slots(reports)
            nobody: dict[str, str | None] = {r.node.host: None for r in reports}
            for name in (BIND, DRAINED) if has_drains else (BIND,):
                await self._attributes(nobody, name, reports)
            with contextlib.suppress(RemoteCallError, AuthenticationError):
                await self._map(nobody, OWNER, reports)

    async def other_holder(self, reports: Iterable[NodeReport]) -> str:
        """Another application that holds nodes and may live, in words; empty: there is none.

        Raises:
            UnavailableError: no ResourceManager answers.
        """
        marks = {attribute_of(report, OWNER) for report in reports} - {None, self._application}
        holders = [await self._living(mark) for mark in sorted(filter(None, marks))]
        return next(filter(None, holders), "")

    async def _living(self, mark: str) -> str:
        try:
            found = await self._rm.report(ApplicationId.parse(mark))
        except (ApplicationGoneError, ConfigError):  # The ResourceManager has forgotten it: it is over.
            return ""
        return (
            ""
            if found.state is not None and found.state.is_final
            else f"{mark} ({found.name}, of {found.user})"
        )

    async def _claim(self) -> tuple[NodeReport, ...]:
        """The nodes, marked as ours; none where another application holds them."""
        reports = await self._rm.nodes()
        for is_last in (False, True):
            holder = await self.other_holder(reports)
            if holder != self.held_by:
                logger.info(
                    "the nodes' slots and attributes are %s", f"those of {holder}" if holder else "ours"
                )
                self.held_by = holder
            unmarked = [r.node.host for r in reports if attribute_of(r, OWNER) != self._application]
            is_able = self._application and not all(self.refusals.values())
            if holder or is_last or not is_able or not unmarked:
                break
            try:
                # YARN keeps the value of an attribute that is there: of two that do this the first is marked.
                await self._map(dict.fromkeys(unmarked, self._application), OWNER, reports)
            except (RemoteCallError, AuthenticationError) as error:  # Whatever follows needs the same right.
                self._refuse(error)
                break
            reports = await self._rm.nodes()
        return () if self.held_by else reports

    def _refuse(self, error: AccelError) -> None:
        if not self.refusals["slots"]:
            self._refuse_slots(_with_cure(error, "slots"))
        if not self.refusals["attributes"]:
            self._refuse_attributes(error)

    def _confirm_restored(self) -> None:
        """Confirm commands to restore slots: nodes that another application holds are unchanged by ours."""
        for node in [node for node, n_slots in self._slots.items() if n_slots is None]:
            del self._slots[node]
            self._tell(SlotsSet(node, None, self._clock()))

    async def _step(self) -> None:
        is_idle = not (self._slots or self._bound or self._is_full or self._drained or self._lost)
        if self._is_over or is_idle:
            return
        reports = await self._claim()
        if self.held_by:
            self._lost.clear()
            self._confirm_restored()
            return
        if self._lost:
            await self._step_lost(reports)
            reports = await self._rm.nodes()
        await self._step_slots(reports)
        drained, self._drained = self._drained, {}
        marks: dict[str, str | None] = {
            node: "true" if is_drained else None for node, is_drained in drained.items()
        }
        await self._kept(self._drained, drained, lambda: self._attributes(marks, DRAINED, reports))
        bound, self._bound = self._bound, {}
        is_full, self._is_full = self._is_full, False
        wanted = {**({r.node.host: None for r in reports} if is_full else {}), **bound}
        try:
            await self._kept(self._bound, bound, lambda: self._attributes(wanted, BIND, reports))
        except UnavailableError:
            self._is_full = self._is_full or is_full
            raise

    async def _kept(
        self, orders: dict[str, V], taken: Mapping[str, V], step: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a step; if no RM answers, its commands are queued again, below newer ones."""
        try:
            await step()
        except UnavailableError:
            newer = dict(orders)
            orders.clear()
            orders.update({**taken, **newer})
            raise

    async def _step_lost(self, reports: Iterable[NodeReport]) -> None:
        while self._lost:
            name, values = self._lost.popitem()
            try:
                await self._map(values, name, reports)
            except UnavailableError:
                self._lost[name] = {**values, **self._lost.get(name, {})}
                raise
            except (RemoteCallError, AuthenticationError) as error:
                logger.warning("%s is not put back: %s", name, error)

    # ---- slots

    async def _step_slots(self, reports: Iterable[NodeReport]) -> None:
        slots, self._slots = self._slots, {}
        if not slots or self.refusals["slots"]:
            return
        by_host = {r.node.host: r for r in reports}
        known = {host: by_host[host] for host in slots if host in by_host}

        async def step() -> None:
            noted = self._set_values.get(SLOTS, {})
            first: dict[str, str | None] = {
                host: noted.get(host, str(_slots_of(report)))
                for host, report in known.items()
                if slots[host] is not None and attribute_of(report, SLOTS) is None
            }
            await self._map(first, SLOTS, known.values())
            # YARN takes whole vectors: what an admin has changed meanwhile must not be put back.
            newest = {r.node.host: r for r in await self._rm.nodes()}
            for host in [host for host in known if host in newest]:
                await self._set(newest[host], slots[host])
            restored: dict[str, str | None] = {
                host: None for host, report in known.items() if _is_to_forget(report, slots[host])
            }
            await self._map(restored, SLOTS, known.values())

        try:
            await self._kept(self._slots, slots, step)
        except (RemoteCallError, AuthenticationError) as error:
            self._refuse_slots(_with_cure(error, "slots"))

    async def _set(self, report: NodeReport, n_slots: int | None) -> None:
        """Change the slots of the vector read just before, and nothing else."""
        host = report.node.host
        wanted = n_slots if n_slots is not None else _configured(report)
        if wanted is not None and wanted != _slots_of(report) and report.capability is not None:
            vector = report.capability.with_amount(SLOT, wanted)
            try:
                await self._rm.update_node_resource(report.node, vector)
            except RemoteCallError as error:
                if _is_forbidden(error):
                    raise
                # The node may be gone meanwhile; the core orders again what is not confirmed.
                logger.warning("%s: %s is not set: %s", host, SLOT, error)
                return
            logger.info("%s: %s is %d", host, SLOT, wanted)
        self._tell(SlotsSet(host, n_slots, self._clock()))

    def _refuse_slots(self, why: str) -> None:
        self._slots.clear()
        self.refusals["slots"] = why
        logger.warning("slots are not set: %s", why)
        self._tell(SlotsRefused(why, self._clock()))

    # ---- attributes

    async def _attributes(
        self, wanted: Mapping[str, str | None], name: str, reports: Iterable[NodeReport]
    ) -> None:
        """Give nodes an attribute, or take it away (None); what they have already costs nothing."""
        if self.refusals["attributes"]:
            return
        try:
            await self._map(wanted, name, reports)
        except (RemoteCallError, AuthenticationError) as error:
            self._refuse_attributes(error)

    def _refuse_attributes(self, error: AccelError) -> None:
        self.refusals["attributes"] = _with_cure(error, "attributes")
        logger.warning("bindings are not published as node attributes: %s", error)

    async def _map(self, wanted: Mapping[str, str | None], name: str, reports: Iterable[NodeReport]) -> None:
        has = {r.node.host: attribute_of(r, name) for r in reports}
        changed = {node: value for node, value in wanted.items() if node in has and has[node] != value}
        # YARN keeps the old value when one that is there is added, and REPLACE would take others' away.
        removed = {node: {name: ""} for node in changed if has[node] is not None}
        added = {node: {name: value} for node, value in changed.items() if value is not None}
        if removed:
            await self._rm.map_attributes(AttributeOperation.REMOVE, removed)
        if added:
            await self._rm.map_attributes(AttributeOperation.ADD, added)
        ours = self._set_values.setdefault(name, {})
        for node, value in wanted.items():
            if value is None:
                ours.pop(node, None)
            else:
                ours[node] = value


def _with_cure(error: AccelError, setting: str) -> str:
    """A refusal, with what an admin may do about it where the right is missing."""
    if not _is_forbidden(error):
        return str(error)
    return f"{error}: name the user in yarn.admin.acl, or switch `{setting}` off"


def _is_forbidden(error: AccelError) -> bool:
    """Whether we may not do this at all: YARN wraps the reason in an exception of its own."""
    return "AccessControlException" in str(error) or "permission" in error.message


def _slots_of(report: NodeReport) -> int:
    return report.capability.other.get(SLOT, 0) if report.capability is not None else 0


def _configured(report: NodeReport) -> int | None:
    """The configured slots, as remembered; None: they were never changed."""
    text = attribute_of(report, SLOTS) or ""
    return int(text) if text.isdecimal() else None


def _is_to_forget(report: NodeReport, n_slots: int | None) -> bool:
    return n_slots is None and attribute_of(report, SLOTS) is not None
