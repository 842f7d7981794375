"""Python programs that are started often are forked, and nobody can tell but by how fast they start."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.fixtures.waiting import until
from tests.integration.pipeline.attackers import children_of
from tests.integration.worker.conftest import WorkerSite
from tests.integration.worker.test_attempts import pid_in, until_gone
from yarn_accel.core.tasks.worker_messages import AttemptEnd, AttemptOutcome, AttemptPhase

#: Tells whether it was forked by a module that it has not imported itself.
PROGRAM = """
import sys
forked = "textwrap" in sys.modules
import os, json
environ = {name: text for name, text in os.environ.items() if "attempt" not in text and "job" not in name}
name = "mapreduce_task_attempt_id="
own = [line for line in open("/proc/self/environ").read().split(chr(0)) if line.startswith(name)]
seen = [__name__, __file__, sys.argv, sys.path, sys.flags, sys.orig_argv, os.getcwd() == os.environ["PWD"]]
seen += [sys.stdin.read(), sys.stdout.encoding, sys.stdout.line_buffering, os.getsid(0) == os.getpid()]
seen += [own == [name + os.environ[name[:-1]]], sorted(environ)]
print(json.dumps([forked, os.getppid(), seen]))
"""
FAILING = "import sys\nprint('textwrap' in sys.modules)\ndef work():\n    {}\nwork()\n"


class Forking:
    """Runs one program again and again."""

    def __init__(self, site: WorkerSite, program: Path, *options: str) -> None:
        self.site = site
        self.argv = (sys.executable, *options, str(program), "a", "b c")

    def run(self) -> tuple[AttemptEnd, str, str]:
        """One attempt: its end, its output without line ends, its log."""
        order = self.site.task(*self.argv, text="one\ntwo\n")
        end = self.site.master.run(order)
        text = self.site.outputs(order).get("part-m-00003", "")
        return end, text.strip(), self.site.log(order, self.site.master.worker)

    def first_and_forked(self) -> tuple[tuple[AttemptEnd, str, str], tuple[AttemptEnd, str, str]]:
        """The first attempt, and the first one that was forked."""
        first = self.run()
        while True:
            found = self.run()
            if found[1].startswith(("[true", "True")) or found[2].startswith("True"):
                return first, found


def parts(text: str) -> tuple[int, str]:
    """The guard's pid, and what the program saw."""
    _, guard, seen = text.strip("[]").split(", ", 2)
    return int(guard), seen


def servers(guard: int, option: str) -> list[int]:
    """The process of a guard that forks, and the one that waits for a command, while nothing else runs."""
    found = []
    for pid in children_of(guard):
        with contextlib.suppress(OSError):  # it ends
            if option in Path(f"/proc/{pid}/cmdline").read_text():
                began = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
                found.append((int(began), pid))
    return [pid for _, pid in sorted(found)]


def both_servers(guard: int, option: str) -> list[int]:
    """As `servers`, when both are there: the next process is forked after the end of a command."""
    return until(lambda: found if len(found := servers(guard, option)) == 2 else [], "both servers")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.usefixtures("w1")
@pytest.mark.parametrize("options", [("-I", "-S"), (), ("-u",)])
def test_a_forked_program_sees_what_a_started_one_sees(
    site: WorkerSite, program: Path, options: tuple[str, ...]
) -> None:
    (_, first, _), (end, forked, log) = Forking(site, program, *options).first_and_forked()
    assert parts(first) == parts(forked)
    assert (end.outcome, log) == (AttemptOutcome.DONE, "")


@pytest.mark.usefixtures("w1")
@pytest.mark.parametrize(
    "failure",
    [
        "sys.exit('no such model')",
        "sys.exit(3)",
        "1 / 0",
        "raise SystemExit",
        "import os; os.kill(os.getpid(), 11)",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(lambda: print('at the end', file=sys.stderr))",
        "import threading; threading.Timer(0.01, lambda: print('a thread', file=sys.stderr)).start()",
        "sys.left = open(sys.stderr.fileno(), 'w', closefd=False); global left; left = sys.left; "
        "del sys.left; left.write('all')",
    ],
)
def test_a_forked_program_ends_as_a_started_one(site: WorkerSite, tmp_path: Path, failure: str) -> None:
    path = tmp_path / "failing.py"
    path.write_text(FAILING.format(f"print('textwrap' in sys.modules, file=sys.stderr); {failure}"))
    (first, _, log), (forked, _, forked_log) = Forking(site, path, "-I").first_and_forked()
    assert (first.outcome, first.exit_status, first.error) == (
        forked.outcome,
        forked.exit_status,
        forked.error,
    )
    assert log.replace("False", "True") == forked_log


