"""The node's pipeline server: found, asked, and missed at once when it dies."""

import asyncio
import contextlib
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
from yarn_accel.core.ended_applications import parse_ended
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


@contextlib.asynccontextmanager
async def watching(tmp_path):
    path = tmp_path / "server.json"
    changed = asyncio.Event()
    async with aiohttp.ClientSession() as session, Pretended(path) as pretended:
        own = ServerMonitor(path, "w1", "10.0.0.1", session, changed.set)
        try:
            yield own, pretended, changed
        finally:
            await own.close()


async def settled(own, step_s=0.0):
    """The first report that is not "starting", when so much time passes before each."""

    async def report():
        if step_s:
            own.tick(step_s)
        found = await own.report()
        return found if found["health"] != "starting" else None

    return await soon(report)


async def test_no_server_no_report(tmp_path):
    async with watching(tmp_path) as (own, _, changed):
        assert (await own.report(), own.endpoint, own.is_gone, changed.is_set()) == (None, None, False, False)


async def test_a_server_that_is_well(tmp_path):
    async with watching(tmp_path) as (own, pretended, changed):
        pretended.start()
        report = await settled(own)
        assert changed.is_set()
    reached = {"name": "w1", "host": "10.0.0.1", "port": 7070, "unix_path": "/run/p.sock", "node": "w1"}
    assert report["endpoint"] == {**reached, "tls": False, "ca_file": ""}
    assert (report["health"], report["in_flight"], report["problems"]) == ("ok", 3.0, [])
    assert not report["is_local_only"]
    assert report["container"] == "container_1_0001_01_000002"


async def test_its_container_is_the_one_it_wrote_down(tmp_path):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.start(container="container_7_0001_01_000009")
        assert (await settled(own))["container"] == "container_7_0001_01_000009"


async def test_it_is_missed_when_it_dies_and_found_when_it_is_replaced(tmp_path):
    async with watching(tmp_path) as (own, pretended, changed):
        pretended.start()
        await settled(own)
        changed.clear()
        pretended.kill()
        await soon(lambda: own.is_gone)
        assert changed.is_set()
        assert ((await own.report())["health"], own.endpoint) == ("gone", None)
        pretended.start()
        assert ((await settled(own))["health"], own.endpoint.name, own.is_gone) == ("ok", "w1", False)


async def test_one_that_ends_in_peace_takes_its_state_along(tmp_path):
    async with watching(tmp_path) as (own, pretended, changed):
        pretended.start()
        await settled(own)
        changed.clear()
        pretended.path.unlink()
        pretended.kill()
        await asyncio.wait_for(changed.wait(), 60)
        assert (await own.report(), own.is_gone) == (None, False)


async def test_a_state_file_left_by_a_dead_one(tmp_path):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.start()
        pretended.kill()
        assert ((await own.report())["health"], own.endpoint) == ("gone", None)


@pytest.mark.parametrize(
    ("stats", "health", "problems"),
    [(SICK, "unhealthy", ["cuda:0 is resting"]), (GOOD | {"is_draining": True}, "draining", [])],
)
async def test_one_that_says_it_is_not_well(tmp_path, stats, health, problems):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.stats = stats
        pretended.start()
        report = await settled(own)
        assert (report["health"], report["problems"]) == (health, problems)


@pytest.mark.parametrize(("young_s", "is_reported"), [(60.0, True), (0.0, False)])
async def test_one_that_is_still_loading_is_asked_again_at_every_look(
    tmp_path, monkeypatch, young_s, is_reported
):
    monkeypatch.setattr(module, "_YOUNG_S", young_s)
    async with watching(tmp_path) as (own, pretended, changed):
        pretended.stats = SICK
        pretended.start()
        assert (await settled(own))["health"] == "unhealthy"
        pretended.stats = GOOD
        changed.clear()
        if is_reported:
            await soon(lambda: own.look() or changed.is_set())
        for _ in range(50):
            own.look()
            await asyncio.sleep(0.01)
        assert changed.is_set() is is_reported


@pytest.mark.parametrize(("is_well", "expected"), [(True, "ok"), (False, "starting"), (None, "starting")])
async def test_one_that_wrote_that_it_is_well_is_believed_until_it_can_be_asked(tmp_path, is_well, expected):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.start(is_well=is_well)
        pretended.pause_s = 3600.0
        assert (await own.report())["health"] == expected


async def test_the_first_figures_of_such_a_server_are_reported_at_once(tmp_path):
    async with watching(tmp_path) as (own, pretended, changed):
        pretended.start(is_well=True)
        first = await own.report()
        changed.clear()
        await changed.wait()
        assert ("in_flight" in first, (await own.report())["in_flight"]) == (False, 3.0)


