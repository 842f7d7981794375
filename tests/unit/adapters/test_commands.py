import sys

import pytest

from yarn_accel.adapters.commands import run, stream
from yarn_accel.errors import StartupError, UnavailableError

PYTHON = sys.executable


def test_run_gives_status_and_both_streams():
    done = run([PYTHON, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"], 20)
    assert (done.exit_code, done.stdout, done.stderr, done.ok) == (3, "out\n", "err\n", False)
    assert done.last_line() == "err"


def test_arguments_reach_the_program_untouched_by_a_shell():
    done = run([PYTHON, "-c", "import sys; print(sys.argv[1])", "$HOME; `id` *"], 20)
    assert done.stdout == "$HOME; `id` *\n"


def test_a_missing_program_is_a_startup_error():
    with pytest.raises(StartupError, match="no-such-program is not on this machine"):
        run(["no-such-program"], 5)
    with pytest.raises(StartupError, match="no-such-program"):
        stream(["no-such-program"], lambda line: None)


def test_a_program_that_hangs_is_ended():
    with pytest.raises(UnavailableError, match=r"did not end within 0.3 s") as caught:
        run([PYTHON, "-c", "import time; time.sleep(60)"], 0.3)
    assert caught.value.transient


def test_stream_hands_over_lines_of_both_streams_and_keeps_the_last():
    seen = []
    program = "import sys\nfor k in range(5): print(k, file=sys.stderr, flush=True)\nprint('end')"
    done = stream([PYTHON, "-c", program], seen.append, keep_lines=2)
    assert seen == ["0", "1", "2", "3", "4", "end"]
    assert done.stderr.splitlines() == ["4", "end"]


def test_stream_ends_the_program_when_the_reader_fails():
    pids = []

    def fail(line):
        pids.append(int(line))
        raise KeyboardInterrupt

    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        stream([PYTHON, "-c", program], fail)
    with pytest.raises(ProcessLookupError):
        __import__("os").kill(pids[0], 0)
