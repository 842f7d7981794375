"""Commands side by side: what is shown of them, how all ended, and that an interruption reaches each once."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.programs import ran

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "tests.lanes"]
PATIENCE_S = 120
#: Waits for the signal instead of handling it: a handler that prints may interrupt another print.
WAITING = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("waiting", flush=True)
signal.sigwait({signal.SIGINT})
print("tidied up", flush=True)
if signal.sigtimedwait({signal.SIGINT}, 0.2):
    print("interrupted again", flush=True)
sys.exit(7)
"""


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


def run(*lanes: str) -> subprocess.CompletedProcess[str]:
    return ran([*PROGRAM, *lanes], cwd=ROOT, timeout=PATIENCE_S)


def test_every_line_bears_the_name_of_its_lane() -> None:
    done = run(f"one={python('print(1); print(2)')}", f"two={python('print(3)')}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("one | ")] == ["one | 1", "one | 2"]
    assert "two | 3" in lines


def test_one_that_fails_fails_all_and_is_reported_again_at_the_end() -> None:
    failing = "import sys; print('FAILED test_a.py::test_b'); print('chatter'); sys.exit(3)"
    passing = "print('==== 7 passed in 0.10s ====')"
    done = run(f"one={python(failing)}", f"two={python(passing)}")
    assert done.returncode == 1
    end = done.stdout[done.stdout.index("\none: ") :].splitlines()
    assert end[1].endswith("exit status 3")
    assert end[2] == "FAILED test_a.py::test_b"
    assert end[4].startswith("two: ")
    assert end[4].endswith("exit status 0")
    assert end[5] == "==== 7 passed in 0.10s ===="
    assert "chatter" not in end


def again(ends_with: int, *lanes: str) -> tuple[int, str]:
    """Run lanes, and once more what failed, which then ends so; exit status and what the end shows."""
    program = f"import sys; print('again with', sys.argv[1:]); sys.exit({ends_with})"
    done = run("--again", python(program), *lanes)
    return done.returncode, done.stdout


def failing_lane(*names: str) -> str:
    lines = "\\n".join(f"FAILED {name} - AssertionError: a - b" for name in names)
    return python(f"import sys; print('{lines}'); sys.exit(1)")


def test_a_few_tests_that_failed_run_once_more_and_are_called_unstable() -> None:
    names = ["tests/test_a.py::test_b", "tests/test_a.py::test_b[x y]", "tests/c/test_d.py::test_e"]
    lanes = [f"one={failing_lane(names[0])}", f"two={failing_lane(*names[1:])}"]
    code, shown = again(0, *lanes)
    assert code == 0
    assert f"again with {names}" in shown
    unstable = [line for line in shown.splitlines() if line.startswith("UNSTABLE")]
    assert unstable[-1] == f"UNSTABLE {names[2]}: it failed beside others, and passed alone"
    code, shown = again(1, *lanes)
    assert code == 1
    assert "UNSTABLE" not in shown


@pytest.mark.parametrize(
    "lanes",
    [
        [failing_lane(*(f"tests/test_a.py::test_{number}" for number in range(4)))],
        [failing_lane("tests/test_a.py::test_b"), python("import sys; sys.exit(2)")],
        [python("print('==== 7 passed in 0.10s ====')"), python("import sys; sys.exit(1)")],
    ],
    ids=["too many", "another lane has no tests that failed", "no test failed"],
)
def test_nothing_runs_once_more_where_more_is_wrong_than_a_few_tests(lanes: list[str]) -> None:
    code, shown = again(0, *(f"lane{number}={lane}" for number, lane in enumerate(lanes)))
    assert code == 1
    assert "again with" not in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_reaches_every_lane_once_and_all_are_waited_for(number: signal.Signals) -> None:
    lanes = [f"one={python(WAITING)}", f"two={python(WAITING)}"]
    with subprocess.Popen([*PROGRAM, *lanes], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in lanes} == {"one | waiting\n", "two | waiting\n"}
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(PATIENCE_S) == 1
    for name in ("one", "two"):
        assert rest.count(f"{name} | tidied up\n") == 1
        assert f"{name} | interrupted again\n" not in rest
        assert f"{name}: 0 min" in rest
    assert rest.count("exit status 7") == 2
