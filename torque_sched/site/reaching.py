"""How sites reach each other: messages of the engines out and in, and what a site could offer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from torque_sched.core.membership import Membership
from torque_sched.core.site import SITE_WIRE, SiteMessage
from torque_sched.errors import DocumentError, ModelError, TorqueSchedError
from torque_sched.site.config import SiteConfig
from torque_sched.site.hosting import Hosting
from torque_sched.site.links import LinkError, Links
from torque_sched.site.messages import Engine, EngineAnswer, Offer, Offered

logger = logging.getLogger(__name__)
_SKEW_S = 1.0


class Reaching:
    """The way to every site, our own among them.

    Args:
        config: of this site.
        links: to the peers.
        membership: who is there.
        hosting: our own site.
    """

    def __init__(self, config: SiteConfig, links: Links, membership: Membership, hosting: Hosting) -> None:
        self._config, self._links, self._membership = config, links, membership
        self._hosting = hosting
        self.heard: Callable[[str, Any], None] = lambda site, message: None
        """Takes what a site tells of a block without being asked."""

    # -- out

    async def push(self, home: str, message: Any) -> None:
        """Tell a home what it did not ask for."""
        if home == self._config.name:
            self.heard(home, message)
        else:
            await self.tell(home, message)

    async def tell(self, site: str, message: Any) -> Any:
        """Send a message of the engine; the reply, None when there is none or the site was not reached."""
        try:
            if site == self._config.name:
                return await self._hosting.handle(site, message)
            if site not in self._config.peer_by_name:
                return None
            answer = await self._links.ask(site, Engine(message=SITE_WIRE.plain(message)), EngineAnswer)
            return None if answer.message is None else SITE_WIRE.value(answer.message)
        except (TorqueSchedError, ModelError) as error:
            logger.info("%s to %s: %s", type(message).__name__, site, error)
            return None

    async def offers(self, offer: Offer) -> dict[str, Offered]:
        """What every site that may be asked offers; those that do not answer are left out."""
        mine = self._config.name
        names = [
            peer.name for peer in self._config.peers
            if peer.sends and self._membership.is_reachable(peer.name)
        ]  # fmt: skip
        answers = await asyncio.gather(
            *(self._ask(name, offer) for name in names), self._own(offer), return_exceptions=False
        )
        found = dict(zip([*names, mine], answers, strict=True))
        return {name: offered for name, offered in found.items() if offered is not None}

    async def _ask(self, peer: str, offer: Offer) -> Offered | None:
        try:
            offered = await self._links.ask(peer, offer, Offered)
        except LinkError as error:
            logger.info("offer of %s: %s", peer, error)
            return None
        if self._links.skew_s(peer) > _SKEW_S:
            logger.warning("%s: its clock is %.1f s off: not asked", peer, self._links.skew_s(peer))
            return None
        return offered

    async def _own(self, offer: Offer) -> Offered | None:
        try:
            return await self.offered(self._config.name, offer)
        except TorqueSchedError as error:
            logger.info("our own offer: %s", error)
            return None

    # -- in

    async def taken(self, peer: str, asked: Engine) -> EngineAnswer:
        """A message of a peer's engine.

        Raises:
            DocumentError: it is none.
        """
        try:
            message = SITE_WIRE.value(asked.message)
        except ModelError as error:
            raise DocumentError(error.message) from None
        if isinstance(message, SiteMessage):
            self.heard(peer, message)
            return EngineAnswer()
        reply = await self._hosting.handle(peer, message)
        return EngineAnswer(message=None if reply is None else SITE_WIRE.plain(reply))

    async def offered(self, peer: str, offer: Offer) -> Offered:
        """What a peer's user could have here now."""
        return self._hosting.offer(peer, offer)


def offer_facts(asked: Offer, told: Offered) -> Mapping[str, object]:
    """What the audit file tells of an offer."""
    free = [outlook[0][1] for outlook in told.outlooks if outlook]
    return {**asked.model_dump(), "free": free, "why": told.why}


def engine_facts(asked: Engine, told: EngineAnswer) -> Mapping[str, object]:
    """What the audit file tells of a message and its answer; never the script."""
    said, answer = asked.message, told.message or {}
    token = said.get("token")
    reason = answer.get("reason")
    return {
        "kind": said.get("kind"),
        "token": "/".join(str(token.get(key)) for key in ("home", "job", "attempt"))
        if isinstance(token, dict)
        else "",
        "user": said.get("user"),
        "told": answer.get("kind"),
        "state": answer.get("state", [None, None])[-1],
        "why": answer.get("why") or (reason[-1] if isinstance(reason, list) else None),
        "detail": answer.get("detail"),
    }
