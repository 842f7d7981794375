"""What the site's shell knows of a block besides the engine, and how it waits for one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from torque_sched.core.site import RunBlock
from torque_sched.errors import TorqueSchedError

_KILL_LOOK_S = 1.0


@dataclass
class HostedBlock:
    """What the shell knows of a block besides the engine; kept in the store."""

    ticket: str
    user: str
    job: str = ""
    is_killed: bool = False
    why: str = ""
    lost_s: float | None = None
    """Wall clock: since when its job is looked for in vain."""
    folder: str = ""
    peer: str = ""
    index: int = 0
    n_missing: int = 0
    """Looks in a row that did not show its job."""
    order: Any = None
    """To run it, as plain data; None once qsub may have been called."""
    is_staged: bool = False
    """`stage_in` is done."""
    n_out: int = 0
    """Tries of `stage_out` that failed."""
    exit_status: int | None = None
    is_over: bool = False
    """Its job has ended; only its files are not home yet."""


async def start_of(order: RunBlock, block: HostedBlock) -> None:
    """Wait until its claim begins.

    Raises:
        TorqueSchedError: the block is not wanted any more.
    """
    await pause(order.start_s - time.time(), block)
    if block.is_killed:
        raise TorqueSchedError(block.why)


async def pause(length_s: float, block: HostedBlock) -> None:
    """Wait, unless the block is not wanted any more; by the wall clock, as claims are."""
    end_s = time.time() + length_s
    while not block.is_killed and time.time() < end_s:  # noqa: ASYNC110 -- a look a second will do
        await asyncio.sleep(min(_KILL_LOOK_S, max(0.0, end_s - time.time())))
