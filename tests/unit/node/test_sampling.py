"""Samples of a node: the kernel's counters, and its accelerators."""

import asyncio
import threading
from pathlib import Path

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.node.sampling import (
    CounterError,
    DeviceWatch,
    DiskCounters,
    NicCounters,
    Sampler,
    device_health,
    disk_rates,
    nic_rates,
    parse_diskstats,
    parse_net_dev,
    parse_pressure,
    parse_routes,
)

DATA = Path(__file__).with_name("data")


def golden(name):
    return (DATA / name).read_text()


def test_pressure_of_this_kernel():
    assert parse_pressure(golden("pressure_io")) == {
        "io_some_avg10": 0.0,
        "io_some_avg60": 0.4,
        "io_some_avg300": 2.51,
        "io_full_avg10": 0.0,
        "io_full_avg60": 0.17,
        "io_full_avg300": 0.84,
    }


def test_cpu_pressure_of_an_older_kernel_has_no_full_line():
    found = parse_pressure("some avg10=12.50 avg60=3.00 avg300=1.00 total=99\n", "cpu")
    assert found == {"cpu_some_avg10": 12.5, "cpu_some_avg60": 3.0, "cpu_some_avg300": 1.0}


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "is empty"),
        ("full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "has no line 'some"),
        ("some avg10=101.0 total=0\n", "'101.0' in line"),
        ("some avg10=nan total=0\n", "'nan' in line"),
        ("some avg10=fast total=0\n", "'fast' in line"),
        ("most avg10=0.00\n", "neither some nor full"),
    ],
)
def test_pressure_that_is_none(text, reported):
    with pytest.raises(CounterError, match=reported) as caught:
        parse_pressure(text)
    assert "/proc/pressure/io" in str(caught.value)


def test_interfaces_of_this_kernel():
    found = parse_net_dev(golden("net_dev"))
    assert set(found) == {"lo", "ifb0", "ifb1", "eth0"}
    assert found["eth0"] == NicCounters(rx_bytes=5215282298, tx_bytes=9123062, errors=0)


def test_an_interface_whose_count_touches_its_name():
    line = "eth0:123 1 2 0 0 0 0 0 456 1 3 0 0 0 0 0\n"
    assert parse_net_dev(line) == {"eth0": NicCounters(123, 456, 5)}


@pytest.mark.parametrize(
    "text", ["", "no colon here\n", "eth0: 1 2 3\n", "eth0:" + " -1" * 16, "eth0:" + " x" * 16]
)
def test_interfaces_that_are_none(text):
    with pytest.raises(CounterError, match="/proc/net/dev"):
        parse_net_dev(text)


def test_the_interface_with_the_default_route_counts():
    assert parse_routes(golden("net_route")) == ("eth0",)


def test_without_a_default_route_all_but_loopback_count():
    text = "Iface\tDestination\tGateway\nveth1\t0000A8C0\t0\nlo\t0000007F\t0\nveth0\t0001A8C0\t0\n"
    assert parse_routes(text) == ("veth0", "veth1")


def test_routes_that_are_none():
    with pytest.raises(CounterError, match="fewer than three columns"):
        parse_routes("Iface\tDestination\tGateway\neth0\n")


def test_disks_of_this_kernel_without_loops_and_zram():
    assert parse_diskstats(golden("diskstats")) == {
        "vda": DiskCounters(read_bytes=77215946 * 512, written_bytes=230619992 * 512, busy_ms=468616)
    }


def test_partitions_and_disks_made_of_disks_do_not_count_twice():
    row = "259 {n} {name} 1 0 8 0 1 0 16 0 0 30 0\n"
    names = (
        "nvme0n1",
        "nvme0n1p1",
        "nvme1n1",
        "sda",
        "sda1",
        "dm-0",
        "md127",
        "sr0",
        "mmcblk0",
        "mmcblk0p2",
        "xvdb1",
    )
    text = "".join(row.format(n=n, name=name) for n, name in enumerate(names))
    # xvdb1 has no xvdb beside it: on such machines it is the disk.
    assert set(parse_diskstats(text)) == {"nvme0n1", "nvme1n1", "sda", "mmcblk0", "xvdb1"}


@pytest.mark.parametrize("text", ["", "254 0 vda 1 2 3\n", "254 0 vda 1 0 eight 0 1 0 16 0 0 30 0\n"])
def test_disks_that_are_none(text):
    with pytest.raises(CounterError, match="/proc/diskstats"):
        parse_diskstats(text)


