"""A small master for tests: hears heartbeats, answers as set, and can be gone, slow or a liar."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from aiohttp import web

from yarn_accel.adapters.signed_http import SIGNATURE, RequestVerifier, VerifiedRequest, guarded, sender_key
from yarn_accel.errors import RejectedError
from yarn_accel.master.agents import LateBindingReports

SECRET = b"the secret of this test's master"
W9 = {"name": "w9", "host": "10.0.0.9", "port": 7070, "node": "w9"}
PATIENCE_S = 60.0


def key_of(sender: str) -> bytes:
    return sender_key(SECRET, sender)


class _Recorder(RequestVerifier):
    """Keeps every request as it came."""

    raw: list[tuple[dict[str, str], bytes]]

    def verify(self, method: str, path: str, headers: Any, body: bytes, *, now_s: float) -> VerifiedRequest:
        self.raw.append((dict(headers), body))
        return super().verify(method, path, headers, body, now_s=now_s)


class Master:
    """One attempt, in a thread of its own; ``with Master() as master``.

    ``answer`` is what it says; ``mode`` how it behaves: honest, silent, unsigned, replay, garbage, huge,
    refuse.
    """

    def __init__(self, attempt: int = 1, port: int = 0, secret: bytes = SECRET) -> None:
        self.attempt = attempt
        self.mode = "honest"
        self.answer: dict[str, Any] = {"servers": [W9], "bound": ["w9"], "interval_s": 0.1, "slots": 2}
        self.heard: list[tuple[float, dict[str, Any]]] = []
        self.raw: list[tuple[dict[str, str], bytes]] = []
        self.refused: list[str] = []
        self.port = port
        #: Answers for late binding; None: this master is of a version without.
        self.late_binding: LateBindingReports | None = None
        self._verifier = _Recorder(lambda sender: sender_key(secret, sender), not_before_s=time.time())
        self._verifier.raw = self.raw
        self._kept: web.Response | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Master:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def wait_for(self, n: int = 1, **facts: Any) -> dict[str, Any]:
        """The n-th heartbeat from now with these facts."""
        seen = len(self.heard)
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            found = [beat for _, beat in self.heard[seen:] if all(beat.get(k) == v for k, v in facts.items())]
            if len(found) >= n:
                return found[n - 1]
            time.sleep(0.005)
        raise AssertionError(f"{len(self.heard) - seen} heartbeats, none {n} with {facts}")

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        application = web.Application()
        application.router.add_post("/v1/heartbeat", self._heartbeat)
        application.router.add_get("/v1/servers", self._servers)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _heartbeat(self, request: web.Request) -> web.StreamResponse:
        if self.mode == "silent":
            await asyncio.sleep(PATIENCE_S)
        if self.mode == "garbage":
            return web.Response(text="<html>login please</html>")
        if self.mode == "unsigned":
            return web.json_response({"version": 1, "servers": []})
        if self.mode == "replay" and self._kept is not None:
            return web.Response(
                body=self._kept.body,
                headers={SIGNATURE: self._kept.headers[SIGNATURE]},
                content_type="application/json",
            )
        response = await guarded(self._verifier, self._hear)(request)
        if response.status == 401:
            self.refused.append(str(response.text))
        self._kept = self._kept or web.Response(body=response.body, headers=dict(response.headers))
        return response

    async def _hear(self, sender: str, beat: dict[str, Any]) -> dict[str, Any]:
        assert sender == f"agent:{beat['node']}"
        self.heard.append((time.monotonic(), beat))
        if self.mode == "refuse":
            raise RejectedError("unknown-node", "who are you?")
        late = self.late_binding.answer(beat["node"], beat, time.monotonic()) if self.late_binding else {}
        answer = {
            **late,
            "version": 1,
            "attempt": self.attempt,
            "application": "application_1_0001",
            **self.answer,
        }
        return {**answer, "racks": {"w" * 100: "x" * 300_000}} if self.mode == "huge" else answer

    async def _servers(self, request: web.Request) -> web.Response:
        node = request.query["node"]
        binding = {"version": 1, "servers": self.answer["servers"], "bound": {node: self.answer["bound"]}}
        return web.json_response({"v": 1, "node": node, "binding": binding, "age_s": 0.0, "reason": ""})
