"""A block on our compute nodes: its job script, its record in the store, and the barrier at which it waits.

The script waits at the barrier, then runs the user's script with the hosts of all blocks. The barrier is
plain HTTP inside the cluster; a secret ticket proves which block asks. A ticket lets its bearer wait at the
barrier and read the hosts of its own job, no more. The first Torque job that comes with a ticket is the
block; any other one with the same ticket has to cancel.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, StringConstraints

from torque_sched.adapters.waiting import within
from torque_sched.errors import DocumentError, StartupError, TorqueSchedError
from torque_sched.grid.handshake.guest import RunBlock
from torque_sched.grid.site.messages import MOST_HOSTS, Message, PeerAnswer, read_message

NO_DIRECTIVES = "#torque-grid-has-no-directives"
"""For ``qsub -C``: lines that begin with ``#PBS`` in a script from elsewhere are comments here."""
_END = "TORQUE_GRID_END_OF_PYTHON"
_SHELL = """#!/bin/sh
# Block {index} of {count} of job {job} of site {home}; made by torque-sched site.
umask 077
folder=$(mktemp -d "${{TMPDIR:-/tmp}}/torque-grid.XXXXXXXXXX") || exit 70
trap 'rm -rf "$folder"' EXIT
{interpreter} - "$folder" <<'{end}' || exit $?
BLOCK = {block}
{python}
{end}
. "$folder/environment"
case $(head -c 2 "$folder/script") in
'#!') "$folder/script" < /dev/null ;;
*) "${{SHELL:-/bin/sh}}" "$folder/script" < /dev/null ;;
esac
exit $?
"""


@dataclass(frozen=True, slots=True)
class BlockScript:
    """What a block has to know.

    Attributes:
        ticket: proves to the site's process which block it is; secret, so it stands in the script alone.
        url: of the barrier.
        home, job, site: whose job, and where it runs.
        index, count: which block, of how many.
        script: the user's, as base64.
        wait_s: it waits so long at the barrier.
    """

    ticket: str
    url: str
    home: str
    job: str
    site: str
    index: int
    count: int
    script: str
    wait_s: float


def block_script(block: BlockScript, interpreter: str) -> str:
    """The text to give to qsub."""
    python = resources.files("torque_sched.grid.site").joinpath("block_start.py").read_text(encoding="utf-8")
    if _END in python:
        raise AssertionError(f"{_END} stands in block_start.py")
    words = json.dumps(asdict(block), ensure_ascii=True)
    return _SHELL.format(
        index=block.index, count=block.count, job=block.job, home=block.home, interpreter=interpreter,
        end=_END, block=words, python=python,
    )  # fmt: skip


def encoded(script: str) -> str:
    """A user's script as `BlockScript` wants it."""
    return base64.b64encode(script.encode("utf-8")).decode("ascii")


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


_LONGEST = 1 << 20
_BODY_S = 5.0
_STOP_S = 0.2
"""For each of aiohttp's two waits for requests under way."""


class AtBarrier(Message):
    """A block stands at the barrier."""

    ticket: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    job: Annotated[str, StringConstraints(max_length=256)]
    hosts: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,255}$")], ...] = Field(
        min_length=1, max_length=MOST_HOSTS
    )


class BarrierAnswer(PeerAnswer):
    """The answer to a block; hosts of all blocks with `go`."""

    say: Literal["wait", "go", "cancel"]
    hosts: tuple[tuple[str, ...], ...] = ()
    sites: tuple[str, ...] = ()
    why: str = ""


class Barrier:
    """The listener for our own compute nodes.

    Args:
        answer: takes who stands there and says what to tell it.
    """

    def __init__(self, answer: Callable[[AtBarrier], BarrierAnswer]) -> None:
        self._answer = answer
        self._runner: web.ServerRunner | None = None
        self.port = 0

    async def start(self, address: str, port: int) -> None:
        """Listen.

        Raises:
            StartupError: the address or port cannot be had.
        """
        server = web.Server(self._handle, auto_decompress=False, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=_STOP_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, port)
        try:
            await site.start()
        except OSError as error:
            raise StartupError(
                f"barrier on {address}:{port}: {error.strerror or error}", cure="set another barrier.port"
            ) from None
        addresses: list[Any] = self._runner.addresses
        self.port = addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        length = request.content_length
        if request.method != "POST" or request.path != "/barrier" or length is None or length > _LONGEST:
            return web.Response(status=404)
        try:
            body = await within(_BODY_S, request.content.readexactly(length))
            arrived = read_message(body, AtBarrier)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError, DocumentError):
            return web.Response(status=400)
        answer = self._answer(arrived)
        return web.Response(body=answer.model_dump_json().encode(), content_type="application/json")
