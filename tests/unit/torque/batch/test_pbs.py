"""One look: four answers of different moments, and what is done where they do not fit together."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fixtures.torque_builders import NOW_S, node
from tests.fixtures.waiting import until
from torque_sched.adapters.commands import Commands, Completed
from torque_sched.batch.cluster_clock import ClusterClock
from torque_sched.batch.system import Look
from torque_sched.batch.torque.pbs import Pbs
from torque_sched.errors import CommandError, SnapshotError
from torque_sched.model.cluster import JobId, Node, NodeName

QUEUES = b"Queue: batch\n    queue_type = Execution\n    enabled = True\n    started = True\n\n"
SERVER = b"Server: head\n    server_state = Active\n    scheduling = True\n\n"


def nodes(*listed: str) -> bytes:
    """One node of four slots, with a job on each of the first ones."""
    jobs = ",".join(f"{slot}/{job}" for slot, job in enumerate(listed))
    inner = f"<jobs>{jobs}</jobs>" if jobs else ""
    return f"<Data><Node><name>n1</name><state>free</state><np>4</np>{inner}</Node></Data>".encode()


def jobs(**states: str) -> bytes:
    """Jobs by number (``j7="R"``) and state; those that hold something are on the node."""
    found = ""
    for name, state in states.items():
        where = "<exec_host>n1/0</exec_host>" if state in "RES" else ""
        found += (
            f"<Job><Job_Id>{name[1:]}.head</Job_Id><Job_Owner>ann@head</Job_Owner><job_state>{state}</job_state>"
            f"<queue>batch</queue>{where}<Resource_List><nodes>1</nodes></Resource_List></Job>"
        )
    return f"<Data>{found}</Data>".encode()


class Answers(Commands):
    """The commands' outputs; those of ``pbsnodes`` one after the other, None: it fails."""

    def __init__(self, qstat: bytes, *pbsnodes: bytes | None) -> None:
        super().__init__({})
        self._qstat, self._pbsnodes = qstat, list(pbsnodes)

    async def run(self, argv: Sequence[str], timeout_s: float, *, keeps: int | None = None) -> Completed:
        if argv[0] == "pbsnodes":
            out = self._pbsnodes.pop(0)
            if out is None:
                raise CommandError("pbsnodes did not end", cure="try it by hand")
        else:
            out = {"-f": self._qstat, "-Q": QUEUES, "-B": SERVER}[argv[1]]
        return Completed(tuple(argv), 0, out, b"", 0.25)

    @property
    def n_left(self) -> int:
        return len(self._pbsnodes)


def look(commands: Commands) -> Look:
    return asyncio.run(Pbs(commands, lambda: 1000.0).look())


@pytest.mark.parametrize(
    "qstat", [jobs(j7="C"), jobs(j7="Q"), jobs(j8="Q")], ids=["ended", "put back", "forgotten"]
)
def test_nodes_older_than_the_jobs_are_asked_again(qstat: bytes) -> None:
    """Else the slots of a job that has ended are taken by nobody known, and nobody knows until when."""
    commands = Answers(qstat, nodes("7.head"), nodes())
    found = look(commands)
    assert found.snapshot.node_by_name[NodeName("n1")].slots_used == 0
    assert found.outputs["nodes"] == nodes()
    assert found.query_s == 0.5
    assert commands.n_left == 0


@pytest.mark.parametrize(("state", "listed"), [("R", 1), ("E", 1), ("S", 1), ("R", 0)])
def test_nodes_that_list_what_holds_them_or_are_newer_are_asked_once(state: str, listed: int) -> None:
    """A job that ended in between counts as running, with an end that is known."""
    commands = Answers(jobs(j7=state), nodes(*["7.head"] * listed), nodes())
    found = look(commands).snapshot
    assert found.node_by_name[NodeName("n1")].slots_used == listed
    assert found.job_by_id[JobId("7.head")].slots_by_node() == {"n1": 1}
    assert commands.n_left == 1


def test_what_stays_is_believed_and_asked_once_more_only() -> None:
    commands = Answers(jobs(j8="Q"), nodes("7.head"), nodes("7.head"), nodes())
    assert look(commands).snapshot.node_by_name[NodeName("n1")].slots_used == 1
    assert commands.n_left == 1


@pytest.mark.parametrize("second", [None, b"<Data><Node>"], ids=["no answer", "damaged"])
def test_without_a_second_answer_there_is_no_snapshot(second: bytes | None) -> None:
    with pytest.raises(SnapshotError):
        look(Answers(jobs(j7="C"), nodes("7.head"), second))


# Running commands: whole outputs or an error, limits in time and size, and nothing left behind.


def run(*argv: str, timeout_s: float = 100.0, max_bytes: int = 1 << 20) -> Completed:
    return asyncio.run(Commands(max_bytes=max_bytes).run(argv, timeout_s))


def test_both_outputs_and_the_exit_code() -> None:
    done = run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert done.last_line() == "err"
    killed = run("sh", "-c", "head -c 3000000 /dev/zero; kill -9 $$", max_bytes=1 << 22)
    assert (killed.exit_code, len(killed.stdout)) == (-9, 3_000_000)


def test_arguments_are_no_shell_text() -> None:
    assert run("printf", "%s", "$(id); `id` | 'x' \"y\"").stdout == b"$(id); `id` | 'x' \"y\""


