"""One daemon: when it looks and rests, its name among processes, its event port, its pauses."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fixtures.torque_builders import NOW_S, job, node, snapshot
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.log_file import LogFile
from torque_sched.batch.system import Look, OrderKind, OrderResult
from torque_sched.batch.torque.event_port import Callers, EventPort, SchedCommand, bind_all, parse_callers
from torque_sched.daemon.c_policy import CFiles, SettingsInForce
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleReport
from torque_sched.daemon.decision_engine import DecisionEngine
from torque_sched.daemon.failures import Pauses, Steps
from torque_sched.daemon.packaging import init_script_changes
from torque_sched.daemon.pending_orders import PendingOrders
from torque_sched.daemon.service import Ending, Pace, Service
from torque_sched.decide.context import PendingStart
from torque_sched.errors import ConfigError, StartupError
from torque_sched.learn import History
from torque_sched.model.cluster import JobId, JobSlots, NodeName, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Snapshot


def looked(began_s: float, ended_s: float, **known: object) -> CycleReport:
    return CycleReport(0.0, looked_monotonic_s=(began_s, ended_s), **known)  # type: ignore[arg-type]


NOT_NOW, GONE = OrderResult(OrderKind.NOT_NOW, ""), OrderResult(OrderKind.SERVER_GONE, "gone")
SHOWN = Look(Snapshot(0.0, Server(), (), (), ()), {}, read_s=8.0)


@pytest.mark.parametrize(
    ("report", "now_s", "look_rest", "rest_s"),
    [
        (looked(100.0, 110.0), 110.0, 2.4, 24.0),
        (looked(100.0, 110.0), 120.0, 2.4, 14.0),
        (looked(100.0, 110.0, n_comments_left=1), 134.0, 2.4, 0.2),
        (looked(100.0, 110.0, results={JobId("1"): NOT_NOW}), 134.0, 2.4, 1.0),
        (looked(100.0, 110.0, look=SHOWN), 110.0, 2.4, 4.8),  # It read for 8 s what the server had answered.
        (looked(100.0, 100.05), 100.06, 2.4, 0.2),
        (looked(100.0, 110.0), 110.0, 0.0, 0.2),
        (looked(100.0, 100.1, stopped_by=GONE), 100.2, 2.4, 5.0),
    ],
    ids=["multiple", "partly over", "comments left", "start refused", "reading", "small", "no rest", "gone"],
)
def test_a_look_is_followed_by_a_rest_of_a_multiple_of_what_it_cost_the_server(
    report: CycleReport, now_s: float, look_rest: float, rest_s: float
) -> None:
    pace = Pace(timer_s=30.0, retry_s=5.0, settle_s=0.2, look_rest=look_rest)
    assert pace.rest_s(report, now_s) == pytest.approx(rest_s)


def test_a_server_that_gave_no_look_rests_too() -> None:
    pace = Pace(timer_s=30.0, retry_s=5.0)
    assert [pace.rest_after_failure_s(took_s) for took_s in (0.1, 10.0, 60.0)] == [5.0, 24.0, 30.0]


@dataclass
class Played:
    """Cycles that do what the test says, and comments without an end where some are owed."""

    look: Callable[[Played], Awaitable[CycleReport]]
    comment: Callable[[Played], object] | None = None
    call_s: float = 0.001
    """How long a call for a comment takes."""
    looks: list[tuple[float, float]] = field(default_factory=list)
    written_before: list[int] = field(default_factory=list)
    n_written: int = 0
    counts: list[int | None] = field(default_factory=list)
    """The server's answers to how many jobs hold nodes; with none comes an event."""
    n_asked: int = 0
    causes: list[str] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    @property
    def n_comments_owed(self) -> int:
        return self.comment is not None

    async def run(self, *, dry: bool, is_wanted: Callable[[], bool]) -> CycleReport:
        self.written_before.append(self.n_written)
        return await self.look(self)

    async def n_holding(self) -> int | None:
        self.n_asked += 1
        count = self.counts.pop(0)
        if count is None:
            self.service.wake("new")
        return count

    async def write_comments(self, *, is_over: Callable[[], bool]) -> tuple[int, OrderResult | None]:
        while self.comment and self.written_before and not is_over():
            await asyncio.sleep(self.call_s)
            self.n_written += 1
            self.comment(self)
        return self.n_written, None

    def serve(self, folder: Path, look_rest: float = 0.0) -> Ending:
        """A service to its end; the signals' handlers are as before after it."""
        log = LogFile(folder / "logs", None, dialect=6, filter_mask=0)

        async def serve() -> Ending:
            self.service = Service(
                *(self, None, log, Commands({}), Pace(timer_s=3600.0, settle_s=0.0, look_rest=look_rest)),  # type: ignore[arg-type]
                on_report=lambda report, cause: self.causes.append(cause),
                on_end=lambda: self.ended.append(True),
            )
            return await asyncio.wait_for(self.service.run(), 120.0)

        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
        before = {number: signal.getsignal(number) for number in signals}
        log.open()
        try:
            return asyncio.run(serve())
        finally:
            log.close()
            for number, handler in before.items():
                signal.signal(number, handler)


