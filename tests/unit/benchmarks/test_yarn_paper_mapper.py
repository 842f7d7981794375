"""What `yarn_paper` ships: the mapper's tasks, the operations that wait, the archive and the distribution."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.papers.yarn_paper.cells import EMULATED, REAL, SCALES, SPEEDS, Key, Stop, plan
from benchmarks.papers.yarn_paper.running import (
    NAME,
    build_archive,
    launch_options,
    manifest,
    task_line,
    write_distribution,
)
from benchmarks.papers.yarn_paper.shipped import emulation, entry
from benchmarks.papers.yarn_paper.shipped.entry import StartBarrier, TaskRow, parse_row, play
from tests.fixtures.yarn_site import SiteOptions
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.errors import RejectedError, StartupError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.wire import TensorSpec

KEY = Key(EMULATED, "4-2", "paper", "lu", 2, 10)
ATTEMPT = CurrentAttempt("job_1_1", "task_1_1_m_000000", "attempt_1_1_m_000000_0", 0, "w3")
PARAMS = {"cpu_s": 0.02, "device_s": 0.002}


def answered(calls: Iterable[Call], device: str = "cpu") -> Iterator[tuple[Call, Reply]]:
    for call in calls:
        yield call, Reply({}, {}, "server-1", device, {"compute": 0.25}, 1, 1)


def no_count(name: str, amount: int) -> None:
    """Nobody counts."""


# ---- the mapper


def test_every_task_gives_a_row_with_its_times(tmp_path: Path) -> None:
    ticks = iter(range(100))
    lines = manifest(KEY, 3, {}).splitlines()
    rows = list(play(lines, answered, ATTEMPT, StartBarrier(tmp_path, 0), no_count, lambda: next(ticks)))
    assert [row.task for row in rows] == [0, 1, 2]
    assert all(row.sent_s < row.done_s and row.server == "server-1" for row in rows)
    assert parse_row(rows[1].format()) == rows[1]


def test_what_the_mapper_computes_itself_is_counted(tmp_path: Path) -> None:
    counted: dict[str, int] = {}
    rows = play(
        manifest(KEY, 2, {}).splitlines(),
        lambda calls: answered(calls, "cpu:fallback"),
        ATTEMPT,
        StartBarrier(tmp_path, 0),
        lambda name, amount: counted.update({name: counted.get(name, 0) + amount}),
    )
    assert [row.is_fallback for row in rows] == [True, True]
    assert counted == {"records_in": 2, "sent": 2, "done": 2, "cpu_fallback": 2}


def test_a_task_that_fails_fails_the_mapper(tmp_path: Path) -> None:
    def refused(calls: Iterable[Call]) -> Iterator[Any]:
        for call in calls:
            if call.operation == "echo":
                yield from answered([call])
            else:
                yield call, RejectedError("no", "not today")

    with pytest.raises(RejectedError, match="not today"):
        list(play(manifest(KEY, 1, {}).splitlines(), refused, ATTEMPT, StartBarrier(tmp_path, 0), no_count))


def test_real_tasks_send_matrices_fit_for_their_operation(tmp_path: Path) -> None:
    sent: list[Call] = []

    def kept(calls: Iterable[Call]) -> Iterator[tuple[Call, Reply]]:
        for call in calls:
            sent.append(call)
            yield from answered([call])

    lines = manifest(Key(REAL, "4-4", "paper", "cholesky"), 2, {}).splitlines()
    list(play(lines, kept, ATTEMPT, StartBarrier(tmp_path, 0), no_count))
    matrix = sent[-1].inputs[0].array()
    assert sent[-1].operation == "cholesky"
    assert np.array_equal(matrix, matrix.T)
    assert np.all(np.linalg.eigvalsh(matrix) > 0)


def test_behind_a_barrier_nothing_is_sent_before_all_are_there(tmp_path: Path) -> None:
    barrier, others = StartBarrier(tmp_path, 2), CurrentAttempt("j", "task_other", "a", 1, "w4")
    rows: list[TaskRow] = []
    lines = manifest(KEY, 2, {}).splitlines()
    thread = threading.Thread(target=lambda: rows.extend(play(lines, answered, ATTEMPT, barrier, no_count)))
    thread.start()
    thread.join(0.1)
    assert rows == []
    barrier.wait(others)
    thread.join(300)
    assert len(rows) == 2


def test_a_barrier_does_not_wait_for_ever(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="1 of 2 mappers"):
        StartBarrier(tmp_path, 2, patience_s=0.0).wait(ATTEMPT)


def test_without_a_barrier_lines_are_read_as_they_are_sent(tmp_path: Path) -> None:
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(3):
            read.append(number)
            yield task_line(KEY, number, {})

    rows = play(lines(), answered, ATTEMPT, StartBarrier(tmp_path, 0), no_count)
    next(rows)
    assert read == [0]


# ---- operations that wait


def test_a_device_waits_by_its_speed_and_a_cpu_does_not() -> None:
    params = {**PARAMS, "speeds": {"w3": 4.0}}
    assert emulation.seconds_of(params, 1, "w3", is_device=True) == pytest.approx(0.0005)
    assert emulation.seconds_of(params, 1, "w1", is_device=True) == pytest.approx(0.002)
    assert emulation.seconds_of(params, 5, "w3", is_device=False) == pytest.approx(0.1)
    slow = {**params, "cpu_speeds": {"w3": 0.2}}
    assert emulation.seconds_of(slow, 5, "w3", is_device=False) == pytest.approx(0.5)


@pytest.mark.parametrize("params", [{}, {"cpu_s": 1.0}, {**PARAMS, "x": 1}, {**PARAMS, "cpu_s": -1.0}])
def test_bad_parameters_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(RejectedError):
        emulation.DEVICE_OPERATIONS[0].check([TensorSpec("|u1", (1,))], params)


def test_both_tables_have_the_same_names_and_another_kernel() -> None:
    device = {each.name: each for each in emulation.DEVICE_OPERATIONS}
    cpu = {each.name: each for each in emulation.CPU_OPERATIONS}
    assert device.keys() == cpu.keys() == {f"emulated-{name}" for name in emulation.KERNELS}
    assert all(cpu[name].form("cpu") is emulation.cpu_kernel for name in cpu)
    assert all(device[name].form("cpu") is emulation.device_kernel for name in device)


def test_emulated_features_have_a_row_for_every_image() -> None:
    images = [bytes([each]) * 200 for each in (1, 2)]
    blob = np.frombuffer(b"".join(images), np.uint8)
    lengths = np.array([200, 200], "<i8")
    outcome = emulation.device_kernel([blob, lengths], {"cpu_s": 0.0, "device_s": 0.0})
    assert outcome.arrays["features"].tolist() == [[1.0] * 32, [2.0] * 32]
    assert outcome.info["rejected"] == []


def test_images_are_emulated_and_come_back_as_they_were_sent() -> None:
    seen: list[Call] = []

    def map_calls(calls: Iterable[Call], window: int) -> Iterator[tuple[Call, Reply]]:
        for call in calls:
            seen.append(call)
            yield from answered([call])

    ticks = iter(range(10))
    times = entry.Times(map_calls, PARAMS, lambda: next(ticks) + 1)
    original = Call("k", "features", {"bins": 59})
    assert [call for call, _ in times.map_calls([original], 4)] == [original]
    assert seen[0].operation == "emulated-features"
    assert seen[0].params == {"bins": 59, **PARAMS}
    assert (times.first_sent_s, times.last_done_s) == (1, 2)


# ---- what travels


def test_the_archive_runs_alone_on_a_node(tmp_path: Path) -> None:
    archive = build_archive(tmp_path / "accel-job.pyz")
    assert "benchmarks/result.py" not in zipfile.ZipFile(archive).namelist()
    environ = {
        **os.environ,
        "NM_HOST": "w1",
        "accel_paper_folder": str(tmp_path),
        "accel_paper_agents": str(tmp_path / "{node}.sock"),
        "mapreduce_task_id": "task_1_1_m_000000",
    }
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, str(archive), "paper-map", "--mappers", "1"],
        input=task_line(KEY, 7, {}).encode(),
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    row = parse_row(done.stdout.decode())
    assert (row.task, row.node, row.is_fallback) == (7, "w1", True)
    assert row.done_s - row.sent_s >= SCALES["lu"].seconds(2)[0]
    assert (tmp_path / "cpu-w1.lock").exists()


def test_verbs_of_the_jobs_are_still_known() -> None:
    assert entry._parse(["images-map", "--bins", "59"]) == entry.parse_verb(["images-map", "--bins", "59"])
    assert isinstance(entry._parse(["paper-map"]), Namespace)


def test_servers_find_the_operations_of_an_installed_distribution(tmp_path: Path) -> None:
    folder = write_distribution(tmp_path / "own")
    (found,) = importlib.metadata.distributions(name=NAME, path=[str(folder)])
    assert all(Path(str(path.locate())).is_file() for path in found.files or ())
    program = (
        f"import sys; sys.path[:0] = [{str(folder)!r}, {str(Path(__file__).parents[3])!r}]\n"
        "from yarn_accel.operations import load_more, get\n"
        "print(*load_more()); print(get('emulated-qr').form('cpu').__module__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [*(each.name for each in emulation.DEVICE_OPERATIONS), "accel_emulation"]


# ---- how the application is started


def test_slots_are_never_published_and_weights_only_where_wanted() -> None:
    base = SiteOptions("x", workers=6, accelerators=3)
    weights = dict(zip(("w1", "w2", "w3"), SPEEDS, strict=True))
    plain = launch_options(base, Stop("6-3", "unweighted"), weights)
    weighted = launch_options(base, Stop("6-3", "weighted"), weights)
    assert plain.policy == weighted.policy == "weighted"
    assert plain.master == {"slots": False}
    assert weighted.master == {"slots": False, "weights": {"devices": weights}}
    LaunchConfig.model_validate(weighted.launch(["w1"], "/run/{node}"))


def test_only_the_layout_for_speculation_has_a_slow_cpu_and_long_lines() -> None:
    (key, *_) = plan(["speculation"])
    line = task_line(key, 0, {})
    assert json.loads(line)["params"]["cpu_speeds"] == {"w4": 0.2}
    assert len(line) > 4 * 65536 > 100 * len(task_line(KEY, 0, {}))


def test_a_line_is_json_and_says_its_scaled_seconds() -> None:
    line = json.loads(task_line(KEY, 3, {"w1": 2.0}))
    assert line["params"]["device_s"] == pytest.approx(SCALES["lu"].seconds(2)[1])
    assert line["params"]["speeds"] == {"w1": 2.0}
    assert line["payload_bytes"] == SCALES["lu"].payload_bytes(10)
    assert len(io.StringIO(manifest(KEY, 5, {})).readlines()) == 5
