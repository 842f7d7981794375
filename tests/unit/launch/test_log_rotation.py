from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from yarn_accel.launch.log_rotation import rotate, rotate_output


@pytest.fixture
def log(tmp_path: Path):
    descriptor = os.open(tmp_path / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield descriptor
    os.close(descriptor)


def test_a_long_file_is_moved_away_and_writing_goes_on(log, tmp_path) -> None:
    os.write(log, b"a" * 100)
    assert not rotate(log, 100, 3)
    os.write(log, b"b")
    assert rotate(log, 100, 3)
    os.write(log, b"c")
    assert (tmp_path / "stderr").read_bytes() == b"c"
    assert (tmp_path / "stderr.1").read_bytes() == b"a" * 100 + b"b"


def test_only_so_many_are_kept(log, tmp_path) -> None:
    for number in range(6):
        os.write(log, b"%d" % number * 10)
        assert rotate(log, 5, 3)
    found = {path.name: path.read_bytes()[:1] for path in tmp_path.iterdir() if path.stat().st_size}
    assert found == {"stderr.1": b"5", "stderr.2": b"4", "stderr.3": b"3"}


def test_the_file_is_cut_even_when_it_cannot_be_copied(log, tmp_path) -> None:
    os.write(log, b"a" * 100)
    (tmp_path / "stderr.1").mkdir()
    (tmp_path / "stderr.2").mkdir()
    (tmp_path / "stderr.2" / "x").touch()
    with pytest.raises(OSError, match=r"stderr"):
        rotate(log, 10, 2)
    assert (tmp_path / "stderr").stat().st_size == 0


def test_every_writer_of_the_file_goes_on_at_its_new_beginning(tmp_path) -> None:
    """A child that inherited the file, as worker processes do, writes before and after the cut."""
    program = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from yarn_accel.launch.log_rotation import rotate_output\n"
        "rotate_output(max_bytes=1000, interval_s=0.01)\n"
        "words = ['sh', '-c', 'head -c 2000 /dev/zero; read x; echo child']\n"
        "child = subprocess.Popen(words, stdin=subprocess.PIPE)\n"
        "deadline = time.monotonic() + 60\n"
        "while not Path('stdout.1').exists() or Path('stdout').stat().st_size: \n"
        "    assert time.monotonic() < deadline\n"
        "    time.sleep(0.01)\n"
        "child.communicate(b'go\\n')\n"
        "os.write(1, b'parent\\n')\n"
    )
    with (tmp_path / "stdout").open("ab") as out:
        subprocess.run(
            [sys.executable, "-c", program],
            stdout=out,
            cwd=tmp_path,
            check=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
    assert (tmp_path / "stdout").read_bytes() == b"child\nparent\n"
    assert (tmp_path / "stdout.1").stat().st_size == 2000


def test_a_file_that_is_not_appended_to_and_a_pipe_are_left_alone(tmp_path) -> None:
    reader, writer = os.pipe()
    plain = os.open(tmp_path / "plain", os.O_WRONLY | os.O_CREAT)
    try:
        os.write(plain, b"a" * 100)
        done = rotate_output((plain, writer, 9999), max_bytes=10, interval_s=0.001)
        time.sleep(0.02)
        done.set()
        assert (tmp_path / "plain").stat().st_size == 100
    finally:
        for descriptor in (reader, writer, plain):
            os.close(descriptor)
