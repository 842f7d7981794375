"""Asks peers in turn whether they are there, and answers them."""

from __future__ import annotations

import asyncio
import logging
import time

from torque_sched.adapters.waiting import cancelled
from torque_sched.core.membership import Member, Membership, MemberState
from torque_sched.site.config import SiteConfig
from torque_sched.site.links import LinkError, Links
from torque_sched.site.messages import Gossip, Said
from torque_sched.site.store import SiteStore

logger = logging.getLogger(__name__)
_FACT = "incarnation"


class Gossiping:
    """The membership of one site, alive.

    Args:
        config: of this site.
        links: to the peers.
        store: remembers the incarnation, so that it never goes back.
    """

    def __init__(self, config: SiteConfig, links: Links, store: SiteStore) -> None:
        self._config, self._links, self._store = config, links, store
        before = store.fact(_FACT)
        incarnation = (before if isinstance(before, int) else 0) + 1
        self.membership = Membership(
            config.name, config.peer_by_name, config.gossip.rules(), now_s=time.monotonic(),
            incarnation=incarnation,
        )  # fmt: skip
        store.set_fact(_FACT, incarnation)

    def member(self, peer: str) -> Member:
        """How a peer stands."""
        return self.membership.members[peer]

    async def answer(self, peer: str, message: Gossip) -> Gossip:
        """A peer asks."""
        self._heard(peer, message)
        return self._digest()

    async def run(self) -> None:
        """Until cancelled."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                for peer in self.membership.due(time.monotonic()):
                    task = asyncio.create_task(self._ask(peer))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await asyncio.sleep(self._config.gossip.period_s)
        finally:
            await cancelled(*under_way)

    async def _ask(self, peer: str) -> None:
        try:
            self._heard(peer, await self._links.ask(peer, self._digest(), Gossip))
        except LinkError as error:
            before = self.member(peer).state
            self.membership.silent(peer, time.monotonic())
            if before is MemberState.ALIVE:
                logger.warning("site %s does not answer: %s", peer, error)

    def _digest(self) -> Gossip:
        return Gossip(claims=tuple(map(Said.of, self.membership.digest())))

    def _heard(self, peer: str, message: Gossip) -> None:
        before, mine = self.member(peer).state, self.membership.incarnation
        self.membership.heard(peer, (said.claim() for said in message.claims), time.monotonic())
        if before is not MemberState.ALIVE:
            logger.info("site %s is there", peer)
        if self.membership.incarnation != mine:
            self._store.set_fact(_FACT, self.membership.incarnation)
