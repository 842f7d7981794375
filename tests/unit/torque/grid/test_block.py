"""The script of a block with a real barrier: it waits, runs with all hosts, or is turned away."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from tests.fixtures.ports import held_port
from tests.fixtures.waiting import until
from tests.unit.torque.grid.linked import config_of, links_of
from torque_sched.adapters.waiting import cancelled, within
from torque_sched.errors import StartupError, TorqueSchedError
from torque_sched.grid.handshake.blocks import SITE_WIRE
from torque_sched.grid.handshake.guest import RunBlock
from torque_sched.grid.handshake.messages import Claim, Confirm, Piece, SiteId, Token
from torque_sched.grid.site.authentication import client_context
from torque_sched.grid.site.blocks import (
    NO_DIRECTIVES,
    AtBarrier,
    Barrier,
    BarrierAnswer,
    BlockScript,
    HostedBlock,
    block_script,
    encoded,
    start_of,
)
from torque_sched.grid.site.config import SiteConfig
from torque_sched.grid.site.messages import Engine, EngineAnswer
from torque_sched.grid.site.peers import LinkError
from torque_sched.grid.site.reporting import Audit
from torque_sched.grid.site.service import FORCED, ProcessEnding, SiteService
from torque_sched.grid.site.site_files import SitePlaces, SiteStore

BODY = """#!/bin/sh
#PBS -l walltime=99:00:00
echo "$TORQUE_GRID_INDEX/$TORQUE_GRID_COUNT at $TORQUE_GRID_SITE of $TORQUE_GRID_SITES: $TORQUE_GRID_HOSTS"
cat "$TORQUE_GRID_HOSTFILE"
exit 5
"""
TICKET = "ab" * 16


def text_of(port: int, body: str, wait_s: float = 20.0) -> str:
    block = BlockScript(
        ticket=TICKET, url=f"http://127.0.0.1:{port}/barrier", home="alpha", job="1.alpha", site="beta",
        index=1, count=2, script=encoded(body), wait_s=wait_s,
    )  # fmt: skip
    return block_script(block, "python3")


async def play(text: str, tmp_path: Path) -> tuple[int, str, str]:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    (tmp_path / "job.sh").write_text(text)
    env = {"PATH": os.environ["PATH"], "PBS_NODEFILE": f"{tmp_path}/nodes", "PBS_JOBID": "7.beta",
           "TMPDIR": str(tmp_path)}  # fmt: skip
    argv = ["/bin/sh", str(tmp_path / "job.sh")]
    done = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@asynccontextmanager
async def barrier(answer: Callable[[AtBarrier], BarrierAnswer]) -> AsyncIterator[Barrier]:
    made = Barrier(answer)
    await made.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.stop()


async def story(
    tmp_path: Path, *answers: BarrierAnswer, body: str = BODY
) -> tuple[int, str, str, list[AtBarrier]]:
    stood: list[AtBarrier] = []

    def answer(arrived: AtBarrier) -> BarrierAnswer:
        stood.append(arrived)
        return answers[min(len(stood), len(answers)) - 1]

    async with barrier(answer) as there:
        return (*await play(text_of(there.port, body), tmp_path), stood)


async def test_it_waits_then_runs_and_knows_all(tmp_path: Path) -> None:
    go = BarrierAnswer(say="go", sites=("alpha", "beta"), hosts=(("m1",), ("n1", "n2")))
    code, out, errors, stood = await story(tmp_path, BarrierAnswer(say="wait"), go)
    assert (code, errors) == (5, "")
    assert out == "1/2 at beta of alpha beta: m1 n1,n2\n0 alpha m1\n1 beta n1\n1 beta n2\n"
    assert [(each.job, each.hosts) for each in stood] == 2 * [("7.beta", ("n1", "n2"))]
    assert not list(tmp_path.glob("torque-grid.*"))  # noqa: ASYNC240 -- nothing is left behind


async def test_a_cancelled_start_runs_nothing(tmp_path: Path) -> None:
    code, out, errors, _ = await story(tmp_path, BarrierAnswer(say="cancel", why="the other failed"))
    assert (code, out) == (75, "")
    assert "the other failed" in errors


async def test_hosts_from_elsewhere_are_no_commands(tmp_path: Path) -> None:
    go = BarrierAnswer(say="go", sites=("$(id)", "b"), hosts=(("`id`",), ("'; id; '",)))
    code, out, _, _ = await story(tmp_path, go, body='echo "$TORQUE_GRID_SITES $TORQUE_GRID_HOSTS"\n')
    assert (code, out) == (0, "$(id) b `id` '; id; '\n")


async def test_nobody_at_the_barrier(tmp_path: Path) -> None:
    assert (await play(text_of(1, BODY, wait_s=0.5), tmp_path))[0] == 76


def test_the_ticket_stands_in_the_script_alone_and_directives_do_not_count(tmp_path: Path) -> None:
    text = text_of(1, BODY)
    assert text.count(TICKET) == 1
    assert "#PBS" not in text  # the user's script travels encoded
    assert NO_DIRECTIVES not in text


async def test_the_barrier_answers_nothing_else(tmp_path: Path) -> None:
    import aiohttp

    def wait(arrived: AtBarrier) -> BarrierAnswer:
        return BarrierAnswer(say="wait")

    async with barrier(wait) as there, aiohttp.ClientSession(f"http://127.0.0.1:{there.port}") as session:
        with pytest.raises(StartupError, match=r"barrier\.port"):
            await Barrier(wait).start("127.0.0.1", there.port)
        wrong = (("/", b"{}", 404), ("/barrier", b"{}", 400), ("/barrier", b"x" * (2 << 20), 404))
        for path, body, status in wrong:
            async with session.post(path, data=io.BytesIO(body)) as answer:
                assert answer.status == status


def test_the_audit_file_is_bounded_and_private(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit", file_bytes=300, n_files=3)
    for number in range(40):
        audit.write("alpha", "10.0.0.1", "engine", "answered", number=number)
    audit.close()
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["audit", "audit.1", "audit.2"]
    assert all(path.stat().st_size < 500 for path in files)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_the_store_keeps_what_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "site.sqlite"
    store = SiteStore(path)
    store.set_fact("guest", {"a": [1, None]})
    store.set_block("a/1/1", {"x": 1})
    store.set_job("1.head", {"y": 2})
    store.set_job("2.head", {"y": 3})
    store.set_job("2.head", None)
    again = SiteStore(path)  # while the first one never said good-bye
    assert (again.fact("guest"), again.fact("none")) == ({"a": [1, None]}, None)
    assert (again.blocks(), again.jobs()) == ({"a/1/1": {"x": 1}}, {"1.head": {"y": 2}})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for each in (store, again):
        each.close()
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StartupError, match="cannot be used"):
        SiteStore(path)


async def test_a_block_that_is_killed_before_its_reserved_start_does_not_wait_for_it() -> None:
    block = HostedBlock(ticket="", user="x")
    order = RunBlock(Token(SiteId("beta"), "1", 1), 0, 1, "x", "grid", time.time() + 3600.0, 60, "")
    waiting = asyncio.create_task(start_of(order, block))
    await asyncio.sleep(0.01)
    block.is_killed, block.why = True, "its owner deleted it"
    with pytest.raises(TorqueSchedError, match="its owner deleted it"):
        await asyncio.wait_for(waiting, 30)


# A site that is told to end does so, whatever it waits for; and no cancellation is lost.


LIMIT_S = 300.0
"""For a process that should end within three seconds, on a loaded machine."""


# ---- cancellations


async def cancelled_after(work: Coroutine[Any, Any, Any], woken: asyncio.Event, turns: int) -> bool:
    """Whether it ends when it is cancelled so many turns of the loop after it was woken."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0.05)
    woken.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    was_over = task.done()
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled() is not was_over