def test_events_that_come_meanwhile_wait_and_become_one_cycle(tmp_path: Path) -> None:
    async def look(played: Played) -> CycleReport:
        """It takes 0.1 s, three events come with it, and the daemon ends after the second."""
        began_s = time.monotonic()
        await asyncio.sleep(0.1)
        played.looks.append((began_s, time.monotonic()))
        for _ in range(3):
            played.service.wake("new")
        if len(played.looks) > 1:
            played.service.quit()
        return looked(*played.looks[-1])

    played = Played(look)
    played.serve(tmp_path, look_rest=5.0)
    (began_s, ended_s), (next_s, _) = played.looks
    assert played.causes == ["start", "new"]
    assert next_s - ended_s >= 5.0 * (ended_s - began_s) - 0.001


def shows(*, queued: int, running: int, started: int = 0) -> CycleReport:
    """A look at a server that counts its jobs, of a cycle that started some."""
    counts = Server(state_count={"Queued": queued, "Running": running - 1, "Exiting": 1, "Complete": 7})
    seen = replace(snapshot([node("n1")], [job(number) for number in range(queued)]), server=counts)
    starts = {JobId(f"{number}.head"): 0.0 for number in range(started)}
    return looked(0.0, 0.0, look=Look(seen, {}), started_s=starts)


@pytest.mark.parametrize(
    ("report", "counts", "causes", "n_asked"),
    [
        (shows(queued=5, running=8, started=2), [9, 10, 10, 9], ["start", "ended"], 1),
        (shows(queued=5, running=8, started=2), [10, 11, 10], ["start", "ended"], 3),
        (shows(queued=5, running=8, started=2), [10, None], ["start", "new"], 2),
        (shows(queued=0, running=8, started=2), [], ["start", "new"], 0),
        (shows(queued=5, running=8), [], ["start", "new"], 0),
    ],
    ids=["one ended", "one ended later", "no answer", "nobody waits", "nothing started"],
)
def test_where_fewer_jobs_hold_nodes_a_cycle_runs_before_the_server_tells(
    tmp_path: Path, report: CycleReport, counts: list[int | None], causes: list[str], n_asked: int
) -> None:
    async def look(played: Played) -> CycleReport:
        if len(played.written_before) > 1:
            played.service.quit()
        elif not n_asked:
            asyncio.get_running_loop().call_later(0.2, played.service.wake, "new")
        return report

    played = Played(look, counts=counts)
    played.serve(tmp_path)
    assert (played.causes, played.n_asked) == (causes, n_asked)


async def three_looks(played: Played) -> CycleReport:
    if len(played.written_before) > 2:
        played.service.quit()
    return looked(0.0, 0.0)


