"""By which way Torque is asked and given orders: its own batch protocol where that works, else its commands.

``auto`` uses the protocol from the first look by it that agrees with the commands' look in what decisions
read. A look that fails is repeated by the commands at once, and the protocol is tried again later, after a
pause that doubles.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Literal

from torque_sched.batch.system import BatchSystem, Look, OrderKind, OrderResult
from torque_sched.batch.torque.agreement import Differences, differences, in_words
from torque_sched.batch.torque.native import NativePbs
from torque_sched.errors import BatchError, ServerConnectionError, SnapshotError
from torque_sched.model.cluster import Job, JobId, NodeName
from torque_sched.model.decisions import NodeShare

logger = logging.getLogger(__name__)

Transport = Literal["auto", "native", "commands"]
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 600.0


async def disagreement(
    native: BatchSystem, commands: BatchSystem, first: Look | None = None
) -> tuple[Differences, Look]:
    """Where both ways do not show the same cluster, and the last look by the commands.

    Each look by the commands is held between two by the protocol, so
    that what happened between two looks is not taken for a difference; a second one takes its place where
    something moved to and fro.

    Args:
        native: the batch protocol.
        commands: the commands.
        first: a look by the protocol, just taken.

    Raises:
        BatchError: no look by the protocol. SnapshotError: none by the commands, or it shows no cluster.
    """
    before = first or await native.look()
    by_commands = await commands.look()
    after = await native.look()
    found = differences(before.snapshot, by_commands.snapshot, after.snapshot)
    if found:
        by_commands = await commands.look()
        last = await native.look()
        again = differences(after.snapshot, by_commands.snapshot, last.snapshot)
        found = {each: values for each, values in again.items() if each in found}
    return found, by_commands


class ChosenTransport(BatchSystem):
    """A Torque server by the way that is chosen.

    Args:
        native: the batch protocol.
        commands: the commands.
        chosen: ``auto``; or ``native``, for which there is no other way.
        clock: seconds that only pass.
    """

    def __init__(
        self,
        native: NativePbs,
        commands: BatchSystem,
        chosen: Transport,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._native = native
        self._commands = commands
        self._is_auto = chosen == "auto"
        self._is_native = chosen == "native"
        self._pause_s = _FIRST_PAUSE_S
        self._try_again_s = 0.0
        self._why = "" if self._is_auto else "transport: native"

    @property
    def words(self) -> str:
        """The way in use, why, and the cure where it is not the faster one; for the log and `status`."""
        return f"{'native' if self._is_native else 'commands'} ({self._why})"

    @property
    def one_order_at_a_time(self) -> bool:
        """As the way in use has it."""
        return self._is_native

    def forget(self) -> None:
        """Read every job anew next time."""
        self._native.forget()
        self._commands.forget()

    async def close(self) -> None:
        """Leave the server."""
        await self._native.close()

    # -- looks

    async def look(self) -> Look:
        """One complete look at the cluster, by whatever way there is.

        Raises:
            SnapshotError: there is none to be had now.
        """
        if self._is_native:
            try:
                return self._named(await self._native.look())
            except (BatchError, SnapshotError) as error:
                if not self._is_auto:
                    raise SnapshotError(error.message, cure=error.cure) from error
                self._leave(error.message, error.cure)
        elif self._clock() >= self._try_again_s:
            return self._named(await self._try())
        return self._named(await self._commands.look())

    async def n_holding(self) -> int | None:
        """As `BatchSystem` has it; of a failure the next look tells."""
        if not self._is_native:
            return None
        try:
            return await self._native.n_holding()
        except BatchError:
            return None

    async def _try(self) -> Look:
        """A look that decides whether the protocol is used from now on."""
        try:
            first = await self._native.look()
        except (BatchError, SnapshotError) as error:
            self._leave(error.message, error.cure)
            return await self._commands.look()
        try:
            found, look = await disagreement(self._native, self._commands, first)
        except BatchError as error:
            self._leave(error.message, error.cure)
            return await self._commands.look()
        if found:
            cure = "torque-sched doctor shows both values; set transport: native if the protocol's is right"
            self._leave(f"its look differs from the commands': {in_words(found)}", cure)
            return look
        self._is_native, self._pause_s = True, _FIRST_PAUSE_S
        self._why = "auto: trqauthd answers, and the first look agrees with the commands'"
        self._commands.forget()
        logger.info("transport: %s", self.words)
        return look

    def _named(self, look: Look) -> Look:
        return replace(look, transport=self.words)

    def _leave(self, why: str, cure: str) -> None:
        """Use the commands for a while."""
        reason = f"auto: {why}; cure: {cure}" if cure else f"auto: {why}"
        if self._is_native or reason != self._why:
            log = logger.warning if self._is_native else logger.info
            log("transport: commands (%s); the protocol is tried again in %.0f s", reason, self._pause_s)
        self._is_native, self._why = False, reason
        self._try_again_s = self._clock() + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        self._native.forget()

    # -- orders

    async def start(self, job: Job, allocation: Sequence[NodeShare], lock: int | None = None) -> OrderResult:
        """As `BatchSystem` has it."""
        return await self._order(lambda way: way.start(job, allocation, lock))

    async def comment(self, jobs: Sequence[JobId], text: str) -> OrderResult:
        """As `BatchSystem` has it."""
        return await self._order(lambda way: way.comment(jobs, text))

    async def delete(self, job: JobId, why: str) -> OrderResult:
        """As `BatchSystem` has it."""
        return await self._order(lambda way: way.delete(job, why))

    async def set_offline(self, node: NodeName, note: str) -> OrderResult:
        """As `BatchSystem` has it."""
        return await self._commands.set_offline(node, note)

    async def _order(self, give: Callable[[BatchSystem], Awaitable[OrderResult]]) -> OrderResult:
        """Give an order; what was never sent may go the other way."""
        if self._is_native:
            try:
                return await give(self._native)
            except ServerConnectionError as error:
                if not self._is_auto:
                    return OrderResult(OrderKind.SERVER_GONE, error.message)
                self._leave(error.message, error.cure)
        return await give(self._commands)
