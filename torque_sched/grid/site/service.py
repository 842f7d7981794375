"""The process of a site: start up, serve peers and blocks, look at the server, shut down.

SIGTERM and SIGINT end the process in time, whatever hangs. The kernel writes the signal to a pipe that a
thread of its own reads, so a stuck event loop (a locked database, a dead file server, a silent name server,
standard error that nobody reads) does not hinder it. The first signal asks the service to end by itself. A
second one, or the end of the grace, ends the process at once; nothing is lost by that, as the store is
written before anything is answered.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from torque_sched.adapters.commands import Commands
from torque_sched.adapters.home import LockFile
from torque_sched.adapters.state_file import write_atomic
from torque_sched.adapters.waiting import cancelled, within
from torque_sched.batch.connect import NAMES, ServerSettings, command_environment, server_by_commands
from torque_sched.errors import SnapshotError, TorqueSchedError
from torque_sched.grid.membership import MemberState
from torque_sched.grid.site.blocks import Barrier
from torque_sched.grid.site.config import SiteConfig, admission_of
from torque_sched.grid.site.hosting import Hosting, open_guest
from torque_sched.grid.site.local_scheduler import LocalScheduler
from torque_sched.grid.site.messages import Engine, Gossip, Offer
from torque_sched.grid.site.own_jobs import OwnJobs
from torque_sched.grid.site.peer_endpoint import PeerEndpoint, Route
from torque_sched.grid.site.peers import Gossiping, LinkError, Links, Reaching, engine_facts, offer_facts
from torque_sched.grid.site.reporting import Audit, PeerFigures, SiteFigures, serve_site_figures
from torque_sched.grid.site.site_files import SitePlaces, SiteStore, check_files
from torque_sched.grid.site.torque_jobs import TorqueJobs
from torque_sched.learn.reservations import boot_id

FORCED = 4
"""Exit code of a process that was asked to end and could not in time."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TRACE_S = 0.3


class ProcessEnding:
    """Takes the signals while it is entered; for the main thread.

    Args:
        grace_s: so long the service may take to end by itself.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._ask: Callable[[], object] = lambda: None
        self._is_asked = self._is_over = False
        self._lock = threading.Lock()
        self.last: Callable[[], object] = lambda: None
        """Done before the process is ended at once, if it can be."""

    def __enter__(self) -> ProcessEnding:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, _only_write) for number in _SIGNALS
        }
        self._fd_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="ending", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._is_over = True
        self._wake()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def begin(self) -> None:
        """As if a first signal had come, when none has; where the service ends by itself."""
        if not self._is_asked:
            self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def asks(self, ask: Callable[[], object]) -> None:
        """Who is to be asked to end, from another thread; at once, when a signal has come already."""
        with self._lock:
            self._ask = ask
            if self._is_asked:
                self._tell()

    def _tell(self) -> None:
        with suppress(RuntimeError):  # its loop is closed already
            self._ask()

    def _watch(self) -> None:
        os.read(self._reader, 1)
        if self._is_over:
            return
        with self._lock:
            self._is_asked = True
            self._tell()
        select.select([self._reader], [], [], self._grace_s)
        if not self._is_over:
            self._end()

    def _end(self) -> None:
        with suppress(Exception):
            self.last()
        # The trace is for the log; standard error itself may be what hangs.
        trace = threading.Thread(target=_trace, daemon=True)
        trace.start()
        trace.join(_TRACE_S)
        os._exit(FORCED)


def _only_write(number: int, frame: FrameType | None) -> None:
    """Python writes the signal to the pipe."""


def _trace() -> None:
    sys.stderr.write("asked to end, and ended at once; this is where it was:\n")
    sys.stderr.flush()
    faulthandler.dump_traceback(sys.stderr)


logger = logging.getLogger(__name__)
_STATE_S = 0.5
_TICK_S = 0.5
_QUERY_TIMEOUT_S, _ORDER_TIMEOUT_S = 60.0, 30.0
"""For each query, and each qrun or qalter, of our own server."""
_LEAST_LOOK_S = 0.2
_LEAST_TICK_S = 0.01
_GRACE_S = 2.5
"""Asked to end, it ends by itself within this time, or is ended."""


def server_settings(home: Path, config: SiteConfig) -> ServerSettings:
    """How this site's own server is reached: by its commands."""
    return ServerSettings(
        home, "commands", "", config.commands, _QUERY_TIMEOUT_S, _ORDER_TIMEOUT_S, config.batch_system,
        config.partition,
    )  # fmt: skip


