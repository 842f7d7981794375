"""A node's sample: rates between two looks, and gauges that fail one by one."""

from pathlib import Path

import pytest

from yarn_accel.node.sampling import Sampler

DATA = Path(__file__).with_name("data")


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
