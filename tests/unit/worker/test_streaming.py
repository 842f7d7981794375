from __future__ import annotations

from pathlib import Path

from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder, InputSplit, OutputFile, attempt_id
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, TaskId
from yarn_accel.core.tasks.worker_messages import MAX_COUNTERS, MAX_LINE, Counter
from yarn_accel.worker.attempt_log import LogFolder
from yarn_accel.worker.streaming import ErrorLines, streaming_environment

ATTEMPT = attempt_id(1700000000000, 7, 3, 1)


def fed(folder: Path, *texts: bytes, max_bytes: int = 1 << 20) -> tuple[ErrorLines, bytes]:
    lines = ErrorLines(LogFolder(folder, max_bytes, 10).begin(ATTEMPT))
    for text in texts:
        lines.feed(text)
    lines.close()
    log = folder / f"{ATTEMPT}.log"
    return lines, log.read_bytes() if log.exists() else b""


def test_counters_and_status_are_read_wherever_the_pieces_end(tmp_path: Path) -> None:
    text = b"reporter:counter:g,n,2\nreporter:status:half\r\nreporter:counter:g,n,-5\nreporter:counter:g,m,1"
    for cut in range(len(text)):
        lines, log = fed(tmp_path, text[:cut], text[cut:])
        assert lines.counters == (Counter("g", "n", -3), Counter("g", "m", 1))
        assert (lines.status, lines.last_line, log) == ("half", "", b"")


def test_what_is_no_report_is_logged(tmp_path: Path) -> None:
    bad = b"reporter:counter:g,n\nreporter:counter:g,n,x\nreporter:counter:a,b,c,1\nreporter:x\n"
    lines, log = fed(tmp_path, bad + b"\xff\x1b[31mred\n \n")
    assert log == bad + b"\xff\x1b[31mred\n \n"
    assert (lines.counters, lines.last_line) == ((), "\ufffd [31mred")


def test_counters_and_status_are_bounded(tmp_path: Path) -> None:
    many = b"".join(b"reporter:counter:g,%d,1\n" % i for i in range(1000))
    lines, _ = fed(tmp_path, many)
    assert len(lines.counters) == MAX_COUNTERS
    lines, _ = fed(tmp_path, b"".join(b"reporter:counter:%d%s,n,1\n" % (i, b"x" * 128) for i in range(99)))
    assert len(lines.counters) < 40
    lines, _ = fed(tmp_path, b"reporter:counter:g,n,9007199254740992\n" * 3)
    assert lines.counters == (Counter("g", "n", 2**53),)
    lines, _ = fed(tmp_path, b"reporter:status:" + b"x" * 10_000 + b"\n" + b"y" * 200_000)
    assert len(lines.status) == len(lines.last_line) == MAX_LINE


def test_a_log_keeps_its_begin_and_its_end(tmp_path: Path) -> None:
    _, log = fed(tmp_path, *(b"%d\n" % i for i in range(1000)), max_bytes=40)
    assert log.startswith(b"0\n1\n2\n")
    assert log.endswith(b"bytes are left out here]\n995\n996\n997\n998\n999\n")
    _, log = fed(tmp_path, b"short\n", max_bytes=40)
    assert log == b"short\n"


def test_the_oldest_logs_are_deleted_and_empty_ones_not_written(tmp_path: Path) -> None:
    attempts = [attempt_id(1, 1, n, 0) for n in range(5)]

    def write(folder: LogFolder, attempt: AttemptId) -> None:
        log = folder.begin(attempt)
        log.write(b"x")
        log.close()

    for each in attempts[:2]:
        write(LogFolder(tmp_path, 100, 3), each)
    folder = LogFolder(tmp_path, 100, 3)
    folder.begin(ATTEMPT).close()
    for each in attempts[2:]:
        write(folder, each)
    assert sorted(each.stem for each in tmp_path.iterdir()) == attempts[2:]


def test_the_environment_is_that_of_streaming(tmp_path: Path) -> None:
    order = AttemptOrder(
        ATTEMPT,
        AppId("app"),
        TaskId("app/3"),
        Form.GPU,
        ("x",),
        FormDemand(1, 1),
        InputSplit("hdfs://nn/in", 5, 9),
        OutputFile("hdfs://nn/out/", "part-m-00003"),
        environment=(("PATH", "/mine"), ("CUDA_VISIBLE_DEVICES", "7")),
    )
    own = {"PATH": "/bin", "HOME": "/h", "HADOOP_TOKEN_FILE_LOCATION": "/t", "PYTHONPATH": "/p", "X": "y"}
    found = streaming_environment(order, ("GPU-1",), "/work", own)
    assert found == {
        "PATH": "/mine",
        "HOME": "/h",
        "PWD": "/work",
        "TMPDIR": "/work/tmp",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "mapreduce_job_id": "job_1700000000000_0007",
        "mapred_job_id": "job_1700000000000_0007",
        "mapreduce_job_name": "app",
        "mapreduce_task_id": "task_1700000000000_0007_m_000003",
        "mapred_tip_id": "task_1700000000000_0007_m_000003",
        "mapreduce_task_attempt_id": ATTEMPT,
        "mapred_task_id": ATTEMPT,
        "mapreduce_task_partition": "3",
        "mapred_task_partition": "3",
        "mapreduce_task_ismap": "true",
        "mapred_task_is_map": "true",
        "mapreduce_map_input_file": "hdfs://nn/in",
        "map_input_file": "hdfs://nn/in",
        "mapreduce_map_input_start": "5",
        "map_input_start": "5",
        "mapreduce_map_input_length": "9",
        "map_input_length": "9",
        "mapreduce_task_output_dir": f"hdfs://nn/out/_temporary/{ATTEMPT}",
        "mapred_work_output_dir": f"hdfs://nn/out/_temporary/{ATTEMPT}",
        "mapreduce_output_fileoutputformat_outputdir": "hdfs://nn/out/",
    }


def test_a_command_may_say_what_it_reads(tmp_path: Path) -> None:
    lines, log = fed(tmp_path, b"reporter:read:10,0.5\nreporter:read:30,1.25,done\n")
    assert lines.reading == (30, 1.25, True)
    assert log == b""
    for bad in (b"", b"1", b"-1,2", b"1,nan", b"1,2,3", b"9" * 20 + b",1", b"1,2,done,"):
        lines, log = fed(tmp_path, b"reporter:read:" + bad + b"\n")
        assert lines.reading is None
        assert log == b"reporter:read:" + bad + b"\n"
