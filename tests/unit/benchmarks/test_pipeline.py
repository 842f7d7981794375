"""The parts of the benchmark `pipeline` that can be wrong without anybody noticing in a figure."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.pipeline import SECTIONS, computing, draw, echo, run
from benchmarks.pipeline import setting as setting_module
from benchmarks.pipeline.child import MODULES, TokenBucket
from benchmarks.pipeline.echo import PEERS
from benchmarks.pipeline.fleet import Cell, Fleet, Measured
from benchmarks.pipeline.hdfs import REST, Accounts
from benchmarks.pipeline.lapack import ACTS, OPERATIONS, flops, matrix, order_of
from benchmarks.pipeline.peers import bare
from benchmarks.pipeline.peers.candidate import Route
from benchmarks.pipeline.setting import Setting, calls, size_text
from benchmarks.result import Report, Row, not_measured, observed
from yarn_accel.errors import JobError, RejectedError
from yarn_accel.operations import get
from yarn_accel.wire import TensorSpec


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
@pytest.mark.parametrize("checksum", ["none", "xxh3"])
@pytest.mark.parametrize("window", [1, 3])
def test_the_bare_loop_returns_what_it_was_sent(
    tmp_path: Path, carrier: str, checksum: str, window: int
) -> None:
    address, listeners = bare.serve(tmp_path)
    payload = np.random.default_rng(1).integers(0, 256, 300_000, dtype=np.uint8)
    asked = iter(range(5))
    client = bare.Client(address, Route(carrier, checksum))
    answers = [
        bytes(answer) for answer in client.echoes(payload, lambda: next(asked, None) is not None, window)
    ]
    assert answers == [payload.tobytes()] * 5
    client.close()
    bare.close(listeners)


def test_a_wrong_checksum_is_noticed() -> None:
    import socket

    one, other = socket.socketpair()
    with one, other:
        sent = memoryview(b"x" * 100)
        sender = threading.Thread(target=bare.send_frame, args=(one, sent, True))
        sender.start()
        received = memoryview(bytearray(100))
        bare.receive_frame(other, received, True)
        sender.join()
        one.sendall((100).to_bytes(8, "little") + bytes(100) + bytes(8))
        with pytest.raises(bare.RemoteProtocolError, match="checksum"):
            bare.receive_frame(other, received, True)


def test_a_token_bucket_keeps_its_rate() -> None:
    bucket = TokenBucket(bytes_per_s=1000.0, burst_bytes=100.0)
    now_s = 100.0
    passed = 0
    for _ in range(200):
        now_s += bucket.take(50, now_s)
        passed += 50
    assert passed / (now_s - 100.0) == pytest.approx(1000.0, rel=0.02)


def test_a_pause_earns_no_more_than_the_burst() -> None:
    bucket = TokenBucket(bytes_per_s=1000.0, burst_bytes=100.0)
    assert bucket.take(100, 50.0) == 0.0
    assert bucket.take(200, 5000.0) == pytest.approx(0.1)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_repeated_factorization_gives_the_factors_of_one(operation) -> None:  # type: ignore[no-untyped-def]
    base = get(operation.name.removeprefix("repeat_"))
    item = matrix(operation.name, 40)
    repeated = operation.form("cpu")([item.copy("F")], {"times": 3})
    once = base.run([item.copy("F")], {})
    assert repeated.arrays.keys() == once.arrays.keys()
    for name, array in once.arrays.items():
        np.testing.assert_array_equal(repeated.arrays[name], array)
    spec = TensorSpec("<f8", (40, 40), "F")
    assert operation.flops([spec], {"times": 3}) == 3 * base.flops([spec], {})


@pytest.mark.parametrize("times", [0, -1, "2", None, 10**6])
def test_a_strange_number_of_times_is_rejected(times: object) -> None:
    with pytest.raises(RejectedError, match="times"):
        OPERATIONS[0].check([TensorSpec("<f8", (4, 4), "F")], {"times": times})


def test_orders_and_flops() -> None:
    assert order_of(8_000_000) == 1000
    assert order_of(50_000_000) == 2500
    assert flops("lu", 1000) == pytest.approx(2e9 / 3)
    assert np.linalg.eigvalsh(matrix("cholesky", 50)).min() > 0


def test_all_factorizations_sizes_and_intensities_are_measured(tmp_path: Path) -> None:
    cells = list(computing._cells(Setting(False, lambda line: None, tmp_path)))
    assert len(set(cells)) == len(cells) == 3 * 5 * 4 - 4
    assert {(cell.operation, cell.size_mb) for cell in cells if cell.times == 8} == {
        *(("lu", size) for size in (1, 5, 10, 20, 50)),
        *((operation, size) for operation in ("qr", "cholesky") for size in (1, 5, 10)),
    }
    goals = {(cell.operation, cell.times): cell.goal for cell in cells}
    assert goals["qr", 1] == 0.85
    assert goals["cholesky", 1] == 0.80
    assert goals["lu", 8] == 0.95
    assert goals["cholesky", 4] == 0.92


class _Rounds:
    """Answers at once, and notes who was run how often in which state of the cores."""

    def __init__(self, device: Path) -> None:
        self._device = device
        self.runs: list[tuple[str, bool]] = []

    def run(
        self, cell: Cell, candidates: Sequence[echo.Candidate], n_rounds: int, duration_s: float
    ) -> dict[str, list[Measured]]:
        is_held = self._device.stat().st_size > 0
        self.runs += [(candidate.program, is_held) for candidate in candidates]
        return {each.name: [Measured(1.0, 1.0, 1e-4, 2e-4, 0.1)] * n_rounds for each in candidates}


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the kernel's."""
    path = tmp_path / "cpu_dma_latency"
    path.touch()
    monkeypatch.setattr(setting_module, "DEVICE", str(path))
    monkeypatch.setattr("yarn_accel.pipeline.cpu_idle.DEVICE", str(path))
    return path