def test_arguments_are_utf_8_whatever_the_locale_is() -> None:
    """Comments quote what the server printed, which has bytes of any language."""
    script = (
        "import asyncio\n"
        "from torque_sched.adapters.commands import Commands\n"
        "print(asyncio.run(Commands().run(('printf', '%s', 'gr\\xf6\\xdfe \\ufffd'), 10.0)).stdout)\n"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == repr("größe \ufffd".encode()), done.stderr


def test_too_long_kills_the_whole_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(CommandError, match="did not end within"):
        run("sh", "-c", f"echo $$ >{pids}; sleep 1000 & echo $! >>{pids}; wait", timeout_s=3.0)
    told = [int(pid) for pid in pids.read_text().split()]
    assert len(told) == 2
    until(lambda: not any(map(is_alive, told)))


def children() -> set[int]:
    """Our child processes, dead ones that nobody reaped included; other tests have some, too."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_that_keeps_the_pipe_counts_as_too_long() -> None:
    with pytest.raises(CommandError, match="did not end within"):
        run("sh", "-c", "echo half; sleep 60 &", timeout_s=0.5)


def test_too_much_output_is_no_output() -> None:
    with pytest.raises(CommandError, match="more than 1000 bytes"):
        run("head", "-c", "100000", "/dev/zero", max_bytes=1000)


def test_an_absent_program_says_what_to_do() -> None:
    with pytest.raises(CommandError, match="not on PATH") as caught:
        run("no-such-program-anywhere")
    assert caught.value.cure


def test_many_at_once_leave_no_descriptor_and_no_zombie() -> None:
    others = children()

    async def many() -> None:
        commands = Commands()
        await commands.run(("true",), 100.0)
        before = open_files()
        await asyncio.gather(*(commands.run(("sh", "-c", f"echo {n}"), 100.0) for n in range(40)))
        assert open_files() == before

    asyncio.run(many())
    assert children() <= others


def test_a_cancelled_call_ends_its_command() -> None:
    others = children()

    async def cancelled() -> None:
        commands = Commands()
        task = asyncio.ensure_future(commands.run(("sleep", "1000"), 1000.0))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not children() <= others:  # a killed process still has to get a processor to end on
            await commands.run(("true",), 100.0)  # reaps it

    asyncio.run(asyncio.wait_for(cancelled(), 240))


# The server's time counts where this host's clock is far from it, and silence is what does not advance.


@dataclass
class Host:
    """A host whose clock of day can be set; the server's time is `true_s`."""

    off_s: float = 0.0
    true_s: float = NOW_S

    def __post_init__(self) -> None:
        self.clock = ClusterClock(lambda: self.true_s + self.off_s, lambda: self.true_s - 7.0)

    def look(self, *reported_s: float, passes_s: float = 0.0) -> float:
        self.true_s += passes_s
        return self.clock.observe([_node(each) for each in reported_s], self.clock.moment())


def _node(rectime_s: float, state: str = "") -> Node:
    return node("n1", rectime_s=rectime_s, state=state)


@pytest.mark.parametrize("off_s", [600.0, -600.0, 86_400.0])
def test_a_clock_that_is_far_off_does_not_count(off_s: float) -> None:
    for little_s in (0.0, 250.0, -50.0):
        host = Host(little_s)
        host.look(NOW_S - 10)
        assert (host.clock(), host.clock.ahead_s) == (NOW_S + little_s, 0.0)
    host = Host(off_s)
    host.look(NOW_S - 10)
    assert host.clock() == NOW_S - 10
    assert host.clock.ahead_s == off_s + 10
    # A fresher report says better what the time is; an older one of another node says nothing.
    host.look(NOW_S + 28, NOW_S - 100, passes_s=30.0)
    assert host.clock() == NOW_S + 28
    host.look(NOW_S + 28, passes_s=45.0)
    assert host.clock() == NOW_S + 73


def test_a_step_of_either_clock_changes_nothing() -> None:
    host = Host()
    host.look(NOW_S - 10)
    host.off_s = 3600.0
    assert host.clock() == NOW_S - 10
    host.off_s = 0.0
    assert host.clock() == NOW_S
    # The server's is set back by an hour: what its nodes report from then on counts.
    host.look(NOW_S - 3600 + 40, passes_s=45.0)
    assert host.clock() == NOW_S - 3560
    host.look(NOW_S + 88, passes_s=45.0)
    assert (host.clock(), host.clock.ahead_s) == (NOW_S + 90, 0.0)


def test_silence_is_how_long_nothing_new_came() -> None:
    host = Host(600.0)
    assert host.look(NOW_S - 10) == 0.0
    assert host.look(NOW_S - 10, passes_s=200.0) == 200.0
    assert host.look(NOW_S - 10, passes_s=200.0) == 400.0
    # Time goes on meanwhile: the server's is not taken to stand still with its nodes.
    assert host.clock() == NOW_S + 390
    assert host.look(NOW_S + 395, passes_s=1.0) == 0.0


def test_nodes_that_are_down_say_nothing() -> None:
    host = Host()
    moment = host.clock.moment()
    assert host.clock.observe([_node(NOW_S - 9000, "down")], moment) == 0.0
    assert host.clock.observe([], moment) == 0.0
    assert host.clock() == NOW_S
