"""What every emulated server has, whatever its dialect: clients, faults, clock, journal, scripts.

One process, one event loop, one writer. Every command is applied and committed to the journal before
its answer goes out. Kill it as hard as you like.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torque_sched.emulation.call import Answer, Call, Verb
from torque_sched.emulation.execute import Processes
from torque_sched.emulation.faults import Fault, Faults
from torque_sched.emulation.journal import Journal, ScriptFiles
from torque_sched.emulation.local_socket import listen_at, name_of, other_end
from torque_sched.emulation.model import EmulatedJob
from torque_sched.errors import ConfigError, StartupError

VERSIONED = frozenset(("qsub", "qstat", "pbsnodes", "qnodes"))
"""The programs that know ``--version``."""
_POLL_S = 0.05
_LONGEST_S = 3600.0


class EmulatedServer:
    """The server over one state folder; a dialect is a subclass.

    Args:
        directory: the ``state`` folder that :func:`~torque_sched.emulation.install.install` made.

    Raises:
        StartupError: another server already owns the folder.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = _lock(directory / "server.lock")
        self._journal = Journal(directory)
        self.had_jobs = (directory / "server_priv" / "accounting").exists()
        self.world = self._journal.load()
        self._processes = Processes(directory / "run")
        self._faults = Faults(directory / "faults.json")
        self._scripts = self.script_files(directory)
        self._verbs = self.verbs()
        self._ticks = asyncio.Event()
        self._waits_until_s = math.inf
        self._closing = asyncio.Event()
        self._free_monotonic_s = 0.0
        """When the orders of commands that came until now are done."""
        self.world.now_s = max(self.world.now_s, self._clock_s())

    # -- what a dialect is

    def script_files(self, directory: Path) -> ScriptFiles | None:
        """Where the server keeps the jobs' scripts as files; None: in its database alone."""
        return ScriptFiles(directory / "server_priv" / "jobs")

    def verbs(self) -> dict[str, Verb]:
        """Every emulated program by name."""
        raise NotImplementedError

    def advance(self, now_s: float) -> None:
        """Let the time run to ``now_s``."""
        raise NotImplementedError

    def end(self, job: EmulatedJob, status: int) -> None:
        """A script is over."""
        raise NotImplementedError

    def version_answer(self) -> Answer:
        """``--version`` of those that know it."""
        raise NotImplementedError

    def unknown_host(self, name: str, host: str) -> Answer:
        """What a client prints that was told of another server."""
        raise NotImplementedError

    def order_s(self, call: Call) -> float:
        """How long the real server is busy with the orders of one command."""
        raise NotImplementedError

    def send_events(self) -> None:
        """Tell the scheduler what happened since the last commit."""
        raise NotImplementedError

    async def control(self, words: tuple[str, ...]) -> Answer | None:
        """``emulated WORDS`` that is about this process and not the world; None: it is about the world."""
        del words
        return None

    async def start_more(self) -> None:
        """Start what the dialect serves beside its commands."""

    def stop_more(self) -> None:
        """End what :meth:`start_more` started."""

    def tasks(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What runs beside the clients until the server ends."""
        return [self._timer, self._watch_processes]

    # -- time

    def _clock_s(self) -> float:
        if self.world.settings.clock == "real":
            return time.time()
        with suppress(OSError, ValueError):
            return float((self._directory / "clock").read_text(encoding="utf-8"))
        return self.world.now_s

    def tick(self) -> None:
        """Bring the state up to now and write what that changed."""
        self.advance(self._clock_s())
        self.settle()
        if self._scripts is not None:
            self._scripts.tidy(self.world)

    def settle(self) -> None:
        """Do what was granted, write what changed, and what follows from it outside of this process."""
        world = self.world
        world.do_granted()
        self._journal.commit(world)
        for job_id in world.spawn:
            if job_id in world.jobs and world.jobs[job_id].state == "R":
                self._processes.start(world, world.jobs[job_id])
        world.spawn.clear()
        for job_id, name in world.kill:
            self._processes.send(job_id, name)
            if name in ("TERM", "KILL") and (job_id not in world.jobs or world.jobs[job_id].state != "R"):
                self._processes.forget(job_id)
        world.kill.clear()
        self.send_events()
        if world.timers and world.timers[0][0] < self._waits_until_s:
            self._ticks.set()

    async def _timer(self) -> None:
        while True:
            wait_s = _LONGEST_S
            self._waits_until_s = math.inf
            if self.world.timers and self.world.settings.clock == "real":
                self._waits_until_s = self.world.timers[0][0]
                wait_s = max(0.0, self._waits_until_s - time.time())
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ticks.wait(), min(wait_s, _LONGEST_S))
            self._ticks.clear()
            if self.world.timers and self.world.timers[0][0] <= self._clock_s():
                self.tick()

    async def _watch_processes(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            for job_id, status in self._processes.finished():
                job = self.world.jobs.get(job_id)
                if job is not None and job.state in "RS":
                    self.advance(self._clock_s())
                    self.end(job, status)
                    self.settle()

    # -- commands
    # -- commands

    def perform(self, call: Call) -> Answer:
        """Run one command now and commit it, unless it starts jobs in the background: see `finish`."""
        verb = self._verbs.get(call.name)
        if verb is None:
            return Answer(err=f"{call.name}: not emulated\n", code=127)
        if call.name in VERSIONED and call.arguments[:1] == ("--version",):
            return self.version_answer()
        wanted = call.environment.get("PBS_DEFAULT", "")
        if wanted and wanted not in (self.world.settings.server, "localhost", "127.0.0.1"):
            return self.unknown_host(call.name, wanted)
        self.come_to_now()
        try:
            answer = verb(self.world, call)
        except (ConfigError, ValueError) as error:
            answer = Answer(err=f"{call.name}: {error}\n", code=1)
        self.settle_now()
        if call.name == "qsub" and answer.code == 0 and answer.out and self._scripts is not None:
            self._scripts.keep(self.world, answer.out.strip())
        return answer

    def finish(self) -> None:
        """Do the starts that clients have been granted."""
        if self.world.granted:
            self.settle()

    def come_to_now(self) -> None:
        """Do what was granted and what fell due."""
        self.finish()
        self.advance(self._clock_s())

    def settle_now(self) -> None:
        """Commit, unless something waits for its client's answer."""
        if not self.world.granted:
            self.settle()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        self.world.connections.came()
        try:
            call = await self._read(reader, writer)
            await self._answer(call, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
        size = int.from_bytes(await reader.readexactly(4), "big")
        fields = [os.fsdecode(part) for part in (await reader.readexactly(size)).split(b"\0")[:-1]]
        name, cwd, count = fields[0], fields[1], int(fields[2])
        environment = dict(text.partition("=")[::2] for text in fields[3 + count :])
        user = environment.get("EMULATED_USER") or name_of(other_end(writer)[1])
        return Call(name, tuple(fields[3 : 3 + count]), cwd, environment, user)

    async def _answer(self, call: Call, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = None if call.name == "emulated" else self._faults.pick((call.name,), call.arguments)
        if fault is not None and await self._misbehave(fault, call, reader, writer):
            return
        answer = await self.control(call.arguments) if call.name == "emulated" else None
        if answer is None:
            answer = self.perform(call)
        if answer.wants_stdin:
            writer.write(b"i\0\0\0\0")
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = self.perform(replace(call, stdin=await reader.readexactly(size)))
        delay_s = answer.delay_s + self._turn_s(call)
        if delay_s:
            await asyncio.sleep(delay_s)
        out = answer.out.encode("utf-8", "surrogateescape")
        if fault is not None and fault.kind == "partial":
            out = out[: int(len(out) * fault.fraction)]
        _send(writer, b"o", out)
        _send(writer, b"e", answer.err.encode("utf-8", "surrogateescape"))
        _send(writer, b"x", str(answer.code).encode())
        self.finish()
        await writer.drain()
        if call.name == "qterm" and not answer.code:
            self.close()

    async def _misbehave(
        self, fault: Fault, call: Call, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Do what the order says; whether the call is over with that."""
        if fault.performs and fault.kind != "partial":
            self.perform(call)
            self.finish()
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        elif fault.kind == "hang":
            await reader.read()
        elif fault.kind == "exit":
            _send(writer, b"e", fault.text.encode())
            _send(writer, b"x", str(fault.code).encode())
        elif fault.kind == "gone":
            code, text = self._gone(call.name)
            _send(writer, b"e", text)
            _send(writer, b"x", code)
        return fault.kind in ("hang", "exit", "gone") or (fault.kind == "slow" and fault.performs)

    def _turn_s(self, call: Call) -> float:
        """How long a client waits until its orders are done, one after the other with those of others."""
        cost_s = self.order_s(call)
        if not cost_s or not self.world.settings.takes_time:
            return 0.0
        now_s = time.monotonic()
        self._free_monotonic_s = max(now_s, self._free_monotonic_s) + cost_s
        return self._free_monotonic_s - now_s

    def _gone(self, name: str) -> tuple[bytes, bytes]:
        path = self._directory / "gone" / name
        code, _, text = path.read_bytes().partition(b"\n") if path.exists() else (b"111", b"", b"")
        return code, text

    # -- life
    # -- life

    async def serve(self, ready: int = -1) -> None:
        """Serve until SIGTERM; ``ready`` is a descriptor that gets one byte when clients may come."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._closing.set)
        self.tick()
        await self.start_more()
        server = await asyncio.start_unix_server(self.answer, sock=self._socket(), limit=1 << 24)
        tasks = [asyncio.create_task(each()) for each in self.tasks()]
        (self._directory / "server.pid").write_text(f"{os.getpid()}\n", encoding="ascii")
        if ready >= 0:
            os.write(ready, b"1")
            os.close(ready)
        await self._closing.wait()
        server.close()
        self.stop_more()
        for task in tasks:
            task.cancel()
        (self._directory / "socket").unlink(missing_ok=True)
        self._journal.compact(self.world)

    def close(self) -> None:
        """Ask :meth:`serve` to end."""
        self._closing.set()

    def _socket(self) -> socket.socket:
        # Scripts are run as whoever runs this server, so then nobody else may submit any.
        return listen_at(self._directory, "socket", 0o700 if self.world.settings.executes else 0o777)


def n_jobs(call: Call) -> int:
    """How many jobs the words of a command name, which are its last ones."""
    number = 0
    for word in reversed(call.arguments):
        if not word[:1].isdigit():
            break
        number += 1
    return number


def _send(writer: asyncio.StreamWriter, kind: bytes, payload: bytes) -> None:
    if payload:
        writer.write(kind + len(payload).to_bytes(4, "big"))
        writer.write(payload)


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StartupError(f"{path}: another emulated server owns it", cure="stop that one first") from error
    return handle
