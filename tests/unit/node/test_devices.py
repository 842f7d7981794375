"""Devices that are well, that vanish, and drivers that hang."""

import asyncio
import threading

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.node.devices import DeviceWatch, device_health

GPU0 = {"device": "cuda:0", "name": "NVIDIA H200", "temperature_c": 40, "memory_total_bytes": 1 << 37}
GPU1 = {**GPU0, "device": "cuda:1"}


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        ({}, "ok"),
        ({"temperature_c": None}, "ok"),
        ({"temperature_c": 89}, "ok"),
        ({"temperature_c": 90}, "hot"),
        ({"name": None}, "failed"),
        ({"fault": "GPU is lost"}, "failed"),
        ({"memory_total_bytes": None}, "ok"),
    ],
)
def test_health(changes, health):
    assert device_health({**GPU0, **changes}, 90.0) == health


def reports(readings, n):
    found = iter(readings)

    async def act():
        watch = DeviceWatch(90.0, lambda: next(found))
        return [await watch.report() for _ in range(n)]

    return asyncio.run(act())


def test_every_device_with_its_place():
    (devices,) = reports([[GPU0, GPU1]], 1)
    assert [(each["index"], each["health"]) for each in devices] == [(0, "ok"), (1, "ok")]


def test_one_that_fell_off_the_bus_is_lost_until_it_comes_back():
    healths = [
        [(each["device"], each["health"]) for each in devices]
        for devices in reports([[GPU0, GPU1], [GPU0], [], [GPU0, GPU1]], 4)
    ]
    assert healths == [
        [("cuda:0", "ok"), ("cuda:1", "ok")],
        [("cuda:0", "ok"), ("cuda:1", "lost")],
        [("cuda:0", "lost"), ("cuda:1", "lost")],
        [("cuda:0", "ok"), ("cuda:1", "ok")],
    ]


def test_a_node_without_devices():
    assert reports([[], []], 2) == [[], []]


def test_a_driver_that_fails_is_one_without_devices():
    def broken():
        raise RuntimeError("segments")

    async def act():
        return await DeviceWatch(90.0, broken).report()

    assert asyncio.run(act()) == []


def test_an_answer_after_the_end_is_lost_and_harms_nobody():
    loop = asyncio.new_event_loop()
    asking = loop.create_future()
    loop.close()
    DeviceWatch(90.0, lambda: [GPU0])._probe(loop, asking)
    assert not asking.done()


def test_a_driver_that_hangs_holds_nothing_up(monkeypatch):
    monkeypatch.setattr("yarn_accel.node.devices._PATIENCE_S", 0.05)
    free = threading.Event()
    calls = []

    def read():
        calls.append(1)
        if len(calls) == 2:
            free.wait(300)
        return [GPU0]

    async def act():
        watch = DeviceWatch(90.0, read)

        async def answers():
            return (await watch.report())[0]["health"] == "ok"

        found = [await watch.report() for _ in range(4)]
        free.set()
        await soon(answers)
        return found

    found = asyncio.run(act())
    assert [devices[0]["health"] for devices in found] == ["ok", "silent", "silent", "silent"]
    assert len(calls) >= 2