@pytest.mark.parametrize("turns", range(6))
async def test_a_loop_of_the_site_ends_also_when_it_is_woken_in_the_same_moment(
    tmp_path: Path, turns: int
) -> None:
    config = config_of(tmp_path, "alpha", 0, {})
    service = SiteService(config, SitePlaces.of(tmp_path, config), ProcessEnding(1.0))
    wake = asyncio.Event()
    service.own_jobs = cast(Any, SimpleNamespace(wake=wake, tick=lambda: None))
    assert await cancelled_after(service._tick_jobs(), wake, turns)


@pytest.mark.parametrize("turns", range(6))
async def test_a_time_limit_never_loses_a_cancellation(turns: int) -> None:
    event = asyncio.Event()
    assert await cancelled_after(within(60.0, event.wait()), event, turns)


async def test_a_time_limit() -> None:
    ended: list[str] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append("work")
        return "done"

    async def failing() -> None:
        raise ValueError("of its own")

    assert await within(60.0, work(0.0)) == "done"
    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, work(60.0))
    with pytest.raises(ValueError, match="of its own"):
        await within(60.0, failing())
    waiting = asyncio.create_task(within(60.0, work(60.0)))
    await asyncio.sleep(0.01)
    await cancelled(waiting)
    assert ended == ["work"] * 3  # nothing of it goes on behind our back


async def test_a_task_that_drops_a_cancellation_is_cancelled_again() -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancelled(task)
    assert task.done()


# ---- signals

PROGRAM = """
import asyncio, sys, threading, time
from torque_sched.grid.site import service as its_module
from torque_sched.grid.site.service import ProcessEnding
its_module._TRACE_S = 60.0  # on a busy machine, too, it is told in full where it was
async def main(ending, how):
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    ending.asks(lambda: loop.call_soon_threadsafe(stop.set))
    ending.last = lambda: print("last", flush=True)
    print("ready", flush=True)
    if how == "blocked loop":
        time.sleep(600)
    if how == "silent name server":
        loop.run_in_executor(None, time.sleep, 600)
    await stop.wait()
    if how in {"by itself", "told"}:
        print("asked", flush=True)
    if how in {"slow", "told"}:
        await asyncio.sleep(600)
with ProcessEnding(float(sys.argv[2])) as ending:
    asyncio.run(main(ending, sys.argv[1]))
print("end", flush=True)
"""