def test_rates_are_differences_over_time():
    before = {"eth0": NicCounters(1000, 500, 1), "eth1": NicCounters(0, 0, 0)}
    after = {"eth0": NicCounters(3000, 600, 2), "eth1": NicCounters(9999, 9999, 0)}
    assert nic_rates(before, after, ["eth0"], 2.0) == {
        "rx_bytes_per_s": 1000.0,
        "tx_bytes_per_s": 50.0,
        "errors_per_s": 0.5,
    }


def test_the_busiest_disk_tells_how_busy_disks_are():
    before = {"a": DiskCounters(0, 0, 0), "b": DiskCounters(0, 0, 0)}
    after = {"a": DiskCounters(4096, 0, 250), "b": DiskCounters(0, 8192, 1500)}
    assert disk_rates(before, after, 2.0) == {
        "read_bytes_per_s": 2048.0,
        "write_bytes_per_s": 4096.0,
        "busy_share": 0.75,
    }


def test_a_counter_that_was_reset_says_nothing_negative():
    assert nic_rates({"e": NicCounters(9, 9, 9)}, {"e": NicCounters(1, 10, 0)}, ["e"], 1.0) == {
        "rx_bytes_per_s": 0.0,
        "tx_bytes_per_s": 1.0,
        "errors_per_s": 0.0,
    }


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0])
def test_no_time_no_rates(elapsed_s):
    counters = {"e": NicCounters(1, 1, 1)}
    assert nic_rates(counters, counters, ["e"], elapsed_s) == {}
    assert disk_rates({"d": DiskCounters(1, 1, 1)}, {"d": DiskCounters(1, 1, 1)}, elapsed_s) == {}
    assert nic_rates({}, counters, ["e"], 1.0) == {}


@pytest.fixture
def proc(tmp_path):
    for name, source in (
        ("pressure/io", "pressure_io"),
        ("net/dev", "net_dev"),
        ("net/route", "net_route"),
        ("diskstats", "diskstats"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((DATA / source).read_text())
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("5000 1000 500 1 0 900 0\n")
    return tmp_path


def sampler(proc, times, **options):
    clock = iter(times)
    return Sampler(proc=proc, clock=lambda: next(clock), cpu_clock=lambda: 0.5, **options)


def test_rates_since_the_sample_before(proc):
    taking = sampler(proc, [0.0, 1.0, 3.0])
    first = taking.sample()
    assert first["nic"] == {}
    assert first["disk"] == {}
    net = proc / "net" / "dev"
    net.write_text(net.read_text().replace("5215282298", "5215284298"))
    second = taking.sample()
    assert second["nic"]["rx_bytes_per_s"] == 1000.0
    assert second["disk"]["busy_share"] == 0.0
    assert second["pressure"]["io_some_avg300"] == 2.51
    assert second["agent"]["rss_bytes"] == 1000 * 4096
    assert second["agent"]["cpu_share"] == 0.0
    assert second["problems"] == []


def test_named_interfaces_count_instead(proc):
    taking = sampler(proc, [0.0, 1.0, 2.0], interfaces=["lo"])
    taking.sample()
    net = proc / "net" / "dev"
    net.write_text(net.read_text().replace("lo: 2636870046086", "lo: 2636870046186"))
    assert taking.sample()["nic"]["rx_bytes_per_s"] == 100.0


@pytest.mark.parametrize("name", ["pressure/io", "net/dev", "net/route", "diskstats", "self/statm"])
@pytest.mark.parametrize("damage", ["missing", "empty", "nonsense", "binary"])
def test_one_bad_file_costs_one_gauge(proc, name, damage):
    taking = sampler(proc, [0.0, 1.0, 2.0])
    taking.sample()
    path = proc / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "nonsense": b"what: is this\nx\n", "binary": b"\xff\x00" * 100}[damage]
        )
    found = taking.sample()
    assert len(found["problems"]) == 1
    assert name.split("/")[-1] in found["problems"][0]
    gauges = {"pressure/io": "pressure", "net/dev": "nic", "net/route": "nic", "diskstats": "disk"}
    empty = [key for key in ("pressure", "nic", "disk") if not found[key]]
    assert empty == ([gauges[name]] if name in gauges else [])
    assert (found["agent"]["rss_bytes"] is None) == (name == "self/statm")


def test_this_machine_can_be_sampled():
    taking = Sampler()
    taking.sample()
    assert taking.sample()["agent"]["rss_bytes"] > 1_000_000


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
    monkeypatch.setattr("yarn_accel.node.sampling._PATIENCE_S", 0.05)
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