def test_comments_are_written_between_looks_until_a_cycle_is_wanted(tmp_path: Path) -> None:
    played = Played(three_looks, lambda played: played.service.wake("new"))
    played.serve(tmp_path)
    first, second, third = played.written_before
    assert 0 == first < second < third
    (file,) = (tmp_path / "logs").iterdir()
    log = file.read_text(encoding="utf-8")
    assert "jobs commented between two looks" in log
    assert ";0 jobs commented" not in log


def test_a_signal_ends_a_comment_that_hangs(tmp_path: Path) -> None:
    def end(played: Played) -> None:
        played.call_s = 3600.0
        os.kill(os.getpid(), signal.SIGTERM)

    played = Played(three_looks, end)
    played.serve(tmp_path)
    assert (len(played.written_before), played.n_written) == (1, 1)


def test_a_signal_ends_the_daemon_in_the_middle_of_a_decision(tmp_path: Path) -> None:
    went_on = []

    async def look(played: Played) -> CycleReport:
        """Computes without end, as with thousands of jobs under load, and gets a signal in the middle."""
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            pass
        went_on.append(True)
        return looked(0.0, 0.0)

    played = Played(look)
    assert played.serve(tmp_path) == Ending(1, "caught signal 15")
    (file,) = (tmp_path / "logs").iterdir()
    assert (played.ended, went_on) == ([True], [])
    assert file.read_text(encoding="utf-8").count("caught signal 15") == 1


# How a Debian machine finds the daemon: pidof, start-stop-daemon, and what they cannot do.


SCRIPT = """#!{python}
import sys
sys.path[:0] = {path!r}
from torque_sched.daemon.process import be_called
be_called(sys.argv[0], sys.argv[1:])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A script called pbs_sched that has taken its name, and its process."""
    script = tmp_path / "pbs_sched"
    script.write_text(SCRIPT.format(python=sys.executable, path=sys.path), encoding="utf-8")
    script.chmod(0o755)
    pipe = subprocess.PIPE
    with subprocess.Popen([script, "-d", "/home of pbs"], stdin=pipe, stdout=pipe) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"ready\n"
        yield script, made.pid
        made.kill()


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} on this machine")


