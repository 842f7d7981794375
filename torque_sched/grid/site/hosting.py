"""Blocks of other sites (and of our own users) on our nodes: performs what the guest engine decides.

`Guest` decides; this keeps its state in the store before anything is answered, holds nodes
as reservations so that the local scheduler keeps off them, submits, watches and deletes the jobs, and
answers at the barrier. Whatever is found after a kill is brought in line: a block whose job is there goes
on, one whose job is not has failed, and a job of a block that nobody knows is deleted. A block that was
waiting for its start or for its files is taken up where it was, and so is one whose files go home.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

from torque_sched.adapters.waiting import cancelled
from torque_sched.batch.system import Look
from torque_sched.errors import TorqueSchedError
from torque_sched.grid.handshake.blocks import Admission, BlockState
from torque_sched.grid.handshake.guest import (
    Arrived,
    BlockEnded,
    BlockFailed,
    BlockSubmitted,
    FindBlock,
    Guest,
    GuestState,
    JobOver,
    KillBlock,
    OpenBarrier,
    Rejection,
    RunBlock,
    StageTrouble,
)
from torque_sched.grid.handshake.holder import Freed, Granted, HolderState, Persist, Send, Taken
from torque_sched.grid.handshake.messages import (
    Confirm,
    From,
    Instant,
    NotReady,
    Refusal,
    Release,
    SiteId,
    Tick,
    Token,
)
from torque_sched.grid.site.blocks import (
    AtBarrier,
    BarrierAnswer,
    BlockScript,
    HostedBlock,
    block_script,
    encoded,
    pause,
    start_of,
)
from torque_sched.grid.site.config import SiteConfig, guest_limits
from torque_sched.grid.site.local_scheduler import LocalScheduler
from torque_sched.grid.site.messages import Offer, Offered
from torque_sched.grid.site.offers import NodeInventory, offered
from torque_sched.grid.site.site_files import STATE_FORM, SiteStore
from torque_sched.grid.site.torque_jobs import (
    BLOCK_VARIABLE,
    BlockJob,
    TorqueJobs,
    local_user,
    shares_of,
    variables_of,
)
from torque_sched.learn.reservations import boot_id
from torque_sched.model.cluster import Job, JobId
from torque_sched.model.states import JobState

logger = logging.getLogger(__name__)
_MISSING_LOOKS = 2
_QRUN_AGAIN_S = 1.0
_LATE_NODES_S = 15.0
"""When its claim begins, its nodes may still be busy for so long with jobs that are just ending."""
_GUEST, _TROUBLES = "guest", "troubles"
"""Names of facts in the store."""
_MOST_TROUBLES = 20
_FIND_S = 60.0
"""A qsub that was under way when we were killed has arrived by then."""


def instant() -> Instant:
    """Now, on both clocks."""
    return Instant(time.monotonic(), time.time())


def open_guest(
    config: SiteConfig, admission: Admission, store: SiteStore
) -> tuple[Guest, Callable[[], None], NodeInventory]:
    """The guest as it was saved last, a function that saves it, and the inventory it decides on."""
    saved = store.fact(_GUEST)
    state = STATE_FORM.value(saved) if saved is not None else GuestState(HolderState(boot_id()))
    inventory = NodeInventory()
    guest = Guest(SiteId(config.name), inventory, admission, state, guest_limits(config))
    return guest, lambda: store.set_fact(_GUEST, STATE_FORM.plain(guest.state)), inventory


class Hosting:
    """The site side of the link.

    Args:
        config: of this site.
        guest: the engine, restored.
        admission: the rules it keeps.
        keep: writes the engine's state to the store; it is on the disk when it returns.
        inventory: what it decides on.
        store: for what the shell itself has to remember.
        jobs: orders to Torque.
        scheduler: the local one: looked at under its lock, and what it must keep off.
    """

    def __init__(
        self, config: SiteConfig, guest: Guest, admission: Admission, keep: Callable[[], None],
        inventory: NodeInventory, store: SiteStore, jobs: TorqueJobs, scheduler: LocalScheduler,
    ) -> None:  # fmt: skip
        self._config, self.guest, self._admission, self._keep = config, guest, admission, keep
        self.inventory, self._store, self._jobs = inventory, store, jobs
        self._scheduler = scheduler
        self._blocks = {token: HostedBlock(**value) for token, value in store.blocks().items()}
        self._open: dict[Token, tuple[str, BarrierAnswer]] = {}
        self._away: set[tuple[Token, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._submitting: set[Token] = set()
        self._ending: set[Token] = set()
        self.troubles: list[dict[str, Any]] = store.fact(_TROUBLES) or []
        """What could not be brought home lately, oldest first: at_s, token, user, why."""
        self._refused: set[Token] = set()
        """Granted by the engine, but reserved by somebody else in the same moment."""
        self.wake = asyncio.Event()
        """Set when the server should be looked at soon."""
        self.push: Callable[[str, Any], None] = lambda site, message: None
        """Sends what a home was not asking for, but may want to know."""

    @property
    def n_grants(self) -> int:
        """Holds and committed claims."""
        return len(self.guest.grants(instant()))

    @property
    def n_blocks(self) -> int:
        """Blocks here."""
        return len(self._blocks)

    def start(self, boot: str) -> None:
        """Take up what was left."""
        self._push(self._perform(self.guest.restart(boot, instant())))
        # A hold that was granted, but not yet mirrored when we were killed.
        grants = self.guest.grants(instant())
        for grant in grants:
            self._scheduler.hold(grant, instant())
        self._scheduler.keep_only(frozenset(str(grant.token) for grant in grants))
        for text, block in list(self._blocks.items()):
            known = self.guest.block(_token(text))
            if (known is None or not known.state.live) and (block.is_over or not block.job):
                self._save(_token(text), None)  # killed before that was written

    async def stop(self) -> None:
        """Leave what is under way to the next life."""
        await cancelled(*self._tasks)

    # -- what others ask

    async def handle(self, peer: str, message: Any) -> Any:
        """One message of a proved peer; the reply, or None when there is none yet."""
        if isinstance(message, Confirm):
            return await self._confirm(peer, message)
        return self._reply(self._perform(self.guest.apply(From(SiteId(peer), message), instant())))

    async def _confirm(self, peer: str, message: Confirm) -> Any:
        arrived_s = time.monotonic()
        async with self.looked_at(message.token):
            # The time we took ourselves is no difference of the clocks.
            waited_s = time.monotonic() - arrived_s
            fresh = replace(message, sent_s=message.sent_s + waited_s)
            replies = self._perform(self.guest.apply(From(SiteId(peer), fresh), instant()))
        if message.token not in self._refused:
            return self._reply(replies)
        self._refused.discard(message.token)
        undo = Release(message.token, message.site, time.time())
        self._perform(self.guest.apply(From(SiteId(peer), undo), instant()))
        return NotReady(message.token, message.site, time.time(), Refusal.BUSY)

    @asynccontextmanager
    async def looked_at(self, token: Token | None = None) -> AsyncIterator[None]:
        """No cycle runs meanwhile, and the inventory is of this moment.

        What is kept for the token's job counts as free: a later attempt takes the place of the earlier one.
        """
        async with self._scheduler.look_alone() as look:
            others = [
                grant
                for grant in self.guest.grants(instant())
                if token is None or (grant.token.home, grant.token.job) != (token.home, token.job)
            ]
            self.inventory.renew(look.snapshot, self._scheduler.others(), others)
            yield

    def tick(self) -> float | None:
        """Let the engine look at the clock; when it wants to again, on the monotonic clock."""
        self._feed(Tick())
        return self.guest.wake_s(instant())

    def offer(self, peer: str, asked: Offer) -> Offered:
        """What a peer's user could have here, by the last look."""
        grants = self.guest.grants(instant())
        return offered(self.inventory, self._admission, grants, SiteId(peer), asked, time.time())

    @staticmethod
    def _reply(sends: list[Send]) -> Any:
        return sends[0].message if sends else None

    # -- the barrier

    def stand(self, arrived: AtBarrier) -> BarrierAnswer:
        """A block's script asks."""
        text = next((t for t, block in self._blocks.items() if block.ticket == arrived.ticket), None)
        if text is None:
            return BarrierAnswer(say="cancel", why="this block is not wanted any more")
        token = _token(text)
        self._feed(Arrived(token, arrived.job, arrived.hosts))
        if (token, arrived.job) in self._away:
            return BarrierAnswer(say="cancel", why="another job is this block")
        if text not in self._blocks or self._blocks[text].is_killed:
            return BarrierAnswer(say="cancel", why=self._blocks[text].why if text in self._blocks else "over")
        job, answer = self._open.get(token, ("", None))
        return answer if answer is not None and job == arrived.job else BarrierAnswer(say="wait")

    # -- what the engine orders

    def _perform(self, commands: Iterable[Any]) -> list[Send]:
        sends = []
        for command in commands:
            if isinstance(command, Send):
                sends.append(command)
            else:
                self._order(command)
        return sends

    def _order(self, command: Any) -> None:
        if isinstance(command, Persist):
            self._keep()
        elif isinstance(command, Granted | Taken | Freed):
            self._book(command)
        elif isinstance(command, RunBlock):
            self._run_block(command)
        elif isinstance(command, KillBlock):
            self._kill(command)
        elif isinstance(command, FindBlock):
            self._find(command)
        elif isinstance(command, OpenBarrier):
            answer = BarrierAnswer(say="go", hosts=command.hosts, sites=tuple(command.sites))
            self._open[command.token] = (command.job_id, answer)
        elif isinstance(command, Rejection):
            self._away.add((command.token, command.job_id))
            self._spawn(self._delete(JobId(command.job_id), "another job is this block"))

    def _book(self, command: Granted | Taken | Freed) -> None:
        """Tell the local scheduler what it must keep off."""
        grant = command.grant
        if isinstance(command, Freed):
            self._scheduler.release(str(grant.token))
            self._open.pop(grant.token, None)
            return
        is_held = self._scheduler.hold(grant, instant())
        if isinstance(command, Granted):
            self.inventory.add(grant)
            if not is_held:
                self._refused.add(grant.token)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a block: %r", task.exception())

    def _save(self, token: Token, block: HostedBlock | None) -> None:
        if block is None:
            self._blocks.pop(str(token), None)
        else:
            self._blocks[str(token)] = block
        self._store.set_block(str(token), asdict(block) if block is not None else None)

    # -- a block's life

    def _run_block(self, order: RunBlock) -> None:
        if order.token in self._submitting:
            return
        block = HostedBlock(
            ticket=secrets.token_hex(16), user=order.local_user, peer=order.token.home, index=order.index,
            order=STATE_FORM.plain(order),
        )  # fmt: skip
        self._save(order.token, block)
        self._go_on(order, block)

    def _go_on(self, order: RunBlock, block: HostedBlock) -> None:
        self._submitting.add(order.token)
        self._spawn(self._submit(order, block))

    async def _submit(self, order: RunBlock, block: HostedBlock) -> None:
        try:
            user = local_user(block.user, self._config.min_uid)
            block.folder = user.pw_dir
            if not block.is_staged:
                await self._jobs.stage(self._config.stage_in, **self._words(order.token, block))
                block.is_staged = True
                self._save(order.token, block)
            await start_of(order, block)
            spec = self._spec(order, block)
            block.order = None
            self._save(order.token, block)
            block.job = await self._jobs.submit(spec)
            self._save(order.token, block)
            logger.info("block %s is job %s of %s", order.token, block.job, block.user)
            if block.is_killed:
                await self._jobs.delete(JobId(block.job), block.why)
                return
            self._feed(BlockSubmitted(order.token, block.job))
            trouble = await self._started(order, block, spec)
            if trouble:
                logger.warning("block %s: qrun: %s", order.token, trouble)
                await self._jobs.delete(JobId(block.job), "the block could not be started")
                self._over(order.token, BlockFailed(order.token, f"qrun: {trouble}"))
        except TorqueSchedError as error:
            logger.warning("block %s: %s", order.token, error)
            self._over(order.token, BlockFailed(order.token, error.message[:400]))
        finally:
            self._submitting.discard(order.token)
            self.wake.set()

    async def _started(self, order: RunBlock, block: HostedBlock, spec: BlockJob) -> str:
        """`qrun`; again as long as its nodes are just being left; why it could not be started."""
        while True:
            trouble, is_busy = await self._jobs.start(JobId(block.job), spec.allocation)
            if not is_busy or block.is_killed or time.time() > order.start_s + _LATE_NODES_S:
                return trouble
            await asyncio.sleep(_QRUN_AGAIN_S)

    def _spec(self, order: RunBlock, block: HostedBlock) -> BlockJob:
        grant = next((g for g in self.guest.grants(instant()) if g.token == order.token), None)
        if grant is None:
            raise TorqueSchedError("its nodes are not held any more")
        barrier = self._config.barrier
        host = f"[{barrier.address}]" if ":" in barrier.address else barrier.address
        script = BlockScript(
            ticket=block.ticket, url=f"http://{host}:{barrier.port}/barrier", home=order.token.home,
            job=order.token.job, site=self._config.name, index=order.index, count=order.count,
            script=encoded(order.script), wait_s=order.walltime_s,
        )  # fmt: skip
        return BlockJob(
            token=str(order.token), user=block.user, name=f"grid-{order.token.home}-{order.index}"[:15],
            allocation=shares_of(grant.pieces), walltime_s=order.walltime_s,
            script=block_script(script, barrier.interpreter),
        )  # fmt: skip

    def _words(self, token: Token, block: HostedBlock) -> dict[str, str]:
        return {
            "user": block.user, "job": token.job, "token": str(token), "block": str(block.index),
            "peer": token.home, "folder": block.folder,
        }  # fmt: skip

    def _kill(self, order: KillBlock) -> None:
        block = self._blocks.get(str(order.token))
        if block is None:
            self._feed(BlockFailed(order.token, "there is no such block"))
            return
        if not block.is_killed:
            block.is_killed, block.why = True, order.why[:200]
            self._save(order.token, block)
        job = order.job_id or block.job
        if block.is_over:
            if order.token not in self._ending:
                self._over(order.token, BlockEnded(order.token, block.exit_status))
        elif job:
            self._spawn(self._delete(JobId(job), block.why))
        elif order.token not in self._submitting:
            self._over(order.token, BlockFailed(order.token, "it was never submitted"))

    async def _delete(self, job: JobId, why: str) -> None:
        await self._jobs.delete(job, why)
        self.wake.set()

    def _find(self, order: FindBlock) -> None:
        block = self._blocks.get(str(order.token))
        if block is None:
            self._feed(BlockFailed(order.token, "there is no such block"))
        elif block.is_over:
            self._feed(JobOver(order.token, block.exit_status))
            self._ending.add(order.token)
            self._spawn(self._end(order.token, block))
        elif block.order is not None and not block.is_killed:
            self._go_on(STATE_FORM.value(block.order), block)
        elif block.lost_s is None:
            block.lost_s = time.time()
            self._save(order.token, block)
            self.wake.set()

    def _feed(self, event: Any) -> None:
        self._push(self._perform(self.guest.apply(event, instant())))

    def _push(self, sends: list[Send]) -> None:
        for send in sends:
            self.push(send.to, send.message)

    def _over(self, token: Token, event: BlockEnded | BlockFailed) -> None:
        self._feed(event)
        self._save(token, None)
        self._ending.discard(token)
        self._open.pop(token, None)
        self._away = {pair for pair in self._away if pair[0] != token}

    # -- looking

    async def seen(self, look: Look) -> None:
        """Compare what there should be with what the server has."""
        variables = variables_of(look.outputs)
        by_token = {known.get(BLOCK_VARIABLE, ""): job for job, known in variables.items()}
        snapshot = look.snapshot
        self.inventory.renew(snapshot, self._scheduler.others(), self.guest.grants(instant()))
        for text, block in list(self._blocks.items()):
            token = _token(text)
            if token in self._submitting or block.is_over:
                continue
            if not block.job and text in by_token:
                self._found(token, block, JobId(by_token[text]))
            job = snapshot.job_by_id.get(JobId(block.job)) if block.job else None
            await self._judge(token, block, job, look)
        await self._delete_strays(look, variables)

    def _found(self, token: Token, block: HostedBlock, job: JobId) -> None:
        block.job, block.lost_s = job, None
        self._save(token, block)
        self._feed(BlockSubmitted(token, job))

    async def _judge(self, token: Token, block: HostedBlock, job: Job | None, look: Look) -> None:
        if job is not None:
            block.n_missing = 0
            if job.state.is_final:
                self._ended(token, block, job)
            elif block.is_killed:
                await self._jobs.delete(job.id, block.why)
            elif job.state is JobState.QUEUED:
                await self._start_again(token, job)
        elif block.job:
            # Damaged records are left out of a look, and a block that runs must not be taken for gone.
            block.n_missing = 0 if look.problems else block.n_missing + 1
            if block.n_missing >= _MISSING_LOOKS:
                self._ended(token, block, None)
        elif block.lost_s is not None and (block.is_killed or time.time() - block.lost_s >= _FIND_S):
            self._ended(token, block, None)

    async def _start_again(self, token: Token, job: Job) -> None:
        grant = next((g for g in self.guest.grants(instant()) if g.token == token), None)
        if grant is not None:
            await self._jobs.start(job.id, shares_of(grant.pieces))

    def _ended(self, token: Token, block: HostedBlock, job: Job | None) -> None:
        """Its job is over; what it left may have to be brought home first, which may take long."""
        if token in self._ending:
            return
        if job is None and not block.job:
            self._over(token, BlockFailed(token, "its job was never seen"))
            return
        block.exit_status = job.exit_status if job is not None else None
        known = self.guest.block(token)
        ran = known is not None and known.state is BlockState.RUNNING
        if not ran or block.is_killed or not self._config.stage_out:
            self._over(token, BlockEnded(token, block.exit_status))
            return
        block.is_over = True
        self._save(token, block)
        self._feed(JobOver(token, block.exit_status))
        self._ending.add(token)
        self._spawn(self._end(token, block))

    async def _end(self, token: Token, block: HostedBlock) -> None:
        """Bring home what it left, as often as it takes, but not for ever."""
        why = ""
        while not block.is_killed:
            try:
                await self._jobs.stage(self._config.stage_out, **self._words(token, block))
                why = ""
                break
            except TorqueSchedError as error:
                block.n_out += 1
                why = f"stage_out failed ({block.n_out} of {self._config.stage_out_tries}): {error.message}"[
                    :250
                ]
                logger.warning("block %s: %s", token, why)
                self._note_trouble(token, block, why)
            if block.n_out >= self._config.stage_out_tries:
                break
            self._save(token, block)
            self._feed(StageTrouble(token, why))
            await pause(self._config.stage_out_pause_s * 2.0 ** (block.n_out - 1), block)
        self._over(token, BlockEnded(token, block.exit_status, why))

    def _note_trouble(self, token: Token, block: HostedBlock, why: str) -> None:
        """For `status`: the last of each block, and the blocks that had some lately."""
        kept = [each for each in self.troubles if each["token"] != str(token)]
        kept.append({"at_s": time.time(), "token": str(token), "user": block.user, "why": why})
        self.troubles = kept[-_MOST_TROUBLES:]
        self._store.set_fact(_TROUBLES, self.troubles)

    def described(self) -> list[dict[str, Any]]:
        """For `status`: each block here, and how it stands."""
        found = []
        for text, block in self._blocks.items():
            known = self.guest.block(_token(text))
            state = known.state.value if known is not None else "unknown"
            job = {"token": text, "user": block.user, "job": block.job, "state": state}
            found.append({**job, "why": known.why if known is not None else block.why})
        return found

    async def _delete_strays(self, look: Look, variables: dict[str, dict[str, str]]) -> None:
        """Jobs of blocks that are over, or a second job of one."""
        for name, known in variables.items():
            text = known.get(BLOCK_VARIABLE, "")
            job = look.snapshot.job_by_id.get(JobId(name))
            if not text or job is None or job.state.is_final:
                continue
            block = self._blocks.get(text)
            is_ours = block is not None and (block.job == name or not block.job)
            if not is_ours and not any(str(token) == text for token in self._submitting):
                logger.warning("job %s is of block %s, which is over: deleted", name, text)
                await self._jobs.delete(JobId(name), "the block is over")


def _token(text: str) -> Token:
    home, job, attempt = text.split("/")
    return Token(SiteId(home), job, int(attempt))
