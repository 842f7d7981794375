"""Grid jobs among sites whose links, services and machines fail at any moment.

At every instant: a node has one owner, a job runs in one place, a body starts only when all its blocks
have arrived. And when everything is well again, every job has an end and nothing is left behind.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from tests.unit.torque.grid.sites import Crash, Site, World
from torque_sched.grid.handshake.guest import BlockFailed
from torque_sched.grid.handshake.home_job import Cancel, Reschedule
from torque_sched.grid.handshake.messages import SiteId

NAMES = ("a", "b", "c")
names = st.sampled_from([SiteId(name) for name in NAMES])
asks = st.dictionaries(names, st.integers(1, 2), min_size=1, max_size=3).map(lambda ask: tuple(ask.items()))
picks = st.integers(0, 1_000_000)
later = st.sampled_from([0.0, 0.0, 5.0, 60.0, 400.0, 1000.0])
stories = st.tuples(names, st.lists(asks, min_size=1, max_size=2), later)


class Grid(RuleBasedStateMachine):
    world: World
    jobs: int = 0

    @initialize(
        ahead=st.tuples(*[st.floats(-0.2, 0.2)] * 3),
        first=stories,
        second=stories,
        stages=st.tuples(*[st.booleans()] * 3),
    )
    def begin(self, ahead: tuple[float, ...], first: Any, second: Any, stages: tuple[bool, ...]) -> None:
        self.world = World(dict.fromkeys(NAMES, 2), dict(zip(NAMES, ahead, strict=True)))
        for site, does in zip(self.world.sites.values(), stages, strict=True):
            site.stages = does
        self.submit(*first)
        self.submit(*second)

    def guarded(self, site: Site, call: Any, *args: Any, **more: Any) -> None:
        try:
            call(*args, **more)
        except Crash:
            site.restart()

    @precondition(lambda self: self.jobs < 4)
    @rule(home=names, wishes=st.lists(asks, min_size=1, max_size=2), later_s=later)
    def submit(self, home: SiteId, wishes: list[Any], later_s: float) -> None:
        self.jobs += 1
        self.world.submit(home, str(self.jobs), wishes, later_s)

    @rule(pick=picks, count=st.integers(1, 30))
    def deliver(self, pick: int, count: int) -> None:
        for _ in range(count):
            ready = self.world.open_links()
            if ready:
                self.world.deliver(ready[pick % len(ready)])

    @precondition(lambda self: self.world.letters)
    @rule(pick=picks)
    def copy(self, pick: int) -> None:
        ready = self.world.open_links()
        if ready:
            self.world.deliver(ready[pick % len(ready)], keep=True)

    @precondition(lambda self: self.world.letters)
    @rule(pick=picks)
    def lose(self, pick: int) -> None:
        self.world.letters.pop(pick % len(self.world.letters))

    @rule(length_s=st.sampled_from([0.3, 0.3, 1.0, 1.0, 3.0, 3.0, 20.0, 70.0, 200.0, 650.0]))
    def wait(self, length_s: float) -> None:
        self.world.wait(length_s)

    @rule(one=names, other=names)
    def cut(self, one: SiteId, other: SiteId) -> None:
        self.world.cut ^= {frozenset((one, other))}

    @rule(name=names, reboot=st.booleans())
    def crash(self, name: SiteId, reboot: bool) -> None:
        self.world.sites[name].restart(reboot=reboot)

    @rule(name=names, after=st.integers(0, 4))
    def crash_amid(self, name: SiteId, after: int) -> None:
        self.world.sites[name].die_after = after

    @rule(name=names, pick=picks, works=st.booleans(), told=st.booleans())
    def take(self, name: SiteId, pick: int, works: bool, told: bool) -> None:
        site = self.world.sites[name]
        if site.pending:
            self.guarded(site, site.take, pick % len(site.pending), works=works, told=told)

    @rule(name=names, pick=picks, end=st.booleans())
    def batch(self, name: SiteId, pick: int, end: bool) -> None:
        site = self.world.sites[name]
        jobs = [job for job in site.batch if not job.over]
        if jobs:
            job = jobs[pick % len(jobs)]
            act = site.end if job.doomed or (job.body and end) else site.arrive
            self.guarded(site, act, job)

    @rule(name=names, pick=picks, works=st.booleans())
    def stage(self, name: SiteId, pick: int, works: bool) -> None:
        site = self.world.sites[name]
        if site.staging:
            self.guarded(site, site.stage, pick % len(site.staging), works=works)

    @rule(name=names, pick=picks)
    def node_down(self, name: SiteId, pick: int) -> None:
        """A batch job is lost without an exit status."""
        site = self.world.sites[name]
        jobs = [job for job in site.batch if not job.over]
        if jobs:
            job = jobs[pick % len(jobs)]
            job.over = True
            self.guarded(site, site.tell_guest, BlockFailed(job.token, "its node is down"))

    @rule(rounds=st.integers(1, 10), asleep=st.none() | names)
    def go_well(self, rounds: int, asleep: SiteId | None) -> None:
        """A while without faults, so that stories get far; the batch system of one site may do nothing."""
        for _ in range(rounds):
            self.world.deliver_all()
            for site in self.world.sites.values():
                if site.name == asleep:
                    continue
                self.guarded(site, site.take_due)
                for job in [job for job in site.batch if not job.over and not job.body]:
                    self.guarded(site, site.end if job.doomed else site.arrive, job)
            self.world.wait(0.5)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, event=st.sampled_from([Cancel(), Reschedule()]))
    def tell(self, pick: int, event: Cancel | Reschedule) -> None:
        """A job is cancelled, or one whose start is reserved is placed anew."""
        home, name = sorted(self.world.wishes)[pick % len(self.world.wishes)]
        self.guarded(self.world.sites[home], self.world.sites[home].tell_job, name, event)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestGrid = Grid.TestCase
TestGrid.settings = settings(max_examples=examples(150), stateful_step_count=40)
