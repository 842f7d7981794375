"""A task's input is measured while it is read, and so is the node that reads it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.errors import ConfigError
from yarn_accel.node.sampling import total_bytes_per_s
from yarn_accel.worker import read_phase
from yarn_accel.worker.config import load_worker_config
from yarn_accel.worker.process_tree import ProcessInfo, bytes_read, listed_processes, parse_stat, processes_of
from yarn_accel.worker.read_phase import NodeIo, ReaderCount, ReadPhase, node_meter


def process(pid: int, parent: int, session: int) -> ProcessInfo:
    return ProcessInfo(pid, parent, session, 1, is_zombie=False)


def test_processes_are_those_of_the_session_and_all_that_they_started() -> None:
    listed = [
        process(10, 1, 10), process(11, 10, 10), process(12, 11, 12), process(13, 12, 13),
        process(20, 1, 20), process(30, 1, 30), process(31, 31, 31), process(32, 33, 32), process(33, 32, 33),
    ]  # fmt: skip
    found = processes_of([10, 20, 99], listed)
    assert {leader: [each.pid for each in some] for leader, some in found.items()} == {
        10: [10, 11, 12, 13],
        20: [20],
        99: [],
    }


def test_this_process_is_among_those_that_are_listed() -> None:
    (own,) = (each for each in listed_processes() if each.pid == os.getpid())
    assert (own.parent, own.session) == (os.getppid(), os.getsid(0))
    assert own.resident_bytes > 1 << 20
    before = bytes_read([own.pid])
    assert len(Path("/proc/self/stat").read_bytes()) <= bytes_read([own.pid]) - before
    assert bytes_read([2**22 + 1]) == 0


def test_a_program_may_be_called_anything() -> None:
    text = "7 (a) b (c) Z 1 7 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 4096 2 0"
    assert parse_stat(text) == ProcessInfo(7, 1, 6, 2 * os.sysconf("SC_PAGE_SIZE"), is_zombie=True)


@pytest.mark.parametrize(
    ("node_bytes", "alone"),
    # It read 40 MB; headers and a little of others do not count, another reader does.
    [(0.0, True), (42e6, True), (49.9e6, True), (50.1e6, False), (80e6, False)],
)
def test_who_reads_beside_other_people_is_not_alone(node_bytes: float, alone: bool) -> None:
    readers, phase = ReaderCount(lambda: lambda: node_bytes), ReadPhase(10.0)
    readers.begin(phase)
    phase.read(40_000_000)
    phase.end(14.0)
    readers.end(phase)
    assert phase.measured(15.0) == TaskMeasurement(40e6, 4.0, 1.0, alone)
    assert readers.n_readers == 0


def test_what_a_task_reports_that_it_read_is_its_own() -> None:
    readers, phase = ReaderCount(lambda: lambda: 42e6), ReadPhase(10.0)
    readers.begin(phase)
    phase.report(40_000_000, 4.0)
    readers.end(phase)
    assert phase.measured(15.0) == TaskMeasurement(40e6, 4.0, 1.0, alone=True)


def test_a_node_is_metered_from_one_moment_to_another() -> None:
    metered = node_meter(("lo",), "link")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sock,
    ):
        peer, _ = server.accept()
        with peer:
            for _ in range(32):
                sock.sendall(bytes(65536))
                peer.recv(65536, socket.MSG_WAITALL)
    assert metered() >= 32 * 65536


def test_beside_a_few_bytes_even_a_small_reader_is_alone() -> None:
    readers, phase = ReaderCount(lambda: lambda: 1e6), ReadPhase(10.0)
    readers.begin(phase)
    phase.read(100)
    phase.end(10.1)
    readers.end(phase)
    assert phase.measured(10.1).alone


def test_the_read_phase_ends_with_the_last_line() -> None:
    phase = ReadPhase(10.0)
    phase.read(6)
    phase.read(4)
    phase.end(12.0)
    assert phase.measured(15.0) == TaskMeasurement(10.0, 2.0, 3.0, alone=True)


def test_without_a_split_it_ends_where_nearly_all_was_read() -> None:
    phase = ReadPhase(10.0)
    for n_bytes, now_s in ((500, 11.0), (995, 12.0), (400, 12.5), (1000, 17.0)):
        phase.sample(n_bytes, now_s)
    assert phase.measured(20.0) == TaskMeasurement(1000.0, 2.0, 8.0, alone=True)
    assert ReadPhase(10.0).measured(20.0) == TaskMeasurement(0.0, 0.0, 10.0, alone=True)
    long = ReadPhase(0.0)
    for second in range(1, 5001):
        long.sample(second, float(second))
    assert long.measured(6000.0).read_s == pytest.approx(4950, rel=0.02)


def test_readers_at_one_time_are_not_alone() -> None:
    readers = ReaderCount()
    first, second, third = (ReadPhase(0.0) for _ in range(3))
    readers.begin(first)
    readers.begin(second)
    assert readers.n_readers == 2
    readers.end(first)
    readers.end(first)
    readers.end(second)
    readers.begin(third)
    assert readers.n_readers == 1
    assert (first.is_alone, second.is_alone, third.is_alone) == (False, False, True)


def test_total_io_is_that_of_the_larger_of_link_and_disk() -> None:
    sample = {
        "nic": {"rx_bytes_per_s": 3.0, "tx_bytes_per_s": 1.0},
        "disk": {"read_bytes_per_s": 5.0, "write_bytes_per_s": 2.0},
    }
    assert [total_bytes_per_s(sample, source) for source in ("link", "disk", "larger")] == [4.0, 7.0, 7.0]
    assert total_bytes_per_s({"nic": {}, "disk": {}}, "larger") == 0.0


def test_settings_come_from_the_container_and_the_file(tmp_path: Path) -> None:
    environ = {
        "NM_HOST": "n1",
        "LOG_DIRS": "/logs/a,/logs/b",
        "CONTAINER_ID": "container_e02_17_0003_01_000002",
    }
    config = load_worker_config(None, environ)
    assert (config.node, config.worker, config.log_dir) == ("n1", "n1", "/logs/a")
    assert config.application_id == "application_17_0003"
    path = tmp_path / "worker.yaml"
    path.write_text("worker: n1-big\ngpus: ['0', '1']\n")
    assert load_worker_config(path, environ).worker == "n1-big"
    for text, error in (
        ("gpus: ['0', '0']", "gpus: each GPU has one name of its own"),
        ("cores: 0", "cores: must be at least 1, not 0"),
        ("memory: 5", "unknown key; known: accelerator"),
        ("node: a b", "'a b' is not a host name"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=error):
            load_worker_config(path, environ)


def test_who_reports_what_it_reads_is_believed_and_counts_as_a_reader_until_it_is_done():
    count, one, other = ReaderCount(), ReadPhase(0.0), ReadPhase(0.0)
    one.read(50)
    one.end(0.1)
    for seconds in (0.5, 1.5):
        count.begin(one)
        one.report(1000, seconds)
    assert one.is_reported
    assert count.n_readers == 1
    measured = one.measured(4.0)
    assert (measured.read_bytes, measured.read_s, measured.compute_s) == (1050.0, 1.5, 2.5)
    assert measured.alone
    count.begin(other)
    count.begin(one)
    assert not one.is_alone
    count.end(one)
    assert count.n_readers == 1
    one.report(1000, 9.0)
    assert one.measured(4.0).compute_s == 0.0


# A worker's samples of its node: bytes and readers are of one moment, and the age says of which.


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_reader_that_began_near_the_end_of_a_sample_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_phase, "total_bytes_per_s", lambda sample, source: 7e6)
    readers, clock = ReaderCount(), Hands()
    io = NodeIo(readers, (), "link", clock)
    assert io.latest() is None
    readers.begin(ReadPhase(clock.now_s))
    for quarter in range(4):
        clock.now_s += 0.25
        if quarter == 3:
            readers.begin(ReadPhase(clock.now_s))
        io.look()
    clock.now_s += 0.2
    sample = io.latest()
    assert sample is not None
    # Of 100.5 s: the second reader began at 101.0 s, and is counted by its figures until the next sample.
    assert (sample.bytes_per_s, sample.readers, round(sample.age_s, 6)) == (7e6, 1, 0.7)
    for _ in range(4):
        clock.now_s += 0.25
        io.look()
    again = io.latest()
    assert again is not None
    assert again.readers == 2
