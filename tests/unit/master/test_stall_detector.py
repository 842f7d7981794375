"""A process that stood still, and a master that did, against a small YARN on real sockets."""

import asyncio
import contextlib
import time

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.master.fake_yarn import FakeYarn, rig
from yarn_accel.adapters.metric_families import exposition
from yarn_accel.master.metrics import families
from yarn_accel.master.service import StallDetector, since_boot_s

RACKS = {"a1": "/r1", "w1": "/r1", "w2": "/r1"}
BOUND = {"w1": "a1", "w2": "a1"}
STALL_S = 60.0


class Clock:
    """The machine's, and what it has leapt."""

    def __init__(self):
        self.leapt_s = 0.0

    def __call__(self):
        return time.monotonic() + self.leapt_s


def reported(leaps):
    """What is reported when the clock leaps so far between one look and the next, and nothing passes else."""
    now_s = 100.0
    found = []

    async def run():
        nonlocal now_s
        stalls = StallDetector(lambda: now_s, found.append)
        now_s += 1000.0
        stalls.look()
        watching = asyncio.create_task(stalls.watch())
        await asyncio.sleep(0)
        for leap_s in leaps:
            now_s += leap_s
            stalls.look()
            stalls.look()
        assert stalls.stalled_s == sum(found)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        now_s += 1000.0
        stalls.look()

    asyncio.run(run())
    return found


def test_a_stall_is_reported_once_and_without_the_usual_pause():
    assert reported([0.25, 6.25, 0.25, 2.25]) == [6.0, 2.0]


def test_a_little_late_is_no_stall():
    assert reported([0.25, 0.7, 0.3, 0.7]) == []


def test_time_goes_on_where_every_pause_is_too_long():
    leaps = [1.25] * 8
    assert sum(leaps) - sum(reported(leaps)) == 2.0


async def test_the_watch_itself_finds_a_stall():
    clock = Clock()

    found = asyncio.get_running_loop().create_future()
    watching = asyncio.create_task(StallDetector(clock, found.set_result).watch())
    await asyncio.sleep(0)
    clock.leapt_s += STALL_S
    try:
        assert await asyncio.wait_for(found, 60) >= STALL_S - 0.25
    finally:
        watching.cancel()


def test_the_clock_goes_on():
    assert since_boot_s() <= since_boot_s()


def serves_no_more(all_):
    notes = all_.state()["notes"]
    return (note["reason"] for note in notes if note["what"] == "server serves no more")


async def test_a_stall_of_the_master_moves_nobody_and_replaces_nothing(tmp_path):
    """Old code marked every server as lost in the moment in which it woke."""

    clock = Clock()
    async with FakeYarn(RACKS) as yarn, rig(yarn, tmp_path, clock) as all_:
        await all_.until("bindings", lambda: all_.bound() == BOUND)
        await all_.until("slots", lambda: {n.slots for n in yarn.nodes.values()} == {3, 2})
        version, running = all_.state()["version"], set(yarn.runs)
        n_before = all_.state()["service"]["heartbeats"]
        clock.leapt_s += STALL_S
        await all_.until(
            "all are heard again",
            lambda: all_.state()["service"]["heartbeats"] > n_before + 5 * len(RACKS),
        )
        state = all_.state()
        assert list(serves_no_more(all_)) == []
        assert state["version"] == version
        assert set(yarn.runs) == running
        assert all_.bound() == BOUND
        assert state["service"]["stalled_s"] >= STALL_S - 1.0
        assert "stood still" in [note["what"] for note in state["notes"]]
        reported = text_string_to_metric_families(exposition(families(state)).decode())
        (counted,) = [each for each in reported if each.name.endswith("_stalled_seconds")]
        assert counted.samples[0].value >= STALL_S - 1.0
        yarn.kill(yarn.nodes["a1"].runs("serve")[0])
        await all_.until("it works on", lambda: yarn.nodes["a1"].runs("serve"))