def test_the_cores_are_asked_to_stay_awake_while_the_device_is_open(device: Path) -> None:
    with setting_module.kept_awake(False):
        assert device.read_bytes() == b""
    with setting_module.kept_awake(True):
        assert device.read_bytes() == bytes(4)
        assert str(device) in _open_files()
    assert str(device) not in _open_files()


def _open_files() -> set[str]:
    return {os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("cores_awake", [True, False])
def test_latency_is_measured_with_cores_awake_and_asleep(
    device: Path, tmp_path: Path, cores_awake: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = _Rounds(device)
    monkeypatch.setattr(echo, "Rounds", lambda setting, fleet: rounds)
    rounds.failure_rows = list  # type: ignore[attr-defined]
    setting = Setting(True, lambda line: None, tmp_path, cores_awake)
    with Fleet(tmp_path) as fleet:
        rows = [row for part in echo.latency_rows(setting, fleet, ("zmq",)) for row in part]
    whats = {row.what for row in rows}
    assert "latency, 64 B, tcp, cores may sleep: zmq" in whats
    assert "latency, 64 B, unix, cores may sleep: ours unix" in whats
    assert "latency, 64 B, unix, the server's default: ours unix" in whats
    assert ("latency, 64 B, unix, cores awake: ours unix" in whats) is cores_awake
    assert ("latency, 64 B, tcp, cores awake: zmq / ours" in whats) is cores_awake
    assert {row.goal for row in rows if row.what.endswith("ours unix")} == {"<= 150"}


def test_our_server_leaves_the_cores_alone_where_nobody_keeps_them_awake(
    device: Path, tmp_path: Path
) -> None:
    rounds = _Rounds(device)
    echo._latency(rounds, ("unix", "cores may sleep"), ("zmq",), 1)  # type: ignore[arg-type]
    assert rounds.runs == [("bare", False), ("ours-asleep", False), ("zmq", False)]
    echo._latency(rounds, ("unix", "cores awake"), ("zmq",), 1)  # type: ignore[arg-type]
    assert rounds.runs[3:] == [("bare", True), ("ours", True), ("zmq", True)]


@pytest.mark.parametrize(
    ("options", "sections", "cores_awake"),
    [
        ({}, ["echo"], True),
        ({"cores_may_sleep": True}, ["echo"], False),
        ({}, ["stages"], False),
    ],
    ids=["by default", "switched off", "a section that does not care"],
)
def test_sections_go_down_at_an_interruption_and_the_report_says_how_the_cores_were(
    device: Path,
    options: dict[str, bool],
    sections: list[str],
    cores_awake: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[object] = []

    def measure(
        quick: bool, say: Callable[[str], None], only: Sequence[str], cores_awake: bool
    ) -> Iterator[list[Row]]:
        events.append((tuple(only), cores_awake))
        try:
            yield [observed("first", 1.0, "s")]
            raise KeyboardInterrupt
        finally:
            events.append("down")

    monkeypatch.setattr("benchmarks.pipeline.measure", measure)
    report = Report("pipeline")
    with pytest.raises(KeyboardInterrupt):
        run(True, lambda line: None, report, only=sections, **options)
    assert events == [(tuple(sections), cores_awake), "down"]
    assert [row.what for row in report.rows] == ["first"]
    assert report.setting == {"cores_awake": cores_awake}


def test_every_cell_has_five_rounds_of_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = _Rounds(tmp_path)
    rounds.failure_rows = list  # type: ignore[attr-defined]
    monkeypatch.setattr(echo, "Rounds", lambda setting, fleet: rounds)
    setting = Setting(False, lambda line: None, tmp_path)
    with Fleet(tmp_path) as fleet:
        rows = [row for part in echo.throughput_rows(setting, fleet, ("zmq",)) for row in part]
    assert {row.n for row in rows} == {5}
    judged = [row.what for row in rows if row.goal]
    assert len(judged) == len(set(judged)) == 2 * 4 * 2 + 2 * 3 * 2 * 2


def test_cpu_seconds_are_noted_by_group() -> None:
    accounts = Accounts({"me": [os.getpid()], "nobody": [2**22 + 1]})
    with accounts.noted() as usage:
        until_s = time.process_time() + 0.1
        while time.process_time() < until_s:
            pass
    assert usage.cpu_s["me"] >= 0.05
    assert usage.cpu_s["nobody"] == 0
    assert 0 <= usage.cpu_s[REST] <= 1.1 * usage.wall_s * (os.cpu_count() or 1)


@pytest.mark.parametrize("operation", ["lu", "qr", "cholesky"])
def test_bare_lapack_and_the_operation_take_their_time(operation: str) -> None:
    cores = os.sched_getaffinity(0)
    try:
        routine = ACTS["routine"]({"operation": operation, "n": 60, "n_times": 3})
        alone = ACTS["alone"](
            {"operation": f"repeat_{operation}", "n": 60, "n_times": 3, "params": {"times": 1}}
        )
    finally:
        os.sched_setaffinity(0, cores)
    assert len(routine["seconds"]) == len(alone["seconds"]) == 3
    assert all(value > 0 for value in (*routine["seconds"], *alone["seconds"]))


def test_keys_of_calls_never_repeat() -> None:
    one, other = (list(islice(calls("echo", {}, repeat(np.zeros(1), 3)), 3)) for _ in range(2))
    assert len({call.key for call in (*one, *other)}) == 6


def test_sizes_in_words() -> None:
    assert [size_text(n) for n in (64, 64 << 10, 50 << 20)] == ["64 B", "64 KiB", "50 MiB"]


def test_clients_measure_through_the_fleet(tmp_path: Path) -> None:
    cell = Cell(1000, 2, 2)
    with Fleet(tmp_path) as fleet:
        runner = fleet.runner("bare")
        assert runner.prepare("it", cell, Route("unix", "none")) == "unix"
        got = runner.go("it", cell, 0.05)
        runner.end()
    assert got.bytes_per_s > 0
    assert got.wall_s > 0


def test_a_client_that_cannot_connect_says_why(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        runner = fleet.runner("bare")
        runner.address = {"path": str(tmp_path / "nobody"), "port": 1}
        with pytest.raises(JobError, match="FileNotFoundError"):
            runner.prepare("it", Cell(10, 1, 1), Route("unix", "none"))


def test_every_peer_has_a_module() -> None:
    folder = Path(bare.__file__).parent
    assert {*PEERS, "bare", "ours", "ours-asleep", "triton"} == set(MODULES)
    assert all((folder / f"{module}.py").exists() for module in MODULES.values())


def test_an_unknown_section_is_refused() -> None:
    result = CliRunner().invoke(main, ["pipeline", "--only", "nonsense"])
    assert result.exit_code == 2
    assert all(section in result.output for section in SECTIONS)


def test_pictures_are_drawn_from_the_rows(tmp_path: Path) -> None:
    rows = [
        observed(f"echo, tcp, {size}, {n}, window 4: {who}", 2.0, "GB/s")
        for size in ("64 KiB", "8 MiB")
        for n in ("1 client", "4 clients")
        for who in ("bare tcp none", "ours best", "zmq")
    ]
    rows += [
        observed("echo, tcp, 8 MiB, 1 client, window 4: ours / zmq", 2.0, "x"),
        observed("latency, 64 B, unix, cores awake: ours unix", 90.0, "us"),
        observed("latency, 64 B, unix, cores awake: zmq / ours", 0.5, "x"),
        observed("efficiency, lu, 10 MB, c = 4", 0.97, "share"),
        observed("efficiency, lu, 5 MB, c = 4", 0.96, "share"),
        not_measured("GPU", "no CUDA device"),
    ]
    files = draw(Report("pipeline", rows), str(tmp_path / "p"))
    assert [Path(file).name for file in files] == [
        "p-throughput.png",
        "p-latency.png",
        "p-efficiency.png",
    ]
    assert all(Path(file).stat().st_size > 5000 for file in files)
    assert draw(Report("pipeline", []), str(tmp_path / "none")) == []