@pytest.mark.usefixtures("w1")
def test_a_module_beside_the_program_comes_first(site: WorkerSite, program: Path) -> None:
    forking = Forking(site, program)
    forking.first_and_forked()
    (program.parent / "json.py").write_text("def dumps(value): return 'its own'\n")
    assert [forking.run()[1] for _ in range(3)] == ["its own"] * 3


@pytest.mark.usefixtures("w1")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("which", [0, 1], ids=["the one that forks", "the one that waits"])
def test_a_server_that_is_lost_is_replaced(
    site: WorkerSite, program: Path, number: signal.Signals, which: int
) -> None:
    forking = Forking(site, program, "-I", "-S")
    _, (_, text, _) = forking.first_and_forked()
    guard, _ = parts(text)
    before = both_servers(guard, "-S")
    os.kill(before[which], number)
    # A server that is stopped has forked one more process, which is used up first.
    while set(before) & set(servers(guard, "-S")):
        (end, _, _) = forking.run()
        assert end.outcome is AttemptOutcome.DONE
    _, (end, _, _) = forking.first_and_forked()
    assert end.outcome is AttemptOutcome.DONE
    both_servers(guard, "-S")


@pytest.mark.usefixtures("w1")
def test_a_program_that_was_changed_runs_as_it_is_now(site: WorkerSite, tmp_path: Path) -> None:
    path = tmp_path / "changing.py"
    forking = Forking(site, path, "-I")
    text = "import sys\nprint('textwrap' in sys.modules, {})\n"
    path.write_text(text.format(1))
    forking.first_and_forked()
    for number in (1, 2, 2):
        path.write_text(text.format(number))
        assert forking.run()[1] == f"True {number}"
    # What it prints while it is compiled is printed each time.
    path.write_text(text.format("3 is 3"))
    assert ["SyntaxWarning" in forking.run()[2] for _ in range(3)] == [True] * 3


#: Leaves a process that starts no other program, in a session of its own.
LEAVING = """
import os, sys, time
if 'textwrap' in sys.modules and not os.fork():
    os.setsid()
    if not os.fork():
        open('{0}/left', 'w').write(f'{{os.getpid()}}\\n')
        time.sleep(600)
    os._exit(0)
print('textwrap' in sys.modules, os.getppid())
while 'textwrap' in sys.modules and not os.path.exists('{0}/left'): pass
{1}
"""


@pytest.mark.usefixtures("w1")
def test_what_a_forked_program_leaves_is_ended_with_it(site: WorkerSite, tmp_path: Path) -> None:
    other = site.task("sleep", "600")
    site.master.list(other)
    path = tmp_path / "leaving.py"
    path.write_text(LEAVING.format(tmp_path, ""))
    Forking(site, path, "-I").first_and_forked()
    until_gone(pid_in(tmp_path / "left"))
    assert site.master.phase(other.attempt) is AttemptPhase.RUNNING
    site.master.drop(other.attempt)


#: Leaves a process below one of another session that ends slowly: it has to give up much memory.
LEAVING_SLOWLY = """
import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(600)
    filled = bytearray(1 << 29)
    open('{0}/left', 'w').write(open('/proc/thread-self/children').read().strip() + '\\n')
    time.sleep(600)
while not os.path.exists('{0}/left'): time.sleep(0.01)
"""


@pytest.mark.usefixtures("w1")
def test_what_is_left_below_a_process_that_ends_slowly_is_ended(site: WorkerSite, tmp_path: Path) -> None:
    other = site.task("sleep", "600")
    site.master.list(other)
    path = tmp_path / "leaving.py"
    path.write_text(LEAVING_SLOWLY.format(tmp_path))
    assert site.master.run(site.task(sys.executable, str(path))).outcome is AttemptOutcome.DONE
    until_gone(pid_in(tmp_path / "left"))
    assert site.master.phase(other.attempt) is AttemptPhase.RUNNING
    site.master.drop(other.attempt)


def test_kill_9_of_the_worker_ends_what_is_forked_and_what_forks(site: WorkerSite, tmp_path: Path) -> None:
    worker = site.start("killed-forking")
    path = tmp_path / "forking.py"
    path.write_text(LEAVING.format(tmp_path, "if 'textwrap' in sys.modules: time.sleep(600)"))
    ends = site.master.ends
    while not (tmp_path / "left").exists():
        order = site.task(sys.executable, str(path))
        site.master.list(order)
        site.master.until(lambda tried=order: tried.attempt in ends or (tmp_path / "left").exists())
    left = pid_in(tmp_path / "left")
    [guard] = children_of(worker.pid)
    pids = [left, guard, *children_of(guard)]
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    until_gone(*pids)
    site.master.drop(order.attempt)
