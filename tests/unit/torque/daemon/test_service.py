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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.torque.policies.builders import NOW_S, job, node, snapshot
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.log_file import LogFile
from torque_sched.adapters.pbs import Look
from torque_sched.core.decisions import NodeShare
from torque_sched.core.model import JobId, JobSlots, NodeName, Server
from torque_sched.core.snapshot import Snapshot
from torque_sched.daemon.back_off import Pauses, Steps
from torque_sched.daemon.brain import PolicyBrain
from torque_sched.daemon.c_policy import CFiles, SettingsInForce
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleReport
from torque_sched.daemon.event_port import Callers, EventPort, SchedCommand, bind_all, parse_callers
from torque_sched.daemon.packaging import init_script_changes
from torque_sched.daemon.service import Ending, Pace, Service
from torque_sched.daemon.standing import Standing
from torque_sched.errors import ConfigError, StartupError
from torque_sched.learning import History
from torque_sched.parse.qrun import RunKind, RunResult
from torque_sched.policies.context import PendingStart


def looked(began_s: float, ended_s: float, **known: object) -> CycleReport:
    return CycleReport(0.0, looked_monotonic_s=(began_s, ended_s), **known)  # type: ignore[arg-type]


def test_a_look_is_followed_by_a_rest_of_a_multiple_of_what_it_took() -> None:
    pace = Pace(settle_s=0.2, look_rest=2.4)
    assert pace.rest_s(looked(100.0, 110.0), 110.0) == pytest.approx(24.0)
    assert pace.rest_s(looked(100.0, 110.0), 120.0) == pytest.approx(14.0)
    assert pace.rest_s(looked(100.0, 110.0, n_comments_left=1), 134.0) == 0.2
    refused = {JobId("1"): RunResult(RunKind.NOT_NOW, "")}
    assert pace.rest_s(looked(100.0, 110.0, results=refused), 134.0) == 1.0


def test_reading_what_the_server_had_answered_costs_it_no_rest() -> None:
    nodes = Snapshot(0.0, Server(), (), (), ())
    report = looked(100.0, 110.0, look=Look(nodes, {}, read_s=8.0))
    assert Pace(settle_s=0.2, look_rest=2.4).rest_s(report, 110.0) == pytest.approx(4.8)


def test_a_small_cluster_is_looked_at_as_soon_as_before() -> None:
    assert Pace(settle_s=0.2).rest_s(looked(100.0, 100.05), 100.06) == 0.2
    assert Pace(settle_s=0.2, look_rest=0.0).rest_s(looked(100.0, 110.0), 110.0) == 0.2


def test_a_server_that_was_lost_or_gave_no_look_rests_too() -> None:
    pace = Pace(timer_s=30.0, retry_s=5.0)
    gone = RunResult(RunKind.SERVER_GONE, "gone")
    assert pace.rest_s(looked(100.0, 100.1, stopped_by=gone), 100.2) == 5.0
    assert pace.rest_after_failure_s(0.1) == 5.0
    assert pace.rest_after_failure_s(10.0) == 24.0
    assert pace.rest_after_failure_s(60.0) == 30.0


