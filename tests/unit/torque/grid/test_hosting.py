"""The shell around a block's life, with a Torque that only notes its orders: kills, tries, what is told."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import NEEDS_ROOT
from tests.fixtures.torque_builders import node
from tests.fixtures.waiting import soon
from tests.unit.torque.grid.test_block import TICKET, text_of
from torque_sched.adapters.commands import Commands
from torque_sched.batch.documents import hosts_text
from torque_sched.batch.torque.pbs import Pbs
from torque_sched.errors import CommandError, ConfigError
from torque_sched.grid.handshake.blocks import BlockReport, BlockState, Go, Look, Submit
from torque_sched.grid.handshake.messages import Claim, Commit, Confirm, Piece, Ready, SiteId, Token
from torque_sched.grid.site.blocks import AtBarrier, Barrier, BarrierAnswer
from torque_sched.grid.site.config import SiteConfig, admission_of
from torque_sched.grid.site.hosting import Hosting, open_guest
from torque_sched.grid.site.messages import Offer
from torque_sched.grid.site.site_files import SiteStore, check_files
from torque_sched.grid.site.torque_jobs import BlockJob, TorqueJobs, local_user
from torque_sched.model.cluster import JobId, NodeName, Server
from torque_sched.model.decisions import NodeShare
from torque_sched.model.snapshot import Snapshot

PEER = {"name": "alpha", "address": "x", "certificate": "c", "users": {"ann": "nobody"}, "max_slots": 8}
CONFIG = SiteConfig(
    name="beta", listen="x", certificate="c", key="k", min_uid=1, stage_in=["in"], stage_out=["out"],
    stage_out_tries=3, stage_out_pause_s=0.01, peers=[PEER],
)  # fmt: skip
HOME, HERE = SiteId("alpha"), SiteId("beta")
TOKEN = Token(HOME, "1.alpha", 1)


class Torque:
    """Notes orders; `wait` holds staging up, `fails` are the answers of the next tries."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, ...]] = []
        self.wait: asyncio.Event | None = None
        self.fails: list[str] = []
        self.busy = 0

    async def stage(self, template: tuple[str, ...], **words: str) -> None:
        self.orders.append((*template, words["user"]))
        if self.wait is not None:
            await self.wait.wait()
        if self.fails and self.fails.pop(0):
            raise CommandError("no space")

    async def submit(self, block: BlockJob) -> JobId:
        self.orders.append(("qsub", hosts_text(block.allocation)))
        return JobId("7.beta")

    async def start(self, job: JobId, allocation: tuple[NodeShare, ...]) -> tuple[str, bool]:
        self.orders.append(("qrun", job))
        self.busy -= 1
        return ("full", True) if self.busy >= 0 else ("", False)

    async def delete(self, job: JobId, why: str) -> bool:
        self.orders.append(("qdel", job))
        return True

    def names(self) -> list[str]:
        return [order[0] for order in self.orders]


