"""Where blocks on our compute nodes wait: plain HTTP inside the cluster, each block proved by its ticket.

A ticket only lets its bearer stand at the barrier and learn the hosts of its own job. The first Torque job
that comes with a ticket is the block; another one with the same ticket is told to cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, StringConstraints

from torque_sched.adapters.waiting import within
from torque_sched.errors import DocumentError, StartupError
from torque_sched.site.messages import MOST_HOSTS, Answer, Message, read_message

_LONGEST = 1 << 20
_BODY_S = 5.0
_STOP_S = 0.2
"""For each of aiohttp's two waits for requests under way."""


class Standing(Message):
    """A block stands at the barrier."""

    ticket: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    job: Annotated[str, StringConstraints(max_length=256)]
    hosts: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,255}$")], ...] = Field(
        min_length=1, max_length=MOST_HOSTS
    )


class BarrierAnswer(Answer):
    """What it is told; hosts of all blocks with `go`."""

    say: Literal["wait", "go", "cancel"]
    hosts: tuple[tuple[str, ...], ...] = ()
    sites: tuple[str, ...] = ()
    why: str = ""


class Barrier:
    """The listener for our own compute nodes.

    Args:
        answer: takes who stands there and says what to tell it.
    """

    def __init__(self, answer: Callable[[Standing], BarrierAnswer]) -> None:
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
            standing = read_message(body, Standing)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError, DocumentError):
            return web.Response(status=400)
        answer = self._answer(standing)
        return web.Response(body=answer.model_dump_json().encode(), content_type="application/json")