@contextmanager
def program(*words: str) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *words], **pipes) as child:  # type: ignore[call-overload]
        try:
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_can_ends_by_itself(number: signal.Signals) -> None:
    with program("by itself", "600") as child:
        child.send_signal(number)
        out, err = child.communicate(timeout=LIMIT_S)
    assert (child.returncode, out, err) == (0, "asked\nend\n", "")


@pytest.mark.parametrize("how", ["blocked loop", "silent name server", "slow"])
def test_what_hangs_is_ended_and_says_where_it_was(how: str) -> None:
    with program(how, "0.3") as child:
        child.terminate()
        out, err = child.communicate(timeout=LIMIT_S)
    assert (child.returncode, out) == (FORCED, "last\n")
    assert "ended at once" in err
    assert 'File "<string>", line' in err


def test_a_second_signal_ends_it_at_once() -> None:
    with program("told", "600") as child:
        child.terminate()
        assert child.stdout is not None
        assert child.stdout.readline() == "asked\n"  # two that come together may be one
        child.terminate()
        child.communicate(timeout=LIMIT_S)
    assert child.returncode == FORCED


# ---- the whole process


def listener(stack: ExitStack) -> socket.socket:
    """Somebody who takes connections and never says anything."""
    silent = stack.enter_context(socket.socket())
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    return silent


def settings(folder: Path, peer: socket.socket, stack: ExitStack) -> tuple[Path, SiteConfig]:
    """Of a site whose Torque hangs, whose peer is silent, and whose patience is endless."""
    commands = folder / "bin"
    commands.mkdir()
    for name in ("qstat", "pbsnodes"):
        (commands / name).write_text("#!/bin/sh\nexec sleep 600\n")
        (commands / name).chmod(0o755)
    config = config_of(
        folder, "alpha", held_port(stack), {"beta": peer.getsockname()[1]}, timeout_s=600.0,
        commands=str(commands), barrier={"port": held_port(stack)}, metrics_port=held_port(stack),
        gossip={"period_s": 0.1},
    )  # fmt: skip
    for name in ("server_priv", "sched_priv"):
        (folder / name).mkdir()
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return path, config


PATIENT = """
import runpy
from torque_sched.grid.site import service
service._GRACE_S = 600.0  # nobody ends it, so it has to end by itself
runpy.run_module("torque_sched", run_name="__main__")
"""


@contextmanager
def served(folder: Path, path: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", PATIENT, "site", "-d", str(folder), "--config", str(path), "serve"]
    with log.open("wb") as file, subprocess.Popen(argv, stdout=file, stderr=file) as child:
        try:
            yield child
        finally:
            child.kill()


def half_a_request(stack: ExitStack, config: SiteConfig, peer: SiteConfig) -> None:
    """A peer that proves who it is, announces a body and does not send it; the same at the barrier."""
    context = client_context(peer, peer.peer_by_name["alpha"])
    plain = stack.enter_context(socket.create_connection(("127.0.0.1", config.port)))
    door = stack.enter_context(context.wrap_socket(plain))
    door.sendall(b"POST /v1/gossip HTTP/1.1\r\nHost: a\r\nX-Site-From: beta\r\nContent-Length: 99\r\n\r\n{")
    gate = stack.enter_context(socket.create_connection(("127.0.0.1", config.barrier.port)))
    gate.sendall(b"POST /barrier HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
    stack.enter_context(socket.create_connection(("127.0.0.1", config.port)))  # never says hello
    stack.enter_context(socket.create_connection(("127.0.0.1", config.metrics_port)))


async def test_a_site_ends_whatever_it_waits_for(tmp_path: Path) -> None:
    """Torque's commands hang, a peer is silent, others send half a request, and the cycle's lock is taken."""
    log = tmp_path / "log"
    with ExitStack() as stack:
        peer = listener(stack)
        path, config = settings(tmp_path, peer, stack)
        site = stack.enter_context(served(tmp_path, path, log))
        until(lambda: "listens on" in log.read_text(), "it listens", logs=[log])
        beta = config_of(tmp_path, "beta", 0, {"alpha": config.port}, timeout_s=600.0)
        lock = stack.enter_context((tmp_path / "sched_priv" / "cycle.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        half_a_request(stack, config, beta)

        token, claim = Token(SiteId("beta"), "1", 1), Claim((Piece("", 1),), time.time(), 60.0)
        confirm = Confirm(token, SiteId("alpha"), time.time(), claim, user="x")
        async with links_of(beta) as links:
            asked = Engine(message=SITE_WIRE.plain(confirm))
            asking = asyncio.create_task(links.ask("alpha", asked, EngineAnswer))
            await asyncio.sleep(1.0)  # all of it is under way
            assert not asking.done()
            site.terminate()
            with pytest.raises(LinkError):
                await asking
        assert site.wait(LIMIT_S) == 0, log.read_text()
    assert log.read_text().rstrip().endswith("asked to end")
