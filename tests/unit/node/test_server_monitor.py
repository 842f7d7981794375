"""The node's pipeline server: found, asked, and missed at once when it dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.fixtures.waiting import soon
from yarn_accel.node import server_monitor as module
from yarn_accel.node.server_monitor import ServerMonitor, container_of, cpu_ticks_of

GOOD = {"health": {"ok": True, "problems": []}, "is_draining": False, "in_flight": 3}
SICK = GOOD | {"health": {"ok": False, "problems": ["cuda:0 is resting"]}}


class Pretended:
    """A process to watch, a page to read, and a state file that names both."""

    def __init__(self, path):
        self.path = path
        self.stats = GOOD
        self.pause_s = 0.0
        self.process = None
        self.port = 0

    async def __aenter__(self):
        application = web.Application()
        application.router.add_get("/stats.json", self._stats)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_):
        self.kill()
        await self._runner.cleanup()

    async def _stats(self, request):
        await asyncio.sleep(self.pause_s)
        return web.Response(text=self.stats if isinstance(self.stats, str) else json.dumps(self.stats))

    def start(self, **changes):
        self.kill()
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", "input()"],
            stdin=subprocess.PIPE,
            env={"CONTAINER_ID": "container_1_0001_01_000002"},
        )
        # Popen returns when exec has closed its descriptors, just before the kernel has set its environment.
        while not Path(f"/proc/{self.process.pid}/environ").read_bytes():
            pass
        self.write(**changes)

    def write(self, **changes):
        state = {
            "pid": self.process.pid,
            "name": "w1",
            "host": "0.0.0.0",
            "port": 7070,
            "unix_path": "/run/p.sock",
            "http_host": "127.0.0.1",
            "http_port": self.port,
            **changes,
        }
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(state))
        temporary.replace(self.path)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.stdin.close()
            self.process.wait()


def watching(tmp_path, act):
    async def run():
        path = tmp_path / "server.json"
        changed = asyncio.Event()
        async with aiohttp.ClientSession() as session, Pretended(path) as pretended:
            own = ServerMonitor(path, "w1", "10.0.0.1", session, changed.set)
            try:
                return await act(own, pretended, changed)
            finally:
                await own.close()

    return asyncio.run(run())


async def settled(own, step_s=0.0):
    """The first report that is not "starting", when so much time passes before each."""

    async def report():
        if step_s:
            own.tick(step_s)
        found = await own.report()
        return found if found["health"] != "starting" else None

    return await soon(report)


def test_no_server_no_report(tmp_path):
    async def act(own, pretended, changed):
        return await own.report(), own.endpoint, own.is_gone, changed.is_set()

    assert watching(tmp_path, act) == (None, None, False, False)


def test_a_server_that_is_well(tmp_path):
    async def act(own, pretended, changed):
        pretended.start()
        return await settled(own), changed.is_set()

    report, was_reported = watching(tmp_path, act)
    assert was_reported
    assert report["endpoint"] == {
        "name": "w1",
        "host": "10.0.0.1",
        "port": 7070,
        "unix_path": "/run/p.sock",
        "node": "w1",
        "tls": False,
        "ca_file": "",
    }
    assert (report["health"], report["in_flight"], report["problems"]) == ("ok", 3.0, [])
    assert not report["is_local_only"]
    assert report["container"] == "container_1_0001_01_000002"


def test_its_container_is_the_one_it_wrote_down(tmp_path):
    async def act(own, pretended, changed):
        pretended.start(container="container_7_0001_01_000009")
        return (await settled(own))["container"]

    assert watching(tmp_path, act) == "container_7_0001_01_000009"


def test_it_is_missed_when_it_dies_and_found_when_it_is_replaced(tmp_path):
    async def act(own, pretended, changed):
        pretended.start()
        await settled(own)
        changed.clear()
        pretended.kill()
        await soon(lambda: own.is_gone)
        assert changed.is_set()
        gone = (await own.report())["health"], own.endpoint, own.is_gone
        pretended.start()
        back = (await settled(own))["health"], own.endpoint.name, own.is_gone
        return gone, back

    assert watching(tmp_path, act) == (("gone", None, True), ("ok", "w1", False))


def test_one_that_ends_in_peace_takes_its_state_along(tmp_path):
    async def act(own, pretended, changed):
        pretended.start()
        await settled(own)
        changed.clear()
        pretended.path.unlink()
        pretended.kill()
        await asyncio.wait_for(changed.wait(), 60)
        return await own.report(), own.is_gone

    assert watching(tmp_path, act) == (None, False)


def test_a_state_file_left_by_a_dead_one(tmp_path):
    async def act(own, pretended, changed):
        pretended.start()
        pretended.kill()
        return (await own.report())["health"], own.endpoint

    assert watching(tmp_path, act) == ("gone", None)


@pytest.mark.parametrize(
    ("stats", "health", "problems"),
    [
        (SICK, "unhealthy", ["cuda:0 is resting"]),
        (GOOD | {"is_draining": True}, "draining", []),
    ],
)
def test_one_that_says_it_is_not_well(tmp_path, stats, health, problems):
    async def act(own, pretended, changed):
        pretended.stats = stats
        pretended.start()
        return await settled(own)

    report = watching(tmp_path, act)
    assert (report["health"], report["problems"]) == (health, problems)


@pytest.mark.parametrize(("young_s", "is_reported"), [(60.0, True), (0.0, False)])
def test_one_that_is_still_loading_is_asked_again_at_every_look(tmp_path, monkeypatch, young_s, is_reported):
    monkeypatch.setattr(module, "_YOUNG_S", young_s)

    async def act(own, pretended, changed):
        pretended.stats = SICK
        pretended.start()
        assert (await settled(own))["health"] == "unhealthy"
        pretended.stats = GOOD
        changed.clear()

        def is_reported_at_a_look():
            own.look()
            return changed.is_set()

        if is_reported:
            return await soon(is_reported_at_a_look)
        for _ in range(50):
            own.look()
            await asyncio.sleep(0.01)
        return changed.is_set()

    assert watching(tmp_path, act) is is_reported


@pytest.mark.parametrize(("is_well", "expected"), [(True, "ok"), (False, "starting"), (None, "starting")])
def test_one_that_wrote_that_it_is_well_is_believed_until_it_can_be_asked(tmp_path, is_well, expected):
    async def act(own, pretended, changed):
        pretended.start(is_well=is_well)
        pretended.pause_s = 3600.0
        return (await own.report())["health"]

    assert watching(tmp_path, act) == expected


def test_the_first_figures_of_such_a_server_are_reported_at_once(tmp_path):
    async def act(own, pretended, changed):
        pretended.start(is_well=True)
        first = await own.report()
        changed.clear()
        await changed.wait()
        return "in_flight" in first, (await own.report())["in_flight"]

    assert watching(tmp_path, act) == (False, 3.0)


def test_what_it_says_later_counts_more_than_what_it_wrote(tmp_path):
    async def act(own, pretended, changed):
        pretended.stats = SICK
        pretended.start(is_well=True)
        first = (await own.report())["health"]
        changed.clear()
        await changed.wait()
        return first, (await own.report())["health"], (await own.report())["problems"]

    assert watching(tmp_path, act) == ("ok", "unhealthy", ["cuda:0 is resting"])


def test_one_that_wrote_that_it_is_well_and_says_nothing_is_silent_in_time(tmp_path):
    async def act(own, pretended, changed):
        pretended.pause_s = 3600.0
        pretended.start(is_well=True)
        first = (await own.report())["health"]
        own.tick(0.5)
        still = (await own.report())["health"]
        for _ in range(5):
            own.tick(0.5)
        return first, still, (await own.report())["health"]

    assert watching(tmp_path, act) == ("ok", "ok", "silent")


def test_after_a_death_the_next_one_is_looked_for_more_often_for_a_while(tmp_path, monkeypatch):
    async def act(own, pretended, changed):
        pretended.start()
        before = await own.report(), own.look_s
        pretended.kill()
        await soon(lambda: own.is_gone)
        soon_s = own.look_s
        monkeypatch.setattr(module, "_SOON_S", 0.0)
        later_s = own.look_s
        pretended.start()
        own.look()
        return before[1], soon_s < before[1], later_s, own.look_s

    assert watching(tmp_path, act) == (0.2, True, 0.2, 0.2)


def test_late_is_not_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.02)

    async def act(own, pretended, changed):
        pretended.start()
        pretended.pause_s = 0.3
        first = (await own.report())["health"]
        report = await settled(own)
        return first, report["health"], report["in_flight"]

    assert watching(tmp_path, act) == ("starting", "ok", 3.0)


@pytest.mark.parametrize("stats", ["", "<html>hello</html>", "x" * 2_000_000])
def test_one_that_says_nothing_sensible_is_silent_in_time(tmp_path, stats):
    async def act(own, pretended, changed):
        pretended.stats = stats
        pretended.start()
        first = (await own.report())["health"]
        for _ in range(6):
            own.tick(0.5)
        # What it sends takes it some CPU, and while it computes it is not silent so soon.
        report = await settled(own, step_s=0.5)
        return first, report["health"], own.endpoint

    assert watching(tmp_path, act) == ("starting", "silent", None)


async def hung(own, pretended, changed):
    """A server that answered once and is stopped then: what was reported of it, one after the other."""
    pretended.start()
    await settled(own)
    os.kill(pretended.process.pid, signal.SIGSTOP)
    pretended.pause_s = 3600.0
    changed.clear()
    healths = []
    for _ in range(20):
        healths.append((await own.report())["health"])
        own.tick(0.5)
    assert changed.is_set()
    return list(dict.fromkeys(healths))


def test_one_that_is_stopped_is_silent_and_then_hung_and_well_again_when_it_goes_on(tmp_path):
    async def act(own, pretended, changed):
        healths = await hung(own, pretended, changed)
        down = own.is_down, own.endpoint
        pretended.pause_s = 0.0
        os.kill(pretended.process.pid, signal.SIGCONT)
        await soon(lambda: own.tick(0.0) or not own.is_down)
        return healths, down, (await own.report())["health"]

    assert watching(tmp_path, act) == (["ok", "silent", "hung"], (True, None), "ok")


def test_one_that_the_master_replaces_stays_down_when_it_goes_on_and_its_replacement_does_not(tmp_path):
    async def act(own, pretended, changed):
        await hung(own, pretended, changed)
        own.fence(pretended.process.pid + 1)
        own.fence(pretended.process.pid)
        pretended.pause_s = 0.0
        await soon(lambda: own.tick(0.0) or not own._liveness.is_asked)
        fenced = (await own.report())["health"], own.endpoint
        pretended.start()
        return fenced, (await settled(own))["health"], own.is_down

    assert watching(tmp_path, act) == (("hung", None), "ok", False)


def test_its_cpu_time_grows_as_it_computes():
    own = os.getpid()
    before = cpu_ticks_of(own)
    while cpu_ticks_of(own) == before:
        pass
    assert cpu_ticks_of(own) > before
    assert cpu_ticks_of(2**22 + 1) is None


def test_one_without_a_page_is_only_watched(tmp_path):
    async def act(own, pretended, changed):
        pretended.start(http_port=0)
        alive = (await own.report())["health"]
        pretended.kill()
        await soon(lambda: own.is_gone)
        return alive, (await own.report())["health"]

    assert watching(tmp_path, act) == ("unwatched", "gone")


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"pid": "x"}', b" " * 100_000])
def test_a_state_file_that_is_none_is_no_server(tmp_path, raw, caplog):
    async def act(own, pretended, changed):
        pretended.path.write_bytes(raw)
        for _ in range(3):
            assert await own.report() is None
        return own.endpoint

    assert watching(tmp_path, act) is None
    assert len(caplog.records) == 1


def test_a_process_that_is_gone_is_in_no_container():
    assert container_of(2**22 + 1) == ""


def n_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_given_back(tmp_path):
    async def act(own, pretended, changed):
        pretended.start(http_port=0)
        await own.report()
        before = n_descriptors()
        for _ in range(5):
            pretended.write(http_port=0)
            await own.report()
        return n_descriptors() - before

    assert watching(tmp_path, act) == 0
