"""A headless Chromium, spoken to through its DevTools protocol: just what the tests of the page need."""

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
START_LIMIT_S = 120.0
LIMIT_S = 120.0
_FLAGS = (
    *("--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
    *("--remote-debugging-port=0", "--no-proxy-server", "--window-size=1280,1000"),
)


class Tab:
    """One page; keeps what it asked for, what it complained about, and what it threw."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting = {}
        self._listener = asyncio.create_task(self._listen())
        self._loaded = set()
        self._has_loaded = asyncio.Condition()
        self.requested = []
        self.complaints = []

    async def open(self, url):
        """Go there and wait until it is loaded: it, and not the empty page that the browser began with."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)
        loader = (await self.call("Page.navigate", url=url))["loaderId"]
        async with self._has_loaded:
            await asyncio.wait_for(self._has_loaded.wait_for(lambda: loader in self._loaded), LIMIT_S)

    async def call(self, method, **params):
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(self._waiting[number], LIMIT_S)

    async def value(self, expression):
        """What the expression is worth in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression):
        """Wait until the expression is true in the page."""
        end_s = asyncio.get_running_loop().time() + LIMIT_S
        while not await self.value(expression):
            assert asyncio.get_running_loop().time() < end_s, f"never came true: {expression}"
            await asyncio.sleep(0.05)

    async def screenshot(self, path):
        """The whole page as PNG."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    async def close(self):
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)

    async def _listen(self):
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                waiting = self._waiting.pop(said["id"])
                if not waiting.done():
                    if "error" in said:
                        waiting.set_exception(RuntimeError(said["error"]["message"]))
                    else:
                        waiting.set_result(said["result"])
            else:
                await self._take(said["method"], said["params"])

    async def _take(self, method, params):
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            async with self._has_loaded:
                self._loaded.add(params["loaderId"])
                self._has_loaded.notify_all()
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"].get("text"))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])


class Chromium:
    """A browser that keeps its things in a folder, to be used with ``with``; each test has its own tab."""

    def __init__(self, folder: Path):
        self._port_file = folder / "DevToolsActivePort"
        flags = [*_FLAGS, f"--user-data-dir={folder}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [CHROMIUM, *flags, "about:blank"], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @contextlib.asynccontextmanager
    async def tab(self):
        """A new tab."""
        async with aiohttp.ClientSession() as session:
            url = await asyncio.wait_for(self._new_tab(session), START_LIMIT_S)
            async with session.ws_connect(url, max_msg_size=0) as socket:
                tab = Tab(socket)
                try:
                    yield tab
                finally:
                    with contextlib.suppress(Exception):
                        await tab.call("Page.close")
                    await tab.close()

    async def _new_tab(self, session):
        while True:
            with contextlib.suppress(OSError, ValueError, IndexError, aiohttp.ClientError):
                port = int(self._port_file.read_text().splitlines()[0])
                async with session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
                    return (await answer.json())["webSocketDebuggerUrl"]
            await asyncio.sleep(0.05)
