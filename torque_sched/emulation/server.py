"""The emulated pbs_server: owns the state, answers the clients, lets time pass, knocks at the scheduler.

One process, one event loop, one writer. Every command is applied and committed to the journal before
its answer goes out. Start it with ``bin/pbs_server`` or ``torque-sched emulate DIR start``; kill it as
hard as you like.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from torque_sched.batch.torque.protocol import Request
from torque_sched.emulation import act, alter, manage, query, run, submit
from torque_sched.emulation.batch_port import BatchPort
from torque_sched.emulation.batch_requests import Answered, Requests, real_time_s
from torque_sched.emulation.call import DENIED, Answer, Call, Verb, unknown_host
from torque_sched.emulation.control_verb import Control
from torque_sched.emulation.events import EventSender
from torque_sched.emulation.execute import Processes
from torque_sched.emulation.faults import Fault, Faults
from torque_sched.emulation.journal import Journal, ScriptFiles
from torque_sched.emulation.lifecycle import COMMANDS, advance, end
from torque_sched.emulation.local_socket import listen_at, name_of, other_end
from torque_sched.emulation.model import EmulatedJob
from torque_sched.emulation.mom import report
from torque_sched.emulation.routing import is_route
from torque_sched.emulation.trqauthd import Trqauthd
from torque_sched.emulation.world import World
from torque_sched.errors import ConfigError, StartupError

VERSIONED = frozenset(("qsub", "qstat", "pbsnodes", "qnodes"))
"""The programs that know ``--version``."""
_POLL_S = 0.05
_LONGEST_S = 3600.0
_ORDER_S = {"qrun": 8e-3, "qalter": 1.7e-3}
"""Of each job: four qrun at once made 111 starts a second with a real server, qalter 561 comments."""


class EmulatedServer:
    """The server over one state folder.

    Args:
        directory: the ``state`` folder that :func:`~torque_sched.emulation.install.install` made.
        listeners: more ``host:port`` that get the events (``pbs_server -l``).

    Raises:
        StartupError: another server already owns the folder.
    """

    def __init__(self, directory: Path, listeners: tuple[str, ...] = ()) -> None:
        self._directory = directory
        self._lock = _lock(directory / "server.lock")
        self._journal = Journal(directory)
        had_jobs = (directory / "server_priv" / "accounting").exists()
        self.world = self._journal.load()
        settings = self.world.settings
        self._sender = EventSender(
            (settings.scheduler, *settings.listeners, *listeners),
            settings.event_gap_s,
            directory / "events.log",
        )
        self._processes = Processes(directory / "run")
        self._faults = Faults(directory / "faults.json")
        self._scripts = ScriptFiles(directory / "server_priv" / "jobs")
        self._verbs = verbs_of(self.world)
        self._requests = Requests()
        self._batch = BatchPort(directory, self.world, self.perform_request, self.finish, self._faults)
        self._trqauthd = Trqauthd(directory, self._batch, settings, self._faults)
        self._ticks = asyncio.Event()
        self._waits_until_s = math.inf
        self._closing = asyncio.Event()
        self._free_monotonic_s = 0.0
        """When the orders of commands that came until now are done."""
        self._restore(had_jobs)

    def _restore(self, had_jobs: bool) -> None:
        world = self.world
        world.now_s = max(world.now_s, self._clock_s())
        for node in world.nodes.values():
            report(world, node)
        for job in world.jobs.values():
            self._due_again(job)
            if job.executes and job.state == "R" and job.substate == 42:
                world.spawn.append(job.id)
        world.due(world.now_s + float(world.server.get("scheduler_iteration", "600")), "iteration", "")
        if world.server.get("scheduling") == "True":
            world.was_scheduling = True
            self._sender.post([COMMANDS["first"]])
            if had_jobs and world.jobs:
                # Seen on 6.1.3: a restart with jobs is followed by some empty events.
                self._sender.post([COMMANDS["null"]] * 3, one_by_one=True)

    def _due_again(self, job: EmulatedJob) -> None:
        """What was to happen to a job before the server ended still is."""
        world = self.world
        if job.state == "R" and job.substate == 40:
            world.due(world.now_s + 2.0, "abort", job.id)
        elif job.state == "R" and job.ends_s is not None:
            world.due(job.ends_s, "end", job.id)
        elif job.state == "W":
            world.due(job.seconds("Execution_Time"), "release", job.id)
        elif job.state == "C":
            keep = (
                world.queues[job.queue].attributes.get("keep_completed")
                if job.queue in world.queues
                else None
            )
            keep_s = float(keep or world.server.get("keep_completed", world.settings.kept_s))
            world.due(job.seconds("comp_time") + keep_s, "forget", job.id)
        elif job.queue in world.queues and is_route(world.queues[job.queue]) and not job.parent:
            world.due(world.now_s, "route", job.id)

    # -- time

    def _clock_s(self) -> float:
        if self.world.settings.clock == "real":
            return time.time()
        with suppress(OSError, ValueError):
            return float((self._directory / "clock").read_text(encoding="utf-8"))
        return self.world.now_s

    def tick(self) -> None:
        """Bring the state up to now and write what that changed."""
        advance(self.world, self._clock_s())
        self.settle()
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
        if world.events:
            self._sender.post(world.events)
            world.events.clear()
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
                    advance(self.world, self._clock_s())
                    end(self.world, job, status)
                    self.settle()

    # -- commands

    def perform(self, call: Call) -> Answer:
        """Run one command now and commit it, unless it starts jobs in the background: see `finish`."""
        verb = self._verbs.get(call.name)
        if verb is None:
            return Answer(err=f"{call.name}: not emulated\n", code=127)
        if call.name in VERSIONED and call.arguments[:1] == ("--version",):
            return version_answer(self.world)
        wanted = call.environment.get("PBS_DEFAULT", "")
        if wanted and wanted not in (self.world.settings.server, "localhost", "127.0.0.1"):
            return _unknown_host(call.name, wanted, is_old=self.world.settings.is_old)
        self._come_to_now()
        try:
            answer = verb(self.world, call)
        except (ConfigError, ValueError) as error:
            answer = Answer(err=f"{call.name}: {error}\n", code=1)
        self._settle_now()
        if call.name == "qsub" and answer.code == 0 and answer.out:
            self._scripts.keep(self.world, answer.out.strip())
        return answer

    def perform_request(self, request: Request, user: str) -> Answered:
        """Do one request of the batch protocol now and commit it, unless it is AsyncRunJob: see `finish`."""
        began_s = time.monotonic()
        self._come_to_now()
        answered = self._requests.answer(self.world, request, user)
        self._settle_now()
        if self.world.settings.takes_time:
            # Asleep with all it has, as a server that holds its lock: a turn of the loop is longer than that.
            time.sleep(max(0.0, real_time_s(self.world, request) - (time.monotonic() - began_s)))
        return answered

    def finish(self) -> None:
        """Do the starts that clients have been granted."""
        if self.world.granted:
            self.settle()

    def _come_to_now(self) -> None:
        self.finish()
        advance(self.world, self._clock_s())

    def _settle_now(self) -> None:
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
        if call.name == "emulated" and call.arguments[:1] == ("trqauthd",):
            await self._switch_trqauthd(call.arguments[1:])
            answer = Answer()
        else:
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

    async def _switch_trqauthd(self, words: tuple[str, ...]) -> None:
        """``emulated trqauthd stop|start``."""
        self._trqauthd.stop()
        if words[:1] != ("stop",):
            await self._trqauthd.start()

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
        cost_s = _ORDER_S.get(call.name, 0.0) * (1 if call.name == "qrun" else _n_jobs(call))
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

    async def serve(self, ready: int = -1) -> None:
        """Serve until SIGTERM; ``ready`` is a descriptor that gets one byte when clients may come."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._closing.set)
        self.tick()
        await self._batch.start()
        await self._trqauthd.start()
        server = await asyncio.start_unix_server(self.answer, sock=self._socket(), limit=1 << 24)
        tasks = [
            asyncio.create_task(each()) for each in (self._timer, self._watch_processes, self._sender.run)
        ]
        (self._directory / "server.pid").write_text(f"{os.getpid()}\n", encoding="ascii")
        if ready >= 0:
            os.write(ready, b"1")
            os.close(ready)
        await self._closing.wait()
        server.close()
        self._trqauthd.stop()
        self._batch.stop()
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