async def test_what_it_says_later_counts_more_than_what_it_wrote(tmp_path):
    async with watching(tmp_path) as (own, pretended, changed):
        pretended.stats = SICK
        pretended.start(is_well=True)
        assert (await own.report())["health"] == "ok"
        changed.clear()
        await changed.wait()
        found = await own.report()
        assert (found["health"], found["problems"]) == ("unhealthy", ["cuda:0 is resting"])


async def test_one_that_wrote_that_it_is_well_and_says_nothing_is_silent_in_time(tmp_path):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.pause_s = 3600.0
        pretended.start(is_well=True)
        healths = []
        for _ in range(8):
            healths.append((await own.report())["health"])
            own.tick(0.5)
        assert (healths[:2], healths[-1]) == (["ok", "ok"], "silent")


async def test_after_a_death_the_next_one_is_looked_for_more_often_for_a_while(tmp_path, monkeypatch):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.start()
        await own.report()
        assert own.look_s == 0.2
        pretended.kill()
        await soon(lambda: own.is_gone)
        assert own.look_s < 0.2
        monkeypatch.setattr(module, "_SOON_S", 0.0)
        assert own.look_s == 0.2


async def test_late_is_not_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.02)

    async with watching(tmp_path) as (own, pretended, _):
        pretended.start()
        pretended.pause_s = 0.3
        first = (await own.report())["health"]
        report = await settled(own)
        assert (first, report["health"], report["in_flight"]) == ("starting", "ok", 3.0)


@pytest.mark.parametrize("stats", ["", "<html>hello</html>", "x" * 2_000_000])
async def test_one_that_says_nothing_sensible_is_silent_in_time(tmp_path, stats):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.stats = stats
        pretended.start()
        first = (await own.report())["health"]
        for _ in range(6):
            own.tick(0.5)
        # What it sends takes it some CPU, and while it computes it is not silent so soon.
        report = await settled(own, step_s=0.5)
        assert (first, report["health"], own.endpoint) == ("starting", "silent", None)


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


async def test_one_that_is_stopped_is_silent_and_then_hung_and_well_again_when_it_goes_on(tmp_path):
    async with watching(tmp_path) as (own, pretended, changed):
        assert await hung(own, pretended, changed) == ["ok", "silent", "hung"]
        assert (own.is_down, own.endpoint) == (True, None)
        pretended.pause_s = 0.0
        os.kill(pretended.process.pid, signal.SIGCONT)
        await soon(lambda: own.tick(0.0) or not own.is_down)
        assert (await own.report())["health"] == "ok"


async def test_one_that_the_master_replaces_stays_down_when_it_goes_on_and_its_replacement_does_not(tmp_path):
    async with watching(tmp_path) as (own, pretended, changed):
        await hung(own, pretended, changed)
        own.fence(pretended.process.pid + 1)
        own.fence(pretended.process.pid)
        pretended.pause_s = 0.0
        await soon(lambda: own.tick(0.0) or not own._liveness.is_asked)
        assert ((await own.report())["health"], own.endpoint) == ("hung", None)
        pretended.start()
        assert ((await settled(own))["health"], own.is_down) == ("ok", False)


def test_its_cpu_time_grows_as_it_computes():
    before = cpu_ticks_of(os.getpid())
    while cpu_ticks_of(os.getpid()) == before:
        pass
    assert cpu_ticks_of(os.getpid()) > before


def test_of_a_process_that_is_gone_nothing_is_known():
    assert (cpu_ticks_of(2**22 + 1), container_of(2**22 + 1)) == (None, "")


async def test_one_without_a_page_is_only_watched(tmp_path):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.start(http_port=0)
        assert (await own.report())["health"] == "unwatched"
        pretended.kill()
        await soon(lambda: own.is_gone)
        assert (await own.report())["health"] == "gone"


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"pid": "x"}', b" " * 100_000])
async def test_a_state_file_that_is_none_is_no_server(tmp_path, raw, caplog):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.path.write_bytes(raw)
        for _ in range(3):
            assert await own.report() is None
        assert own.endpoint is None
    assert len(caplog.records) == 1


async def test_descriptors_are_given_back(tmp_path):
    async with watching(tmp_path) as (own, pretended, _):
        pretended.start(http_port=0)
        n_descriptors = []
        for _ in range(6):
            pretended.write(http_port=0)
            await own.report()
            n_descriptors.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
        assert n_descriptors[0] == n_descriptors[-1]


async def test_a_server_reads_which_applications_have_ended(tmp_path, caplog):
    async with watching(tmp_path) as (own, _, _):
        place = tmp_path / "server.json.ended"
        own.end_applications(())
        assert not place.exists()
        own.end_applications(("application_1_2",))
        assert parse_ended(place.read_text()) == ("application_1_2",)
        stamp = place.stat().st_ino
        own.end_applications(("application_1_2",))
        assert place.stat().st_ino == stamp, "nothing new is not written"
        place.unlink()
        place.mkdir()
        own.end_applications(("application_1_3",))
        assert "cannot learn which applications have ended" in caplog.text
