"""What connections used is added up by tenant and job, for metrics and for accounting."""

import time
from types import SimpleNamespace

import pytest

from yarn_accel.launch.outcomes import accounted
from yarn_accel.pipeline.counters import ConnectionUse, Counters
from yarn_accel.pipeline.request_use import RequestUse, job_of
from yarn_accel.storage import Store


@pytest.mark.parametrize(
    ("key", "job"),
    [
        ("task_1764_0001_m_000003/17/lu", "job_1764_0001"),
        ("task_1764_0001_m_000003.2/17/lu", "job_1764_0001"),
        ("0123456789abcdef/task_1764_0001_r_000003/17/lu", "job_1764_0001"),
        ("local-1f/1/lu", ""),
        ("x/task_1764_0001_m_000003/1", ""),
        (f"task_{'9' * 100}_1_m_000003/1", ""),
        ("pack/00ff", ""),
        ("", ""),
    ],
)
def test_a_job_is_known_by_the_key_of_a_request(key, job):
    assert job_of(key) == job


@pytest.fixture
def make(tmp_path):
    """A function that makes the use of a server, whose accounting lies in a folder of the test."""

    def made(counters=None):
        config = SimpleNamespace(cores_per_worker=4, accounting_uri=f"file://{tmp_path}/use")
        return RequestUse(config, Store(), counters or Counters())

    return made


def test_the_first_use_is_written_at_once(tmp_path, make, monkeypatch):
    """A server that is killed later is known by its file."""
    monkeypatch.setattr("yarn_accel.pipeline.request_use.INTERVAL_S", 3600.0)
    use = make()
    use.start()
    use.add_up([SimpleNamespace(tenant="ann", use=ConnectionUse("local-1f/1/lu", 1, 0, 0.5))])
    until_s = time.monotonic() + 60
    while not list(tmp_path.glob("use/*.jsonl")):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    use.close()


@pytest.mark.parametrize("container", ["container_1764_0002_01_000004", ""])
def test_what_a_connection_used_counts_once(tmp_path, make, monkeypatch, container):
    monkeypatch.setenv("CONTAINER_ID", container)
    counters = Counters()
    use = make(counters)
    key = "task_1764_0001_m_000000/1/lu"
    sessions = [
        SimpleNamespace(tenant="ann", use=ConnectionUse(key, 3, 1, 0.5, 2.0, 100, 50, 10.0)),
        SimpleNamespace(tenant="bob", use=ConnectionUse(key, 1, 0, 0.25, 0.0, 7, 0, 10.0)),
        SimpleNamespace(tenant="idle", use=ConnectionUse()),
    ]
    use.start()
    use.add_up(sessions)
    use.add_up(sessions)
    use.close()
    tenants = counters.snapshot()["tenants"]
    assert {name: (each["core_s"], each["gpu_s"]) for name, each in tenants.items()} == {
        "ann": (2.0, 2.0),
        "bob": (1.0, 0.0),
    }
    ann, bob = accounted(Store(), f"file://{tmp_path}/use")
    owner = ("application_1764_0002" if container else "", "job_1764_0001")
    assert (ann["application"], ann["job"]) == (bob["application"], bob["job"]) == owner
    figures = ("user", "core_s", "gpu_s", "read_bytes", "written_bytes", "attempts", "failed", "first_at")
    assert [ann[each] for each in figures] == ["ann", 2.0, 2.0, 100, 50, 3, 1, 10.0]
    assert bob["core_s"] == 1.0
