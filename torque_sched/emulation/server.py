"""The emulated pbs_server of Torque: its commands, its batch protocol, its knock at the scheduler.

Start a server with ``bin/pbs_server`` or ``torque-sched emulate DIR start``; the folder says whether it is
Torque's or OpenPBS's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from torque_sched.batch.torque.protocol import Request
from torque_sched.emulation import act, alter, manage, query, run, submit
from torque_sched.emulation.batch_port import BatchPort
from torque_sched.emulation.batch_requests import Answered, Requests, real_time_s
from torque_sched.emulation.call import DENIED, Answer, Call, Verb, unknown_host
from torque_sched.emulation.control_verb import Control
from torque_sched.emulation.core import EmulatedServer, n_jobs
from torque_sched.emulation.events import EventSender
from torque_sched.emulation.journal import is_openpbs
from torque_sched.emulation.lifecycle import COMMANDS, end, fire
from torque_sched.emulation.model import EmulatedJob
from torque_sched.emulation.mom import report
from torque_sched.emulation.openpbs.server import OpenPbsServer
from torque_sched.emulation.routing import is_route
from torque_sched.emulation.trqauthd import Trqauthd
from torque_sched.emulation.world import World
from torque_sched.errors import StartupError

_ORDER_S = {"qrun": 8e-3, "qalter": 1.7e-3}
"""Of each job: four qrun at once made 111 starts a second with a real server, qalter 561 comments."""


class TorqueServer(EmulatedServer):
    """An emulated Torque.

    Args:
        directory: as for `EmulatedServer`.
        listeners: more ``host:port`` that get the events (``pbs_server -l``).
    """

    def __init__(self, directory: Path, listeners: tuple[str, ...] = ()) -> None:
        super().__init__(directory)
        settings = self.world.settings
        self._sender = EventSender(
            (settings.scheduler, *settings.listeners, *listeners),
            settings.event_gap_s,
            directory / "events.log",
        )
        self._requests = Requests()
        self._batch = BatchPort(directory, self.world, self.perform_request, self.finish, self._faults)
        self._trqauthd = Trqauthd(directory, self._batch, settings, self._faults)
        self._restore()

    def _restore(self) -> None:
        world = self.world
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
            if self.had_jobs and world.jobs:
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

    # -- the dialect

    def verbs(self) -> dict[str, Verb]:
        """Torque's programs."""
        return verbs_of(self.world)

    def advance(self, now_s: float) -> None:
        """Let the time run to ``now_s``."""
        self.world.advance(now_s, fire)

    def end(self, job: EmulatedJob, status: int) -> None:
        """A script is over."""
        end(self.world, job, status)

    def version_answer(self) -> Answer:
        """``--version``."""
        return version_answer(self.world)

    def unknown_host(self, name: str, host: str) -> Answer:
        """What a client prints that was told of another server."""
        return _unknown_host(name, host, is_old=self.world.settings.is_old)

    def order_s(self, call: Call) -> float:
        """As a real server was measured."""
        return _ORDER_S.get(call.name, 0.0) * (1 if call.name == "qrun" else n_jobs(call))

    def send_events(self) -> None:
        """Post the codes."""
        if self.world.events:
            self._sender.post(self.world.events)
            self.world.events.clear()

    async def control(self, words: tuple[str, ...]) -> Answer | None:
        """``emulated trqauthd stop|start``."""
        if words[:1] != ("trqauthd",):
            return None
        self._trqauthd.stop()
        if words[1:2] != ("stop",):
            await self._trqauthd.start()
        return Answer()

    async def start_more(self) -> None:
        """Open the port of the batch protocol, and trqauthd's socket."""
        await self._batch.start()
        await self._trqauthd.start()

    def stop_more(self) -> None:
        """Close both."""
        self._trqauthd.stop()
        self._batch.stop()

    def tasks(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """The event sender runs beside the rest."""
        return [*super().tasks(), self._sender.run]

    def perform_request(self, request: Request, user: str) -> Answered:
        """Do one request of the batch protocol now and commit it, unless it is AsyncRunJob: see `finish`."""
        began_s = time.monotonic()
        self.come_to_now()
        answered = self._requests.answer(self.world, request, user)
        self.settle_now()
        if self.world.settings.takes_time:
            # Asleep with all it has, as a server that holds its lock: a turn of the loop is longer than that.
            time.sleep(max(0.0, real_time_s(self.world, request) - (time.monotonic() - began_s)))
        return answered


def verbs_of(world: World) -> dict[str, Verb]:
    """Every emulated program by name."""
    nodes = query.Pbsnodes()
    return {
        "qsub": submit.qsub, "qrun": run.qrun, "qstat": query.qstat, "pbsnodes": nodes, "qnodes": nodes,
        "qalter": alter.qalter, "qhold": act.qhold, "qrls": act.qrls, "qsig": act.qsig, "qdel": act.qdel,
        "qrerun": act.qrerun, "qmove": act.qmove, "qmgr": manage.qmgr,
        "qstart": manage.switch_queue, "qstop": manage.switch_queue, "qenable": manage.switch_queue,
        "qdisable": manage.switch_queue, "qterm": manage.qterm, "emulated": Control(submit.qsub, end),
    }  # fmt: skip


def version_answer(world: World) -> Answer:
    """``--version`` of those that know it."""
    text = f"Version: {world.settings.pbs_version}\nCommit: emulated\n"
    return Answer(err=text) if world.settings.is_old else Answer(out=text)


def _unknown_host(name: str, host: str, *, is_old: bool) -> Answer:
    tail = (
        f"{name}: cannot connect to server {host} (errno=15010) {DENIED}\n{name}: Error (15010 - {DENIED}) \n"
    )
    return Answer(err=unknown_host(host, 3, is_old=is_old) + tail, code=15010 % 256)


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
        kind = OpenPbsServer if is_openpbs(directory) else TorqueServer
        await kind(directory, tuple(listeners)).serve(ready)

    try:
        asyncio.run(serve())
    except (StartupError, OSError, json.JSONDecodeError) as error:
        sys.stderr.write(f"pbs_server (emulated): {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
