"""A dry run of the agent: the heartbeat that it would send."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from yarn_accel.errors import AccelError
from yarn_accel.node.agent import Agent
from yarn_accel.node.config import AgentConfig
from yarn_accel.node.master_discovery import discovery_for

_PAUSE_S = 1.0
_NO_KEY = bytes(32)


async def preview(config: AgentConfig) -> dict[str, Any]:
    """The heartbeat of this moment, with rates over a second, and where it would go; nothing is sent."""
    try:
        master: dict[str, Any] = {"urls": await asyncio.to_thread(discovery_for(config).find)}
    except AccelError as error:
        master = {"urls": [], "why": str(error)}
    async with aiohttp.ClientSession(trust_env=False, auto_decompress=False) as session:
        agent = Agent(config, _NO_KEY, session)
        try:
            await agent.heartbeat()
            await asyncio.sleep(_PAUSE_S)
            return {"master": master, "heartbeat": await agent.heartbeat()}
        finally:
            await agent.close()
