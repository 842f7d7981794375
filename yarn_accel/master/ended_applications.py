"""Asks the ResourceManager which applications have ended, once for the servers of all nodes.

A server with sessions of users must end them soon after their application, for an open connection to HDFS
outlives the tokens. Each server names its applications with its agent's heartbeat; the response to a later
heartbeat names those of them that have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from yarn_accel.adapters.hadoop_rpc import ApplicationGoneError, ApplicationId
from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.errors import AccelError

logger = logging.getLogger(__name__)

#: Between two looks; heartbeats of agents and looks of servers at their file add about two seconds.
PAUSE_S = 1.5
#: Questions under way at once.
_AT_ONCE = 8


class EndedApplications:
    """The applications that servers have sessions of, and which of them have ended.

    Args:
        report: asks the ResourceManager for one application.
        pause_s: between two looks.
    """

    def __init__(
        self, report: Callable[[ApplicationId], Awaitable[ApplicationReport]], pause_s: float = PAUSE_S
    ) -> None:
        self._report = report
        self._pause_s = pause_s
        self._of_node: dict[str, frozenset[str]] = {}
        self._ended: set[str] = set()
        self._has_work = asyncio.Event()
        self._problem = ""

    def noted(self, node: str, applications: Iterable[str]) -> list[str]:
        """The server of a node has sessions of these; those of them that have ended, as far as is known."""
        named = frozenset(applications)
        if named:
            self._of_node[node] = named
        else:
            self._of_node.pop(node, None)
        if self._to_ask():
            self._has_work.set()
        return sorted(named & self._ended)

    async def run(self) -> None:
        """Ask for as long as somebody waits for an answer; never ends by itself."""
        while True:
            await self._has_work.wait()
            await self.look()
            await asyncio.sleep(self._pause_s)

    async def look(self) -> None:
        """Ask for each application once, some at a time."""
        named = frozenset().union(*self._of_node.values())
        self._ended &= named
        wanted = self._to_ask()
        if not wanted:
            self._has_work.clear()
            return
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            has_ended = await asyncio.gather(*map(self._has_ended, part))
            self._ended.update(each for each, is_over in zip(part, has_ended, strict=True) if is_over)

    def _to_ask(self) -> list[str]:
        return sorted(frozenset().union(*self._of_node.values()) - self._ended)

    async def _has_ended(self, application: str) -> bool:
        """Whether it is known to have ended; one that the ResourceManager has forgotten has."""
        try:
            found = await self._report(ApplicationId.parse(application))
        except ApplicationGoneError:
            return True
        except AccelError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.warning("whether the application of a session has ended is not known: %s", error)
            return False
        self._problem = ""
        return found.state is not None and found.state.is_final
