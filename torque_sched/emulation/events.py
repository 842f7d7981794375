"""pbs_server's knock at the scheduler: connect, four bytes (big-endian), close.

Events that come while one is being sent melt into one; the gap between two is ``gap_s``. Nobody
listening is no error, as for the real server.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_FIRST = 10
_PRIVILEGED = range(1023, 599, -1)
_CONNECT_S = 2.0


class EventSender:
    """Sends event codes to all targets.

    Args:
        targets: ``host:port`` texts.
        gap_s: least time between two events.
        log: a file that gets one line per event: time, code, target, outcome.
    """

    def __init__(self, targets: Iterable[str], gap_s: float, log: Path) -> None:
        self._targets = tuple(dict.fromkeys(target for target in targets if target))
        self._gap_s = gap_s
        self._log = log
        self._pending: list[int] = []
        self._wake = asyncio.Event()
        self._ports = PrivilegedPorts()

    def post(self, codes: Iterable[int], *, one_by_one: bool = False) -> None:
        """Send soon; the newest code stands for all that wait, but 10 is never overwritten."""
        for code in codes:
            if one_by_one or not self._pending:
                self._pending.append(code)
            elif self._pending[-1] != _FIRST:
                self._pending[-1] = code
            self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                code = self._pending.pop(0)
                await asyncio.gather(*(self._send(target, code) for target in self._targets))
                if code:
                    await asyncio.sleep(self._gap_s)

    async def _send(self, target: str, code: int) -> None:
        host, _, port = target.rpartition(":")
        outcome = "sent"
        try:
            sock = self._ports.socket()
            try:
                loop = asyncio.get_running_loop()
                await asyncio.wait_for(loop.sock_connect(sock, (host, int(port))), _CONNECT_S)
                await loop.sock_sendall(sock, struct.pack(">I", code))
            finally:
                sock.close()
        except (OSError, asyncio.TimeoutError) as error:
            outcome = f"failed: {error}"
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{time.time():.6f} {code} {target} {outcome}\n")


class PrivilegedPorts:
    """Sockets to connect from, below port 1024 where this process may; one port after the other."""

    def __init__(self) -> None:
        self._left = iter(_PRIVILEGED)

    def socket(self) -> socket.socket:
        """A socket that is bound, to some port where none below 1024 is to be had."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        if os.geteuid() == 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for _ in range(len(_PRIVILEGED)):
                with suppress(OSError):
                    sock.bind(("", self._next()))
                    return sock
        sock.bind(("", 0))
        return sock

    def _next(self) -> int:
        for port in self._left:
            return port
        self._left = iter(_PRIVILEGED)
        return next(self._left)