def test_ps_shows_the_command_line_of_the_c_daemon_and_pidof_finds_it(daemon: tuple[Path, int]) -> None:
    script, pid = daemon
    shown = (Path("/proc") / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert shown == [str(script).encode(), b"-d", b"/home of pbs"]
    needs("pidof")
    found = subprocess.run(["pidof", "pbs_sched"], capture_output=True, text=True, check=False)
    assert str(pid) in found.stdout.split()


def test_start_stop_daemon_finds_it_by_name_and_not_by_the_file(
    daemon: tuple[Path, int], tmp_path: Path
) -> None:
    """Why an init script with ``--exec`` has to be changed."""
    needs("start-stop-daemon")
    script, pid = daemon
    lock = tmp_path / "sched.lock"
    lock.write_text(f"{pid}\n\0")
    lock.chmod(0o644)

    def finds(*words: str) -> bool:
        argv = ["start-stop-daemon", "--stop", "--test", "--quiet", "--pidfile", str(lock), *words]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    assert finds("--name", "pbs_sched")
    assert not finds("--exec", str(script))
    begin = ["start-stop-daemon", "--start", "--test", "--name", "pbs_sched", "--startas", str(script)]
    assert subprocess.run(begin, capture_output=True, check=False).returncode == 1  # it runs already


def test_the_lines_of_an_init_script_that_cannot_find_it_are_named(tmp_path: Path) -> None:
    script = tmp_path / "pbs_sched"
    assert init_script_changes(script) == []
    script.write_text(
        "# start-stop-daemon --exec nothing\n"
        "start-stop-daemon --start --pidfile $PIDFILE --exec $DAEMON --test || return 1\n"
        "start-stop-daemon --stop --pidfile $PIDFILE --name $NAME\n"
        "start-stop-daemon -K -x /usr/sbin/pbs_sched\n"
    )
    wanted = "line {}: write `--name pbs_sched --startas {}` in the place of `{}`"
    assert init_script_changes(script) == [
        f"{script}, " + wanted.format(2, "$DAEMON", "--exec $DAEMON"),
        f"{script}, " + wanted.format(4, "/usr/sbin/pbs_sched", "-x /usr/sbin/pbs_sched"),
    ]


# Who may knock, and what a knock means.


OWN = frozenset({"10.0.0.1"})


@pytest.mark.parametrize(
    ("address", "port", "words"),
    [
        ("127.0.0.1", 618, ""),
        ("10.0.0.1", 1023, ""),
        ("10.0.0.2", 700, ""),
        ("10.0.0.3", 700, "10.0.0.3 unauthorized host"),
        ("127.0.0.1", 1024, "127.0.0.1 on port 1024 non-reserved port"),
        ("10.0.0.2", 40000, "10.0.0.2 on port 40000 non-reserved port"),
        ("10.9.0.7", 40000, ""),
    ],
)
def test_callers_as_the_c_daemon_takes_them(address: str, port: int, words: str) -> None:
    callers = Callers(frozenset({"10.0.0.2"}), ("10.9.*",))
    assert callers.refusal(address, port, OWN) == words


def test_the_file_of_callers() -> None:
    assert parse_callers("# x\n$clienthost 127.0.0.1\n$restricted *.site\n", "f") == Callers(
        frozenset({"127.0.0.1"}), ("*.site",)
    )
    with pytest.raises(ConfigError, match="f, line 1"):
        parse_callers("$logevent 3\n", "f")


def test_which_commands_ask_for_a_cycle() -> None:
    assert {each.value for each in SchedCommand if each.asks_for_cycle} == {1, 2, 3, 5, 10}


def test_four_bytes_are_heard_and_anything_else_is_not() -> None:
    heard: list[SchedCommand] = []

    async def play() -> None:
        [listener] = bind_all(["127.0.0.1"], 0)
        address = listener.getsockname()
        port = EventPort([listener], Callers(restricted=("127.0.0.1",)), heard.append)
        await port.start()
        for data in (b"\0\0\0\x01", b"\0\0\0\x0a", b"\0\0", b"", b"\0\0\0\x63", b"\0\0\0\0rest"):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == b""  # closed, nothing said
            writer.close()
        await port.stop()

    asyncio.run(play())
    assert heard == [SchedCommand.NEW, SchedCommand.FIRST, SchedCommand.NULL]


def test_a_taken_port_is_said_in_the_c_daemons_words() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(StartupError, match="bind: Address already in use"):
            bind_all(["127.0.0.1"], holder.getsockname()[1])


# Pauses after failures.


def test_pauses_double_up_to_the_longest_in_a_row_of_failures_and_begin_anew_after_a_late_one() -> None:
    assert [Steps(5.0, 30.0).pause_s(failures) for failures in (1, 2, 3, 4, 1000)] == [5, 10, 20, 30, 30]
    pauses: Pauses[str] = Pauses(Steps(5.0, 30.0))
    failed_s = (100.0, 103.0, 109.0, 129.0)
    assert [pauses.failed("n1", at_s, "down") for at_s in failed_s] == [5.0, 2.0, 10.0, 5.0]


# What the engine tells a decision beside the snapshot.


def test_starts_by_others_that_only_a_node_shows_count_like_our_own() -> None:
    ours, theirs = job(1), job(2, "1:ppn=2")
    host = replace(node("n1"), jobs=(JobSlots(theirs.id, 0, 1),))
    orders = PendingOrders()
    orders.asked(ours.id, (NodeShare(NodeName("n1"), 1),), NOW_S - 1)
    history = History.open(None)
    try:
        engine = DecisionEngine(SettingsInForce(Config(), CFiles()).at, history)
        pending = engine.context(snapshot([host], [ours, theirs]), orders).pending
    finally:
        history.close()
    assert pending == (
        PendingStart(ours.id, (NodeShare(NodeName("n1"), 1),), NOW_S - 1),
        PendingStart(theirs.id, (NodeShare(NodeName("n1"), 2),), NOW_S),
    )
