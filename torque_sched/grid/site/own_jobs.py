"""Our users' jobs that may run elsewhere: taken into care, placed, started together, ended, or given back.

`HomeJob` decides about each; this finds the jobs, asks sites what they could give, keeps
the state in the store before anything is sent, and tells the owner in the job's comment. The job itself
stays in our queue, held: it is the place-holder that shows the state and that its owner can delete.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torque_sched.adapters.waiting import cancelled
from torque_sched.batch.system import Look
from torque_sched.errors import CommandError, TorqueSchedError
from torque_sched.grid.handshake.blocks import Submit
from torque_sched.grid.handshake.coordinator import Candidate
from torque_sched.grid.handshake.holder import Persist, Send
from torque_sched.grid.handshake.home_job import (
    Cancel,
    Dropped,
    Finished,
    HomeJob,
    HomeState,
    Requeue,
    Reschedule,
    Stage,
    SubmitBlock,
)
from torque_sched.grid.handshake.messages import From, SiteId, Tick
from torque_sched.grid.site.config import SiteConfig, home_limits
from torque_sched.grid.site.hosting import instant
from torque_sched.grid.site.messages import Offer, Offered
from torque_sched.grid.site.offers import MARGIN_S, Wish, candidates, offer_of, wish_of
from torque_sched.grid.site.site_files import STATE_FORM, SiteStore
from torque_sched.grid.site.torque_jobs import TorqueJobs
from torque_sched.model.cluster import Job, JobId
from torque_sched.model.states import HoldType, JobState

logger = logging.getLogger(__name__)
_SOONER_S = 60.0
"""A reserved start that is nearer is left as it is."""


class Sites(Protocol):
    """How to reach sites, our own among them."""

    async def tell(self, site: str, message: Any) -> Any:
        """Send a message of the engine; the reply, None when there is none. Never raises for a lost peer."""

    async def offers(self, offer: Offer) -> dict[str, Offered]:
        """Ask every site that may be asked."""


@dataclass
class _Own:
    """One job in our care; kept in the store."""

    user: str
    nodes: str = ""
    """As its owner said it in a variable; empty: as the job asks."""
    state: Any = None
    """Of the engine, as plain data; None: not begun."""
    is_taken: bool = False
    n_tries: int = 0
    next_attempt: int = 1
    not_before_s: float = 0.0
    waits_since_s: float = 0.0
    """Since when there has been no place for it; 0: there was one at the last look."""
    is_active: bool = False
    """The engine is at work on an attempt."""
    is_leaving: bool = False
    """It is to be given back to the local scheduler once nothing is left anywhere."""
    is_over: bool = False
    words: str = ""


class OwnJobs:
    """The home side of the link.

    Args:
        config: of this site.
        store: keeps every job's state.
        jobs: orders to Torque.
        sites: how to reach others and ourselves.
    """

    def __init__(self, config: SiteConfig, store: SiteStore, jobs: TorqueJobs, sites: Sites) -> None:
        self._config, self._store = config, store
        self._jobs, self._sites, self._limits = jobs, sites, home_limits(config)
        self._own = {job: _Own(**value) for job, value in store.jobs().items()}
        self._engines: dict[str, HomeJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[tuple[str, str, str]] = set()
        self.wake = asyncio.Event()
        """Set when something has happened that may need a look at the clock."""

    @property
    def n_jobs(self) -> int:
        """Jobs in our care."""
        return len(self._own)

    def described(self) -> list[dict[str, Any]]:
        """For `status`: each job, its tries and how it stands."""
        return [
            {
                "job": job, "user": own.user, "tries": own.n_tries, "words": own.words,
                **_placed(self._engines[job].state if own.is_active and job in self._engines else None),
            }
            for job, own in self._own.items()
        ]  # fmt: skip

    def start(self) -> None:
        """Take up what was left."""
        for job, own in self._own.items():
            if own.state is not None:
                engine, commands = HomeJob.restore(STATE_FORM.value(own.state), instant(), self._limits)
                self._engines[job] = engine
                self._perform(job, commands)

    async def stop(self) -> None:
        """Leave what is under way to the next life."""
        await cancelled(*self._tasks)

    # -- looking

    async def seen(self, look: Look) -> None:
        """New jobs, jobs that were deleted, jobs whose time to be tried has come."""
        here = look.snapshot.job_by_id
        for name in list(self._own):
            job = here.get(JobId(name))
            if job is None or job.state.is_final:
                self._gone(name)
        marked = {job.id: (job, nodes) for job, nodes in self._jobs.marked(look)}
        for job, nodes in marked.values():
            if job.id not in self._own and len(self._own) < self._config.grid.max_jobs:
                await self._take(job, nodes)
        for name, own in list(self._own.items()):
            if not own.is_taken and JobId(name) in here:
                await self._taken(here[JobId(name)], own)
        for name, own in list(self._own.items()):
            is_due = own.is_taken and not (own.is_active or own.is_leaving or own.is_over)
            is_due = is_due or self._is_far(name)
            if is_due and own.not_before_s <= look.snapshot.now_s and JobId(name) in here:
                self._spawn(self._place(here[JobId(name)], own), (name, "", "place"))

    def _gone(self, name: str) -> None:
        engine = self._engines.get(name)
        if engine is None or engine.finished:
            self._forget(name)
        else:
            self._perform(name, engine.apply(Cancel(), instant()))

    async def _take(self, job: Job, nodes: str) -> None:
        wish = wish_of(job, nodes)
        if isinstance(wish, str):
            words = f"not for the grid: {wish}"
            if words not in job.comment:
                await self._say(job.id, words)
            return
        self._keep(job.id, _Own(job.user, nodes=nodes))
        await self._jobs.take(job.id)

    async def _taken(self, job: Job, own: _Own) -> None:
        """Both holds must be there: then no scheduler has seen it without one since its owner set his."""
        is_ours = HoldType.OPERATOR in job.hold_types
        own.is_taken = job.state is JobState.HELD and is_ours and HoldType.USER in job.hold_types
        if own.is_taken:
            self._keep(job.id, own)
        elif is_ours and await self._jobs.let_go(job.id):
            self._forget(job.id)  # its owner has lifted his hold meanwhile: it runs at home
        elif job.state is JobState.HELD:
            await self._jobs.take(job.id)

    def heard(self, site: str, message: Any) -> None:
        """A site tells of a block without being asked."""
        engine = self._engines.get(message.token.job)
        if message.token.home == self._config.name and engine is not None:
            self._perform(message.token.job, engine.apply(From(SiteId(site), message), instant()))

    # -- placing

    async def _place(self, job: Job, own: _Own) -> None:
        wish = wish_of(job, own.nodes)
        if isinstance(wish, str):
            return
        is_far = self._is_far(job.id)
        found = await self._candidates(job.id, wish, own)
        now_s = time.time()
        own.not_before_s = now_s + self._config.grid.retry_s
        if is_far:
            self._make_sooner(job.id, own, found)
            return
        if not found or own.is_active or job.id not in self._own:
            own.waits_since_s = own.waits_since_s or now_s
            await self._tell(
                job.id, own, f"waits for {wish.nodes} nodes of {wish.shape.slots} slots at any site"
            )
            return
        own.waits_since_s = 0.0
        self._begin(job.id, own, found)

    def _begin(self, name: str, own: _Own, found: tuple[Candidate, ...]) -> None:
        earlier = self._engines.get(name)
        engine, commands = HomeJob.begin(
            SiteId(self._config.name), name, own.user, found, own.next_attempt, instant(), self._limits,
            earlier=earlier.state if earlier is not None else None,
        )  # fmt: skip
        own.is_active, own.n_tries = True, own.n_tries + 1
        self._engines[name] = engine
        self._perform(name, commands)

    def _is_far(self, name: str) -> bool:
        """Whether it has a reserved start that is worth looking for something sooner."""
        engine = self._engines.get(name)
        return engine is not None and engine.reserved_s(instant()) > _SOONER_S

    def _make_sooner(self, name: str, own: _Own, found: tuple[Candidate, ...]) -> None:
        """It can start now: place it so, and where that fails after all, as it was reserved.

        The sites drop what they have reserved when they are asked anew, so another job can come in between.
        """
        engine = self._engines.get(name)
        if not found or engine is None or not self._is_far(name):
            return
        reserved = engine.state.handshake.candidate
        own.n_tries -= 1  # this try does not fail
        self._perform(name, engine.apply(Reschedule(), instant()))
        self._begin(name, own, (*found[: self._limits.handshake.candidates - 1], reserved))

    async def _candidates(self, name: str, wish: Wish, own: _Own) -> tuple[Candidate, ...]:
        offers = await self._sites.offers(offer_of(self._config, wish, own.user, name))
        now_s = time.time()
        # By then no hold of a dropped attempt, of ours or of others, is taken for work.
        may_reserve = 0.0 < own.waits_since_s <= now_s - self._config.grid.lease_s
        return candidates(self._config, wish, offers, now_s, may_reserve=may_reserve)

    # -- what the engine orders

    def tick(self) -> float | None:
        """Let the engines look at the clock; when the first wants to again, on the monotonic clock."""
        wakes = []
        for name, engine in list(self._engines.items()):
            now = instant()
            wake_s = engine.wake_s(now)
            if wake_s is not None and wake_s <= now.monotonic_s:
                self._perform(name, engine.apply(Tick(), now))
            wake_s = engine.wake_s(instant())
            if wake_s is not None:
                wakes.append(wake_s)
        return min(wakes, default=None)

    def _tell_state(self, name: str) -> None:
        """In the job's comment: a start that is reserved, and what sites say of blocks that run."""
        own, engine = self._own.get(name), self._engines.get(name)
        if own is None or engine is None or not own.is_active:
            return
        words = _words(engine.state)
        if words and words != own.words:
            self._spawn(self._tell(JobId(name), own, words), (name, "", "tell"))

    def _perform(self, name: str, commands: tuple[Any, ...]) -> None:
        for command in commands:
            own = self._own.get(name)
            if own is None:
                return
            if isinstance(command, Persist):
                self._keep(name, own)
            elif isinstance(command, Send):
                self._spawn(
                    self._send(name, command.to, command.message),
                    (name, command.to, type(command.message).__name__),
                )
            elif isinstance(command, SubmitBlock):
                self._spawn(self._submit(name, own, command), (name, command.site, "Submit"))
            else:
                self._turn(name, own, command)
        self._leave_if_done(name)
        self._tell_state(name)
        self.wake.set()

    def _turn(self, name: str, own: _Own, command: Any) -> None:
        """An attempt is over, one way or the other."""
        if isinstance(command, Requeue):
            own.is_active, own.next_attempt = False, command.next_attempt
            own.not_before_s = time.time() + self._config.grid.retry_s
            own.is_leaving = own.n_tries >= self._config.grid.max_attempts
            self._keep(name, own)
            words = f"try {own.n_tries} failed: {command.why}"
            if command.why:
                self._spawn(self._say(JobId(name), words), (name, "", "say"))
        elif isinstance(command, Finished):
            own.is_over = True
            self._keep(name, own)
            self._spawn(self._finish(name, own, command), (name, "", "finish"))
        elif isinstance(command, Dropped):
            self._forget(name)

    def _leave_if_done(self, name: str) -> None:
        own, engine = self._own.get(name), self._engines.get(name)
        if own is not None and own.is_leaving and (engine is None or engine.finished):
            self._spawn(self._give_back(name), (name, "", "leave"))

    async def _give_back(self, name: str) -> None:
        await self._say(JobId(name), "no site had a place: runs at home as any other job")
        if await self._jobs.let_go(JobId(name)):
            self._forget(name)

    async def _finish(self, name: str, own: _Own, finished: Finished) -> None:
        exits = ", ".join(f"{site}: exit {'?' if code is None else code}" for site, code in finished.exits)
        own.words = "; ".join([f"ran at {exits}", *(f"{site}: {why}" for site, why in finished.troubles)])
        await self._say(JobId(name), own.words)
        await self._jobs.delete(JobId(name), own.words[:200])

    async def _send(self, name: str, site: str, message: Any) -> None:
        reply = await self._sites.tell(site, message)
        engine = self._engines.get(name)
        if reply is not None and engine is not None:
            self._perform(name, engine.apply(From(SiteId(site), reply), instant()))

    async def _submit(self, name: str, own: _Own, order: SubmitBlock) -> None:
        try:
            script = await self._jobs.script_of(JobId(name))
        except CommandError as error:
            await self._tell(JobId(name), own, error.message)
            return
        message = Submit(
            order.token, order.site, time.time(), order.index, order.count, own.user, "grid",
            max(1, int(order.claim_s - MARGIN_S)), script,
        )  # fmt: skip
        await self._send(name, order.site, message)

    # -- inside

    def _spawn(self, work: Coroutine[Any, Any, None], key: tuple[str, str, str]) -> None:
        """Do it, unless the same is being done already."""
        if key in self._under_way:
            work.close()
            return
        self._under_way.add(key)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._under_way.discard(key)
            if not task.cancelled() and task.exception() is not None:
                logger.error("job %s: %r", key[0], task.exception())

        task.add_done_callback(done)

    def _keep(self, name: str, own: _Own) -> None:
        engine = self._engines.get(name)
        if engine is not None:
            own.state = STATE_FORM.plain(engine.state)
        self._own[name] = own
        self._store.set_job(name, asdict(own))

    def _forget(self, name: str) -> None:
        self._own.pop(name, None)
        self._engines.pop(name, None)
        self._store.set_job(name, None)

    async def _tell(self, job: JobId, own: _Own, words: str) -> None:
        if words != own.words:
            own.words = words
            await self._say(job, words)

    async def _say(self, job: JobId, words: str) -> None:
        try:
            await self._jobs.say(job, f"grid: {words}")
        except TorqueSchedError as error:
            logger.warning("job %s: %s", job, error)


def _placed(state: HomeState | None) -> dict[str, Any]:
    """Where an attempt is: its stage, and for each block its site, state and what the site says."""
    if state is None:
        return {}
    start_s = state.handshake.candidate.start_s
    blocks = [{"site": b.site, "state": b.state.value, "why": b.why} for b in state.blocks]
    return {"stage": state.stage.value, "start_s": start_s, "blocks": blocks}


def _words(state: HomeState) -> str:
    """What its owner should read while an attempt is under way; nothing while all goes its usual way."""
    start_s = state.handshake.candidate.start_s
    if state.stage is Stage.STARTING and start_s > time.time():
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start_s))
        return f"starts {at} at {', '.join(block.site for block in state.blocks)} (reserved)"
    if state.stage is Stage.RUNNING:
        return "; ".join(f"{block.site}: {block.why}" for block in state.blocks if block.why)
    return ""