class SlowToShow:
    """A look takes 0.1 s, three events come with each, and the daemon ends after the second cycle."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, float]] = []
        self.service: Service | None = None

    async def run(self, *, dry: bool) -> CycleReport:
        assert self.service is not None
        began_s = time.monotonic()
        await asyncio.sleep(0.1)
        self.looks.append((began_s, time.monotonic()))
        for _ in range(3):
            self.service.heard(SchedCommand.NEW)
        if len(self.looks) > 1:
            self.service.heard(SchedCommand.QUIT)
        return looked(*self.looks[-1])

    async def write_comments(self, *, is_over: Callable[[], bool]) -> tuple[int, RunResult | None]:
        return 0, None


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def test_events_that_come_meanwhile_wait_and_become_one_cycle(tmp_path: Path, alarm: None) -> None:
    cycle = SlowToShow()
    causes: list[str] = []

    async def serve() -> None:
        service = Service(
            cycle,  # type: ignore[arg-type]
            None,
            LogFile(tmp_path / "logs", None, dialect=6, filter_mask=0),
            Commands({}),
            Pace(timer_s=3600.0, settle_s=0.0, look_rest=5.0),
            on_report=lambda report, cause: causes.append(cause),
        )
        cycle.service = service
        await service.run()

    asyncio.run(serve())
    (began_s, ended_s), (next_s, _) = cycle.looks
    assert causes == ["start", "new"]
    assert next_s - ended_s >= 5.0 * (ended_s - began_s) - 0.001


class Talkative:
    """Comments without an end; an event, or a signal, comes while they are written."""

    n_comments_owed = 1

    def __init__(self, calls_s: float, then: Callable[[Service], None]) -> None:
        self.calls_s, self.then = calls_s, then
        self.service: Service | None = None
        self.n_looks = 0
        self.written_before: list[int] = []
        self.n_written = 0

    async def run(self, *, dry: bool) -> CycleReport:
        self.n_looks += 1
        self.written_before.append(self.n_written)
        if self.n_looks > 2 and self.service is not None:
            self.service.heard(SchedCommand.QUIT)
        return looked(0.0, 0.0)

    async def write_comments(self, *, is_over: Callable[[], bool]) -> tuple[int, RunResult | None]:
        assert self.service is not None
        while self.n_looks and not is_over():
            await asyncio.sleep(self.calls_s)
            self.n_written += 1
            self.then(self.service)
        return self.n_written, None


def serving(cycle: Talkative, folder: Path) -> None:
    async def serve() -> None:
        log = LogFile(folder / "logs", None, dialect=6, filter_mask=0)
        service = Service(cycle, None, log, Commands({}), Pace(timer_s=3600.0, settle_s=0.0))  # type: ignore[arg-type]
        cycle.service = service
        await asyncio.wait_for(service.run(), 120.0)

    asyncio.run(serve())


def test_comments_are_written_between_looks_until_a_cycle_is_wanted(tmp_path: Path, alarm: None) -> None:
    cycle = Talkative(0.001, lambda service: service.heard(SchedCommand.NEW))
    serving(cycle, tmp_path)
    assert cycle.n_looks == 3
    assert cycle.written_before[0] == 0
    assert 0 < cycle.written_before[1] < cycle.written_before[2]


def test_a_signal_ends_a_comment_that_hangs(tmp_path: Path, alarm: None) -> None:
    def end(service: Service) -> None:
        cycle.calls_s = 3600.0
        os.kill(os.getpid(), signal.SIGTERM)

    cycle = Talkative(0.001, end)
    serving(cycle, tmp_path)
    assert (cycle.n_looks, cycle.n_written) == (1, 1)


class LongDecision:
    """Computes without end, as with thousands of jobs under load, and gets a signal in the middle."""

    n_comments_owed = 0

    def __init__(self) -> None:
        self.is_deciding = False
        self.went_on = False

    async def run(self, *, dry: bool) -> CycleReport:
        await asyncio.sleep(0)
        self.is_deciding = True
        os.kill(os.getpid(), signal.SIGTERM)
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            pass
        self.went_on = True
        return looked(0.0, 0.0)


def test_a_signal_ends_the_daemon_in_the_middle_of_a_decision(tmp_path: Path, alarm: None) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    log = LogFile(tmp_path / "logs", None, dialect=6, filter_mask=0)
    ended: list[bool] = []
    cycle = LongDecision()

    async def serve() -> Ending:
        service = Service(
            cycle,  # type: ignore[arg-type]
            None, log, Commands({}), Pace(timer_s=3600.0, settle_s=0.0), on_end=lambda: ended.append(True),
        )  # fmt: skip
        return await service.run()

    log.open()
    try:
        ending = asyncio.run(serve())
    finally:
        log.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    (file,) = (tmp_path / "logs").iterdir()
    assert (ending, ended, cycle.went_on) == (Ending(1, "caught signal 15"), [True], False)
    assert file.read_text(encoding="utf-8").count("caught signal 15") == 1


# How a Debian machine finds the daemon: pidof, start-stop-daemon, and what they cannot do.


SCRIPT = """#!{python}
import sys
sys.path[:0] = {path!r}
from torque_sched.daemon.process_name import be_called
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
    with subprocess.Popen(
        [script, "-d", "/home of pbs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == b"ready\n"
        yield script, made.pid
        made.kill()


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} on this machine")


def test_ps_shows_the_command_line_of_the_c_daemon(daemon: tuple[Path, int]) -> None:
    script, pid = daemon
    shown = (Path("/proc") / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert shown == [str(script).encode(), b"-d", b"/home of pbs"]


def test_pidof_finds_it(daemon: tuple[Path, int]) -> None:
    needs("pidof")
    found = subprocess.run(["pidof", "pbs_sched"], capture_output=True, text=True, check=False)
    assert str(daemon[1]) in found.stdout.split()


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


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 5.0), (2, 10.0), (3, 20.0), (4, 30.0), (1000, 30.0)])
def test_pauses_double_up_to_the_longest(failures, pause_s):
    assert Steps(5.0, 30.0).pause_s(failures) == pause_s


def test_a_failure_soon_after_a_pause_takes_the_next_step_and_a_late_one_the_first():
    pauses = Pauses(Steps(5.0, 30.0))
    assert pauses.failed("n1", 100.0, "down") == 5.0
    assert pauses.failed("n1", 103.0, "down still") == 2.0
    assert pauses.failed("n1", 109.0, "down again") == 10.0
    assert pauses.failed("n1", 129.0, "down once more") == 5.0


# What the brain tells a decision beside the snapshot.


def test_starts_by_others_that_only_a_node_shows_count_like_our_own() -> None:
    ours, theirs = job(1), job(2, "1:ppn=2")
    host = replace(node("n1"), jobs=(JobSlots(theirs.id, 0, 1),))
    standing = Standing()
    standing.asked(ours.id, (NodeShare(NodeName("n1"), 1),), NOW_S - 1)
    history = History.open(None)
    try:
        brain = PolicyBrain(SettingsInForce(Config(), CFiles()), history)
        pending = brain.context(snapshot([host], [ours, theirs]), standing).pending
    finally:
        history.close()
    assert pending == (
        PendingStart(ours.id, (NodeShare(NodeName("n1"), 1),), NOW_S - 1),
        PendingStart(theirs.id, (NodeShare(NodeName("n1"), 2),), NOW_S),
    )