class Scheduler:
    """Nobody else wants nodes here."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    @asynccontextmanager
    async def look_alone(self) -> AsyncIterator[Any]:
        nodes = (node("n1", np=4), node("n2", np=4))
        yield SimpleNamespace(snapshot=Snapshot(time.time(), Server(name="head"), (), nodes, ()))

    def others(self) -> list[Any]:
        return []

    def hold(self, grant: Any, now: Any) -> bool:
        self.held.add(str(grant.token))
        return True

    def release(self, token: str) -> None:
        self.held.discard(token)

    def keep_only(self, tokens: frozenset[str]) -> None:
        self.held &= tokens


class Site:
    """One life of the site's shell on a store; `next_life` is after a kill."""

    def __init__(self, path: Path, torque: Torque, scheduler: Scheduler, lives: list[Site]) -> None:
        self.path, self.torque, self.scheduler, self.lives = path, torque, scheduler, lives
        lives.append(self)
        self.store = SiteStore(path)
        admission = admission_of(CONFIG)
        guest, keep, inventory = open_guest(CONFIG, admission, self.store)
        self.hosting = Hosting(CONFIG, guest, admission, keep, inventory, self.store, torque, scheduler)  # type: ignore[arg-type]
        self.pushed: list[BlockReport] = []
        self.hosting.push = lambda home, message: self.pushed.append(message)
        self.hosting.start("boot")

    async def next_life(self) -> Site:
        await self.hosting.stop()
        self.store.close()
        return Site(self.path, self.torque, self.scheduler, self.lives)

    async def told(self, kind: Any, *words: Any) -> Any:
        return await self.hosting.handle("alpha", kind(TOKEN, HERE, time.time(), *words))

    async def state(self) -> BlockState:
        return (await self.told(Look)).state  # type: ignore[no-any-return]

    async def block(self, start_s: float) -> None:
        claim = Claim((Piece("", 2, count=2),), start_s, 600.0)
        await self.told(Confirm, claim, "ann")
        await self.told(Commit)
        await self.told(Submit, 0, 1, "ann", "grid", 500, "#!/bin/sh\n")

    async def running(self) -> None:
        await self.block(time.time())
        await soon(lambda: "qrun" in self.torque.names())
        ticket = next(iter(self.store.blocks().values()))["ticket"]
        self.hosting.stand(SimpleNamespace(ticket=ticket, job="7.beta", hosts=("n1",)))  # type: ignore[arg-type]
        assert (await self.told(Go, (HERE,), (("n1",),))).state is BlockState.RUNNING

    async def ends(self) -> None:
        """A look shows that its job is over."""
        over = SimpleNamespace(id=JobId("7.beta"), state=SimpleNamespace(is_final=True), exit_status=3)
        snapshot = Snapshot(time.time(), Server(name="head"), (), (), ())
        found = SimpleNamespace(outputs={"jobs": b""}, problems=(), snapshot=snapshot)
        snapshot.__dict__["job_by_id"] = {over.id: over}
        await self.hosting.seen(found)  # type: ignore[arg-type]


