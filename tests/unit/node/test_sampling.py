"""Samples of a node: the kernel's counters, and its accelerators."""

import asyncio
import threading
from pathlib import Path

import pytest

from tests.fixtures.waiting import soon
from yarn_accel.node import sampling

DATA = Path(__file__).with_name("data")


def golden(name):
    return (DATA / name).read_text()


def test_pressure_of_this_kernel():
    some = {"io_some_avg10": 0.0, "io_some_avg60": 0.4, "io_some_avg300": 2.51}
    full = {"io_full_avg10": 0.0, "io_full_avg60": 0.17, "io_full_avg300": 0.84}
    assert sampling.parse_pressure(golden("pressure_io")) == some | full


def test_cpu_pressure_of_an_older_kernel_has_no_full_line():
    found = sampling.parse_pressure("some avg10=12.50 avg60=3.00 avg300=1.00 total=99\n", "cpu")
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
    with pytest.raises(sampling.CounterError, match=reported) as caught:
        sampling.parse_pressure(text)
    assert "/proc/pressure/io" in str(caught.value)


def test_interfaces_of_this_kernel():
    found = sampling.parse_net_dev(golden("net_dev"))
    assert set(found) == {"lo", "ifb0", "ifb1", "eth0"}
    assert found["eth0"] == sampling.NicCounters(rx_bytes=5215282298, tx_bytes=9123062, errors=0)


def test_an_interface_whose_count_touches_its_name():
    line = "eth0:123 1 2 0 0 0 0 0 456 1 3 0 0 0 0 0\n"
    assert sampling.parse_net_dev(line) == {"eth0": sampling.NicCounters(123, 456, 5)}


@pytest.mark.parametrize(
    "text", ["", "no colon here\n", "eth0: 1 2 3\n", "eth0:" + " -1" * 16, "eth0:" + " x" * 16]
)
def test_interfaces_that_are_none(text):
    with pytest.raises(sampling.CounterError, match="/proc/net/dev"):
        sampling.parse_net_dev(text)


def test_the_interface_with_the_default_route_counts():
    assert sampling.parse_routes(golden("net_route")) == ("eth0",)


def test_without_a_default_route_all_but_loopback_count():
    text = "Iface\tDestination\tGateway\nveth1\t0000A8C0\t0\nlo\t0000007F\t0\nveth0\t0001A8C0\t0\n"
    assert sampling.parse_routes(text) == ("veth0", "veth1")


def test_routes_that_are_none():
    with pytest.raises(sampling.CounterError, match="fewer than three columns"):
        sampling.parse_routes("Iface\tDestination\tGateway\neth0\n")


def test_disks_of_this_kernel_without_loops_and_zram():
    assert sampling.parse_diskstats(golden("diskstats")) == {
        "vda": sampling.DiskCounters(read_bytes=77215946 * 512, written_bytes=230619992 * 512, busy_ms=468616)
    }


def test_partitions_and_disks_made_of_disks_do_not_count_twice():
    row = "259 {n} {name} 1 0 8 0 1 0 16 0 0 30 0\n"
    names = (
        *("nvme0n1", "nvme0n1p1", "nvme1n1", "sda", "sda1", "dm-0", "md127", "sr0", "mmcblk0"),
        *("mmcblk0p2", "xvdb1"),
    )
    text = "".join(row.format(n=n, name=name) for n, name in enumerate(names))
    # xvdb1 has no xvdb beside it: on such machines it is the disk.
    assert set(sampling.parse_diskstats(text)) == {"nvme0n1", "nvme1n1", "sda", "mmcblk0", "xvdb1"}


@pytest.mark.parametrize("text", ["", "254 0 vda 1 2 3\n", "254 0 vda 1 0 eight 0 1 0 16 0 0 30 0\n"])
def test_disks_that_are_none(text):
    with pytest.raises(sampling.CounterError, match="/proc/diskstats"):
        sampling.parse_diskstats(text)


def test_rates_are_differences_over_time_and_never_negative():
    before = {"eth0": sampling.NicCounters(1000, 500, 1), "eth1": sampling.NicCounters(0, 0, 0)}
    after = {"eth0": sampling.NicCounters(3000, 600, 0), "eth1": sampling.NicCounters(9999, 9999, 0)}
    rates = {"rx_bytes_per_s": 1000.0, "tx_bytes_per_s": 50.0, "errors_per_s": 0.0}
    assert sampling.nic_rates(before, after, ["eth0"], 2.0) == rates, "the counter of errors was reset"


def test_the_busiest_disk_tells_how_busy_disks_are():
    before = {"a": sampling.DiskCounters(0, 0, 0), "b": sampling.DiskCounters(0, 0, 0)}
    after = {"a": sampling.DiskCounters(4096, 0, 250), "b": sampling.DiskCounters(0, 8192, 1500)}
    rates = {"read_bytes_per_s": 2048.0, "write_bytes_per_s": 4096.0, "busy_share": 0.75}
    assert sampling.disk_rates(before, after, 2.0) == rates


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0])
def test_no_time_no_rates(elapsed_s):
    counters = {"e": sampling.NicCounters(1, 1, 1)}
    assert sampling.nic_rates(counters, counters, ["e"], elapsed_s) == {}
    assert (
        sampling.disk_rates(
            {"d": sampling.DiskCounters(1, 1, 1)}, {"d": sampling.DiskCounters(1, 1, 1)}, elapsed_s
        )
        == {}
    )
    assert sampling.nic_rates({}, counters, ["e"], 1.0) == {}


