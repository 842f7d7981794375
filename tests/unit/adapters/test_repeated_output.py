"""Pictures in a pipe come one by one as text; on a terminal each replaces the one before."""

import os
import pty
import subprocess
import sys

PROGRAM = """
import sys
from rich.table import Table
from yarn_accel.adapters.repeated_output import repeated_output
with repeated_output(80) as show:
    for word in ("first", "second"):
        table = Table("word", "long")
        table.add_row(word, 60 * "x")
        show(table)
        sys.stderr.write(sys.stdin.readline())
        sys.stderr.flush()
"""


def test_each_picture_is_in_the_pipe_before_the_next_one_is_made():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "COLUMNS": "20"},
    ) as process:
        head = [process.stdout.readline() for _ in range(5)]
        assert "first" in head[3]
        assert 60 * "x" in head[3]
        process.stdin.write("go on\n\n")
        process.stdin.close()
        rest = process.stdout.read()
    assert process.returncode == 0
    assert rest.startswith("\n")
    assert "second" in rest
    assert "\x1b" not in "".join(head) + rest


def test_a_terminal_is_painted_over():
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(follower)
        painted = b""
        try:
            while part := os.read(leader, 1 << 16):
                painted += part
        except OSError:  # the other end is closed
            pass
        os.close(leader)
    assert process.returncode == 0
    assert b"\x1b[?1049h" in painted
    assert painted.index(b"first") < painted.index(b"second") < painted.index(b"\x1b[?1049l")