@pytest.fixture
def site(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[Site]:
    """Its first life; the last one ends with the test."""

    async def begin() -> Site:
        return Site(tmp_path / "site.sqlite", Torque(), Scheduler(), [])

    first = loop.run_until_complete(begin())
    yield first
    loop.run_until_complete(first.lives[-1].hosting.stop())
    first.lives[-1].store.close()


async def test_a_block_that_waits_for_its_start_goes_on_after_a_kill(site: Site) -> None:
    await site.block(time.time() + 6.0)  # the store is written on a disk that others use, too
    await soon(lambda: next(iter(site.store.blocks().values()))["is_staged"])
    risen = await site.next_life()
    assert await risen.state() is BlockState.SUBMITTING
    assert risen.scheduler.held == {str(TOKEN)}
    await soon(lambda: "qrun" in site.torque.names())
    assert await risen.state() is BlockState.SUBMITTED
    assert site.torque.names() == ["in", "qsub", "qrun"]  # its files were there already
    assert site.torque.orders[1] == ("qsub", "n1:ppn=2+n2:ppn=2")


async def test_a_qsub_that_may_have_been_called_is_never_called_again(site: Site) -> None:
    never = asyncio.Event()

    async def submit(block: BlockJob) -> JobId:
        site.torque.orders.append(("qsub", hosts_text(block.allocation)))
        await never.wait()
        raise AssertionError

    site.torque.submit = submit  # type: ignore[method-assign]
    await site.block(time.time())
    await soon(lambda: "qsub" in site.torque.names())
    risen = await site.next_life()
    for _ in range(3):
        await asyncio.sleep(0.02)
    assert await risen.state() is BlockState.SUBMITTING
    assert site.torque.names() == ["in", "qsub"]


async def test_files_that_were_coming_are_fetched_again_after_a_kill(site: Site) -> None:
    site.torque.wait = asyncio.Event()
    await site.block(time.time())
    await soon(lambda: site.torque.orders)
    site.torque.wait.set()
    await site.next_life()
    await soon(lambda: "qrun" in site.torque.names())
    assert site.torque.names() == ["in", "in", "qsub", "qrun"]


async def test_nodes_that_are_just_being_left_are_waited_for(site: Site) -> None:
    site.torque.busy = 1
    await site.block(time.time())
    await soon(lambda: site.torque.names().count("qrun") == 2)
    await asyncio.sleep(0)
    assert await site.state() is BlockState.SUBMITTED
    assert "qdel" not in site.torque.names()


async def test_files_go_home_in_several_tries_though_it_is_killed_amid(site: Site) -> None:
    await site.running()
    site.torque.wait, site.torque.fails = asyncio.Event(), ["no", ""]
    await site.ends()
    await soon(lambda: "out" in site.torque.names())
    assert await site.state() is BlockState.STAGING
    assert not site.scheduler.held  # its nodes are free
    risen = await site.next_life()
    site.torque.wait.set()
    await soon(lambda: not risen.hosting.n_blocks)
    told = await risen.told(Look)
    assert (told.state, told.exit_status, told.why) == (BlockState.ENDED, 3, "")
    assert [each.why for each in risen.pushed if each.why] == ["stage_out failed (1 of 3): no space"]
    assert [each["user"] for each in risen.hosting.troubles] == ["nobody"]
    assert not risen.store.blocks()


async def test_files_that_never_go_home_are_given_up_and_that_is_told(site: Site) -> None:
    await site.running()
    site.torque.fails = ["no"] * 9
    await site.ends()
    await soon(lambda: not site.hosting.n_blocks)
    told = await site.told(Look)
    assert (told.state, told.exit_status) == (BlockState.ENDED, 3)
    assert told.why == site.hosting.troubles[-1]["why"] == "stage_out failed (3 of 3): no space"
    assert site.torque.names().count("out") == 3


async def test_what_was_not_forgotten_before_a_kill_is_afterwards(site: Site) -> None:
    """The engine knows that the block is over, the record of the shell is still there."""
    await site.running()
    await site.ends()
    record = next(iter(site.store.blocks().values()))
    await soon(lambda: not site.hosting.n_blocks)
    site.store.set_block(str(TOKEN), {**record, "is_over": True})
    risen = await site.next_life()
    assert risen.hosting.n_blocks == 0
    assert not risen.store.blocks()


async def test_a_later_attempt_takes_the_place_of_the_earlier_one_on_the_same_nodes(site: Site) -> None:
    await site.block(time.time() + 500.0)
    later = Token(HOME, TOKEN.job, 2)
    claim = Claim((Piece("", 4, count=2),), time.time(), 600.0)

    async def asked() -> Any:
        return await site.hosting.handle("alpha", Confirm(later, HERE, time.time(), claim, "ann"))

    assert await asked() is None  # the block of the first is still to go
    await soon(lambda: not site.hosting.n_blocks)
    assert isinstance(await asked(), Ready)
    assert site.scheduler.held == {str(later)}


async def test_an_offer_counts_what_the_peer_may_have(site: Site) -> None:
    async with site.hosting.looked_at():
        pass

    def free(**changes: Any) -> list[int]:
        plain = {"user": "ann", "job": "2.alpha", "nodes": 2, "ppn": 4, "lengths_s": (60.0, 1e6)}
        asked = Offer(**{**plain, **changes})
        return [outlook[0][1] for outlook in site.hosting.offer("alpha", asked).outlooks]

    assert free() == [2, 0]  # a day at most
    assert free(ppn=5) == [0, 0]  # no such nodes
    assert free(user="bob") == free(gpus=1) == free(properties=("fast",)) == [0, 0]
    await site.block(time.time() + 30.0)  # two nodes of 2 slots each: 4 of its 8 slots
    assert free() == [0, 0]  # and no more nodes
    assert free(job=TOKEN.job) == [2, 0]  # its own it could give up


# A block's process really is the user it is mapped to, by `runuser` as is the default; root never is one.


USER = "nobody"
QSUB = """#!/bin/sh
# What qsub and pbs_mom do, in one: runs the script as whoever calls, and notes who that is.
for script; do :; done
cat "$script" > {out}/job.sh || exit 9
stat -c '%U %a' "$script" > {out}/script
{{ id -un; id -G; echo "$HOME $USER $LOGNAME"; }} > {out}/who
PBS_JOBID=7.beta setsid sh {out}/job.sh > {out}/stdout 2> {out}/stderr < /dev/null &
echo 7.beta
"""
BODY = """#!/bin/sh
id -un
id -G
grep -E '^(Uid|Gid|CapEff)' /proc/self/status
cat {secret} 2> /dev/null || echo "no secret"
touch {out}/made
"""
HOSTS = {"name": "beta", "listen": "x", "certificate": "c", "key": "k"}


@pytest.fixture
def folder(open_path: Path) -> Path:
    """A folder that users may pass through, as the site's folder is."""
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    open_path.chmod(0o711)
    return open_path


def torque_of(folder: Path) -> TorqueJobs:
    """Orders to the stand-in for Torque, with the settings' own words before qsub."""
    for name, mode in (("out", 0o1777), ("bin", 0o755), ("scripts", 0o711)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    qsub = folder / "bin" / "qsub"
    qsub.write_text(QSUB.format(out=folder / "out"))
    qsub.chmod(0o755)
    config = SiteConfig(**HOSTS, min_uid=1)
    assert config.become[0] == "runuser"
    path = f"{folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    runs = Commands({"PATH": path, "HOME": "/root", "USER": "root"})
    return TorqueJobs(runs, Pbs(runs, lambda: 0.0), config, folder / "scripts", folder)


async def started(jobs: TorqueJobs, body: str, made: Path) -> list[AtBarrier]:
    """Submit a block, let it go at the barrier, and wait for what it makes; who stood there."""
    stood: list[AtBarrier] = []

    def answer(arrived: AtBarrier) -> BarrierAnswer:
        stood.append(arrived)
        return BarrierAnswer(say="go", hosts=(("n1",), ("m1",)), sites=("alpha", "beta"))

    barrier = Barrier(answer)
    await barrier.start("127.0.0.1", 0)
    allocation, script = (NodeShare(NodeName("n1"), 2),), text_of(barrier.port, body)
    block = BlockJob("alpha/1.alpha/1", USER, "grid-alpha-1", allocation, 60.0, script)
    assert await jobs.submit(block) == "7.beta"
    while not made.exists():  # noqa: ASYNC110, ASYNC240 -- another process makes it
        await asyncio.sleep(0.05)
    await barrier.stop()
    return stood


@pytest.mark.root
async def test_a_blocks_process_is_the_mapped_user_and_nothing_of_root_is_left_to_it(folder: Path) -> None:
    secret, out = folder / "site.key", folder / "out"
    secret.write_text("secret")
    secret.chmod(0o600)
    jobs = torque_of(folder)
    stood = await started(jobs, BODY.format(secret=secret, out=out), out / "made")
    user = pwd.getpwnam(USER)
    groups = " ".join(str(gid) for gid in os.getgrouplist(USER, user.pw_gid))
    who = (out / "who").read_text().splitlines()
    assert who == [USER, groups, f"{user.pw_dir} {USER} {USER}"]
    assert (out / "script").read_text() == f"{USER} 400\n"
    assert list((folder / "scripts").iterdir()) == []
    told = (out / "stdout").read_text().splitlines()
    assert told[:2] == [USER, groups]
    ids = [[str(number)] * 4 for number in (user.pw_uid, user.pw_gid)]
    assert [line.split()[1:] for line in told[2:4]] == ids
    assert told[4].split() == ["CapEff:", "0000000000000000"]
    assert told[5] == "no secret"
    assert (out / "made").owner() == USER
    assert [arrived.ticket for arrived in stood] == [TICKET]


@pytest.mark.parametrize(
    "name", ["root", "0", "+0", "-0", "0x0", "", " root", "root ", "root\n", "ROOT", "root\0x", "\u2160"]
)
def test_no_spelling_of_root_is_a_user(name: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown on this machine|is root or in its group"):
        local_user(name, 1)


@pytest.mark.parametrize(("uid", "gid", "more"), [(0, 12, ()), (12, 0, ()), (12, 12, (0,))])
def test_neither_uid_0_nor_its_group_in_any_way(
    monkeypatch: pytest.MonkeyPatch, uid: int, gid: int, more: tuple[int, ...]
) -> None:
    """By another name, as the user's own group, or as one group among others."""
    user = pwd.struct_passwd(("ann", "x", uid, gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: user)
    monkeypatch.setattr(os, "getgrouplist", lambda name, own: [own, *more])
    with pytest.raises(ConfigError, match="is root or in its group"):
        local_user("ann", 1)


@pytest.mark.root
def test_root_may_not_submit_blocks_as_itself(folder: Path) -> None:
    (folder / "server_priv").mkdir()
    with pytest.raises(ConfigError, match=r"become: .* as root"):
        check_files(folder, SiteConfig(**HOSTS, become=[]))