def serve(home: Path, config: SiteConfig) -> None:
    """Serve until SIGTERM or SIGINT; within three seconds then, and at once with a second one.

    Raises:
        StartupError: the machine or the rights lack something.
        ConfigError: a file the settings name cannot be used.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    check_files(home, config)
    places = SitePlaces.of(home, config)
    places.make()
    lock = LockFile(places.lock)
    lock.take()
    try:
        with ProcessEnding(_GRACE_S) as ending:
            asyncio.run(SiteService(config, places, ending).run())
    finally:
        lock.release()


def dry_run(home: Path, config: SiteConfig) -> Iterator[tuple[str, bool]]:
    """Try files, the batch system and every peer once; what was found, and whether it is well."""
    try:
        check_files(home, config)
        yield "settings, certificates, keys and users", True
    except TorqueSchedError as error:
        yield str(error), False
        return
    settings = server_settings(home, config)
    server = server_by_commands(settings, settings.new_commands(), time.time)
    name = NAMES[settings.dialect()]
    try:
        look = asyncio.run(server.look())
        yield f"{name}: {len(look.snapshot.nodes)} nodes, {len(look.snapshot.jobs)} jobs", True
    except SnapshotError as error:
        yield f"{name}: {error}", False
    yield from asyncio.run(_ask_all(config))


async def _ask_all(config: SiteConfig) -> list[tuple[str, bool]]:
    links = Links(config)

    async def ask(peer: str) -> tuple[str, bool]:
        try:
            await links.ask(peer, Gossip(claims=()), Gossip)
        except LinkError as error:
            return str(error), False
        skew_s = links.skew_s(peer)
        return f"peer {peer}" + (f": its clock is {skew_s:.3f} s off" if skew_s > 1.0 else ""), skew_s <= 1.0

    try:
        return list(await asyncio.gather(*(ask(peer.name) for peer in config.peers)))
    finally:
        await links.close()


class SiteService:
    """Everything of one site.

    Args:
        config: its settings.
        places: its files, made.
        ending: takes the signals.
    """

    def __init__(self, config: SiteConfig, places: SitePlaces, ending: ProcessEnding) -> None:
        self.config, self.places, self._ending = config, places, ending
        self._stop = asyncio.Event()
        self._look_failed = ""
        self._pushes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until a signal.

        Raises:
            StartupError: it could not start.
        """
        loop = asyncio.get_running_loop()
        self._ending.asks(lambda: loop.call_soon_threadsafe(self._stop.set))
        async with AsyncExitStack() as stack:
            await self._start_up(stack)
            logger.info("site %s listens on %s:%d", self.config.name, self.config.listen, self.endpoint.port)
            await self._stop.wait()
            logger.info("asked to end")

    async def _start_up(self, stack: AsyncExitStack) -> None:
        config, places = self.config, self.places
        store = SiteStore(places.store)
        stack.callback(store.close)
        audit = Audit(places.audit, config.audit_bytes, config.audit_files)
        stack.callback(audit.close)
        commands = Commands(command_environment(config.commands))
        stack.callback(commands.kill_all)
        self._ending.last = commands.kill_all
        settings = server_settings(places.home, config)
        server = server_by_commands(settings, commands, time.time)
        logger.info("the batch system is %s", settings.dialect_text())
        scheduler = LocalScheduler(places.history, places.cycle_lock, server)
        self._scheduler = scheduler
        stack.callback(scheduler.close)
        jobs = TorqueJobs(commands, server, config, places.scripts, places.spool)
        self.links = Links(config)
        stack.push_async_callback(self.links.close)
        self.gossiping = Gossiping(config, self.links, store)
        admission = admission_of(config)
        guest, keep, inventory = open_guest(config, admission, store)
        self.hosting = Hosting(config, guest, admission, keep, inventory, store, jobs, scheduler)
        stack.push_async_callback(self.hosting.stop)
        self.reaching = Reaching(config, self.links, self.gossiping.membership, self.hosting)
        self.own_jobs = OwnJobs(config, store, jobs, self.reaching)
        stack.push_async_callback(self.own_jobs.stop)
        self.reaching.heard = self.own_jobs.heard
        self.hosting.push = self._push
        stack.push_async_callback(self._stop_pushes)
        self.endpoint = PeerEndpoint(config, self._routes(), audit)
        barrier = Barrier(self.hosting.stand)
        await barrier.start(config.barrier.address, config.barrier.port)
        stack.push_async_callback(barrier.stop)
        self.hosting.start(boot_id())
        self.own_jobs.start()
        await self.endpoint.start()
        stack.push_async_callback(self.endpoint.stop)
        self._serve_figures(stack)
        for work in (self.gossiping.run, self._look, self._tick_hosting, self._tick_jobs, self._tell):
            task = asyncio.create_task(self._guarded(work))
            stack.push_async_callback(_ended, task)

    def _serve_figures(self, stack: AsyncExitStack) -> None:
        port, self._shown = self.config.metrics_port, self._figures()
        if port:
            stack.callback(serve_site_figures(lambda: self._shown, self.config.metrics_address, port))

    def _push(self, home: str, message: Any) -> None:
        """Without waiting; a home that does not hear it asks."""
        task = asyncio.create_task(self.reaching.push(home, message))
        self._pushes.add(task)
        task.add_done_callback(self._pushes.discard)

    async def _stop_pushes(self) -> None:
        await cancelled(*self._pushes)

    def _routes(self) -> Mapping[str, Route]:
        return {
            "gossip": Route(Gossip, self.gossiping.answer, None),
            "offer": Route(Offer, self.reaching.offered, offer_facts),
            "engine": Route(Engine, self.reaching.taken, engine_facts),
        }  # fmt: skip

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A loop that fails ends the process: half a site is worse than none."""
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except BaseException:
            logger.exception("the site ends")
            self._ending.begin()
            raise

    # -- its loops

    async def _look(self) -> None:
        """Look at the server: blocks here, jobs of ours."""
        while True:
            self.hosting.wake.clear()
            try:
                look = await self._scheduler.look()
                await self.hosting.seen(look)
                await self.own_jobs.seen(look)
                self._look_failed = ""
            except TorqueSchedError as error:
                if str(error) != self._look_failed:
                    logger.warning("%s", error)
                self._look_failed = str(error)
            await asyncio.sleep(_LEAST_LOOK_S)
            with suppress(asyncio.TimeoutError):
                await within(self.config.grid.poll_interval_s, self.hosting.wake.wait())

    async def _tick_hosting(self) -> None:
        while True:
            wake_s = self.hosting.tick()
            await asyncio.sleep(_pause_s(wake_s))

    async def _tick_jobs(self) -> None:
        while True:
            self.own_jobs.wake.clear()
            wake_s = self.own_jobs.tick()
            await asyncio.sleep(_LEAST_TICK_S)  # a tick that wakes itself must not be all we do
            with suppress(asyncio.TimeoutError):
                await within(_pause_s(wake_s), self.own_jobs.wake.wait())

    async def _tell(self) -> None:
        while True:
            write_atomic(self.places.state, json.dumps(self._state()))
            self._shown = self._figures()  # the figures are read by another thread
            await asyncio.sleep(_STATE_S)

    # -- how it is

    def _state(self) -> dict[str, Any]:
        return {
            "name": self.config.name,
            "pid": os.getpid(),
            "at_s": time.time(),
            "peers": [self._peer(peer.name) for peer in self.config.peers],
            "grants": self.hosting.n_grants,
            "blocks": self.hosting.n_blocks,
            "foreign": self.hosting.described(),
            "troubles": self.hosting.troubles,
            "jobs": self.own_jobs.described(),
            "trouble": self._look_failed,
        }

    def _peer(self, name: str) -> dict[str, Any]:
        member = self.gossiping.member(name)
        answers, failures = self.links.counts(name)
        return {
            "name": name,
            "state": member.state.value,
            "for_s": time.monotonic() - member.since_s,
            "answers": answers,
            "failures": failures,
            "skew_s": self.links.skew_s(name),
            "trouble": self.links.last_error(name),
        }

    def _figures(self) -> SiteFigures:
        peers = tuple(
            PeerFigures(
                peer.name, self.gossiping.member(peer.name).state is MemberState.ALIVE,
                *self.links.counts(peer.name), self.links.skew_s(peer.name),
            )
            for peer in self.config.peers
        )  # fmt: skip
        requests = tuple((*key, number) for key, number in dict(self.endpoint.counts).items())
        return SiteFigures(
            peers, requests, self.hosting.n_blocks, self.hosting.n_grants, self.own_jobs.n_jobs
        )


def _pause_s(wake_s: float | None) -> float:
    if wake_s is None:
        return _TICK_S
    return min(_TICK_S, max(0.01, wake_s - time.monotonic()))


async def _ended(task: asyncio.Task[None]) -> None:
    await cancelled(task)
    if not task.cancelled():
        task.result()  # why the site ended
