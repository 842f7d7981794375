"""The life of a site's process: start up, serve peers and blocks, look at the server, shut down."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from torque_sched.adapters.commands import Commands
from torque_sched.adapters.home import LockFile
from torque_sched.adapters.pbs import Pbs
from torque_sched.adapters.state_file import write_atomic
from torque_sched.adapters.waiting import cancelled, within
from torque_sched.core.membership import MemberState
from torque_sched.errors import SnapshotError, TorqueSchedError
from torque_sched.learning.reservations import boot_id
from torque_sched.site.audit import Audit
from torque_sched.site.barrier import Barrier
from torque_sched.site.checks import check_files
from torque_sched.site.config import SiteConfig
from torque_sched.site.ending import Ending
from torque_sched.site.engines import STATE_FORM, admission_of, open_guest
from torque_sched.site.figures import PeerFigures, SiteFigures, serve_site_figures
from torque_sched.site.gate import Gate, Route
from torque_sched.site.gossiping import Gossiping
from torque_sched.site.hosting import Hosting
from torque_sched.site.links import LinkError, Links
from torque_sched.site.local_plans import LocalPlans
from torque_sched.site.messages import Engine, Gossip, Offer
from torque_sched.site.own_jobs import OwnJobs
from torque_sched.site.places import SitePlaces
from torque_sched.site.reaching import Reaching, engine_facts, offer_facts
from torque_sched.site.store import SiteStore
from torque_sched.site.torque_jobs import TorqueJobs

logger = logging.getLogger(__name__)
_STATE_S = 0.5
_TICK_S = 0.5
_LEAST_LOOK_S = 0.2
_LEAST_TICK_S = 0.01
_GRACE_S = 2.5
"""Told to end, it ends by itself within this time, or is ended."""


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
        with Ending(_GRACE_S) as ending:
            asyncio.run(Service(config, places, ending).run())
    finally:
        lock.release()


def _environment(commands: str) -> dict[str, str]:
    env = dict(os.environ)
    if commands:
        env["PATH"] = f"{commands}{os.pathsep}{env.get('PATH', '')}"
    env["LC_ALL"] = "C"
    return env


def dry_run(home: Path, config: SiteConfig) -> Iterator[tuple[str, bool]]:
    """Try files, Torque and every peer once; what was found, and whether it is well."""
    try:
        check_files(home, config)
        yield "settings, certificates, keys and users", True
    except TorqueSchedError as error:
        yield str(error), False
        return
    pbs = Pbs(Commands(_environment(config.commands)), time.time)
    try:
        look = asyncio.run(pbs.look())
        yield f"Torque: {len(look.snapshot.nodes)} nodes, {len(look.snapshot.jobs)} jobs", True
    except SnapshotError as error:
        yield f"Torque: {error}", False
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


class Service:
    """Everything of one site.

    Args:
        config: its settings.
        places: its files, made.
        ending: takes the signals.
    """

    def __init__(self, config: SiteConfig, places: SitePlaces, ending: Ending) -> None:
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
            logger.info("site %s listens on %s:%d", self.config.name, self.config.listen, self.gate.port)
            await self._stop.wait()
            logger.info("asked to end")

    async def _start_up(self, stack: AsyncExitStack) -> None:
        config, places = self.config, self.places
        store = SiteStore(places.store)
        stack.callback(store.close)
        audit = Audit(places.audit, config.audit_bytes, config.audit_files)
        stack.callback(audit.close)
        plans = LocalPlans(places.history, places.cycle_lock)
        stack.callback(plans.close)
        commands = Commands(_environment(config.commands))
        stack.callback(commands.kill_all)
        self._ending.last = commands.kill_all
        self._pbs = Pbs(commands, time.time)
        jobs = TorqueJobs(commands, self._pbs, config, places.scripts, places.spool)
        self.links = Links(config)
        stack.push_async_callback(self.links.close)
        self.gossiping = Gossiping(config, self.links, store)
        admission = admission_of(config)
        guest, keep, books = open_guest(config, admission, store)
        self.hosting = Hosting(config, guest, admission, keep, books, store, jobs, plans)
        stack.push_async_callback(self.hosting.stop)
        self.reaching = Reaching(config, self.links, self.gossiping.membership, self.hosting)
        self.own_jobs = OwnJobs(config, store, STATE_FORM, jobs, self.reaching)
        stack.push_async_callback(self.own_jobs.stop)
        self.reaching.heard = self.own_jobs.heard
        self.hosting.push = self._push
        stack.push_async_callback(self._stop_pushes)
        self.gate = Gate(config, self._routes(), audit)
        barrier = Barrier(self.hosting.stand)
        await barrier.start(config.barrier.address, config.barrier.port)
        stack.push_async_callback(barrier.stop)
        self.hosting.start(boot_id())
        self.own_jobs.start()
        await self.gate.start()
        stack.push_async_callback(self.gate.stop)
        self._serve_figures(stack)
        for work in (self.gossiping.run, self._look, self._tick_hosting, self._tick_jobs, self._tell):
            task = asyncio.create_task(self._guarded(work))
            stack.push_async_callback(_ended, task)

    def _serve_figures(self, stack: AsyncExitStack) -> None:
        port, self._told = self.config.metrics_port, self._figures()
        if port:
            stack.callback(serve_site_figures(lambda: self._told, self.config.metrics_address, port))

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
                look = await self._pbs.look()
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
            self._told = self._figures()  # the figures are read by another thread
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
        requests = tuple((*key, number) for key, number in dict(self.gate.counts).items())
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
