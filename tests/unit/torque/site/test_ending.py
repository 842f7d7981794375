"""A site that is told to end does so, whatever it waits for; and no cancellation is lost."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from tests.unit.torque.ports import held_port
from tests.unit.torque.site.linked import config_of, links_of, run
from torque_sched.adapters.waiting import cancelled, within
from torque_sched.core.handshake import Claim, Confirm, Piece, SiteId, Token
from torque_sched.core.site import SITE_WIRE
from torque_sched.site.config import SiteConfig
from torque_sched.site.ending import FORCED, Ending
from torque_sched.site.links import LinkError
from torque_sched.site.messages import Engine, EngineAnswer
from torque_sched.site.places import SitePlaces
from torque_sched.site.service import Service
from torque_sched.site.tls import client_context

LIMIT_S = 100.0
"""For a process that should end within three seconds, on a loaded machine."""


# ---- cancellations


@pytest.mark.parametrize("turns", range(6))
def test_a_loop_of_the_site_ends_also_when_it_is_woken_in_the_same_moment(tmp_path: Path, turns: int) -> None:
    config = config_of(tmp_path, "alpha", 0, {})
    service = Service(config, SitePlaces.of(tmp_path, config), Ending(1.0))
    wake = asyncio.Event()
    service.own_jobs = cast(Any, SimpleNamespace(wake=wake, tick=lambda: None))

    async def story() -> None:
        task = asyncio.create_task(service._tick_jobs())
        await asyncio.sleep(0.05)
        wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=60)
        assert not pending
        assert task.cancelled()

    run(story)


@pytest.mark.parametrize("turns", range(6))
def test_a_time_limit_never_loses_a_cancellation(turns: int) -> None:
    async def story() -> None:
        event = asyncio.Event()
        task = asyncio.create_task(within(60.0, event.wait()))
        await asyncio.sleep(0.01)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        was_over = task.done()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() is not was_over

    run(story)


def test_a_time_limit() -> None:
    ended: list[str] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append("work")
        return "done"

    async def failing() -> None:
        raise ValueError("of its own")

    async def story() -> None:
        assert await within(60.0, work(0.0)) == "done"
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, work(60.0))
        with pytest.raises(ValueError, match="of its own"):
            await within(60.0, failing())
        waiting = asyncio.create_task(within(60.0, work(60.0)))
        await asyncio.sleep(0.01)
        await cancelled(waiting)
        assert ended == ["work"] * 3  # nothing of it goes on behind our back

    run(story)


def test_a_task_that_drops_a_cancellation_is_cancelled_again() -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    async def story() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await cancelled(task)
        assert task.done()

    run(story)


# ---- signals

PROGRAM = """
import asyncio, sys, threading, time
from torque_sched.site import ending as its_module
from torque_sched.site.ending import Ending
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
with Ending(float(sys.argv[2])) as ending:
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
from torque_sched.site import service
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


def until(probe: Callable[[], bool], log: Path) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not probe():
        assert time.monotonic() < end_s, log.read_text()
        time.sleep(0.05)


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


def test_a_site_ends_whatever_it_waits_for(tmp_path: Path) -> None:
    """Torque's commands hang, a peer is silent, others send half a request, and the cycle's lock is taken."""
    log = tmp_path / "log"
    with ExitStack() as stack:
        peer = listener(stack)
        path, config = settings(tmp_path, peer, stack)
        site = stack.enter_context(served(tmp_path, path, log))
        until(lambda: "listens on" in log.read_text(), log)
        beta = config_of(tmp_path, "beta", 0, {"alpha": config.port}, timeout_s=600.0)
        lock = stack.enter_context((tmp_path / "sched_priv" / "cycle.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        half_a_request(stack, config, beta)

        async def story() -> None:
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

        run(story)
        assert site.wait(LIMIT_S) == 0, log.read_text()
    assert log.read_text().rstrip().endswith("asked to end")