FILES = {
    "pressure/io": "pressure_io",
    "net/dev": "net_dev",
    "net/route": "net_route",
    "diskstats": "diskstats",
}


@pytest.fixture
def proc(tmp_path):
    texts = {name: golden(source) for name, source in FILES.items()}
    for name, text in {**texts, "self/statm": "5000 1000 500 1 0 900 0\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def sampler(proc, times, **options):
    clock = iter(times)
    return sampling.Sampler(proc=proc, clock=lambda: next(clock), cpu_clock=lambda: 0.5, **options)


@pytest.mark.parametrize(
    ("interfaces", "old", "new"),
    [((), "5215282298", "5215284298"), (["lo"], "lo: 2636870046086", "lo: 2636870048086")],
    ids=["of the default route", "named"],
)
def test_rates_since_the_sample_before(proc, interfaces, old, new):
    taking = sampler(proc, [0.0, 1.0, 3.0], interfaces=interfaces)
    first = taking.sample()
    assert (first["nic"], first["disk"]) == ({}, {})
    net = proc / "net" / "dev"
    net.write_text(net.read_text().replace(old, new))
    second = taking.sample()
    assert (second["nic"]["rx_bytes_per_s"], second["disk"]["busy_share"]) == (1000.0, 0.0)
    assert second["pressure"]["io_some_avg300"] == 2.51
    assert (second["agent"]["rss_bytes"], second["agent"]["cpu_share"]) == (1000 * 4096, 0.0)
    assert second["problems"] == []


@pytest.mark.parametrize("name", [*FILES, "self/statm"])
@pytest.mark.parametrize("damage", [None, b"", b"what: is this\nx\n", b"\xff\x00" * 100])
def test_one_bad_file_costs_one_gauge(proc, name, damage):
    taking = sampler(proc, [0.0, 1.0, 2.0])
    taking.sample()
    (proc / name).unlink()
    if damage is not None:
        (proc / name).write_bytes(damage)
    found = taking.sample()
    (problem,) = found["problems"]
    assert name.split("/")[-1] in problem
    gauges = {"pressure/io": "pressure", "net/dev": "nic", "net/route": "nic", "diskstats": "disk"}
    empty = [key for key in ("pressure", "nic", "disk") if not found[key]]
    assert empty == ([gauges[name]] if name in gauges else [])
    assert (found["agent"]["rss_bytes"] is None) == (name == "self/statm")


def test_this_machine_can_be_sampled():
    taking = sampling.Sampler()
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
    assert sampling.device_health({**GPU0, **changes}, 90.0) == health


def reports(readings, n):
    found = iter(readings)

    async def act():
        watch = sampling.DeviceWatch(90.0, lambda: next(found))
        return [await watch.report() for _ in range(n)]

    return asyncio.run(act())


def test_every_device_with_its_place():
    (devices,) = reports([[GPU0, GPU1]], 1)
    assert [(each["index"], each["health"]) for each in devices] == [(0, "ok"), (1, "ok")]


def test_one_that_fell_off_the_bus_is_lost_until_it_comes_back():
    readings = [[], [GPU0, GPU1], [GPU0], [], [GPU0, GPU1]]
    found = [[each["health"] for each in devices] for devices in reports(readings, 5)]
    assert found == [[], ["ok", "ok"], ["ok", "lost"], ["lost", "lost"], ["ok", "ok"]]


async def test_a_driver_that_fails_is_one_without_devices():
    def broken():
        raise RuntimeError("segments")

    assert await sampling.DeviceWatch(90.0, broken).report() == []


def test_an_answer_after_the_end_is_lost_and_harms_nobody():
    loop = asyncio.new_event_loop()
    asking = loop.create_future()
    loop.close()
    sampling.DeviceWatch(90.0, lambda: [GPU0])._probe(loop, asking)
    assert not asking.done()


async def test_a_driver_that_hangs_holds_nothing_up(monkeypatch):
    monkeypatch.setattr("yarn_accel.node.sampling._PATIENCE_S", 0.05)
    free = threading.Event()
    calls = []

    def read():
        calls.append(1)
        if len(calls) == 2:
            free.wait(300)
        return [GPU0]

    watch = sampling.DeviceWatch(90.0, read)

    async def answers():
        return (await watch.report())[0]["health"] == "ok"

    found = [await watch.report() for _ in range(4)]
    free.set()
    await soon(answers)
    assert [devices[0]["health"] for devices in found] == ["ok", "silent", "silent", "silent"]
    assert len(calls) >= 2