def _n_jobs(call: Call) -> int:
    """How many jobs the words of a command name, which are its last ones."""
    n_jobs = 0
    for word in reversed(call.arguments):
        if not word[:1].isdigit():
            break
        n_jobs += 1
    return n_jobs


def verbs_of(world: World) -> dict[str, Verb]:
    """Every emulated program by name."""
    nodes = query.Pbsnodes()
    return {
        "qsub": submit.qsub, "qrun": run.qrun, "qstat": query.qstat, "pbsnodes": nodes, "qnodes": nodes,
        "qalter": alter.qalter, "qhold": act.qhold, "qrls": act.qrls, "qsig": act.qsig, "qdel": act.qdel,
        "qrerun": act.qrerun, "qmove": act.qmove, "qmgr": manage.qmgr,
        "qstart": manage.switch_queue, "qstop": manage.switch_queue, "qenable": manage.switch_queue,
        "qdisable": manage.switch_queue, "qterm": manage.qterm, "emulated": Control(),
    }  # fmt: skip


def version_answer(world: World) -> Answer:
    """``--version`` of those that know it."""
    text = f"Version: {world.settings.pbs_version}\nCommit: emulated\n"
    return Answer(err=text) if world.settings.is_old else Answer(out=text)


def _send(writer: asyncio.StreamWriter, kind: bytes, payload: bytes) -> None:
    if payload:
        writer.write(kind + len(payload).to_bytes(4, "big"))
        writer.write(payload)


def _unknown_host(name: str, host: str, *, is_old: bool) -> Answer:
    tail = (
        f"{name}: cannot connect to server {host} (errno=15010) {DENIED}\n{name}: Error (15010 - {DENIED}) \n"
    )
    return Answer(err=unknown_host(host, 3, is_old=is_old) + tail, code=15010 % 256)


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StartupError(f"{path}: another emulated server owns it", cure="stop that one first") from error
    return handle


def main(arguments: list[str]) -> int:
    """``python -m torque_sched.emulation.server STATE [--detach] [--ready FD] [-l host:port ...]``."""
    directory, rest = Path(arguments[0]), arguments[1:]
    ready = -1
    listeners = []
    while rest:
        word = rest.pop(0)
        if word == "--detach":
            if os.fork():
                return 0
            os.setsid()
        elif word == "--ready":
            ready = int(rest.pop(0))
        elif word == "-l":
            listeners.append(rest.pop(0))

    async def serve() -> None:
        await EmulatedServer(directory, tuple(listeners)).serve(ready)

    try:
        asyncio.run(serve())
    except (StartupError, OSError, json.JSONDecodeError) as error:
        sys.stderr.write(f"pbs_server (emulated): {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
